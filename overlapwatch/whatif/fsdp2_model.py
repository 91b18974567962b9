"""One recorded FSDP2 run as a model that can be asked about a setting.

In: what the ranks of one host recorded. Out: a `Model`; `ask` gives the numbers of its steps under a setting. How long
a collective takes is fitted to those that were recorded, by kind: sizes are the same under all settings, so that it is
asked only for what it was fitted to, unless parameters were never gathered for backward.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.spread import median
from overlapwatch.accounting.summarize import summarize
from overlapwatch.accounting.units.residency import residency
from overlapwatch.accounting.window import steps_window
from overlapwatch.timeline.model import I64, Timeline
from overlapwatch.vocabulary import NOT_KNOWN
from overlapwatch.whatif.cost import Cost, InFlight, fit
from overlapwatch.whatif.fsdp2_engines import Course, Job, Lane, course
from overlapwatch.whatif.fsdp2_forecast import Costs, Modelled
from overlapwatch.whatif.fsdp2_items import RankRecord, StepRecord
from overlapwatch.whatif.fsdp2_lanes import device_lanes, host_lanes
from overlapwatch.whatif.fsdp2_link import Carried, candidates, met, most_at_once, services
from overlapwatch.whatif.fsdp2_program import Chain, Order, Setting, order
from overlapwatch.whatif.fsdp2_simulated import simulated

MET = 0.05
"""Collectives that were under way together for a smaller share of their time do not show how they shared the link."""


BETTER = 2 / 3
"""Another link than the likeliest one has to explain single collectives this much better."""


class Model:
    """What is the same under all settings."""

    def __init__(
        self, ranks: Sequence[RankRecord], numbers: Sequence[int], chain: Chain, cost: Cost | None
    ) -> None:
        self.ranks, self.numbers, self.chain = ranks, numbers, chain
        self._size: dict[tuple[int, str], int] = {}
        for number in numbers:
            told = ranks[0].steps[number].collectives
            for kind, module, size in zip(
                told.kind.tolist(), told.module, told.size.tolist(), strict=True
            ):
                self._size[kind, module] = size
        self._groups = {
            (kind, module): group
            for number in numbers
            for kind, module, group in _kinds(ranks[0].steps[number])
        }
        self.carried, self.costs = self._explained(cost)
        self._lane_costs = [
            {
                module: (one.issue_ns.get(module, 0), one.copy_ns.get(module, 0))
                for module in one.modules
            }
            for one in ranks
        ]

    def _explained(self, cost: Cost | None) -> tuple[Carried, Costs]:
        """Return what the link is like, and what a collective costs on it."""
        most, together = 1, []
        for number in self.numbers:
            told = self.ranks[0].steps[number].collectives
            for group in np.unique(told.group):
                mine = told.group == group
                most = max(most, most_at_once(told.begin[mine], told.finish[mine]))
                together.append(met(told.begin[mine], told.finish[mine]))
        self.told_apart = max(together) >= MET
        rank = self.ranks[0]
        found = [
            (carried, self._fitted(carried))
            for carried in candidates(device=rank.device, at_once=most, ranks=rank.group_ranks)
        ]
        (carried, (costs, off)), (other, (others_costs, others_off)) = found
        if self.told_apart and others_off < BETTER * off:
            carried, costs = other, others_costs
        return carried, costs if cost is None else Costs(dict.fromkeys(costs.of, cost))

    def _fitted(self, carried: Carried) -> tuple[Costs, float]:
        """Return what a collective costs on such a link, and how far single collectives are from that (a share)."""
        names = self.ranks[0].steps[self.numbers[0]].collectives.names
        place = {name: i for i, name in enumerate(names)}
        taken = np.array(
            [self._services(number, place, carried) for number in self.numbers], np.int64
        )
        kinds = np.array([_key(name)[0] for name in names])
        sizes = np.array([self._size[_key(name)] for name in names], np.int64)
        found = {}
        off = whole = 0
        for kind in np.unique(kinds).tolist():
            mine = kinds == kind
            found[kind] = fit([_alone(sizes[mine], row[mine]) for row in taken])
            expected = found[kind].of(sizes[mine])
            # A straggler says nothing about the link: it counts as off by all of it.
            off += int(np.minimum(np.abs(taken[:, mine] - expected), expected).sum())
            whole += int(expected.sum()) * len(taken)
        return Costs(found), off / max(whole, 1)

    def _services(self, number: int, place: Mapping[str, int], carried: Carried) -> I64:
        """Return what each collective of a step takes alone, in the order of `place`."""
        told = self.ranks[0].steps[number].collectives
        begin = dict(zip(told.names, told.begin.tolist(), strict=True))
        for peer in self.ranks[1:]:
            theirs = peer.steps[number].collectives
            for name, at in zip(theirs.names, theirs.begin.tolist(), strict=True):
                begin[name] = max(begin[name], at)
        begins = np.array([begin[name] for name in told.names], np.int64)
        begins = np.minimum(begins, told.finish)
        channels = np.array(
            [
                carried.channel(kind, group)
                for kind, group in zip(told.kind.tolist(), told.group.tolist(), strict=True)
            ],
            np.int64,
        )
        took = services(begins, told.finish, channels, carried.link)
        row = np.zeros(len(place), np.int64)
        row[[place[name] for name in told.names]] = took
        return row

    def order_of(self, number: int, setting: Setting) -> Order:
        """Return the told rank's order of a step."""
        told = self.ranks[0]
        return order(told.steps[number], setting, self.chain, told.outermost)

    def ask(self, setting: Setting) -> Modelled:
        """Simulate all steps under a setting."""
        orders = [self.order_of(number, setting) for number in self.numbers]
        sizes: dict[str, int] = {}
        courses = []
        for number, mine in zip(self.numbers, orders, strict=True):
            jobs = {}
            for name in mine.jobs:
                kind, module = _key(name)
                sizes[name] = self._bytes(kind, module)
                service = int(self.costs.of[kind].of(np.array([sizes[name]], np.int64))[0])
                group = self._groups.get((kind, module), 0)
                jobs[name] = Job(service, self.carried.channel(kind, group))
            courses.append(self._course(number, setting, mine, jobs))
        tl = simulated(courses, sizes, self.ranks[0].size)
        return _modelled(tl, sum(len(one.sent) for one in courses))

    def _bytes(self, kind: int, module: str) -> int:
        """Return the size of a collective; of one that was never recorded, that of the parameters."""
        return self._size.get((kind, module)) or self.ranks[0].size.get(module, 0)

    def _course(
        self, number: int, setting: Setting, mine: Order, jobs: Mapping[str, Job]
    ) -> Course:
        begin = self.ranks[0].steps[number].start
        lanes: list[Lane] = []
        for place, one in enumerate(self.ranks):
            step = one.steps[number]
            theirs = order(step, setting, self.chain, one.outermost) if place else mine
            at, costs = step.start - begin, self._lane_costs[place]
            if one.device:
                lanes += device_lanes(place, at, theirs, costs)
            else:
                lanes += host_lanes(place, at, theirs, one, costs)
        return course(lanes, jobs, self.carried.link)


def _alone(sizes: I64, taken: I64) -> InFlight:
    """Return collectives one after another with a gap between: each is a busy period of its own."""
    launch = np.cumsum(taken + 1) - taken
    return InFlight(sizes, launch, launch + taken)


def _kinds(step: StepRecord) -> Iterable[tuple[int, str, int]]:
    told = step.collectives
    return zip(told.kind.tolist(), told.module, told.group.tolist(), strict=True)


def _key(job: str) -> tuple[int, str]:
    kind, _, module = job.split(" ", 2)
    return int(kind), module


def _modelled(tl: Timeline, collectives: int) -> Modelled:
    rows = summarize(tl)
    parts = ("compute_only_ns", "communication_only_ns", "overlap_ns", "idle_ns")
    added = sum(int(rows[part].sum()) for part in parts)
    return replace(
        _numbers(tl, rows),
        collectives=collectives,
        closure=(
            Check(
                "parts of the simulated steps = their time",
                added,
                int((rows["end_ns"] - rows["start_ns"]).sum()),
            ),
        ),
    )


def recorded(tl: Timeline, numbers: Sequence[int]) -> Modelled:
    """Return what was recorded of these steps, by the same accounting."""
    chosen = replace(tl, steps=tl.steps[np.isin(tl.steps["step"], numbers)])
    return _numbers(chosen, summarize(chosen))


def _numbers(tl: Timeline, rows: np.ndarray) -> Modelled:
    steps = tl.steps
    window = steps_window(tl, int(steps["step"].min()), int(steps["step"].max()))
    held = residency(tl, window, steps)
    exposed, tails = rows["communication_only_ns"], rows["tail_ns"]
    length = rows["end_ns"] - rows["start_ns"]
    known = exposed != NOT_KNOWN
    tail = median(tails[tails != NOT_KNOWN])
    return Modelled(
        step_ns=median(length) or 0,
        exposed_ns=median(exposed[known]) or 0,
        tail_ns=tail,
        peak_bytes=held.median_peak_bytes,
        steps_ns=length.astype(np.int64),
        exposures_ns=exposed.astype(np.int64),
    )

"""What one recorded FSDP2 step was made of: work that stays where it was, and marks between it.

In: a Timeline of a job with `fully_shard`. Out: for each whole step in statistics a `StepRecord`: pieces of work, and
marks where parameters were used, gradients reduced, parameters given back. Waits, copies of parameters and the issuing
of all-gathers are cut out of the work: another setting has them elsewhere, or not at all.

    host     use a: gather, wait, copy | issue b | compute a | use b: wait, copy | compute b | reduce b (stands still)
    items    USE a (issues b)                      piece       USE b               piece       REDUCE b

On the host everything is on one lane. On a device the compute stream is the lane, and the host's own time of each use,
which lets a gather begin early, is kept beside it. Pieces and what was cut out add up to the step exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.spread import median
from overlapwatch.accounting.units.modules import owned_by_modules
from overlapwatch.accounting.units.uses import match
from overlapwatch.timeline.model import Timeline
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import (
    OUT_OF_STATISTICS,
    CollectiveKind,
    NameKind,
    Phase,
    RecordFlag,
)
from overlapwatch.whatif.fsdp2_cut import cut
from overlapwatch.whatif.fsdp2_items import (
    GATHER,
    NOT_TOLD,
    Collectives,
    Item,
    Mark,
    MarkKind,
    RankRecord,
    StepRecord,
)

_SYNCHRONOUS = int(RecordFlag.SYNCHRONOUS)


def read_rank(tl: Timeline) -> RankRecord:
    """Return the whole steps in statistics of a timeline; none where uses or times are missing."""
    reader = _Reader(tl)
    steps = {}
    for row in tl.steps[tl.steps["flags"] & OUT_OF_STATISTICS == 0]:
        step = reader.read(row)
        if step is not None:
            steps[step.number] = step
    return RankRecord(
        rank=tl.origin.rank,
        device=reader.device,
        modules=tuple(reader.modules),
        outermost=reader.outermost,
        size=reader.sizes,
        issue_ns=_medians(reader.issue),
        copy_ns=_medians(reader.copied),
        blocking=frozenset(m for m, said in reader.stood.items() if 2 * sum(said) > len(said)),
        steps=steps,
        others=reader.others,
        group_ranks=len(sharing_ranks(tl)) or tl.origin.world or 2,
    )


def outermost_names(tl: Timeline) -> list[str]:
    """Return the names of the models whose forwards were recorded."""
    forward = tl.phases.name[tl.phases.phase == Phase.FORWARD]
    return [tl.names[one].text for one in np.unique(forward).tolist() if one in tl.names]


def sharing_ranks(tl: Timeline) -> frozenset[int]:
    """Return the ranks with which this one gathers parameters, itself included; empty where that is not known."""
    gathers = owned_by_modules(tl.communication, tl.names) & (
        tl.communication["collective"] == GATHER
    )
    groups = np.unique(tl.communication["group"][gathers]).tolist()
    return frozenset(rank for one in groups if one in tl.groups for rank in tl.groups[one].members)


def _medians(values: Mapping[str, list[int]]) -> dict[str, int]:
    return {name: median(np.array(all_, np.int64)) or 0 for name, all_ in values.items()}


class _Reader:
    """Reads one step after another, and gathers what is the modules' own."""

    def __init__(self, tl: Timeline) -> None:
        self.tl = tl
        owned = owned_by_modules(tl.communication, tl.names)
        self.device = bool((tl.communication["stream"][owned] != 0).any())
        self.owned = owned
        layers = [name.id for name in tl.names.values() if name.kind is NameKind.LAYER]
        parameters = tl.uses["collective"] == GATHER
        self.matched, _ = match(tl)
        self.matched = self.matched[~np.isin(self.matched["owner"], layers)]
        self.gradient_waits = tl.uses[~parameters]
        order = dict.fromkeys(self.matched["owner"].tolist())
        self.modules = [self.text(owner) for owner in order]
        forward = tl.phases.phase == Phase.FORWARD
        self.outer = np.unique(tl.phases.name[forward])
        outer = outermost_names(tl)
        self.outermost = next((name for name in outer if name in self.modules), "")
        self.sizes = {self.text(owner): self._size(owner) for owner in order}
        self.issue: dict[str, list[int]] = {}
        self.copied: dict[str, list[int]] = {}
        self.stood: dict[str, list[bool]] = {}
        self.others = 0

    def text(self, owner: int) -> str:
        """Return the name of a module."""
        name = self.tl.names.get(owner)
        return name.text if name else f"module {owner}"

    def _size(self, owner: int) -> int:
        held = self.tl.held[self.tl.held["owner"] == owner]["bytes"]
        return int(held.max()) if len(held) else 0

    def read(self, row: np.void) -> StepRecord | None:
        """Return one step; None where it does not have everything."""
        tl, number, low, high = self.tl, row["step"], int(row["start"]), int(row["end"])
        mine = tl.communication["step"] == number
        # What came after the end of its step (an evaluation before the next one) belongs to none.
        mine &= begin_of(tl.communication) < high
        sent = tl.communication[mine & self.owned]
        sent = sent[np.argsort(sent["launch"], kind="stable")]
        uses = self.matched[(self.matched["step"] == number) & (self.matched["start"] < high)]
        whole = len(sent) and (sent["launch"] != 0).all() and (begin_of(sent) != 0).all()
        if not len(uses) or not whole or not (sent["finish"] >= begin_of(sent)).all():
            return None
        step = _Step(self, row, sent, uses)
        others = tl.communication[mine & ~self.owned]
        step.read_stops(others)
        self.others += len(others) - step.stops
        step.read_reductions()
        step.read_gathers()
        step.read_uses()
        step.read_releases()
        items, cut_ns = step.items(low, high)
        return StepRecord(
            number=int(number),
            start=low,
            end=high,
            items=tuple(items),
            cut_ns=cut_ns,
            collectives=self._collectives(sent),
            held_before=step.held_before(),
        )

    def _collectives(self, sent: NDArray[np.void]) -> Collectives:
        seen: dict[tuple[int, int], int] = {}
        places = []
        for key in zip(sent["collective"].tolist(), sent["owner"].tolist(), strict=True):
            places.append(seen.get(key, 0))
            seen[key] = places[-1] + 1
        begin = np.where(sent["start"] != 0, sent["start"], sent["launch"])
        return Collectives(
            kind=sent["collective"].copy(),
            module=tuple(self.text(owner) for owner in sent["owner"].tolist()),
            place=tuple(places),
            size=sent["bytes"].astype(np.int64),
            begin=begin,
            finish=sent["finish"].astype(np.int64),
            group=sent["group"].copy(),
        )


class _Step:
    """One step while it is read: marks with their times, and spans that are cut out of the lane."""

    def __init__(
        self, reader: _Reader, row: np.void, sent: NDArray[np.void], uses: NDArray[np.void]
    ) -> None:
        self.r, self.tl, self.row = reader, reader.tl, row
        self.sent, self.used = sent, uses
        self.number = row["step"]
        self.marks: list[tuple[int, Mark]] = []
        self.cuts: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []  # copies inside a wait that are work all the same
        self.stops = 0
        self.issued: dict[int, list[str]] = {}  # by place among the uses
        self.host_at: dict[int, int] = {}
        low, high = int(row["start"]), int(row["end"])
        copies, held = self.tl.copies, self.tl.held
        near = (copies.start >= low) & (copies.start < high)
        self.copies = [
            (reader.text(name), start, end)
            for name, start, end in zip(
                copies.name[near].tolist(),
                copies.start[near].tolist(),
                copies.end[near].tolist(),
                strict=True,
            )
        ]
        self.held = held[(held["finish"] > low) & (held["start"] < high)]
        self.taken: set[tuple[str, int, int]] = set()  # copies that are known to go in

    def mark(self, at: int, mark: Mark) -> None:
        self.marks.append((at, mark))

    # -- what is cut out ---------------------------------------------------------------------------------------

    def read_stops(self, others: NDArray[np.void]) -> None:
        """Collectives of no module for which the caller stood still."""
        stood = others[(others["flags"] & _SYNCHRONOUS != 0) & (others["finish"] != 0)]
        for one in stood[np.argsort(stood["launch"], kind="stable")]:
            begin = int(begin_of(one[None])[0])
            self.cuts.append((begin, int(one["finish"])))
            took = int(one["finish"]) - begin
            phase, kind = int(one["phase"]), int(one["collective"])
            self.mark(begin, Mark(MarkKind.STOP, "", phase, collective=kind, ns=took))
            self.stops += 1

    def read_reductions(self) -> None:
        """Reductions of the modules, and on a device the waits round them."""
        waits = self.r.gradient_waits
        waits = waits[waits["step"] == self.number]
        if self.r.device:
            self.cuts += list(zip(waits["start"].tolist(), waits["finish"].tolist(), strict=True))
            for at in self._backwards_end(waits):
                self.mark(at, Mark(MarkKind.END, phase=Phase.BACKWARD))
        sent_at: dict[str, int] = {}
        for one in self.sent[self.sent["collective"] != GATHER]:
            module, kind = self.r.text(int(one["owner"])), int(one["collective"])
            told = Mark(MarkKind.REDUCE, module, int(one["phase"]), collective=kind)
            if not self.r.device:
                if one["ready"]:
                    self._take(module, int(one["ready"]), int(one["launch"]))
                self.cuts.append((int(one["launch"]), int(one["finish"])))
                self.mark(int(one["launch"]), told)
                continue
            if kind == CollectiveKind.ALL_REDUCE and module in sent_at:  # behind its reduce-scatter
                self.mark(sent_at[module], told)
                continue
            own = waits[(waits["owner"] == one["owner"]) & (waits["start"] <= one["start"])]
            if not len(own):
                sent_at[module] = int(one["start"])
                self.mark(sent_at[module], told)
                continue
            wait = own[own["start"].argmax()]
            self.mark(int(wait["start"]), Mark(MarkKind.WAIT, module, Phase.BACKWARD))
            copy = self._take(module, int(wait["start"]), int(one["start"]))
            if copy is not None:
                self.kept.append(copy)
            sent_at[module] = copy[1] if copy else int(wait["finish"])
            self.mark(sent_at[module], told)

    def _backwards_end(self, waits: NDArray[np.void]) -> list[int]:
        """Return the ends of the waits at the ends of backwards: the last ones of the model before a forward."""
        mine = np.isin(waits["owner"], self.r.outer)
        ends = waits["finish"][mine]
        forwards = self.used["start"][self.used["phase"] == Phase.FORWARD]
        before = np.searchsorted(forwards, ends)
        return [int(ends[before == one].max()) for one in np.unique(before).tolist()]

    def _take(self, module: str, low: int, high: int) -> tuple[int, int] | None:
        """Return the last copy of a module that lies in `[low, high]`: into a buffer."""
        found = [c for c in self.copies if c[0] == module and low <= c[1] and c[2] <= high]
        if not found:
            return None
        self.taken.add(found[-1])
        return found[-1][1], found[-1][2]

    def read_gathers(self) -> None:
        """All-gathers: what it costs the lane to issue one, and who did."""
        at = 0
        previous: dict[int, int] = {}
        for one in self.sent[self.sent["collective"] == GATHER]:
            owner, launch = int(one["owner"]), int(one["launch"])
            module, cause = self.r.text(owner), int(one["cause"])
            begun = int(one["start"]) if self.r.device else launch
            alloc = self._allocated(owner, begun, previous.get(owner, 0))
            previous[owner] = begun
            copy = self._take(module, alloc, begun)
            stood = bool(one["flags"] & _SYNCHRONOUS)
            if self.r.device:
                self.r.issue.setdefault(module, []).append(copy[1] - copy[0] if copy else 0)
            else:
                self.r.issue.setdefault(module, []).append(launch - alloc)
                self.cuts.append((alloc, int(one["finish"]) if stood else launch))
            self.r.stood.setdefault(module, []).append(stood and not self.r.device)
            at = self._issuer(one, owner, cause, at)
            if cause and at < len(self.used) and self.used["owner"][at] == cause:
                self.issued.setdefault(at, []).append(module)
            elif cause:
                self.mark(alloc, Mark(MarkKind.BY_HAND, module, int(one["phase"])))
            if at < len(self.used) and self.used["owner"][at] == (cause or owner):
                self.host_at[at] = min(launch, self.host_at.get(at, launch))

    def _allocated(self, owner: int, begun: int, after: int) -> int:
        mine = self.held["start"][(self.held["owner"] == owner) & (self.held["start"] <= begun)]
        mine = mine[mine > after]
        return int(mine.max()) if len(mine) else begun

    def _issuer(self, one: np.void, owner: int, cause: int, at: int) -> int:
        """Return the place of the use at which an all-gather was issued; uses and gathers are in one order."""
        who = cause or owner
        for place in range(at, len(self.used)):
            use = self.used[place]
            if use["owner"] == who and use["phase"] == one["phase"]:
                return place
        return at

    def read_uses(self) -> None:
        """Uses: where compute needs parameters; the wait and the copy out of the buffer are cut out."""
        # An all-gather of this step, that is; one of the step before counts as held.
        own = set(np.flatnonzero(self.tl.communication["step"] == self.number).tolist())
        for place, use in enumerate(self.used):
            module = self.r.text(int(use["owner"]))
            start, finish = int(use["start"]), int(use["finish"])
            gathered = int(use["gather"]) in own
            following = (
                int(self.used["start"][place + 1])
                if place + 1 < len(self.used)
                else int(self.row["end"])
            )
            copied = self._copied_out(module, start, finish, following) if gathered else None
            self.cuts.append((start, finish))
            if copied is not None:
                self.cuts.append((finish, copied))
                self.r.copied.setdefault(module, []).append(max(copied - finish, 0))
            host = self.host_at.get(place)
            self.mark(
                start,
                Mark(
                    MarkKind.USE,
                    module,
                    int(use["phase"]),
                    tuple(self.issued.get(place, ())),
                    gathered,
                    ns=host - int(self.row["start"]) if host is not None else NOT_TOLD,
                ),
            )

    def _copied_out(self, module: str, start: int, finish: int, following: int) -> int | None:
        for copy in self.copies:
            if copy[0] == module and start <= copy[1] < following and copy not in self.taken:
                return max(int(copy[2]), finish)
        return None

    def read_releases(self) -> None:
        """Where parameters were given back."""
        low, high = int(self.row["start"]), int(self.row["end"])
        estimated = int(RecordFlag.FINISH_ESTIMATED)
        for one in self.held:
            module = self.r.text(int(one["owner"]))
            seen = one["flags"] & estimated == 0 and one["bytes"] == self.r.sizes.get(module)
            if seen and low <= one["finish"] <= high:
                self.mark(int(one["finish"]), Mark(MarkKind.FREE, module))

    def held_before(self) -> frozenset[str]:
        """Return the modules whose first use consumed nothing that this step gathered."""
        before, seen = set(), set()
        for _, mark in self.marks:
            if mark.kind is MarkKind.USE and mark.module not in seen:
                seen.add(mark.module)
                if not mark.gathered:
                    before.add(mark.module)
        return frozenset(before)

    def items(self, low: int, high: int) -> tuple[list[Item], int]:
        """Return pieces and marks in order, and how much was cut out, ns."""
        marks = self.marks
        if self.r.device:
            marks = _with_host_times(sorted(marks, key=lambda one: one[0]))
        return cut(self.tl.compute, (low, high), marks, self.cuts, self.kept)


def _with_host_times(marks: Sequence[tuple[int, Mark]]) -> list[tuple[int, Mark]]:
    """Fill in, between known ones, when the host got to the uses that issued nothing."""
    places = [i for i, (_, mark) in enumerate(marks) if mark.kind is MarkKind.USE]
    known = [(n, marks[i][1].ns) for n, i in enumerate(places) if marks[i][1].ns != NOT_TOLD]
    if not known:
        return list(marks)
    at = np.interp(range(len(places)), [n for n, _ in known], [ns for _, ns in known])
    filled = list(marks)
    for i, ns in zip(places, np.maximum.accumulate(at).tolist(), strict=True):
        moment, mark = filled[i]
        filled[i] = (moment, replace(mark, ns=round(ns)))
    return filled

"""DDP with another bucket cap, from one recorded run.

In: recordings of one run, with the times at which each gradient was ready on sampled steps. Out: a `DdpForecast`: for
each cap the buckets, the tail, the exposed communication and the step time that the model expects.

The model, for each sampled step:

    gradients ready, as recorded (of the last rank, where ranks share a clock: a collective moves no byte before)
      → buckets of the cap, in the recorded order (`bucketing`)
      → each launched when it and all before it are complete, plus the recorded launch delay
      → one engine that serves them in order, at the fitted cost (`engines.queue`, `cost`)
      → tail = last finish − recorded end of compute; all else in the step stays as it was

What it does not know: that compute may run slower or faster beside other communication, and what a longer or shorter
tail does to the next step. It is first asked about the layout that was recorded; how far it is off there is printed
beside everything else, and caps that differ by less are not told apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.spread import median
from overlapwatch.accounting.summarize import summarize
from overlapwatch.accounting.tail import step_tails
from overlapwatch.errors import ConfigurationError, InputError
from overlapwatch.timeline.model import I64, Recording, Timeline, Unknown
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, NameKind
from overlapwatch.whatif.bucketing import assign, limits
from overlapwatch.whatif.cost import Cost, InFlight, fit
from overlapwatch.whatif.engines import queue

DEFAULT_CAPS_MB = (1, 2, 5, 10, 25, 50, 100, 200)


@dataclass(frozen=True, slots=True)
class CapForecast:
    """One cap.

    Args:
        cap_mb: MiB; None for DDP's default (a first bucket of 1 MiB, then 25).
        buckets: how many.
        largest_bytes: of the largest.
        tail_ns, exposed_ns, step_ns: medians over the sampled steps.
    """

    cap_mb: float | None
    buckets: int
    largest_bytes: int
    tail_ns: int
    exposed_ns: int
    step_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "bucket_cap_mb": self.cap_mb,
            "buckets": self.buckets,
            "largest_bytes": self.largest_bytes,
            "tail_ns": self.tail_ns,
            "exposed_ns": self.exposed_ns,
            "step_ns": self.step_ns,
        }


@dataclass(frozen=True, slots=True)
class DdpForecast:
    """What the model expects of each cap, beside what was recorded.

    Args:
        rank: whose compute and tail are told; None when the input does not say.
        ranks: how many ranks' ready times went in.
        steps: sampled steps.
        buckets, largest_bytes: of the recorded layout.
        tail_ns, exposed_ns, step_ns: recorded, medians over these steps.
        modelled_tail_ns: what the model says of the recorded layout.
        error_ns: median over the steps of |modelled - recorded tail|.
        launch_delay_ns: median from complete to launched.
        cost: of a collective.
        caps: one forecast a cap, in the order asked for.
        unknown: what could not be told.
    """

    rank: int | None
    ranks: int
    steps: int
    buckets: int
    largest_bytes: int
    tail_ns: int
    exposed_ns: int
    step_ns: int
    modelled_tail_ns: int
    error_ns: int
    launch_delay_ns: int
    cost: Cost
    caps: tuple[CapForecast, ...]
    unknown: tuple[Unknown, ...]

    @property
    def best(self) -> tuple[CapForecast, ...]:
        """The cap with the shortest step, and those that the model cannot tell from it."""
        shortest = min(cap.step_ns for cap in self.caps)
        return tuple(cap for cap in self.caps if cap.step_ns - shortest <= self.error_ns)

    @property
    def ceiling(self) -> float:
        """By how much throughput would rise if nothing were exposed: T / (T - R) - 1. A bound, not a forecast."""
        return self.step_ns / (self.step_ns - self.exposed_ns) - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "rank": self.rank,
            "ranks": self.ranks,
            "steps": self.steps,
            "recorded": {
                "buckets": self.buckets,
                "largest_bytes": self.largest_bytes,
                "tail_ns": self.tail_ns,
                "exposed_ns": self.exposed_ns,
                "step_ns": self.step_ns,
            },
            "model": {
                "tail_ns": self.modelled_tail_ns,
                "error_ns": self.error_ns,
                "launch_delay_ns": self.launch_delay_ns,
                "cost": self.cost.to_dict(),
            },
            "ceiling": self.ceiling,
            "caps": [cap.to_dict() for cap in self.caps],
            "best_bucket_cap_mb": [cap.cap_mb for cap in self.best],
            "not_known": [{"what": one.what, "because": one.because} for one in self.unknown],
        }


@dataclass(frozen=True, slots=True, eq=False)
class SampledStep:
    """One sampled step of the told rank; columns of `ready` are parameters in layout order, of the others buckets."""

    number: int
    ready: I64
    all_launched: I64
    finish: I64
    compute_end: int
    tail: int
    exposed: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The recorded buckets in launch order: their ids, and the parameters in their order."""

    buckets: tuple[int, ...]
    parameters: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]  # positions in `parameters`
    sizes: I64
    types: tuple[str, ...]


def ddp_forecast(
    recordings: Sequence[Recording],
    caps_mb: Sequence[float | None] = DEFAULT_CAPS_MB,
    cost: Cost | None = None,
) -> DdpForecast:
    """Say what each cap would do to the first of `recordings`.

    Args:
        recordings: of one run, one a rank; those on the first one's host lend their ready times.
        caps_mb: MiB, positive; None is DDP's default.
        cost: of a collective; fitted when None.

    Raises:
        ConfigurationError: a cap is not a positive number, or there is none.
        InputError: the recordings do not tell what the model needs; one sentence says what and what to do.
    """
    if not caps_mb or any(cap is not None and not cap > 0 for cap in caps_mb):
        raise ConfigurationError(
            "bucket caps are positive numbers of MiB, and at least one is needed"
        )
    told = recordings[0].timeline
    layout = layout_of(told)
    peers = [one.timeline for one in recordings[1:] if one.timeline.origin.host == told.origin.host]
    steps = sampled_steps(told, peers, layout)
    delays = np.concatenate(
        [step.all_launched - complete_at(step.ready, layout.members) for step in steps]
    )
    delay = max(0, median(delays) or 0)
    sizes = np.array([int(layout.sizes[list(m)].sum()) for m in layout.members], np.int64)
    cost = cost or fit([InFlight(sizes, step.all_launched, step.finish) for step in steps])
    recorded = np.array([step.tail for step in steps], np.int64)
    modelled = _tails(steps, layout, layout.members, delay, cost)
    unknown = [] if peers or (told.origin.world or 1) == 1 else [_ALONE]
    if cost.count and cost.latency_ns is None:
        unknown.append(_latency_unknown(cost))
    rows = tuple(_forecast(cap, steps, layout, delay, cost) for cap in caps_mb)
    return DdpForecast(
        rank=told.origin.rank,
        ranks=1 + len(peers),
        steps=len(steps),
        buckets=len(layout.buckets),
        largest_bytes=int(sizes.max()),
        tail_ns=_middle(recorded),
        exposed_ns=_middle(np.array([step.exposed for step in steps], np.int64)),
        step_ns=_middle(np.array([step.length for step in steps], np.int64)),
        modelled_tail_ns=_middle(modelled),
        error_ns=_middle(np.abs(modelled - recorded)),
        launch_delay_ns=delay,
        cost=cost,
        caps=rows,
        unknown=tuple(unknown),
    )


_ALONE = Unknown(
    "when the other ranks' gradients were ready",
    "one rank's log was read: waiting for the last rank counts as cost of the collective",
)


def _latency_unknown(cost: Cost) -> Unknown:
    why = "all buckets have one size" if cost.sizes == 1 else "the recorded buckets do not tell"
    return Unknown(
        "the latency of a collective",
        f"{why}: its whole time counts as time for bytes, which favours small buckets",
    )


def _forecast(
    cap: float | None, steps: list[SampledStep], layout: Layout, delay: int, cost: Cost
) -> CapForecast:
    members = assign(layout.sizes.tolist(), limits(cap), layout.types)
    tails = _tails(steps, layout, members, delay, cost)
    change = tails - np.array([step.tail for step in steps], np.int64)
    exposed = np.array([step.exposed for step in steps], np.int64) + change
    return CapForecast(
        cap_mb=cap,
        buckets=len(members),
        largest_bytes=max(int(layout.sizes[one].sum()) for one in members),
        tail_ns=_middle(tails),
        exposed_ns=_middle(np.maximum(exposed, 0)),
        step_ns=_middle(np.array([step.length for step in steps], np.int64) + change),
    )


def _tails(
    steps: list[SampledStep],
    layout: Layout,
    members: Sequence[Sequence[int]],
    delay: int,
    cost: Cost,
) -> I64:
    """Return the modelled tail of each step under this layout, ns."""
    service = cost.of(np.array([int(layout.sizes[list(m)].sum()) for m in members], np.int64))
    tails = []
    for step in steps:
        _, finish = queue(complete_at(step.ready, members) + delay, service)
        tails.append(max(0, int(finish[-1]) - step.compute_end))
    return np.array(tails, np.int64)


def complete_at(ready: I64, members: Sequence[Sequence[int]]) -> I64:
    """Return when each bucket and all before it were complete: DDP launches them in order."""
    last = np.array([int(ready[list(one)].max()) for one in members], np.int64)
    return np.maximum.accumulate(last)


def _middle(values: I64) -> int:
    return int(np.median(values))


# -- what was recorded -------------------------------------------------------------------------------------------------


def layout_of(tl: Timeline) -> Layout:
    """Return the layout of the last step in statistics that reduced buckets with known parameters."""
    wanted = tl.steps[tl.steps["flags"] & OUT_OF_STATISTICS == 0]["step"]
    for number in wanted[::-1].tolist():
        owners = _owners(tl, number)
        if owners and all(tl.names[owner].members for owner in owners):
            parameters = tuple(p for owner in owners for p in tl.names[owner].members)
            names = [tl.names.get(p) for p in parameters]
            if len(set(parameters)) == len(parameters) and all(n and n.bytes for n in names):
                place = {p: i for i, p in enumerate(parameters)}
                return Layout(
                    buckets=owners,
                    parameters=parameters,
                    members=tuple(tuple(place[p] for p in tl.names[o].members) for o in owners),
                    sizes=np.array([n.bytes for n in names if n], np.int64),
                    types=tuple(n.dtype for n in names if n),
                )
    raise InputError(
        f"{tl.origin.path or 'the input'}: no step with DDP buckets whose parameters are known, which this needs: "
        "record a few more steps of a DDP job with overlapwatch.watch(model, log_dir=...)"
    )


def _owners(tl: Timeline, number: int) -> tuple[int, ...]:
    """Return the buckets reduced in a step, in launch order."""
    records = _bucket_records(tl, number)
    owners = records["owner"].tolist()
    return tuple(owners) if len(set(owners)) == len(owners) else ()


def _bucket_records(tl: Timeline, number: int) -> NDArray[np.void]:
    records = tl.communication[tl.communication["step"] == number]
    buckets = [
        (name := tl.names.get(owner)) is not None and name.kind is NameKind.BUCKET
        for owner in records["owner"].tolist()
    ]
    chosen: NDArray[np.void] = records[np.array(buckets, np.bool_)]
    return chosen[np.argsort(chosen["launch"], kind="stable")]


def _ready(tl: Timeline, number: int, layout: Layout, by_text: dict[str, int]) -> I64 | None:
    """Return the ready time of each parameter in layout order; None where one is not known."""
    rows = tl.gradients[tl.gradients["step"] == number]
    ready = np.zeros(len(layout.parameters), np.int64)
    for parameter, at in zip(rows["parameter"].tolist(), rows["ready"].tolist(), strict=True):
        name = tl.names.get(parameter)
        place = by_text.get(name.text) if name is not None else None
        if place is not None:
            ready[place] = max(int(ready[place]), at)
    return ready if ready.all() else None


def sampled_steps(told: Timeline, peers: Sequence[Timeline], layout: Layout) -> list[SampledStep]:
    """Return the sampled steps in statistics that have everything."""
    by_text = {told.names[p].text: i for i, p in enumerate(layout.parameters)}
    tails = {tail.step: tail for tail in step_tails(told)}
    rows = {int(row["step"]): row for row in summarize(told)}
    usable = told.steps[told.steps["flags"] & OUT_OF_STATISTICS == 0]["step"]
    steps = []
    for number in np.intersect1d(usable, told.gradients["step"]).tolist():
        tail, row = tails[number], rows[number]
        records = _bucket_records(told, number)
        ready = _ready(told, number, layout, by_text)
        if (
            ready is None
            or tail.tail_ns is None
            or tail.last_compute_end_ns is None
            or row["communication_only_ns"] == NOT_KNOWN
            or _owners(told, number) != layout.buckets
        ):
            continue
        launched = records["launch"].copy()
        complete = True
        for peer in peers:
            theirs, at = _ready(peer, number, layout, by_text), _bucket_records(peer, number)
            if theirs is None or len(at) != len(records):
                complete = False
                break
            ready, launched = np.maximum(ready, theirs), np.maximum(launched, at["launch"])
        if complete:
            steps.append(
                SampledStep(
                    number=number,
                    ready=ready,
                    all_launched=launched,
                    finish=records["finish"],
                    compute_end=tail.last_compute_end_ns,
                    tail=tail.tail_ns,
                    exposed=int(row["communication_only_ns"]),
                    length=int(row["end_ns"] - row["start_ns"]),
                )
            )
    if not steps:
        raise InputError(
            f"{told.origin.path or 'the input'}: no step in statistics has both its reductions and the times at which "
            "its gradients were ready: record again with watch(..., gradients_every=1), which keeps them of every "
            "kept step"
        )
    return steps

"""The measured blocks of a step: what two engines start from when it is asked what could still be hidden.

In: recordings of one run. Out: `MeasuredBlocks`: for each of some steps, compute cut where the inputs of each gradient
reduction were complete, and how long each reduction kept its own engine busy.

    compute         |-forward-|---to bucket 1---|--to bucket 2--|-rest-|        what follows
    communication                                |==bucket 1==|  |==bucket 2==|

| part             | from                                  | to                                              |
|------------------|---------------------------------------|-------------------------------------------------|
| a compute block  | the end of the one before             | its bucket is complete, on the last rank known  |
| the last one     | the same                              | the end of compute                              |
| a bucket's delay | complete                              | launched, on the last rank known                |
| a bucket's time  | launched, or the one before finished  | finished                                        |

A block computes where the compute lane covers it; in between it stood still.

Put together again (`engines.queue`), they give the recorded finishes wherever buckets finish in order: with nothing
changed the model repeats the step, which says nothing of how well it foretells. So its error is that of a fitted cost
on the recorded layout, as in `ddp`.

What it does not know: other communication (a module's all-gathers, what layers exchange). Its waits stay in the step as
time in which compute stood still, and its share of the link stays in the times of the buckets.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.chain import label
from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.spread import median
from overlapwatch.accounting.tail import reduced_by_module, reductions, step_tail
from overlapwatch.accounting.window import Window
from overlapwatch.errors import InputError
from overlapwatch.timeline.intervals import Intervals, cover, intersect_spans, union
from overlapwatch.timeline.model import I64, Lane, Recording, Timeline, Unknown
from overlapwatch.vocabulary import OUT_OF_STATISTICS, CollectiveKind, Phase
from overlapwatch.whatif.cost import Cost, InFlight, fit
from overlapwatch.whatif.ddp import Layout, complete_at, ddp_forecast, layout_of, sampled_steps
from overlapwatch.whatif.engines import queue
from overlapwatch.whatif.measured import MeasuredBlocks, MeasuredStep, Model, Recorded

MAX_STEPS = 48
MAX_TIMES = 15_000
"""Steps are thinned evenly until their times are no more than this."""
MAX_SEGMENTS = 100


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """One step as it was seen, on the clock of the rank; columns are buckets, of `gradients` parameters."""

    number: int
    complete: I64
    launched: I64
    finish: I64
    gradients: I64 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The rank told, with the steps that were chosen, and what they have in common."""

    timeline: Timeline
    usable: int
    seen: Sequence[_Seen]
    buckets: tuple[str, ...]
    sizes: I64
    ranks: int = 1
    layout: Layout | None = None


def measured_blocks(
    recordings: Sequence[Recording], steps: Collection[int] | None = None
) -> MeasuredBlocks:
    """Return the blocks of the first of `recordings`.

    Args:
        recordings: of one run, one a rank; those on the first one's host lend their ready times.
        steps: only these; None: all.

    Raises:
        InputError: the input does not tell when anything could have been sent; one sentence says why.
    """
    told = recordings[0].timeline
    try:
        run, model = _by_gradient(recordings, steps)
        because = ""
    except InputError as error:
        run, model = _by_reduction(told, steps)
        because = str(error)
    cuts = tuple(_cut(run.timeline, seen) for seen in run.seen)
    return MeasuredBlocks(
        rank=told.origin.rank,
        ranks=run.ranks,
        usable=run.usable,
        steps=cuts,
        before=_before(run),
        buckets=run.buckets,
        sizes=tuple(run.sizes.tolist()),
        layout=run.layout,
        layout_because=because,
        model=model,
    )


# -- what was seen -----------------------------------------------------------------------------------------------------


def _by_gradient(
    recordings: Sequence[Recording], steps: Collection[int] | None
) -> tuple[_Run, Model]:
    """Return the steps of DDP whose gradients' ready times are known."""
    told = recordings[0].timeline
    layout = layout_of(told)
    sampled = np.intersect1d(_wanted(told, steps), told.gradients["step"])
    chosen = _evenly(sampled, len(layout.parameters))
    few = [replace(one, timeline=_of_steps(one.timeline, chosen)) for one in recordings]
    told = few[0].timeline
    peers = [one.timeline for one in few[1:] if one.timeline.origin.host == told.origin.host]
    seen = [
        _Seen(
            number=step.number,
            complete=complete_at(step.ready, layout.members),
            launched=step.all_launched,
            finish=step.finish,
            gradients=step.ready,
        )
        for step in sampled_steps(told, peers, layout)
    ]
    sizes = np.array([int(layout.sizes[list(m)].sum()) for m in layout.members], np.int64)
    names = tuple(told.names[owner].text for owner in layout.buckets)
    forecast = ddp_forecast(few, (None,))
    run = _Run(told, len(sampled), seen, names, sizes, 1 + len(peers), layout)
    error = max(forecast.error_ns, _finish_error(run, forecast.launch_delay_ns, forecast.cost))
    model = Model(forecast.launch_delay_ns, forecast.cost, error, unknown=forecast.unknown)
    return run, model


def _by_reduction(told: Timeline, steps: Collection[int] | None) -> tuple[_Run, Model]:
    """Return the steps with the same gradient reductions as the last one, cut where each could start."""
    if reduced_by_module(told):
        raise InputError(
            f"{_who(told)}: with FSDP2 compute waits for each module's parameters, which two engines that never wait "
            "for one another do not show; the model of overlapwatch whatif RUN does"
        )
    because = _cannot_tell(told)
    wanted = _wanted(told, steps)
    if not because and not len(wanted):
        because = "it has no step that counts in statistics"
    if because:
        raise InputError(f"{_who(told)}: {because}")
    last = _reduced(told, int(wanted[-1]))
    chosen = _evenly(wanted, 5 * len(last))
    tl = _of_steps(told, chosen)
    seen: list[_Seen] = []
    why: Counter[str] = Counter()
    for number in chosen.tolist():
        records = _reduced(tl, number)
        if not len(records) or _labels(tl, records) != _labels(tl, last):
            why["no step has the gradient reductions of the last one"] += 1
            continue
        could = np.maximum(records["ready"], records["launch"])
        complete_at = np.where(records["ready"] != 0, records["ready"], could)
        seen.append(_Seen(number, np.maximum.accumulate(complete_at), could, records["finish"]))
    seen = [one for one in seen if _tail_is_known(tl, one.number, why)]
    if not seen:
        raise InputError(f"{_who(told)}: {why.most_common(1)[0][0]}")
    run = _Run(tl, len(wanted), seen, _labels(tl, last), last["bytes"].copy())
    return run, _fitted(run)


def _cannot_tell(tl: Timeline) -> str:
    """Return why these collectives do not tell when they could have been sent; "" where they do."""
    found = reductions(tl.communication, tl.names)
    records = found if len(found) else tl.communication
    if ((records["stream"] != 0) & (records["ready"] == 0)).any():
        return (
            "it shows when a collective ran, not when its gradients were complete, so nobody can say how early it "
            "could have been sent; a run recorded with overlapwatch.watch can"
        )
    if not len(found):
        return (
            "none of its collectives reduces gradients" if len(records) else "it has no collective"
        )
    if not (found["launch"] != 0).all():
        return "the launch of a gradient reduction is not known"
    return ""


def _reduced(tl: Timeline, number: int) -> NDArray[np.void]:
    """Return the gradient reductions of a step, in the order of launch."""
    records = reductions(tl.communication[tl.communication["step"] == number], tl.names)
    chosen: NDArray[np.void] = records[np.lexsort((records["start"], records["launch"]))]
    return chosen


def _labels(tl: Timeline, records: NDArray[np.void]) -> tuple[str, ...]:
    """Return what people call them; with its kind where one module has several (HSDP)."""
    texts = [label(record, tl.names) for record in records]
    count = Counter(texts)
    kinds = [CollectiveKind(kind).title for kind in records["collective"].tolist()]
    return tuple(
        f"{text} ({kind})" if count[text] > 1 else text
        for text, kind in zip(texts, kinds, strict=True)
    )


def _tail_is_known(tl: Timeline, number: int, why: Counter[str]) -> bool:
    tail = step_tail(tl, _row(tl, number), chain=False)
    if tail.tail_ns is None:
        why[tail.because] += 1
    return tail.tail_ns is not None


def _fitted(run: _Run) -> Model:
    """Fit a cost, and ask it for the recorded layout."""
    delay = max(0, median(np.concatenate([one.launched - one.complete for one in run.seen])) or 0)
    unknown = (_ALONE,) if (run.timeline.origin.world or 1) > 1 else ()
    try:
        cost = fit([InFlight(run.sizes, one.launched, one.finish) for one in run.seen])
    except InputError as error:
        return Model(delay, None, None, str(error), unknown)
    return Model(delay, cost, _finish_error(run, delay, cost), unknown=unknown)


def _finish_error(run: _Run, delay: int, cost: Cost) -> int:
    """Return how far this cost is off, ns: median over the steps of |modelled - recorded last finish|.

    Where there is a tail this is the error of the tail. Where there is none, that would be 0 however bad the cost is.
    """
    errors = []
    for one in run.seen:
        _, finish = queue(one.complete + delay, cost.of(run.sizes))
        errors.append(abs(int(finish[-1]) - int(one.finish.max())))
    return int(np.median(errors))


_ALONE = Unknown(
    "when the other ranks could have sent",
    "this rank's times alone are used: waiting for the last rank counts as time of the bucket",
)


# -- cutting -----------------------------------------------------------------------------------------------------------


def _cut(tl: Timeline, seen: _Seen) -> MeasuredStep:
    """Return the blocks of one step."""
    row = _row(tl, seen.number)
    start, end = int(row["start"]), int(row["end"])
    tail = step_tail(tl, row, chain=False)
    compute_end = tail.last_compute_end_ns or start
    window = Window(start, end, f"step {seen.number}")
    own = _reduced(tl, seen.number)
    everything, alone = partition(tl, window), partition(replace(tl, communication=own), window)
    edges = np.clip(
        np.concatenate(([start, _forward_end(tl, row, seen)], seen.complete, [compute_end])),
        start,
        compute_end,
    )
    edges = np.maximum.accumulate(edges)
    still, compute, counts = segments(edges, union(tl.compute.start, tl.compute.end))
    before = np.concatenate(([start], np.maximum.accumulate(seen.finish)[:-1]))
    return MeasuredStep(
        step=seen.number,
        still_ns=still,
        compute_ns=compute,
        segments=counts,
        ready_ns=seen.complete - start,
        delay_ns=np.maximum(seen.launched - seen.complete, 0),
        service_ns=np.maximum(seen.finish - np.maximum(seen.launched, before), 0),
        gradients_ns=None if seen.gradients is None else seen.gradients - start,
        recorded=Recorded(
            step_ns=end - start,
            total_ns=compute_end + (tail.tail_ns or 0) - start,
            tail_ns=tail.tail_ns or 0,
            communication_ns=alone.communication_ns,
            hidden_ns=alone.overlap_ns,
            exposed_ns=alone.communication_only_ns,
            other_exposed_ns=everything.communication_only_ns - alone.communication_only_ns,
        ),
    )


def segments(
    edges: I64, lane: Intervals, most: int = MAX_SEGMENTS
) -> tuple[I64, I64, tuple[int, ...]]:
    """Cut the compute lane at the edges of blocks into segments, each of a stretch of standing still and of computing.

    Of more than `most` (but one a block) those that stood still for the shortest time join the one in front, which then
    stands still for longer.

        edges 0 10, lane 2-5 7-9        still 2 2 1, compute 3 2 0, one block of 3 segments
    """
    start, end, block = intersect_spans(edges[:-1], edges[1:], lane)
    # The end of each block is a segment too: it computes nothing, and holds what stood still last.
    ends = np.concatenate((end, edges[1:]))
    begins = np.concatenate((start, edges[1:]))
    blocks = np.concatenate((block, np.arange(len(edges) - 1)))
    order = np.lexsort((ends, begins, blocks))
    begins, ends, blocks = begins[order], ends[order], blocks[order]
    before = np.concatenate(([edges[0]], ends[:-1]))
    still, compute = begins - before, ends - begins
    first = np.concatenate(([True], blocks[1:] != blocks[:-1]))
    # Joined: all but the first of a block that stand still for no time or, where there are too many, for the least.
    joins = ~first & (still == 0)
    spare = np.flatnonzero(~first & ~joins)
    too_many = len(still) - int(joins.sum()) - most
    if too_many > 0:
        joins[spare[np.argsort(still[spare], kind="stable")[:too_many]]] = True
    heads = np.flatnonzero(~joins)
    return (
        np.add.reduceat(still, heads),
        np.add.reduceat(compute, heads),
        tuple(np.bincount(blocks[heads], minlength=len(edges) - 1).tolist()),
    )


def _forward_end(tl: Timeline, row: np.void, seen: _Seen) -> int:
    """Return where forward compute last ended before the first bucket was complete; the step's start without any."""
    lane, first = tl.compute, int(seen.complete[0])
    mine = (lane.phase == Phase.FORWARD) & (lane.start >= row["start"]) & (lane.end <= first)
    return int(lane.end[mine].max()) if mine.any() else int(row["start"])


def _before(run: _Run) -> str:
    """Return what comes before the block of the first bucket, in words."""
    lane = run.timeline.compute
    for one in run.seen:
        row = _row(run.timeline, one.number)
        earlier = (lane.start >= row["start"]) & (lane.end <= _forward_end(run.timeline, row, one))
        if (lane.phase[earlier] == Phase.BACKWARD).any():
            return "earlier passes and forward"
    return "forward"


# -- choosing ----------------------------------------------------------------------------------------------------------


def _wanted(tl: Timeline, steps: Collection[int] | None) -> NDArray[np.uint32]:
    """Return the numbers of the steps that count in statistics."""
    numbers = tl.steps["step"][tl.steps["flags"] & OUT_OF_STATISTICS == 0]
    return numbers if steps is None else np.intersect1d(numbers, np.array(list(steps), np.uint32))


def _evenly(numbers: NDArray[np.uint32], times: int) -> NDArray[np.uint32]:
    """Return an even choice, of so many steps of so many times each as are let through."""
    most = min(len(numbers), MAX_STEPS, max(1, MAX_TIMES // max(times, 1)))
    places = np.unique(np.linspace(0, max(len(numbers) - 1, 0), most).round().astype(int))
    chosen: NDArray[np.uint32] = numbers[places]
    return chosen


def _of_steps(tl: Timeline, numbers: NDArray[np.uint32]) -> Timeline:
    """Return the timeline of these steps alone, so that each costs its own."""
    steps = tl.steps[np.isin(tl.steps["step"], numbers)]
    windows = union(steps["start"], steps["end"])

    def inside(lane: Lane) -> Lane:
        kept = cover(lane.start, lane.end, windows) > 0
        return Lane(lane.start[kept], lane.end[kept], lane.name[kept], lane.phase[kept])

    return replace(
        tl,
        steps=steps,
        communication=tl.communication[np.isin(tl.communication["step"], numbers)],
        gradients=tl.gradients[np.isin(tl.gradients["step"], numbers)],
        compute=inside(tl.compute),
        copies=inside(tl.copies),
        waits=inside(tl.waits),
    )


def _row(tl: Timeline, number: int) -> np.void:
    found: np.void = tl.steps[tl.steps["step"] == number][0]
    return found


def _who(tl: Timeline) -> str:
    return tl.origin.path or "the input"

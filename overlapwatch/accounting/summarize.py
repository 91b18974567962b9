"""One step in numbers: the SUMMARY row that the live line prints and the log keeps of every step.

In: a Timeline and a row of its steps. Out: a SUMMARY row, by the same `partition` and `tail` as
every report; edges of the step clip. It runs in the drain thread after every step, so its cost is
bounded by the records of one step.

What is NOT_KNOWN in a row:

| the step                            | not known                                           |
|-------------------------------------|-----------------------------------------------------|
| is a shadow                         | all but its boundaries, wait and last compute end   |
| is partial (records were lost)      | all but its boundaries and the counts of the rest   |
| has a reduction without a finish    | tail, last reduce end, all parts but compute        |
| has collectives, none with a span   | all parts but compute                               |
| has no gradient reduction           | tail, and the marks of the reductions               |

Other collectives without a finish leave the parts of the window as lower bounds of communication;
`unfinished` and `unobservable` count them beside the numbers. A step without any collective has 0
ns of communication, which is known.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.tail import StepTail, step_tail
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import clip, total, union
from overlapwatch.timeline.model import I64, Lane, Timeline
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, RecordFlag, StepFlag

_COUNTS = ("step", "flags", "collectives", "buckets", "unfinished", "unobservable")
_BLANK = np.zeros(1, SUMMARY)
for _field in SUMMARY.names or ():
    if _field not in _COUNTS:
        _BLANK[_field] = NOT_KNOWN


def summarize(tl: Timeline) -> NDArray[np.void]:
    """Return the SUMMARY rows of all steps of the timeline, in its order."""
    rows = np.empty(len(tl.steps), SUMMARY)
    compute, copies = SortedSpans.of(tl.compute), SortedSpans.of(tl.copies)
    for i, step in enumerate(tl.steps):
        rows[i] = summarize_step(_around(tl, step, compute, copies), step)
    return rows


def summarize_step(tl: Timeline, step: np.void) -> np.void:
    """Return the SUMMARY row of one step.

    Args:
        tl: a timeline that holds at least what happened in the step.
        step: a row of STEP.

    """
    row: np.void = _BLANK.copy()[0]
    flags = int(step["flags"])
    row["step"], row["flags"] = step["step"], flags
    row["start_ns"], row["end_ns"] = step["start"], step["end"]
    own = tl.communication[tl.communication["step"] == step["step"]]
    tail = step_tail(tl, step, chain=False)
    if not flags & StepFlag.SHADOW:
        row["buckets"] = tail.buckets
        _put_counts(row, own)
    if flags & StepFlag.PARTIAL:
        return row
    row["wait_ns"] = _wait(tl, step, nothing_sent=not len(own) and not flags & StepFlag.SHADOW)
    _put_marks(row, tail)
    if flags & StepFlag.SHADOW:
        return row
    row["bytes"] = _bytes(own)
    _put_parts(row, tl, step, known=not tail.without_finish)
    return row


def _put_counts(row: np.void, own: NDArray[np.void]) -> None:
    open_ended = own["finish"] == 0
    unobservable = open_ended & (own["flags"] & RecordFlag.FINISH_UNOBSERVABLE != 0)
    row["collectives"] = len(own)
    row["unobservable"] = unobservable.sum()
    row["unfinished"] = (open_ended & ~unobservable).sum()


def _put_marks(row: np.void, tail: StepTail) -> None:
    for mark in (
        "first_ready_ns",
        "first_reduce_start_ns",
        "last_compute_end_ns",
        "last_reduce_end_ns",
        "tail_ns",
    ):
        value: int | None = getattr(tail, mark)
        if value is not None:
            row[mark] = value


def _put_parts(row: np.void, tl: Timeline, step: np.void, *, known: bool) -> None:
    window = Window(int(step["start"]), int(step["end"]), f"step {step['step']}")
    parts = partition(tl, window)
    row["compute_ns"] = parts.compute_ns
    if known and parts.communication_known:
        row["communication_ns"] = parts.communication_ns
        row["compute_only_ns"] = parts.compute_only_ns
        row["communication_only_ns"] = parts.communication_only_ns
        row["overlap_ns"] = parts.overlap_ns
        row["idle_ns"] = parts.idle_ns


def _wait(tl: Timeline, step: np.void, *, nothing_sent: bool) -> int:
    """Return the union of the waits in the step, ns. A source that records no waits knows none."""
    if not len(tl.waits):
        return 0 if nothing_sent else NOT_KNOWN
    start, end, _ = clip(tl.waits.start, tl.waits.end, int(step["start"]), int(step["end"]))
    return total(union(start, end))


def _bytes(own: NDArray[np.void]) -> int:
    """Return the logical bytes sent; not known where there are collectives and none has a size."""
    total_bytes = int(own["bytes"].sum())
    return total_bytes if total_bytes or not len(own) else NOT_KNOWN


@dataclass(frozen=True, slots=True, eq=False)
class SortedSpans:
    """A lane by start, so that the spans of a step are found without looking at all of them.

        start     0  2  6  8         of step 7-9: those that start before 9, from the first at which
        end       9  4  7  9         a span has reached beyond 7 on: all four; then 2-4 and 6-7 go
        reached   9  9  9  9

    `reached` is the largest end so far.
    """

    lane: Lane
    reached: I64

    @staticmethod
    def of(lane: Lane) -> "SortedSpans":
        """Return the spans of a lane, sorted where they are not."""
        if not (lane.start[1:] >= lane.start[:-1]).all():
            order = np.argsort(lane.start, kind="stable")
            lane = Lane(lane.start[order], lane.end[order], lane.name[order], lane.phase[order])
        return SortedSpans(lane, np.maximum.accumulate(lane.end))

    def between(self, low: int, high: int) -> Lane:
        """Return the spans that reach into `[low, high)`."""
        first = int(np.searchsorted(self.reached, low, side="right"))
        last = int(np.searchsorted(self.lane.start, high, side="left"))
        near = np.flatnonzero(self.lane.end[first:last] > low) + first
        return Lane(
            self.lane.start[near], self.lane.end[near], self.lane.name[near], self.lane.phase[near]
        )


def _around(tl: Timeline, step: np.void, compute: SortedSpans, copies: SortedSpans) -> Timeline:
    """Return the timeline without what lies outside the step, so that a step costs its own."""
    low, high = int(step["start"]), int(step["end"])
    records = tl.communication
    own = records["step"] == step["step"]
    reaching = (records["launch"] < high) & ((records["finish"] > low) | (records["finish"] == 0))
    return replace(
        tl,
        communication=records[own | reaching],
        compute=compute.between(low, high),
        copies=copies.between(low, high),
    )

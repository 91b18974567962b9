"""One step of one rank as blocks that can be drawn: compute, collectives with their times, what was exposed.

In: a Timeline and a stretch of it, as a rule one step. Out: `Blocks`. It is the same accounting as
everywhere: the exposed stretches are those of the step's partition, and what of a collective was
hidden is told as in the table of buckets (its own span against the compute lane).

A profile has more kernels in a step than a screen has places. Of more than `most` compute spans,
those with the shortest gaps between them become one block, and `gap_ns` says how long a gap may be
that is not drawn; of more than `most` collectives, the shortest are left out and counted. Exposed
stretches are never thinned by this: they are made before.

    compute      0-2 . 3-5 ......... 9-10        most 2:  0-5 (2 spans), 9-10; gap_ns 1

It does not know why a time is missing, only how it came to be (`provenance_letters`).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.buckets import ESTIMATED, Provenance
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.summarize import SortedSpans
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import (
    Intervals,
    cover,
    intersect,
    single,
    subtract,
    total,
    union,
)
from overlapwatch.timeline.model import I64, Lane, Timeline
from overlapwatch.timeline.records import begin_of, has_span
from overlapwatch.vocabulary import NOT_KNOWN, RecordFlag

MOST = 6_000
"""Compute blocks, and collectives, of one stretch."""

LETTERS = {
    Provenance.MEASURED: "m",
    Provenance.ESTIMATED: "e",
    Provenance.UNOBSERVABLE: "u",
    Provenance.UNFINISHED: "f",
    Provenance.NOT_RECORDED: "n",
}
"""How one time came to be, as a letter."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One stretch of one rank. Times are ns on its clock.

    Args:
        step: number of the step; None: the stretch is no step.
        start_ns, end_ns: the stretch, half-open. Collectives of the step may reach beyond it.
        compute: the compute blocks that lie in it or reach into it, by start.
        count: how many compute spans each block stands for.
        records: RECORD rows of its collectives and of those that reach into it, by beginning.
        begin: where the span of each begins; 0 = not known.
        hidden: how much of each one's own span compute covers; NOT_KNOWN without a span.
        waited: how much of it compute stood still in; NOT_KNOWN without a span, or without waits.
        exposed: the stretches of communication without compute.
        waits: the stretches in which compute stood still.
        gap_ns: the longest gap between compute spans that is drawn as compute; 0: all are drawn.
        left_out: collectives left out, the shortest ones.
        communication_only_ns: of the stretch's partition, for the check.

    """

    step: int | None
    start_ns: int
    end_ns: int
    compute: Lane
    count: I64
    records: NDArray[np.void]
    begin: I64
    hidden: I64
    waited: I64
    exposed: Intervals
    waits: Intervals
    gap_ns: int
    left_out: int
    communication_only_ns: int

    @property
    def merged(self) -> int:
        """Compute spans that share a block with others."""
        return int(self.count[self.count > 1].sum())

    def checks(self) -> tuple[Check, ...]:
        """Return how what is drawn agrees with the partition of the stretch."""
        name = "exposed stretches drawn = communication only"
        return (Check(name, total(self.exposed), self.communication_only_ns),)


class Drawing:
    """A timeline from which many stretches are taken: it is sorted once, so that each costs its own."""

    def __init__(self, tl: Timeline) -> None:
        self._tl = tl
        self._compute = SortedSpans.of(tl.compute)
        self._waits = union(tl.waits.start, tl.waits.end)
        records = tl.communication
        self._begin = begin_of(records)
        # Where each is placed: at its beginning, or where that is not known at its launch.
        self._at = np.where(self._begin != 0, self._begin, records["launch"])
        self._last = np.maximum(
            np.where(records["finish"] != 0, records["finish"], 0), self._at + 1
        )
        self._by_time = np.argsort(self._at, kind="stable")
        self._reached = np.maximum.accumulate(self._last[self._by_time])
        self._by_step = np.argsort(records["step"], kind="stable")

    def step(self, row: np.void, most: int = MOST) -> Blocks:
        """Return the blocks of one step (a row of `tl.steps`)."""
        return self.stretch(int(row["start"]), int(row["end"]), int(row["step"]), most)

    def stretch(self, low: int, high: int, step: int | None = None, most: int = MOST) -> Blocks:
        """Return the blocks of `[low, high)`, with the collectives of `step` wherever they lie."""
        tl, rows = self._tl, self._rows(low, high, step)
        records, begins = tl.communication[rows], self._begin[rows]
        whole = has_span(records)
        reach = (records["finish"][whole].max(initial=high), begins[whole].min(initial=low))
        compute = self._compute.between(int(reach[1]), int(reach[0]))
        part = replace(tl, compute=compute, communication=records)
        lanes = lanes_of(part, Window(low, high, "drawn"))
        busy = union(compute.start, compute.end)
        ends = np.where(whole, records["finish"], begins)
        hidden = np.where(whole, cover(begins, ends, busy), NOT_KNOWN)
        waited = np.full(len(records), NOT_KNOWN, np.int64)
        if len(tl.waits):
            waited = np.where(whole, cover(begins, ends, self._waits), NOT_KNOWN)
        shown = self._compute.between(low, high)
        blocks, count, gap_ns = _together(shown, most)
        kept = longest(np.where(whole, ends - begins, NOT_KNOWN), most)
        return Blocks(
            step=step,
            start_ns=low,
            end_ns=high,
            compute=blocks,
            count=count,
            records=records[kept],
            begin=begins[kept],
            hidden=hidden[kept],
            waited=waited[kept],
            exposed=subtract(lanes.communication, lanes.compute),
            waits=intersect(self._waits, single(low, high)),
            gap_ns=gap_ns,
            left_out=len(records) - len(kept),
            communication_only_ns=partition(part, lanes.window, lanes).communication_only_ns,
        )

    def _rows(self, low: int, high: int, step: int | None) -> NDArray[np.intp]:
        """Return the collectives that reach into `[low, high)`, and those of the step, by where they are placed."""
        first = np.searchsorted(self._reached, low, side="right")
        behind = np.searchsorted(self._at, high, side="left", sorter=self._by_time)
        near = (
            self._by_time[first:behind] if low < high else self._by_time[:0]
        )  # no moment, nothing in it
        rows = near[(self._at[near] != 0) & (self._last[near] > low)]
        if step is not None:
            numbers = self._tl.communication["step"]
            edges = np.searchsorted(numbers, (step, step + 1), sorter=self._by_step)
            rows = np.union1d(rows, self._by_step[edges[0] : edges[1]])
        ordered: NDArray[np.intp] = rows[np.argsort(self._at[rows], kind="stable")]
        return ordered


def _together(lane: Lane, most: int) -> tuple[Lane, I64, int]:
    """Return at most `most` blocks of a lane sorted by start, how many spans each is, and the longest gap inside one.

    A block of several spans keeps their name and phase where all have the same, else has none.
    """
    count = len(lane)
    if count <= most:
        return lane, np.ones(count, np.int64), 0
    reached = np.maximum.accumulate(lane.end)
    gap = lane.start[1:] - reached[:-1]
    order = np.argsort(gap, kind="stable")
    cut = np.sort(order[count - most :]) + 1  # the longest `most - 1` gaps stay
    first = np.concatenate(([0], cut))
    last = np.concatenate((cut, [count])) - 1
    name, phase = lane.name.copy(), lane.phase.copy()
    for column in (name, phase):
        low = np.minimum.reduceat(column, first)
        column[first[low != np.maximum.reduceat(column, first)]] = 0
    gap_ns = max(0, int(gap[order[count - most - 1]]))
    blocks = Lane(lane.start[first], reached[last], name[first], phase[first])
    return blocks, (last - first + 1).astype(np.int64), gap_ns


def longest(length: I64, most: int) -> NDArray[np.intp]:
    """Return the places of the longest `most`, in order; one that has no length (NOT_KNOWN) is never left out."""
    if len(length) <= most:
        return np.arange(len(length))
    weight = np.where(length == NOT_KNOWN, np.iinfo(np.int64).max, length)
    return np.sort(np.argsort(-weight, kind="stable")[:most])


def provenance_letters(records: NDArray[np.void]) -> list[str]:
    """Return, for each RECORD row, four letters: how its ready, launch, start and finish came to be."""
    unseen = records["flags"] & int(RecordFlag.FINISH_UNOBSERVABLE) != 0
    no_finish = np.where(unseen, LETTERS[Provenance.UNOBSERVABLE], LETTERS[Provenance.UNFINISHED])
    not_recorded = np.full(len(records), LETTERS[Provenance.NOT_RECORDED])
    columns = []
    for field, flag in ESTIMATED.items():
        absent = no_finish if field == "finish" else not_recorded
        letter = np.where(
            records["flags"] & int(flag) != 0,
            LETTERS[Provenance.ESTIMATED],
            LETTERS[Provenance.MEASURED],
        )
        columns.append(np.where(records[field] != 0, letter, absent).tolist())
    return ["".join(letters) for letters in zip(*columns, strict=True)]

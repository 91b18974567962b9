"""Interval arithmetic, the only one in the package: unions, and what is inside or outside of them.

In: int64 arrays of starts and ends, ns, half-open `[start, end)`. Out: the same, or a length in ns;
exact integers, O(n log n), vectorised beyond some dozens of spans. It does not know what they mean.

Two shapes are used. *Spans* are two arrays in any order that may overlap one another; a function
that returns spans returns, as a third array, which input span each came from. A *union*
(`Intervals`) is sorted, and neither overlaps nor touches itself.

    spans         0-4  2-6  6-7  9-9        union      0-7
    a = 0-7 9-12, b = 3-5 6-10              a ∩ b      3-5 6-7 9-10      a - b    0-3 5-6 10-12
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlapwatch.timeline.model import I64

Spans = tuple[I64, I64, I64]
"""(start, end, index): pieces of spans, and the index of the input span each is a piece of."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A union: sorted, disjoint, non-touching, non-empty intervals in ns. Made by `union`."""

    start: I64
    end: I64

    def __len__(self) -> int:
        return len(self.start)


def nothing() -> Intervals:
    """Return the empty union."""
    return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def single(start: int, end: int) -> Intervals:
    """Return the union of one interval; the empty union when `end <= start`."""
    if end <= start:
        return nothing()
    return Intervals(np.array([start], np.int64), np.array([end], np.int64))


def union(start: I64, end: I64) -> Intervals:
    """Merge spans. Empty and reversed spans cover nothing and are dropped; touching ones become
    one.

    sorted start   0  2  6 |  8            a new interval begins where the start lies beyond
    running end    4  6  7 | 11            every end before it: 8 > 7
    """
    if len(start) <= SMALL:
        return _small_union(start.tolist(), end.tolist())
    filled = end > start
    if not filled.all():
        start, end = start[filled], end[filled]
    if not len(start):
        return nothing()
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    begins = np.flatnonzero(start[1:] > reached[:-1]) + 1
    first = np.concatenate(([0], begins))
    last = np.concatenate((begins, [len(start)])) - 1
    return Intervals(
        start[first].astype(np.int64, copy=False), reached[last].astype(np.int64, copy=False)
    )


def join(*unions: Intervals) -> Intervals:
    """Return what at least one of the unions covers."""
    if not unions:
        return nothing()
    return union(
        np.concatenate([one.start for one in unions]), np.concatenate([one.end for one in unions])
    )


def total(iv: Intervals) -> int:
    """Return the length of a union, ns."""
    return int((iv.end - iv.start).sum())


_NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def intersect_spans(start: I64, end: I64, iv: Intervals) -> Spans:
    """Return the pieces of each span that lie in the union, ordered by span.

    An empty span stays, as an empty span, where its moment lies in the union: it happened there.

    span 0: 0-7, span 1: 4-9; union 3-5 6-10        pieces 3-5 (0), 6-7 (0), 4-5 (1), 6-9 (1)
    """
    if not len(start) or not len(iv):
        return _NO_SPANS
    if len(start) <= SMALL and len(iv) <= SMALL:
        return _small_intersection(start.tolist(), end.tolist(), iv.start.tolist(), iv.end.tolist())
    if len(iv) == 1:  # most windows: no need to find out how many pieces a span has
        low, high = iv.start[0], iv.end[0]
        index = np.flatnonzero((start < high) & (np.maximum(end, start + 1) > low))
        return np.maximum(start[index], low), np.minimum(end[index], high), index
    first = np.searchsorted(iv.end, start, side="right")
    after = np.searchsorted(iv.start, np.maximum(end, start + 1), side="left")
    count = np.maximum(after - first, 0)
    index = np.repeat(np.arange(len(start), dtype=np.int64), count)
    # The k-th piece of a span lies in the k-th interval after the span's first one.
    within = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    other = np.repeat(first, count) + within
    return (
        np.maximum(start[index], iv.start[other]),
        np.minimum(end[index], iv.end[other]),
        index,
    )


def subtract_spans(start: I64, end: I64, iv: Intervals) -> Spans:
    """Return the pieces of each span that lie outside the union, ordered by span.

    span 0: 0-7, span 1: 4-9; union 3-5 6-10        pieces 0-3 (0), 5-6 (0), 5-6 (1)
    """
    if not len(start):
        return start, end, np.empty(0, np.int64)
    low, high = int(start.min()), int(max(end.max(), start.max() + 1))
    return intersect_spans(start, end, _gaps(iv, low, high))


def _gaps(iv: Intervals, low: int, high: int) -> Intervals:
    """Return `[low, high)` without the union."""
    starts = np.concatenate(([low], np.maximum(iv.end, low)))
    ends = np.concatenate((np.minimum(iv.start, high), [high]))
    filled = ends > starts
    return Intervals(starts[filled], ends[filled])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return what both unions cover."""
    start, end, _ = intersect_spans(a.start, a.end, b)
    return Intervals(start, end)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return what `a` covers and `b` does not."""
    start, end, _ = subtract_spans(a.start, a.end, b)
    return Intervals(start, end)


def clip(start: I64, end: I64, low: int, high: int) -> Spans:
    """Cut spans at the edges of `[low, high)`; those that lie outside go."""
    return intersect_spans(start, end, single(low, high))


def contained(start: I64, end: I64, low: int, high: int) -> Spans:
    """Keep the spans that lie wholly in `[low, high)`, uncut."""
    return contained_spans(start, end, single(low, high))


def contained_spans(start: I64, end: I64, iv: Intervals) -> Spans:
    """Keep the spans that lie wholly in one interval of the union, uncut."""
    at = np.searchsorted(iv.end, start, side="right")  # the only interval it can lie in
    inside = at < len(iv)
    inside[inside] = (iv.start[at[inside]] <= start[inside]) & (end[inside] <= iv.end[at[inside]])
    index = np.flatnonzero(inside).astype(np.int64)
    return start[index], end[index], index


def cover(start: I64, end: I64, iv: Intervals) -> I64:
    """Return, for each span, how many ns of it the union covers; 0 for an empty or reversed span.

    Two look-ups per span in the running length of the union, so overlapping spans cost no more than
    others.
    """
    inside = _length_before(end, iv) - _length_before(start, iv)
    return np.asarray(np.maximum(inside, 0), np.int64)


def _length_before(moment: I64, iv: Intervals) -> I64:
    """Return how many ns of the union lie before each moment."""
    lengths = np.concatenate(([0], np.cumsum(iv.end - iv.start)))
    begun = np.searchsorted(iv.start, moment, side="right")
    # The last interval that has begun may reach beyond the moment.
    ends = np.concatenate(([np.iinfo(np.int64).min], iv.end))[begun]
    beyond = np.maximum(ends, moment) - moment
    return np.asarray(lengths[begun] - beyond, np.int64)


def counted_again(unions: Sequence[Intervals]) -> int:
    """Return the ns by which the lengths of the unions exceed the length of their union, by depth
    of cover.

    a 0-4, b 2-6, c 3-5        depth 1 2 3 2 1 over 0-2-3-4-5-6: 1 + 2 + 1 = 4 ns counted again
    """
    if not unions:
        return 0
    starts = np.concatenate([one.start for one in unions])
    ends = np.concatenate([one.end for one in unions])
    moment = np.concatenate((starts, ends))
    change = np.concatenate((np.ones(len(starts), np.int64), np.full(len(ends), -1, np.int64)))
    order = np.argsort(moment, kind="stable")
    depth = np.cumsum(change[order])[:-1]
    return int((np.maximum(depth - 1, 0) * np.diff(moment[order])).sum())


# -- plain twins -------------------------------------------------------------------------------------
#
# A step of a job has some dozens of spans, and is summed up while the job runs. For so few, plain
# integers are several times faster than arrays. The tests hold both to the same answers.

SMALL = 64
"""Up to this many spans the plain twins do the work."""


def _small_union(start: list[int], end: list[int]) -> Intervals:
    starts: list[int] = []
    ends: list[int] = []
    for low, high in sorted(zip(start, end, strict=True)):
        if high <= low:
            continue
        if ends and low <= ends[-1]:
            ends[-1] = max(ends[-1], high)
        else:
            starts.append(low)
            ends.append(high)
    return Intervals(np.array(starts, np.int64), np.array(ends, np.int64))


def _small_intersection(
    start: list[int], end: list[int], iv_start: list[int], iv_end: list[int]
) -> Spans:
    starts: list[int] = []
    ends: list[int] = []
    index: list[int] = []
    for number, (low, high) in enumerate(zip(start, end, strict=True)):
        after = bisect_left(iv_start, max(high, low + 1))
        for other in range(bisect_right(iv_end, low), after):
            starts.append(max(low, iv_start[other]))
            ends.append(min(high, iv_end[other]))
            index.append(number)
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(index, np.int64)

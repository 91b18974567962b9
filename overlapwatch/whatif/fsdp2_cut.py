"""A step cut into pieces of work: what is left between marks when waits, copies and the like are taken out.

In: marks with their moments, and spans to cut out of a lane. Out: pieces and marks in order, and how much was cut out.

    lane    0-10, compute 0-4 and 6-9      cut 2-3      marks at 3 and 6
    items   compute 2, mark, compute 1, other 2, mark, compute 3, other 1
"""

from collections.abc import Sequence

import numpy as np

from overlapwatch.timeline.intervals import (
    Intervals,
    intersect_spans,
    single,
    subtract,
    total,
    union,
)
from overlapwatch.timeline.model import I64, Lane
from overlapwatch.whatif.fsdp2_items import Item, Mark, MarkKind, Piece

Span = tuple[int, int]


def cut(
    compute: Lane,
    step: Span,
    marks: Sequence[tuple[int, Mark]],
    spans: Sequence[Span],
    kept: Sequence[Span],
) -> tuple[list[Item], int]:
    """Return pieces and marks in order, and how much was cut out, ns.

    Args:
        compute: the compute lane.
        step: from when to when.
        marks: with their moments, in any order; of one moment, those of one kind stay in theirs.
        spans: what is cut out.
        kept: what is work all the same where it lies in them.
    """
    low, high = step
    out = _union(spans)
    left = subtract(single(low, high), subtract(out, _union(kept)) if kept else out)
    pieces = _pieces(compute, left)
    items: list[Item] = []
    at = 0
    for moment, mark in sorted(marks, key=lambda one: (one[0], _ORDER[one[1].kind])):
        at = _take_until(pieces, at, moment, items)
        items.append(mark)
    _take_until(pieces, at, high + 1, items)
    return items, (high - low) - total(left)


_ORDER = {
    MarkKind.FREE: 0,
    MarkKind.WAIT: 1,
    MarkKind.REDUCE: 2,
    MarkKind.END: 3,
    MarkKind.STOP: 4,
    MarkKind.BY_HAND: 5,
    MarkKind.USE: 6,
}
"""What comes first of what happened at one moment."""


_Spans = list[tuple[int, int, bool, int]]


def _pieces(lane: Lane, left: Intervals) -> _Spans:
    """Return (start, end, computing, phase) of all that is left, in order."""
    start, end, index = intersect_spans(lane.start, lane.end, left)
    other = subtract(left, union(start, end))
    start, end, index = _without_overlap(start, end, index)
    found = [
        (low, high, True, phase)
        for low, high, phase in zip(
            start.tolist(), end.tolist(), lane.phase[index].tolist(), strict=True
        )
        if high > low
    ]
    found += [
        (low, high, False, 0)
        for low, high in zip(other.start.tolist(), other.end.tolist(), strict=True)
    ]
    return sorted(found)


def _without_overlap(start: I64, end: I64, index: I64) -> tuple[I64, I64, I64]:
    """Cut spans of a lane where an earlier one reaches into them."""
    order = np.argsort(start, kind="stable")
    start, end, index = start[order], end[order], index[order]
    reached = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    return np.maximum(start, reached), end, index


def _take_until(pieces: _Spans, at: int, moment: int, items: list[Item]) -> int:
    """Move what lies before `moment` to `items`, joining what is alike; return where to go on."""
    while at < len(pieces) and pieces[at][0] < moment:
        low, high, computing, phase = pieces[at]
        end = min(high, moment)
        last = items[-1] if items else None
        if isinstance(last, Piece) and (last.computing, last.phase) == (computing, phase):
            items[-1] = Piece(last.ns + end - low, computing, phase)
        else:
            items.append(Piece(end - low, computing, phase))
        if end < high:
            pieces[at] = (end, high, computing, phase)
            return at
        at += 1
    return at


def _union(spans: Sequence[tuple[int, int]]) -> Intervals:
    if not spans:
        return union(np.empty(0, np.int64), np.empty(0, np.int64))
    start, end = np.array(spans, np.int64).T
    return union(start, end)

"""Spans -> rows of a viewer on which no two of them overlap, or only one inside the other.

In: spans by start. Out: the row of each. A viewer draws a row as a stack of spans that lie in one
another, and drops or misplaces one that reaches over the end of another; spans that ran at once are
put on several rows instead, each on the first that is free:

    spans     0-4  1-3  3-6  4-5        rows, apart       0 1 1 0
                                        rows, nested      0 0 1 0      depth 0 1 0 0: 1-3 lies in 0-4
"""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import I64

Places = NDArray[np.int64]


def apart(start: I64, end: I64) -> Places:
    """Return rows on which spans (by start) do not overlap."""
    rows = np.zeros(len(start), np.int64)
    reached = np.maximum.accumulate(end)
    if len(start) < 2 or bool((start[1:] >= reached[:-1]).all()):
        return rows
    busy: list[tuple[int, int]] = []  # (end, row)
    free: list[int] = []
    used = 0
    taken: list[int] = []
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        while busy and busy[0][0] <= low:
            heappush(free, heappop(busy)[1])
        if free:
            row = heappop(free)
        else:
            row, used = used, used + 1
        taken.append(row)
        heappush(busy, (max(high, low), row))
    rows[:] = taken
    return rows


def nested(start: I64, end: I64) -> tuple[Places, I64]:
    """Return rows on which spans (by start, of equal starts the longest first) lie in one another or apart.

    Returns:
        the row of each, and in how many spans of its row it lies.

    """
    stacks: list[list[int]] = []  # the ends of what is open on each row, the innermost last
    taken: list[int] = []
    depth: list[int] = []
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        row = _room(stacks, low, high)
        if row == len(stacks):
            stacks.append([])
        depth.append(len(stacks[row]))
        stacks[row].append(high)
        taken.append(row)
    return np.array(taken, np.int64), np.array(depth, np.int64)


def _room(stacks: list[list[int]], low: int, high: int) -> int:
    """Return the first row that has room for a span, or the next new one."""
    for row, ends in enumerate(stacks):
        while ends and ends[-1] <= low:
            ends.pop()
        if not ends or ends[-1] >= high:
            return row
    return len(stacks)

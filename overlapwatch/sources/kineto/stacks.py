"""Host spans around a moment: which annotations, calls and phases a launch lies in.

In: HOST rows and moments on threads. Out: for each moment the spans that enclose it on its thread.
Spans of one thread nest, as calls do; one that crosses another's end counts as inside it no longer
than it lasts. It does not know what the spans mean.

    thread 1    A 0-10   B 2-5   C 3-4        3 lies in A > B > C, 6 in A, 11 in none
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import I64


def innermost(
    spans: NDArray[np.void], thread: NDArray[np.uint32], moment: I64
) -> NDArray[np.int64]:
    """Return for each moment the index of the span that began last and still runs; -1 = none.

    Args:
        spans: HOST rows, any order.
        thread: of each moment.
        moment: int64 ns.
    """
    found = np.full(len(moment), -1, np.int64)
    for number, mine in _threads_in_order(spans):
        asked = np.flatnonzero(thread == number)
        if not len(asked):
            continue
        start, end = spans["start"][mine], spans["end"][mine]
        parent = parents(start, end)
        place = np.searchsorted(start, moment[asked], side="right") - 1
        while True:  # from the span that began last, outwards, until one still runs
            left = (place >= 0) & (end[place] <= moment[asked])
            if not left.any():
                break
            place[left] = parent[place[left]]
        inside = place >= 0
        found[asked[inside]] = mine[place[inside]]
    return found


def parents_of(spans: NDArray[np.void]) -> NDArray[np.int64]:
    """Return for each span the index of the span around it on its thread; -1 = none."""
    found = np.full(len(spans), -1, np.int64)
    for _, mine in _threads_in_order(spans):
        parent = parents(spans["start"][mine], spans["end"][mine])
        inside = parent >= 0
        found[mine[inside]] = mine[parent[inside]]
    return found


def outermost(spans: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say which spans begin when no other of their thread runs."""
    found = np.zeros(len(spans), np.bool_)
    for _, mine in _threads_in_order(spans):
        before = np.maximum.accumulate(spans["end"][mine])[:-1]
        found[mine[:1]] = True
        found[mine[1:]] = spans["start"][mine[1:]] >= before
    return found


def parents(start: I64, end: I64) -> NDArray[np.int64]:
    """Return the place of the span around each of these, which are sorted by start; -1 = none."""
    found = np.full(len(start), -1, np.int64)
    open_now: list[int] = []
    ends = end.tolist()
    for place, begin in enumerate(start.tolist()):
        while open_now and ends[open_now[-1]] <= begin:
            open_now.pop()
        if open_now:
            found[place] = open_now[-1]
        open_now.append(place)
    return found


def _threads_in_order(spans: NDArray[np.void]) -> Iterator[tuple[int, I64]]:
    """Yield each thread with the positions of its spans by start, the longer of two first."""
    for number, mine in by_thread(spans["thread"]):
        yield number, mine[np.lexsort((-spans["end"][mine], spans["start"][mine]))]


def by_thread(thread: NDArray[np.uint32]) -> Iterator[tuple[int, I64]]:
    """Yield each thread with the positions that hold it."""
    order = np.argsort(thread, kind="stable")
    numbers, first = np.unique(thread[order], return_index=True)
    if len(thread):
        yield from zip(numbers.tolist(), np.split(order, first[1:]), strict=True)

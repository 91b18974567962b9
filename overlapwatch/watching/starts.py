"""Estimates when a collective's turn came, where nobody saw it begin.

In: COLLECTIVE records of one step with launch and finish, and how many collectives a group's backend runs at a time.
Out: `start`, flagged *estimated*: a backend takes its collectives in order, so one begins when it is launched (on a
device: when its inputs are complete) or when a worker is free, whichever is later. After one whose finish is not known
nothing more is estimated in that group. An estimated start splits queueing from residence in reports; the lanes of the
accounting never use it.

    two workers      launch  finish   start
    bucket 0            0      10        0
    bucket 1            2      14        2
    bucket 2            4      20       10    (worker of bucket 0 is free)
"""

import heapq
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from overlapwatch.vocabulary import RecordFlag, RecordKind


def estimate_starts(records: NDArray[np.void], workers: Mapping[int, int]) -> None:
    """Fill in `start` where it is 0, in place.

    Args:
        records: RECORD array of one step.
        workers: group id -> collectives that run at a time. Groups that are not in it are left alone.
    """
    untold = ((records["kind"] == _COLLECTIVE) & (records["start"] == 0)).nonzero()[0]
    if not len(untold):
        return
    by_group: dict[int, list[int]] = {}
    for place, group in zip(untold.tolist(), records["group"][untold].tolist(), strict=True):
        by_group.setdefault(group, []).append(place)
    launches = records["launch"]
    for group, places in by_group.items():
        count = workers.get(group, 0)
        if count:
            _estimate_group(records, sorted(places, key=launches.__getitem__), count)


def _estimate_group(records: NDArray[np.void], order: list[int], workers: int) -> None:
    starts, flags = records["start"], records["flags"]
    columns = [records[name][order].tolist() for name in ("launch", "ready", "finish", "flags")]
    free_at = [0] * workers
    for place, launch, ready, finish, flag in zip(order, *columns, strict=True):
        if not finish:
            return
        measured_ready = 0 if flag & _READY_ESTIMATED else ready
        start = max(launch, measured_ready, heapq.heappop(free_at))
        starts[place] = min(start, finish)
        flags[place] = flag | _START_ESTIMATED
        heapq.heappush(free_at, finish)


_COLLECTIVE = int(RecordKind.COLLECTIVE)
_READY_ESTIMATED = int(RecordFlag.READY_ESTIMATED)
_START_ESTIMATED = int(RecordFlag.START_ESTIMATED)

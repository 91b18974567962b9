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
    collectives = np.flatnonzero(
        (records["kind"] == RecordKind.COLLECTIVE) & (records["start"] == 0)
    )
    for group in np.unique(records["group"][collectives]):
        count = workers.get(int(group), 0)
        if count:
            mine = collectives[records["group"][collectives] == group]
            _estimate_group(
                records, mine[np.argsort(records["launch"][mine], kind="stable")], count
            )


def _estimate_group(records: NDArray[np.void], order: NDArray[np.int64], workers: int) -> None:
    free_at = [0] * workers
    for place in order:
        launch, ready, finish = (
            int(records[name][place]) for name in ("launch", "ready", "finish")
        )
        if not finish:
            return
        measured_ready = 0 if int(records["flags"][place]) & RecordFlag.READY_ESTIMATED else ready
        start = max(launch, measured_ready, heapq.heappop(free_at))
        records["start"][place] = min(start, finish)
        records["flags"][place] |= np.uint8(RecordFlag.START_ESTIMATED)
        heapq.heappush(free_at, finish)

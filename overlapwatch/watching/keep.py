"""Decides which steps keep their events; every step keeps its summary.

In: summaries, in order. Out: keep or not, and whether the step was slow: slower than the 99th percentile of the steps
before it. The first steps, every Nth, the slow ones and those with an unfinished collective are kept whole.
"""

import bisect
from collections import deque

import numpy as np

from overlapwatch.vocabulary import OUT_OF_STATISTICS, StepFlag

WINDOW = 512
LEAST = 30
"""Fewer steps than this have no 99th percentile worth the name."""


class Keeper:
    """Remembers the durations of the last 512 steps in statistics."""

    def __init__(self, first: int, every: int) -> None:
        self._first = first
        self._every = every
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def is_slow(self, duration_ns: int) -> bool:
        """Whether a step of this length is slower than the running 99th percentile."""
        count = len(self._sorted)
        return count >= LEAST and duration_ns > self._sorted[min(count - 1, int(0.99 * count))]

    def judge(self, summary: np.void) -> int:
        """Return the step's flags with SLOW and EVENTS_KEPT added where they apply, and remember its length."""
        flags, step = int(summary["flags"]), int(summary["step"])
        duration = int(summary["end_ns"] - summary["start_ns"])
        if not flags & OUT_OF_STATISTICS:
            if self.is_slow(duration):
                flags |= StepFlag.SLOW
            self._remember(duration)
        if flags & StepFlag.SHADOW:
            return flags
        special = flags & (StepFlag.SLOW | StepFlag.UNFINISHED)
        if special or step <= self._first or step % self._every == 0:
            flags |= StepFlag.EVENTS_KEPT
        return flags

    def _remember(self, duration_ns: int) -> None:
        self._recent.append(duration_ns)
        bisect.insort(self._sorted, duration_ns)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._recent.popleft())]

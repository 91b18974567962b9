"""The host clock of this rank, and the one seam through which a fake clock enters.

In: nothing. Out: integer ns. Every time in a record is on this clock; `pair` places it on the wall clock. On Linux it
is CLOCK_MONOTONIC, which all processes of one host share, and which stands still while the host is suspended.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_PAIR_TRIES = 5


@dataclass(frozen=True, slots=True)
class HostClock:
    """A monotonic clock and a wall clock, in ns.

    Args:
        now: monotonic ns; the hot path calls it directly.
        wall: ns since the epoch.
    """

    now: Callable[[], int] = time.perf_counter_ns
    wall: Callable[[], int] = time.time_ns

    @property
    def name(self) -> str:
        """What the clock is, for the log's header: `clock_gettime(CLOCK_MONOTONIC)` on Linux."""
        if self.now is not time.perf_counter_ns:
            return "a clock given by the caller"
        return time.get_clock_info("perf_counter").implementation

    def pair(self) -> tuple[int, int]:
        """Return (monotonic ns, wall ns) of one moment, so that a reader can place one clock on the other.

        The wall clock is read between two readings of the monotonic one; the narrowest of a few tries counts.
        """
        best: tuple[int, int, int] | None = None
        for _ in range(_PAIR_TRIES):
            before = self.now()
            wall = self.wall()
            after = self.now()
            if best is None or after - before < best[0]:
                best = (after - before, (before + after) // 2, wall)
        assert best is not None
        return best[1], best[2]

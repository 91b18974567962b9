"""Holds process groups while a thread of theirs may yet call us, so that a job cannot hang in destroying one.

In: groups whose collectives we follow with callbacks. Out: nothing; a group is let go when that is safe.

Gloo's destructor joins its worker threads, and whoever drops the last reference runs it with the GIL held. A worker
that is about to call back, or to drop the callback, waits for the GIL: both wait for ever (pytorch#56297). So we keep a
reference, which makes ours the last one, and drop it when no callback is outstanding. To the rest of the process the
group is destroyed when the user destroys it; only its threads and sockets live a moment longer.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_LONGEST_WAIT_S = 1.0
_DROPPING_S = 0.02
"""Between a callback's end and the end of its thread's business with it, which is microseconds once it has the GIL."""


class HeldGroups:
    """The groups of one watch. `is_awaited` says whether a thread of one of them will yet call us."""

    def __init__(self, is_awaited: Callable[[], bool]) -> None:
        self._is_awaited = is_awaited
        self._groups: dict[int, Any] = {}
        self._quiet_rounds = 0

    def hold(self, group: Any) -> None:
        """Keep a reference."""
        self._groups[id(group)] = group

    def let_go_of_destroyed(self) -> None:
        """On the drain thread, now and then: drop those that the user has destroyed, once they have long been quiet."""
        registered = dist.distributed_c10d._world.pg_map  # noqa: SLF001 - no public list of groups
        gone = [key for key, group in list(self._groups.items()) if group not in registered]
        self._quiet_rounds = 0 if not gone or self._is_awaited() else self._quiet_rounds + 1
        if self._quiet_rounds > 1:
            for key in gone:
                self._groups.pop(key, None)

    def close(self) -> None:
        """Wait until no callback is outstanding, and drop all. What hangs is never dropped: it would hang us too."""
        deadline = time.monotonic() + _LONGEST_WAIT_S
        while self._is_awaited() and time.monotonic() < deadline:
            time.sleep(_DROPPING_S / 10)
        time.sleep(_DROPPING_S if self._groups else 0)
        if self._is_awaited():
            for group in self._groups.values():
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        self._groups.clear()

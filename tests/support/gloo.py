"""Process groups that outlive their destruction by a moment, so that PyTorch cannot hang in it.

What a gloo worker thread drops after the last reduction of a backward may hold a Python object (the context that
`torch.autograd.graph` stashes). If the group's destructor runs meanwhile, the thread waits for the GIL while the main
thread holds the GIL and joins that thread (pytorch#56297), whether anybody watches or not. On a busy machine with jobs
of a few steps it was 1 job in 15, and a process that hangs so cannot even be told of a timeout.

`let_gloo_go(torch.distributed)` makes `destroy_process_group` keep the C++ groups for a few seconds longer: everything
that a caller can see of the destruction happens at once, only the join waits until the threads are idle.
"""

import atexit
import ctypes
import functools
import time
from types import ModuleType
from typing import Any

_IDLE_S = 3.0
_kept: list[tuple[float, list[Any]]] = []


def let_gloo_go(distributed: ModuleType) -> None:
    """Replace `destroy_process_group` in `torch.distributed`; a second call does nothing."""
    destroy = distributed.destroy_process_group
    if hasattr(destroy, "__wrapped__"):
        return

    @functools.wraps(destroy)
    def keep_and_destroy(*args: Any, **kwargs: Any) -> None:
        now = time.monotonic()
        groups = list(distributed.distributed_c10d._world.pg_map)
        destroy(*args, **kwargs)
        while _kept and now - _kept[0][0] > _IDLE_S:
            del _kept[0]
        _kept.append((now, groups))

    distributed.destroy_process_group = keep_and_destroy
    atexit.register(_keep_for_good)


def _keep_for_good() -> None:
    """Let the process end without the destructors of those that are still young."""
    for _, groups in _kept:
        for group in groups:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def forget_kept() -> int:
    """Drop what is kept now, for a test that looks at when a group goes; return how many there were."""
    count = len(_kept)
    _kept.clear()
    return count

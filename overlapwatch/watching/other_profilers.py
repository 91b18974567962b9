"""Notices a user's profiler, so that ours is never in its way.

In: PyTorch's own calls when a profiler is prepared, started and stopped. Out: whether one is there, and a call before
one gets there. Two profilers at once lose their results; one that starts between another's preparation and start makes
PyTorch crash. PyTorch does not refuse either, so somebody has to look.

How: three functions of `torch.autograd.profiler`, through which every profiler of that module goes, are replaced until
`remove()`. A profiler that was prepared before that is found among the living objects, once. Not noticed: traces asked
for from outside the process (Kineto's daemon).
"""

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import profiler as watched

_BEFORE = ("_prepare_profiler", "_run_on_profiler_start")
_AFTER = "_run_on_profiler_stop"


class OtherProfilers:
    """Watches for profilers that are not ours, until `remove()`.

    Args:
        give_way: called, on the thread that prepares or starts another profiler, before it does.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._our_thread = 0
        self._there = any(
            issubclass(type(thing), watched.profile)  # isinstance would wake lazy objects
            and thing.entered
            and thing.kineto_results is None
            for thing in gc.get_objects()
        )
        self._originals = {name: getattr(watched, name) for name in (*_BEFORE, _AFTER)}
        for name in _BEFORE:
            setattr(watched, name, self._wrapped(name, self._comes))
        setattr(watched, _AFTER, self._wrapped(_AFTER, self._goes))

    def present(self) -> bool:
        """Whether another profiler is prepared or running."""
        enabled = torch._C._autograd._profiler_enabled()  # noqa: SLF001 - what a legacy profiler sets
        return bool(self._there or watched._is_profiler_enabled or enabled)  # noqa: SLF001

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What this thread does with profilers inside the block, we do."""
        self._our_thread = threading.get_ident()
        try:
            yield
        finally:
            self._our_thread = 0

    def remove(self) -> None:
        """PyTorch's functions are back. Safe to call twice."""
        for name, original in self._originals.items():
            if getattr(getattr(watched, name), "__wrapped__", None) is original:
                setattr(watched, name, original)
        self._give_way = _nothing

    def _wrapped(self, name: str, told: Callable[[], None]) -> Callable[..., Any]:
        original = self._originals[name]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._our_thread:
                told()
            return original(*args, **kwargs)

        return call

    def _comes(self) -> None:
        self._there = True
        self._give_way()

    def _goes(self) -> None:
        self._there = False


def _nothing() -> None:
    pass

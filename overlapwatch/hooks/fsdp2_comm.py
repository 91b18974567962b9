"""Stands in front of FSDP2's communicators: says whose collective comes, and calls what was there.

In: a communicator, PyTorch's or the user's own. Out: one that behaves in every way like it, for
`set_custom_all_gather` and `set_custom_reduce_scatter`. It is of a type derived from the other's and shares its
attributes, since PyTorch looks at the type (`set_symm_mem_for_comm` refuses what it does not know), and users may look
at anything.
"""

import types
from collections.abc import Callable
from typing import Any, Protocol

from overlapwatch.hooks.compiler import not_compiled


class Listener(Protocol):
    """Is told what happens round a communicator's calls. Nothing of it may raise."""

    def allocated(self, tensor: Any) -> None:
        """A buffer was allocated for the next call."""

    def call(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make the call, and return what it returned."""


def stand_in(inner: Any, listener: Listener) -> Any:
    """Return a communicator that tells `listener` and does what `inner` does."""

    @not_compiled
    def allocate(_self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = inner.allocate(*args, **kwargs)
        listener.allocated(tensor)
        return tensor

    @not_compiled
    def call(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return listener.call(inner, args, kwargs)

    def otherwise(_self: Any, name: str) -> Any:  # attributes that are not in a __dict__
        return getattr(inner, name)

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"allocate": allocate, "__call__": call, "__getattr__": otherwise}
        namespace |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}

    kind = type(inner)
    try:
        outer: Any = object.__new__(types.new_class(kind.__name__, (kind,), {}, fill))
    except (
        TypeError
    ):  # a type that nothing can be derived from: PyTorch asks for these two methods only
        outer = object.__new__(types.new_class(kind.__name__, (), {}, fill))
    if hasattr(inner, "__dict__"):
        outer.__dict__ = inner.__dict__
    return outer


class StandIns:
    """The two communicators of one parameter group, taken over and given back."""

    def __init__(self, module: Any, raw: Any, gather: Listener, scatter: Listener) -> None:
        # With several groups the public setters refuse, since one communicator could not serve them all. These can.
        self._set_gather: Callable[[Any], None] | None = None
        self._set_scatter: Callable[[Any], None] | None = None
        if module is not None:
            self._set_gather = module.set_custom_all_gather
            self._set_scatter = module.set_custom_reduce_scatter
        self._raw = raw
        self._gather_listener, self._scatter_listener = gather, scatter
        self._gather = self._scatter = self._users_gather = self._users_scatter = None
        self.take_over()

    def take_over(self) -> None:
        """Stand in front of what is there now. Cheap where we still do: the user may have set another one meanwhile."""
        if self._raw._all_gather_comm is not self._gather:  # noqa: SLF001
            self._users_gather = self._raw._all_gather_comm  # noqa: SLF001
            self._gather = stand_in(self._users_gather, self._gather_listener)
            self._put_gather(self._gather)
        if self._raw._reduce_scatter_comm is not self._scatter:  # noqa: SLF001
            self._users_scatter = self._raw._reduce_scatter_comm  # noqa: SLF001
            self._scatter = stand_in(self._users_scatter, self._scatter_listener)
            self._put_scatter(self._scatter)

    def give_back(self) -> None:
        """Put back what was there; what the user has set since stays."""
        if self._raw._all_gather_comm is self._gather:  # noqa: SLF001
            self._put_gather(self._users_gather)
        if self._raw._reduce_scatter_comm is self._scatter:  # noqa: SLF001
            self._put_scatter(self._users_scatter)

    def _put_gather(self, one: Any) -> None:
        if self._set_gather is not None:
            self._set_gather(one)
        else:
            self._raw._all_gather_comm = one  # noqa: SLF001

    def _put_scatter(self, one: Any) -> None:
        if self._set_scatter is not None:
            self._set_scatter(one)
        else:
            self._raw._reduce_scatter_comm = one  # noqa: SLF001

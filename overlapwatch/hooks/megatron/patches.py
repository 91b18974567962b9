"""Replaces functions of Megatron's modules, and puts them back.

In: an object (a module, a class, an instance), the name of a function of it, what to call instead. Out: a
`Patch` that can be undone. A function is found through the object each time it is called, so the replacement is met
by everybody; where somebody else has replaced it since, it is left in place when ours is taken out, and ours then
passes everything through.
"""

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patch:
    """One replaced attribute.

    Args:
        owner: a module, class or instance.
        name: an attribute of it; nothing happens when it has none.
        wrap: original -> replacement.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).get(name, _MISSING)  # a staticmethod as such, not what it holds
        self._ours: Any = _MISSING
        if not hasattr(owner, name):
            return
        replacement = wrap(getattr(owner, name))
        static = isinstance(self._own, staticmethod)
        self._ours = staticmethod(replacement) if static else replacement
        setattr(owner, name, self._ours)

    @property
    def done(self) -> bool:
        """Whether it is in place."""
        return self._ours is not _MISSING

    def undo(self) -> None:
        """Put back what was there. Safe to call twice."""
        if self._ours is not _MISSING and vars(self._owner).get(self._name) is self._ours:
            if self._own is _MISSING:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._own)
        self._ours = _MISSING


class Patches:
    """Several of them, undone in reverse order."""

    def __init__(self) -> None:
        self._all: list[Patch] = []

    def __bool__(self) -> bool:
        """Whether any is in place."""
        return bool(self._all)

    def add(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> bool:
        """Replace one attribute; return whether it was there."""
        if owner is None:
            return False
        patch = Patch(owner, name, wrap)
        if patch.done:
            self._all.append(patch)
        return patch.done

    def undo(self) -> None:
        """Put everything back."""
        while self._all:
            self._all.pop().undo()

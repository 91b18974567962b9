"""The string table: names become small ids at attach time, so the hot path writes numbers only.

In: names of modules, parameters, buckets and groups. Out: ids, and each new `Name` once, for the log.
"""

import threading

from overlapwatch.vocabulary import Name, NameKind

MAX_GROUPS = 65_535
"""A record holds a group id in 16 bits."""


class Names:
    """Thread-safe registry. Groups have a numbering of their own (16 bits); everything else shares one. 0 is "none"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[tuple[object, ...], int] = {}
        self._new: list[Name] = []
        self._next = 1
        self._next_group = 1

    def intern(
        self,
        kind: NameKind,
        text: str,
        members: tuple[int, ...] = (),
        elements: int = 0,
        size: int = 0,
        dtype: str = "",
    ) -> int:
        """Return the id of this name, making it known if it is new. A group past the 65,535th gets id 0."""
        key = (kind, text, members, elements, size, dtype)
        with self._lock:
            known = self._ids.get(key)
            if known is not None:
                return known
            if kind is NameKind.GROUP:
                if self._next_group > MAX_GROUPS:
                    return 0
                number, self._next_group = self._next_group, self._next_group + 1
            else:
                number, self._next = self._next, self._next + 1
            self._ids[key] = number
            self._new.append(Name(number, kind, text, members, elements, size, dtype))
            return number

    def take_new(self) -> list[Name]:
        """Return the names made since the last call. The log writes them ahead of the records that use them."""
        with self._lock:
            new, self._new = self._new, []
            return new

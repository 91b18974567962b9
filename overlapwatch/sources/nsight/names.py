"""One table of names for a whole file: string ids and texts of the export -> the ids that lanes hold.

In: texts. Out: ids from 1 and the `Name` each stands for. Texts are the export's own, cut only where
a framework appends a running number to each (`aten::mm, op_id = 994217` is `aten::mm`).
"""

import numpy as np

from overlapwatch.sources.nsight.tables import MISSING, Tables, text
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import Name, NameKind

_TAILS = (b"op_id = ", b"seq = ", b"sizes = ")
_LOOKUP_LIMIT = 1 << 24


class NameTable:
    """Ids for texts; the same text has one id."""

    def __init__(self) -> None:
        self.names: dict[int, Name] = {}
        self._ids: dict[tuple[str, NameKind], int] = {}

    def id_of(self, words: str, kind: NameKind = NameKind.OPERATION) -> int:
        """Return the id of a text, 0 for an empty one."""
        if not words:
            return 0
        number = self._ids.setdefault((words, kind), len(self._ids) + 1)
        if number not in self.names:
            self.names[number] = Name(number, kind, words)
        return number


def folded(raw: bytes) -> bytes:
    """Return a range's name, in UTF-8, without the numbers that a framework appends to it."""
    comma = raw.find(b", ")
    while comma >= 0:
        if raw.startswith(_TAILS, comma + 2):
            return raw[:comma]
        comma = raw.find(b", ", comma + 2)
    return raw


def distinct(values: I64) -> tuple[I64, I64]:
    """Return the values that occur, ascending, and where each row's value is among them.

    7 9 7 8 -> (7 8 9), (0 2 0 1)
    """
    if not len(values):
        return values, values
    low, high = int(values.min()), int(values.max())
    if high - low >= _LOOKUP_LIMIT:  # also where subtracting would not fit into 64 bits
        uniques, place = np.unique(values, return_inverse=True)
        return uniques, place.astype(np.int64, copy=False)
    seen = np.zeros(high - low + 1, np.bool_)
    seen[values - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[values - low]


def strings(tables: Tables, ids: I64) -> dict[int, str]:
    """Return the texts of string ids; one that the export does not have is not in the result."""
    wanted = ids[ids != MISSING]
    if not len(wanted):
        return {}
    found = tables.rows("StringIds", ("id", "value"), only=("id", wanted))
    return {number: text(value) for number, value in found if isinstance(number, int)}

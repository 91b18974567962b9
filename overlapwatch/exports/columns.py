"""What a table is: its name, its columns, what each holds.

In: nothing. Out: `Table`s and `Batch`es. A unit stands in the name of a column (`_ns`, `_bytes`,
`_ppm`); a value that is not known is None, never 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

Batch = Mapping[str, Sequence[Any]]
"""Some rows of a table: the values of each column, all equally many."""
ROWS = 20_000
"""So many rows are Python values at a time."""


class Type(Enum):
    """What a column holds; the value is the word in the documentation."""

    INTEGER = "integer"  # 64 bits
    REAL = "real"
    TEXT = "text"
    BOOLEAN = "true or false"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        name: with its unit, where it has one.
        about: what it holds, in a few words.
        type: of its values.

    """

    name: str
    about: str
    type: Type = Type.INTEGER


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Args:
        name: also of its file.
        about: what a row is.
        columns: in order.

    """

    name: str
    about: str
    columns: tuple[Column, ...]

    def batch(self, **columns: Sequence[Any]) -> Batch:
        """Return a batch, in the order of the columns."""
        assert set(columns) == {one.name for one in self.columns}
        return {one.name: columns[one.name] for one in self.columns}

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Return a batch made of rows."""
        return {one.name: [row[one.name] for row in rows] for one in self.columns}


def parts(count: int) -> Iterator[slice]:
    """Yield slices of `ROWS` rows that together are all of `count`."""
    for first in range(0, count, ROWS):
        yield slice(first, first + ROWS)


def table(name: str, about: str, *columns: Column) -> Table:
    """Return a table whose rows belong to a timeline each."""
    whose = (
        Column("timeline", "which rank and device, in words", Type.TEXT),
        Column("rank", "global rank"),
    )
    return Table(name, about, (*whose, *columns))

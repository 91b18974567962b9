"""Tables of an export as arrays: what every way of exporting offers, and how absence is told.

In: nothing. Out: the protocol `Tables` that the sqlite and the Arrow readers fulfil. Exports are lazy:
an absent table means no rows, and an absent column means that this release did not have it. Both read
as MISSING, as does NULL and whatever is not an integer where one belongs, so callers look for one
value instead of three.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from overlapwatch.timeline.model import I64

MISSING = int(np.iinfo(np.int64).min)
"""In an integer column: the export has no value here."""

Value: TypeAlias = int | float | str | bytes | None
Columns: TypeAlias = Mapping[str, I64]


class Tables(Protocol):
    """One export, opened read-only."""

    path: Path
    notes: list[str]  # sentences for the reader, found while opening and reading

    def names(self) -> Collection[str]:
        """Return the tables that there are."""

    def columns(self, table: str) -> Collection[str]:
        """Return the columns of a table; none when it is absent."""

    def count(self, table: str) -> int:
        """Return the rows of a table."""

    def integers(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None = None
    ) -> Columns:
        """Return integer columns, all of one length, MISSING where there is no value.

        Args:
            table: its name; an absent one has no rows.
            columns: their names; an absent one is MISSING throughout.
            only: (column, values): only rows that hold one of these values there. Few rows are
                expected to; those that do not are never copied.

        Raises:
            InputError: the table is damaged before its first row.
        """

    def rows(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None = None
    ) -> list[tuple[Value, ...]]:
        """Return rows as Python values, None where there is none: for small tables and for texts."""

    def coded(
        self, table: str, column: str, fold: Callable[[bytes], bytes]
    ) -> tuple[I64, list[str]]:
        """Return a text column as codes: an index into the texts for each row, -1 where it has none.

        Args:
            table: its name.
            column: its name.
            fold: what makes of a text, in UTF-8, the one that counts, so that names with a number
                in them do not become as many texts as there are rows.
        """

    def close(self) -> None:
        """Let go of the file."""


def empty(columns: Sequence[str]) -> dict[str, I64]:
    """Return the columns of a table without rows."""
    return {name: np.empty(0, np.int64) for name in columns}


def whole(value: Value) -> int:
    """Return an integer value, MISSING for anything else."""
    return value if isinstance(value, int) and -(2**63) < value < 2**63 else MISSING


def text(value: Value) -> str:
    """Return a text value, "" for anything else."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""

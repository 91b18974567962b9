"""What many RankTables say alike is held once.

In: RankTables as they come out of other processes, one at a time. Out: the same, with the names that an
earlier one has too taken from there. The name of a group holds all its ranks: in a job of 16,384 ranks
each table would hold 16,384 numbers, half a megabyte, of its own.
"""

from dataclasses import replace

from overlapwatch.accounting.ranks.table import RankTable
from overlapwatch.vocabulary import Name


class Shared:
    """Remembers names."""

    def __init__(self) -> None:
        self._names: dict[Name, Name] = {}

    def __call__(self, table: RankTable) -> RankTable:
        """Return the table with its names shared."""
        share = self._names.setdefault
        return replace(
            table,
            names={number: share(name, name) for number, name in table.names.items()},
            groups={number: share(name, name) for number, name in table.groups.items()},
        )

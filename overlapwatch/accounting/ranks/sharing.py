"""What many RankTables say alike is held once.

In: RankTables as they come out of other processes, one at a time. Out: the same, with the names that an
earlier one has too taken from there. The name of a group holds all its ranks: in a job of 16,384 ranks
each table would hold 16,384 numbers, half a megabyte, of its own.
"""

from dataclasses import replace

from overlapwatch.accounting.ranks.table import Group, RankTable
from overlapwatch.vocabulary import Name


class Shared:
    """Remembers names."""

    def __init__(self) -> None:
        self._names: dict[Name, Name] = {}
        self._groups: dict[Group, Group] = {}

    def __call__(self, table: RankTable) -> RankTable:
        """Return the table with its names shared."""
        share, share_group = self._names.setdefault, self._groups.setdefault
        return replace(
            table,
            names={number: share(name, name) for number, name in table.names.items()},
            groups={number: share_group(one, one) for number, one in table.groups.items()},
        )

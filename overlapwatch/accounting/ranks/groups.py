"""Which process groups of the ranks are one and the same.

In: RankTables, whose group ids are each rank's own numbering. Out: `Channel`s, numbered for all of
them, and the channel of each row. A channel is what keeps an order: one process group, or the
point-to-point traffic between two of its ranks.

| rank | id | name      | members | channel |
|------|----|-----------|---------|---------|
| 0    | 1  | default   | 0–3     | 0       |
| 0    | 2  | dp        | 0, 2    | 1       |
| 1    | 2  | default   | 0–3     | 0       |
| 2    | 1  | dp        | 0, 2    | 1       |

Groups are the same that have the same name and members. A name without members (an input may not
tell them) is the group of that name, where there is only one. Rows without a group are one channel.
It does not know whether what the rows are called is true: `match` verifies it by their ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.table import SEVERAL_PEERS, Group, RankTable
from overlapwatch.vocabulary import CollectiveKind, Name


@dataclass(frozen=True, slots=True)
class Channel:
    """What keeps an order.

    Args:
        name: of the process group; "" where rows have none.
        members: its ranks; empty where not known.
        ranks: how many; None where not known.
        pair: the two ranks of point-to-point traffic; None for collectives.
        loose: point-to-point traffic of which the other side is not recorded.

    """

    name: str
    members: tuple[int, ...] | range
    ranks: int | None
    pair: tuple[int, int] | None = None
    loose: bool = False

    @property
    def title(self) -> str:
        """What to call it."""
        name = self.name or "group not recorded"
        if self.pair:
            return f"{name}, {self.pair[0]} and {self.pair[1]}"
        return name


def channels(
    tables: Sequence[RankTable],
) -> tuple[tuple[Channel, ...], list[NDArray[np.int32]]]:
    """Return the channels, and the channel of each row of each table."""
    keys = _keys(tables)
    numbers: dict[Channel, int] = {}
    found = []
    for table, of_group in zip(tables, keys, strict=True):
        rows = np.zeros(len(table.records), np.int32)
        sends = table.records["collective"] == CollectiveKind.SEND_RECV
        group = table.records["group"].astype(np.int64)
        # A point-to-point row goes by its group and its peer, every other one by its group.
        label = group * 2**34 + np.where(sends, table.peer.astype(np.int64) + 4, 0)
        for one in np.unique(label).tolist():
            id_, peer = one >> 34, (one & (2**34 - 1)) - 4
            channel = _channel(of_group[id_], table, peer if peer > -4 else None)
            rows[label == one] = numbers.setdefault(channel, len(numbers))
        found.append(rows)
    return tuple(numbers), found


_NO_GROUP = Group("", (), 0)


def _keys(tables: Sequence[RankTable]) -> list[dict[int, Group]]:
    """Return what identifies each group id of each table."""
    told: dict[str, set[Group]] = {}
    keys = []
    for table in tables:
        ids = np.unique(table.records["group"]).tolist()
        mine = {one: table.groups.get(one, _NO_GROUP) for one in ids}
        keys.append(mine)
        for key in mine.values():
            if key.members:
                told.setdefault(key.name, set()).add(key)
    # Where members are known of one group of that name only, it is that one.
    for mine in keys:
        for one, key in mine.items():
            full = told.get(key.name, set())
            if not key.members and len(full) == 1:
                (mine[one],) = full
    return keys


def _channel(key: Group, table: RankTable, peer: int | None) -> Channel:
    """Return the channel of the rows of one group; `peer` None for collectives."""
    name, members, ranks = key.name, key.members, key.ranks or None
    if peer is None:
        return Channel(name, members, ranks)
    if peer < 0 or table.rank is None:
        # Of two ranks the other side is not a question.
        pair = (members[0], members[1]) if len(members) == 2 and peer != SEVERAL_PEERS else None
        return Channel(name, members, ranks, pair, loose=pair is None)
    # Calls name the other side by its place in the group.
    other = members[peer] if peer < len(members) else peer
    return Channel(name, members, 2, (min(table.rank, other), max(table.rank, other)))


def identity(names: Mapping[int, Name], owner: int) -> str:
    """Return what people call an owner of a row; "" where it has none."""
    name = names.get(owner)
    return name.text if name else ""

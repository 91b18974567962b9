"""Waiting by what was communicated: bucket, module or layer, and by process group.

In: Waiting. Out: one `OwnerRow` for each owner: who was late there, and what it cost.

| owner    | collectives | late rank told | most often | waits of the others |
|----------|-------------|----------------|------------|---------------------|
| bucket 0 | 60          | 58             | rank 2, 55 | 812 ms              |
| bucket 1 | 60          | 12             | rank 0, 4  | 31 ms               |

A bucket in which a rank is late that is late nowhere else points to a layer; the same rank in all
of them, to the rank. Collectives without an owner are told by their kind and group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.ranks.waiting import NOT_KNOWN_LATENESS, Waiting
from overlapwatch.accounting.spread import Spread, spread
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The collectives of one owner.

    Args:
        name: bucket, module, or kind and group.
        collectives: matched ones.
        told: of them with a late rank that is told.
        late: the table that is it most often; -1 without.
        late_count: how often.
        skew: spread of their entry skews; None where not known.
        transfer: spread of their transfers; None where not known.
        wait_ns: what all ranks waited in them, added.
        exposed_ns: of that, while they did not compute.

    """

    name: str
    collectives: int
    told: int
    late: int
    late_count: int
    skew: Spread | None
    transfer: Spread | None
    wait_ns: int
    exposed_ns: int

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "name": self.name,
            "collectives": self.collectives,
            "late_rank_told": self.told,
            "late_rank": labels[self.late] if self.late >= 0 else None,
            "late_count": self.late_count,
            "entry_skew": self.skew.to_dict() if self.skew else None,
            "transfer": self.transfer.to_dict() if self.transfer else None,
            "wait_ns": self.wait_ns,
            "exposed_wait_ns": self.exposed_ns,
        }


def owner_rows(waiting: Waiting) -> tuple[OwnerRow, ...]:
    """Return the owners of the counted collectives, those with the most waiting first."""
    told, matches = waiting.collectives, waiting.matches
    if not len(told):
        return ()
    first = matches.first[:-1]
    wait = np.add.reduceat(np.where(waiting.wait == NOT_KNOWN, 0, waiting.wait), first)
    exposed = np.add.reduceat(np.where(waiting.exposed == NOT_KNOWN, 0, waiting.exposed), first)
    nameless = told["owner"] == 0
    key = told["owner"].astype(np.int64) * 2**40
    key += np.where(nameless, told["channel"].astype(np.int64) * 256 + told["kind"], 0)
    rows = []
    for one, mine in parted(np.where(waiting.counted, key, -1)):
        if one < 0:
            continue
        part = told[mine]
        late, count = np.unique(part["late"][part["late"] >= 0], return_counts=True)
        name = waiting.owners[one >> 40]
        if not name:
            kind = min(int(part["kind"][0]), int(max(CollectiveKind)))
            group = matches.channels[int(part["channel"][0])].title
            name = f"{CollectiveKind(kind).title} of {group}"
        rows.append(
            OwnerRow(
                name=name,
                collectives=len(part),
                told=int(count.sum()),
                late=int(late[np.argmax(count)]) if len(late) else -1,
                late_count=int(count.max()) if len(late) else 0,
                skew=spread(part["skew"][part["skew"] != NOT_KNOWN]),
                transfer=spread(part["transfer"][part["transfer"] != NOT_KNOWN]),
                wait_ns=int(wait[mine].sum()),
                exposed_ns=int(exposed[mine].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.wait_ns))


@dataclass(frozen=True, slots=True)
class RankWaits:
    """What one rank waited, and was waited for.

    Args:
        table: position of the table.
        collectives: in which its wait is known.
        stay_ns, wait_ns, exposed_ns: its stays, the waits in them, and the waits while it did not
            compute, added.
        last: collectives that it entered last, where that is told.
        of: collectives that it is in, of which that is told.
        waited_for_ns: exposed waits of the other ranks in the collectives that it entered last.

    """

    table: int
    collectives: int
    stay_ns: int
    wait_ns: int
    exposed_ns: int
    last: int
    of: int
    waited_for_ns: int

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "rank": labels[self.table],
            "collectives": self.collectives,
            "stay_ns": self.stay_ns,
            "wait_ns": self.wait_ns,
            "transfer_ns": self.stay_ns - self.wait_ns,
            "exposed_wait_ns": self.exposed_ns,
            "last": self.last,
            "of": self.of,
            "waited_for_ns": self.waited_for_ns,
        }


def rank_waits(waiting: Waiting, tables: int) -> tuple[RankWaits, ...]:
    """Return what each of `tables` ranks waited in the counted collectives, and was waited for."""
    told, matches = waiting.collectives, waiting.matches
    late = np.repeat(np.where(waiting.counted, told["late"], -1), told["seen"])
    known = (waiting.wait != NOT_KNOWN) & np.repeat(waiting.counted, told["seen"])
    exposed = np.where(known, np.maximum(waiting.exposed, 0), 0)

    def added(where: NDArray[np.bool_], values: I64 | None = None) -> list[int]:
        chosen = matches.table[where]
        if values is None:
            return [int(one) for one in np.bincount(chosen, minlength=tables)]
        sums = np.zeros(tables, np.int64)
        np.add.at(sums, chosen, values[where])
        return [int(one) for one in sums]

    for_whom = np.zeros(tables, np.int64)
    others = (late >= 0) & (late != matches.table)
    np.add.at(for_whom, late[others], exposed[others])
    columns = zip(
        added(known),
        added(known, waiting.stay),
        added(known, waiting.wait),
        added(known, exposed),
        added((late >= 0) & (late == matches.table)),
        added((late >= 0) & (waiting.lateness != NOT_KNOWN_LATENESS)),
        for_whom.tolist(),
        strict=True,
    )
    return tuple(RankWaits(place, *values) for place, values in enumerate(columns))

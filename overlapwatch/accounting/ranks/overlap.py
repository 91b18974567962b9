"""Overlap and exposed time of each rank, as recorded and with waiting for other ranks taken out.

In: RankTables and their Waiting. Out: a `RankOverlap` for each rank. A collective is shortened to
its transfer, the last stretch before its end, and the window accounted again by the same partition.
What was exposed and is not any more was waiting:

    compute         0-4 . . . . . 9-12            exposed  4-9           5
    collective      2 - - - - - - 9  transfer 2   7-9 is transfer: 2     waiting 3
    hidden          2-4                     2     hidden   0

A collective without a match (or without a known end) cannot be split: it stays as recorded, and is
counted. Hidden waiting costs nothing and hides nothing, which is why the share changes both ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.partition import Partition, partition
from overlapwatch.accounting.ranks.alignment import by_table
from overlapwatch.accounting.ranks.table import RankTable
from overlapwatch.accounting.ranks.waiting import Waiting
from overlapwatch.timeline.model import Lane, Origin, Timeline
from overlapwatch.vocabulary import NOT_KNOWN, RecordFlag


@dataclass(frozen=True, slots=True)
class RankOverlap:
    """One rank's communication, twice.

    Args:
        table: position of the table.
        recorded, transfer: partitions of the window with the collectives as recorded, and shortened
            to their transfers; only what speaks of communication is meant (compute is what it
            covers of that).
        communication_ns, overlap_ns: of the rank's own partition, for the check.
        split, unsplit: collectives that were shortened, and that could not be.

    """

    table: int
    recorded: Partition
    transfer: Partition
    communication_ns: int
    overlap_ns: int
    split: int
    unsplit: int

    @property
    def waiting_ns(self) -> int:
        """Communication that was waiting: the lane's union is so much shorter without it."""
        return self.recorded.communication_ns - self.transfer.communication_ns

    @property
    def exposed_waiting_ns(self) -> int:
        """Exposed time that was waiting."""
        return self.recorded.communication_only_ns - self.transfer.communication_only_ns

    def checks(self) -> tuple[Check, ...]:
        """Return how this agrees with the rank's own partition, and adds up."""
        return (
            Check(
                "communication between ranks = communication of the rank",
                self.recorded.communication_ns,
                self.communication_ns,
            ),
            Check(
                "hidden between ranks = hidden of the rank",
                self.recorded.overlap_ns,
                self.overlap_ns,
            ),
            Check(
                "hidden + exposed without waiting = communication without waiting",
                self.transfer.overlap_ns + self.transfer.communication_only_ns,
                self.transfer.communication_ns,
            ),
        )

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "rank": labels[self.table],
            "recorded": _lane(self.recorded),
            "without_waiting": _lane(self.transfer),
            "waiting_ns": self.waiting_ns,
            "exposed_waiting_ns": self.exposed_waiting_ns,
            "collectives_split": self.split,
            "collectives_not_split": self.unsplit,
        }


def _lane(one: Partition) -> dict[str, int | float | None]:
    return {
        "communication_ns": one.communication_ns,
        "overlap_ns": one.overlap_ns,
        "communication_only_ns": one.communication_only_ns,
        "overlap_ratio": one.overlap_ratio,
    }


def rank_overlaps(tables: Sequence[RankTable], waiting: Waiting) -> tuple[RankOverlap, ...]:
    """Return the communication of each table, as recorded and without waiting."""
    matches = waiting.matches
    transfer = np.repeat(waiting.collectives["transfer"], waiting.collectives["seen"])
    rows = dict(by_table(matches, len(tables)))
    found = []
    for place, table in enumerate(tables):
        mine = rows.get(place, np.empty(0, np.int64))
        mine = mine[waiting.wait[mine] != NOT_KNOWN]
        shortened = table.records.copy()
        at = matches.row[mine]
        shortened["start"][at] = shortened["finish"][at] - transfer[mine]
        # Now it is known where the transfer began: it is no estimate of a turn in a queue.
        shortened["flags"][at] &= np.uint8(~RecordFlag.START_ESTIMATED & 255)
        whole = _partition(table, table.records)
        found.append(
            RankOverlap(
                place,
                whole,
                _partition(table, shortened),
                table.communication_ns,
                table.overlap_ns,
                len(mine),
                len(table.records) - len(mine),
            )
        )
    return tuple(found)


def _partition(table: RankTable, records: NDArray[np.void]) -> Partition:
    hidden = table.hidden
    names = np.zeros(len(hidden), np.uint32)
    lane = Lane(hidden.start, hidden.end, names, np.zeros(len(hidden), np.uint8))
    origin = Origin(table.source, table.path)
    return partition(Timeline(origin, compute=lane, communication=records), table.window)

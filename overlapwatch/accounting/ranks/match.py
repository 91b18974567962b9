"""Which collectives of the ranks are one and the same.

In: RankTables. Out: `Matches`: each collective that at least two ranks recorded, and its rows.

The i-th collective of a channel is the same on all ranks. Where an input records i (`sequence`), it
is taken, and verified: the rows of one collective have the same kind, and in logs the same step. A
rank whose rows do not agree with the others' counts from elsewhere (it was attached later), and is
matched as the inputs without sequence numbers are: in order, verified by the ends of the collectives
(`pairing`), or by their having been in progress on both ranks together. So a record that is missing
is a gap on that rank, never a shift:

| sequence | rank 0    | rank 1    | collective        |
|----------|-----------|-----------|-------------------|
| 7        | AllReduce | AllReduce | both ranks        |
| 8        | AllGather |           | rank 0 alone: out |
| 9        | AllReduce | AllReduce | both ranks        |

What cannot be verified is left out, and said. It does not judge whether a program issued its
collectives in the right order: that is `order`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.groups import Channel, channels
from overlapwatch.accounting.ranks.pairing import Ends, pair_by_ends
from overlapwatch.accounting.ranks.table import RankTable
from overlapwatch.timeline.model import I64, Unknown
from overlapwatch.vocabulary import CollectiveKind

AGREE = 0.9
"""The part of a rank's rows that must agree with the others' for its sequence numbers to be used."""
LEFTOVER_ROUNDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Collectives and their rows. Row arrays are ordered by collective, then table.

    Args:
        channels: what `channel` refers to.
        channel, sequence: of each collective; the sequence is recorded, or the place in the order.
        first: where the rows of each collective begin; one longer than the number of collectives.
        table, row: position of the table, and of the row in its `records`.
        alone: for each table, rows that no other table has a match for.
        by_ends: how many of the collectives were matched by their ends.
        notes: sentences for the reader.
        unknown: what could not be matched.

    """

    channels: tuple[Channel, ...]
    channel: NDArray[np.int32]
    sequence: I64
    first: I64
    table: NDArray[np.int32]
    row: I64
    alone: tuple[int, ...]
    by_ends: int
    notes: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    def __len__(self) -> int:
        return len(self.channel)

    @property
    def collective(self) -> I64:
        """The collective of each row."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))


_ROW = np.dtype(
    [
        ("channel", "<i4"),
        ("table", "<i4"),
        ("row", "<i8"),
        ("sequence", "<i8"),  # in the end: what is matched by; 0 = nothing
        ("kind", "u1"),
        ("step", "<u4"),
        ("bytes", "<i8"),
        ("begin", "<i8"),
        ("end", "<i8"),
    ]
)


def match(tables: Sequence[RankTable]) -> Matches:
    """Return the collectives that at least two of the tables have."""
    known, of_rows = channels(tables)
    rows = _all_rows(tables, of_rows)
    ordered = _ordered_channels(rows, len(known))
    matching = _Matching(tables, known, rows)
    rows["sequence"][~ordered[rows["channel"]]] = 0
    for channel, table in matching.disagreeing():
        matching.realign(channel, table)
    for channel in np.flatnonzero(~ordered).tolist():
        matching.by_order(channel)
    return matching.result()


def _all_rows(
    tables: Sequence[RankTable], of_rows: Sequence[NDArray[np.int32]]
) -> NDArray[np.void]:
    rows = np.zeros(sum(map(len, of_rows)), _ROW)
    begin = 0
    for place, (table, channel) in enumerate(zip(tables, of_rows, strict=True)):
        part = rows[begin : begin + len(channel)]
        part["channel"], part["table"] = channel, place
        part["row"] = np.arange(len(channel))
        records = table.records
        part["sequence"], part["kind"] = records["sequence"], records["collective"]
        part["step"], part["bytes"] = records["step"], records["bytes"]
        part["begin"], part["end"] = table.begin, records["finish"]
        begin += len(channel)
    return rows


def _ordered_channels(rows: NDArray[np.void], count: int) -> NDArray[np.bool_]:
    """Say in which channels all rows have a sequence number, and no table one of them twice."""
    ordered = np.ones(count, np.bool_)
    ordered[rows["channel"][rows["sequence"] == 0]] = False
    order = np.lexsort((rows["sequence"], rows["table"], rows["channel"]))
    mine = rows[order]
    twice = np.ones(max(len(mine) - 1, 0), np.bool_)
    for field in ("channel", "table", "sequence"):
        twice &= mine[field][1:] == mine[field][:-1]
    ordered[mine["channel"][1:][twice]] = False
    return ordered


class _Matching:
    """The rows while their sequence numbers are being made comparable."""

    def __init__(
        self, tables: Sequence[RankTable], known: tuple[Channel, ...], rows: NDArray[np.void]
    ) -> None:
        self._tables = tables
        self._channels = known
        self._rows = rows
        self._by_ends: set[tuple[int, int]] = set()  # (channel, sequence)
        self._notes: list[str] = []
        self._unknown: list[Unknown] = []
        self._reference = self._references()

    def _references(self) -> dict[int, int]:
        """Return the table of each channel that has the most rows in it, the first on a tie."""
        pair, count = np.unique(self._pair_key(self._rows), return_counts=True)
        channel, table = pair // len(self._tables), pair % len(self._tables)
        order = np.lexsort((-table, count, channel))  # the last of each channel has the most
        last = dict(zip(channel[order].tolist(), table[order].tolist(), strict=True))
        return {int(one): int(chosen) for one, chosen in last.items()}

    def _pair_key(self, rows: NDArray[np.void]) -> I64:
        """Return one number for the channel and table of each row."""
        key = rows["channel"].astype(np.int64) * len(self._tables) + rows["table"]
        return np.asarray(key, np.int64)

    def disagreeing(self) -> list[tuple[int, int]]:
        """Return (channel, table) where the rows do not agree with the reference table's."""
        rows = self._rows[self._rows["sequence"] > 0]
        if not len(rows):
            return []
        reference = np.array([self._reference.get(one, -1) for one in range(len(self._channels))])
        other = rows["table"] != reference[rows["channel"]]
        order = np.lexsort((other, rows["sequence"], rows["channel"]))
        rows, other = rows[order], other[order]
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = (rows["channel"][1:] != rows["channel"][:-1]) | (
            rows["sequence"][1:] != rows["sequence"][:-1]
        )
        first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        comparable = other & ~other[first]
        agree = self._agree(rows, rows[first])
        pair, place = np.unique(self._pair_key(rows[comparable]), return_inverse=True)
        compared = np.bincount(place, minlength=len(pair))
        agreed = np.bincount(place, weights=agree[comparable], minlength=len(pair))
        bad = pair[agreed < AGREE * compared]
        count = len(self._tables)
        return [(one // count, one % count) for one in bad.tolist()]

    def _agree(self, rows: NDArray[np.void], others: NDArray[np.void]) -> NDArray[np.bool_]:
        """Say which rows may be of the same collective as the others, pair by pair."""
        unknown = CollectiveKind.UNKNOWN
        kinds = (rows["kind"] == others["kind"]) | (rows["kind"] == unknown)
        agree = np.asarray(kinds | (others["kind"] == unknown), np.bool_)
        logs = np.array([table.marks for table in self._tables], np.bool_)
        both = logs[rows["table"]] & logs[others["table"]]
        return np.asarray(agree & (~both | (rows["step"] == others["step"])), np.bool_)

    def realign(self, channel: int, table: int) -> None:
        """Give the rows of a table the sequence numbers of the reference table's that end with them."""
        rows = self._rows
        mine = np.flatnonzero((rows["channel"] == channel) & (rows["table"] == table))
        theirs = np.flatnonzero(
            (rows["channel"] == channel) & (rows["table"] == self._reference[channel])
        )
        sequence = rows["sequence"].copy()
        rows["sequence"][mine] = 0
        paired = self._pair(theirs, mine)
        title, label = self._channels[channel].title, self._tables[table].label
        if paired is None:
            return
        rows["sequence"][paired[1]] = sequence[paired[0]]
        self._by_ends |= {(channel, one) for one in sequence[paired[0]].tolist()}
        self._notes.append(
            f"{label} counts the collectives of group {title} from elsewhere: "
            f"{len(paired[1])} of {len(mine)} were matched by their ends"
        )

    def by_order(self, channel: int) -> None:
        """Number the rows of a channel without sequence numbers, table by table, by their ends."""
        rows = self._rows
        told = self._channels[channel]
        of_channel = np.flatnonzero((rows["channel"] == channel) & (rows["end"] != 0))
        there = np.unique(rows["table"][rows["channel"] == channel])
        if len(there) < 2:
            return
        if told.loose and len(there) > 2:
            self._unmatched(told, "the other side of its sends and receives is not recorded")
            return
        left = of_channel
        number = 0
        for _ in range(LEFTOVER_ROUNDS):
            counts = np.bincount(rows["table"][left], minlength=len(self._tables))
            if int((counts > 0).sum()) < 2:
                break
            reference = int(counts.argmax())
            base = left[rows["table"][left] == reference]
            base = base[np.argsort(rows["end"][base], kind="stable")]
            own = number + 1 + np.arange(len(base))
            number += len(base)
            used = np.zeros(len(base), np.bool_)
            for table in np.flatnonzero(counts).tolist():
                if table == reference:
                    continue
                mine = left[rows["table"][left] == table]
                paired = self._pair(base, mine, quiet=number > len(base))
                if paired is None:
                    continue
                order = np.argsort(base)
                at = order[np.searchsorted(base, paired[0], sorter=order)]
                rows["sequence"][paired[1]] = own[at]
                used[at] = True
            rows["sequence"][base[used]] = own[used]
            self._by_ends |= {(channel, one) for one in own[used].tolist()}
            left = left[rows["sequence"][left] == 0]
            left = left[rows["table"][left] != reference]
        self._whole_channel(channel)

    def _whole_channel(self, channel: int) -> None:
        """Say how many rows of the channel stayed alone, where it is not obvious."""
        rows = self._rows[self._rows["channel"] == channel]
        matched = int((rows["sequence"] > 0).sum())
        if 0 < matched < len(rows):
            self._notes.append(
                f"{len(rows) - matched} of {len(rows)} records of group "
                f"{self._channels[channel].title} have no match on another rank: "
                "their matches were not recorded"
            )

    def _pair(self, base: I64, mine: I64, *, quiet: bool = False) -> tuple[I64, I64] | None:
        """Return pairs of row positions by their ends; None, and why in `unknown`, without any."""
        rows = self._rows
        base, mine = (one[rows["end"][one] != 0] for one in (base, mine))
        base, mine = (one[np.argsort(rows["end"][one], kind="stable")] for one in (base, mine))
        if not len(base) or not len(mine):
            return None
        here, there = (self._tables[rows["table"][one[0]]] for one in (base, mine))
        same = bool(here.host and here.clock) and (here.host, here.clock) == (
            there.host,
            there.clock,
        )
        found = pair_by_ends(self._ends(base), self._ends(mine), same_clock=same)
        if found.because:
            if same and self._in_progress_together(base, mine):
                return np.sort(base), np.sort(mine)
            if not quiet:
                told = self._channels[rows["channel"][mine[0]]]
                self._unmatched(told, f"{here.label} and {there.label}: {found.because}")
            return None
        return base[found.here], mine[found.there]

    def _in_progress_together(self, base: I64, mine: I64) -> bool:
        """Say whether equally many rows, by launch, are alike and ran at the same time, pair by pair.

        A backend that carries out several collectives at a time ends them in any order, each rank
        in its own; but no rank can leave a collective that another has not entered.
        """
        if len(base) != len(mine):
            return False
        base, mine = np.sort(base), np.sort(mine)
        here, there = self._rows[base], self._rows[mine]
        alike = (self._ends(base).sign == self._ends(mine).sign) & (here["step"] == there["step"])
        known = (here["begin"] != 0) & (there["begin"] != 0)
        together = (here["begin"] < there["end"]) & (there["begin"] < here["end"])
        return bool((alike & known & together).all())

    def _ends(self, places: I64) -> Ends:
        rows = self._rows[places]
        sized = np.isin(rows["kind"], _SAME_SIZE)
        sign = rows["kind"].astype(np.int64) + np.where(sized, rows["bytes"] * 256, 0)
        return Ends(rows["end"], sign, rows["step"].astype(np.int64))

    def _unmatched(self, channel: Channel, because: str) -> None:
        what = f"which records of group {channel.title} are the same collective"
        self._unknown.append(Unknown(what, because))

    def result(self) -> Matches:
        """Return what has been matched."""
        rows = self._rows
        chosen = rows[rows["sequence"] > 0]
        chosen = chosen[np.lexsort((chosen["table"], chosen["sequence"], chosen["channel"]))]
        begins = np.ones(len(chosen), np.bool_)
        begins[1:] = (chosen["channel"][1:] != chosen["channel"][:-1]) | (
            chosen["sequence"][1:] != chosen["sequence"][:-1]
        )
        first = np.flatnonzero(begins)
        count = np.diff(np.append(first, len(chosen)))
        # Rows that contradict the first one of their collective are no match.
        agree = self._agree(chosen, chosen[np.repeat(first, count)])
        collective = np.cumsum(begins) - 1
        several = np.bincount(collective, weights=agree, minlength=len(first))
        kept = agree & (several[collective] > 1)
        wrong = int((~agree).sum())
        if wrong:
            self._notes.append(
                f"{wrong} records have the number of a collective of another kind or step: left out"
            )
        chosen, collective = chosen[kept], collective[kept]
        begins = np.ones(len(chosen), np.bool_)
        begins[1:] = collective[1:] != collective[:-1]
        first = np.flatnonzero(begins)
        total = np.bincount(rows["table"], minlength=len(self._tables))
        mine = np.bincount(chosen["table"], minlength=len(self._tables))
        keys = zip(
            chosen["channel"][first].tolist(), chosen["sequence"][first].tolist(), strict=True
        )
        return Matches(
            channels=self._channels,
            channel=chosen["channel"][first],
            sequence=chosen["sequence"][first],
            first=np.append(first, len(chosen)).astype(np.int64),
            table=chosen["table"],
            row=chosen["row"],
            alone=tuple((total - mine).tolist()),
            by_ends=len(self._by_ends.intersection(keys)) if self._by_ends else 0,
            notes=tuple(self._notes),
            unknown=tuple(self._unknown),
        )


_SAME_SIZE = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
"""Kinds in which S is the same on all ranks."""

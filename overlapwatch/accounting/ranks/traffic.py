"""Bytes and rates of the ranks' collectives by kind and group, with the waiting taken out.

In: RankTables and their Waiting. Out: one `GroupRate` for each kind and channel. S and the factors
are those of `accounting.rates`; t is the transfer of each collective, the shortest stay of its ranks,
so algbw = sum of S / sum of transfers. What a rank alone would have said (its whole stay, waiting
included) is told beside it, from the same collectives.

| group | collectives | S each | transfer p50 | algbw     | with waiting |
|-------|-------------|--------|--------------|-----------|--------------|
| dp 0  | 12          | 5.3 GB | 439 ms       | 12.1 GB/s | 11.9 GB/s    |
| dp 1  | 12          | 5.3 GB | 277 ms       | 19.2 GB/s | 19.0 GB/s    |

A rate needs sizes that agree on all ranks, the number of ranks in the group, and a transfer that is
longer than nothing. It closes when every collective was seen on every rank of its group; of fewer,
the shortest stay may be too long, and the rate is a lower bound. It does not know link traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.ranks.alignment import by_table
from overlapwatch.accounting.ranks.groups import Channel
from overlapwatch.accounting.ranks.table import RankTable
from overlapwatch.accounting.ranks.waiting import Waiting
from overlapwatch.accounting.rates import bus_factor
from overlapwatch.accounting.spread import Spread, spread
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind

LABEL = "transfer of the last rank"
BOUND = "lower bound: transfer of the last of the ranks that were seen"


@dataclass(frozen=True, slots=True)
class GroupRate:
    """The collectives of one kind in one channel.

    Args:
        kind: what they are.
        group: title of the channel.
        members: its ranks; empty where not known.
        ranks: how many; None where not known.
        collectives: matched ones with a known transfer.
        complete: of them seen on every rank of the group.
        transfer, stay: spreads of the transfers, and of the mean stay of the ranks.
        size_bytes: S of each, where all have the same; None otherwise.
        bytes: S, added; None without a rate.
        because: why there is no rate; "" where there is one.

    """

    kind: CollectiveKind
    group: str
    members: tuple[int, ...] | range
    ranks: int | None
    collectives: int
    complete: int
    transfer: Spread
    stay: Spread
    size_bytes: int | None
    bytes: int | None
    because: str

    @property
    def algbw_gb_s(self) -> float | None:
        """S / transfer, GB/s; None without a rate."""
        return None if self.bytes is None else self.bytes / self.transfer.total_ns

    @property
    def busbw_gb_s(self) -> float | None:
        """S / transfer × factor, GB/s; None without a rate."""
        factor = bus_factor(self.kind, self.ranks) if self.ranks else None
        if self.bytes is None or factor is None:
            return None
        return float(Fraction(self.bytes, self.transfer.total_ns) * factor)

    @property
    def with_waiting_gb_s(self) -> float | None:
        """S / mean stay: algbw as one rank alone would tell it, GB/s; None without a rate."""
        return None if self.bytes is None else self.bytes / max(self.stay.total_ns, 1)

    @property
    def label(self) -> str:
        """What the rate is; "" without one."""
        if self.bytes is None:
            return ""
        return LABEL if self.complete == self.collectives else BOUND

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "kind": self.kind.title,
            "group": self.group,
            "members": list(self.members),
            "ranks": self.ranks,
            "collectives": self.collectives,
            "complete": self.complete,
            "transfer": self.transfer.to_dict(),
            "stay": self.stay.to_dict(),
            "size_bytes": self.size_bytes,
            "bytes": self.bytes,
            "algbw_gb_s": self.algbw_gb_s,
            "busbw_gb_s": self.busbw_gb_s,
            "with_waiting_gb_s": self.with_waiting_gb_s,
            "label": self.label or None,
            "because": self.because or None,
        }


def group_rates(tables: Sequence[RankTable], waiting: Waiting) -> tuple[GroupRate, ...]:
    """Return the rates by kind, then channel; the largest sum of transfers first within a kind."""
    told, matches = waiting.collectives, waiting.matches
    if not len(told):
        return ()
    first = matches.first[:-1]
    stays = np.where(waiting.stay == NOT_KNOWN, 0, waiting.stay)
    stay = np.add.reduceat(stays, first) // np.maximum(told["stays"], 1)
    agree = _sizes_agree(tables, waiting)
    known = (told["transfer"] != NOT_KNOWN) & waiting.counted
    key = told["kind"].astype(np.int64) * 2**32 + told["channel"]
    found = []
    for one, mine in parted(np.where(known, key, -1)):
        if one < 0:
            continue
        channel = matches.channels[one & (2**32 - 1)]
        kind = one >> 32
        found.append(
            _rate(
                CollectiveKind(kind) if kind <= max(CollectiveKind) else CollectiveKind.UNKNOWN,
                channel,
                told[mine],
                np.asarray(stay[mine], np.int64),
                agree=bool(agree[mine].all()),
            )
        )
    return tuple(sorted(found, key=lambda one: (one.kind, -one.transfer.total_ns)))


def _sizes_agree(tables: Sequence[RankTable], waiting: Waiting) -> NDArray[np.bool_]:
    """Say of each collective whether its rows have one size, and it is known."""
    matches = waiting.matches
    sizes: I64 = np.zeros(len(matches.row), np.int64)
    for place, mine in by_table(matches, len(tables)):
        sizes[mine] = tables[place].records["bytes"][matches.row[mine]]
    low = np.minimum.reduceat(sizes, matches.first[:-1])
    return np.asarray((low == waiting.collectives["bytes"]) & (low > 0), np.bool_)


def _rate(
    kind: CollectiveKind,
    channel: Channel,
    told: NDArray[np.void],
    stay: I64,
    *,
    agree: bool,
) -> GroupRate:
    ranks = channel.ranks
    transfer, stays = spread(told["transfer"]), spread(stay)
    assert transfer is not None
    assert stays is not None
    sizes = np.unique(told["bytes"])
    reasons = (
        (bus_factor(kind, 1) is None, "this kind has no rate"),
        (not told["bytes"].all(), "the sizes of its calls are not known"),
        (not agree, "the ranks tell different sizes"),
        (not ranks, "the number of ranks is not known"),
        (not transfer.total_ns, "the transfers have no length"),
    )
    because = next((because for applies, because in reasons if applies), "")
    return GroupRate(
        kind=kind,
        group=channel.title,
        members=channel.members,
        ranks=ranks,
        collectives=len(told),
        complete=int((told["seen"] == ranks).sum()) if ranks else 0,
        transfer=transfer,
        stay=stays,
        size_bytes=int(sizes[0]) if len(sizes) == 1 and sizes[0] else None,
        bytes=None if because else int(told["bytes"].sum()),
        because=because,
    )

"""Collectives that do not finish: who waits in them, and who of their group has not launched them.

In: the collectives without a finish of each rank whose ring is within reach, and the newest records of these rings.
Out: `Unfinished`, one a collective however many ranks wait in it, and the groups on which ranks differ. Who is behind
is told by the check of the order of collectives.

| rank | in flight in group dp | launched last | said of sequence 7           |
|------|-----------------------|---------------|------------------------------|
| 0    | 7, 8                  | 8             | waits                        |
| 1    | 7                     | 7             | waits                        |
| 2    |                       | 6             | behind: it has launched 6    |
| 3    | on another host       |               | not seen                     |

It does not know whether one that is in flight still makes progress.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlapwatch.accounting.messages import InFlight
from overlapwatch.accounting.messages import in_flight as as_in_flight
from overlapwatch.accounting.ranks.order import check_order
from overlapwatch.accounting.ranks.order_result import GroupOrder, Position
from overlapwatch.timeline.issued import GroupKey, group_key, issued_of
from overlapwatch.timeline.running import RankNow
from overlapwatch.vocabulary import CollectiveKind

OLD_NS, OLD_STEPS = 1_000_000_000, 2
"""A collective is old after so long and so many steps of its rank."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One collective that some ranks have launched and none of these has seen finish.

    Args:
        first: how the first of these ranks calls it.
        ranks: who waits in it, the killed ones too.
        killed: those of them whose process is gone.
        age_ns: since the first launch by a process that is still there; None: all of them are gone.
        old: it has lasted for longer than is usual.
        behind: ranks of the group that have not launched it, by what they launched last.
        not_seen: ranks of the group of which that is not known; None where its members are not known.

    """

    first: InFlight
    ranks: tuple[int, ...]
    killed: tuple[int, ...]
    age_ns: int | None
    old: bool
    behind: tuple[Position, ...] = ()
    not_seen: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        told = self.first.to_dict()
        del told["launch_ns"]  # on one rank's clock
        return {
            **told,
            "age_ns": self.age_ns,
            "old": self.old,
            "ranks": list(self.ranks),
            "killed": list(self.killed),
            "behind": [one.to_dict() for one in self.behind],
            "not_seen": None if self.not_seen is None else list(self.not_seen),
        }


@dataclass(slots=True)
class _Shared:
    """One collective as it is gathered over ranks."""

    first: InFlight
    group: GroupKey
    numbered: bool
    ranks: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    age_ns: int | None = None
    old: bool = False


def unfinished(
    ranks: Sequence[RankNow], usual_ns: Mapping[int, int | None]
) -> tuple[tuple[Unfinished, ...], tuple[GroupOrder, ...]]:
    """Return what does not finish, the old ones first, oldest first; and the groups on which ranks differ.

    Args:
        ranks: what is known of each.
        usual_ns: the usual step of each rank; None where not known.

    """
    shared: dict[tuple[object, ...], _Shared] = {}
    for one in ranks:
        _gather(shared, one, usual_ns.get(one.rank))
    orders: dict[GroupKey, GroupOrder] = {}
    if any(one.old for one in shared.values()):
        seen = [one.recent for one in ranks if one.recent is not None]
        check = check_order(issued_of(recording) for recording in seen)
        orders = {one.group: one for one in check.groups}
    found = [_told(one, orders.get(one.group)) for one in shared.values()]
    # Python's sort is stable: of the same age, in the order of launches.
    found.sort(key=lambda one: (not one.old, one.age_ns is None, -(one.age_ns or 0)))
    return tuple(found), tuple(one for one in orders.values() if one.mismatch is not None)


def _gather(shared: dict[tuple[object, ...], _Shared], rank: RankNow, usual_ns: int | None) -> None:
    """Add the collectives of one rank."""
    if rank.in_flight is None:
        return
    gone = rank.process == "killed"
    told = as_in_flight(rank.in_flight, rank.names, rank.groups, rank.now_ns or 0)
    limit_ns = max(OLD_NS, OLD_STEPS * (usual_ns or 0))
    for flight, record in zip(told, rank.in_flight, strict=True):
        group = group_key(rank.groups.get(int(record["group"])), int(record["group"]))
        numbered = flight.sequence > 0 and flight.kind != CollectiveKind.SEND_RECV
        # What carries no number cannot be told to be another rank's.
        key = (group, flight.sequence, flight.kind) if numbered else (rank.rank, len(shared))
        one = shared.setdefault(key, _Shared(flight, group, numbered))
        one.ranks.append(rank.rank)
        if gone:
            one.killed.append(rank.rank)
            one.old = True  # it will not finish
        elif flight.age_ns is not None:
            one.age_ns = max(one.age_ns or 0, flight.age_ns)
            one.old = one.old or flight.age_ns > limit_ns


def _told(one: _Shared, order: GroupOrder | None) -> Unfinished:
    behind: tuple[Position, ...] = ()
    not_seen: tuple[int, ...] | None = None
    if order is not None and one.numbered:
        behind = tuple(at for at in order.positions if at.sequence < one.first.sequence)
        not_seen = tuple(sorted((*order.absent, *_without_end(order.end_unknown))))
    return Unfinished(
        first=one.first,
        ranks=tuple(one.ranks),
        killed=tuple(one.killed),
        age_ns=one.age_ns,
        old=one.old,
        behind=behind,
        not_seen=tuple(rank for rank in not_seen if rank not in one.ranks)
        if not_seen is not None
        else None,
    )


def _without_end(end_unknown: Iterable[tuple[str, tuple[int, ...]]]) -> Iterable[int]:
    return (rank for _, ranks in end_unknown for rank in ranks)

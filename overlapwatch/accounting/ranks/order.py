"""Do all ranks issue the same collectives, group by group? Where not: at which one first, and who is behind.

In: one `Issued` a rank, added one at a time. Out: an `OrderCheck`. What is compared is the kind, the
size and the dtype of the collectives with the same number in the same group. Legal differences are
none: uneven all-to-alls have no common size, and groups may be interleaved differently on every rank.

    group dp     rank 0   AllReduce 100   AllGather 8   AllReduce 50
                 rank 1   AllReduce 100   AllGather 8   AllReduce 50
                 rank 2   AllReduce 100   AllReduce 50                       the 2nd differs: rank 2 is alone

Ranks that agree are held once, as a *strand*: thousands of ranks cost one rank's rows, and the ranges
of numbers that each of them knows. A ring that dropped its early entries, or a log that kept some
steps only, knows some numbers; a number is compared on those ranks that know it.

A rank is *behind* in a group when it has issued fewer collectives than the furthest one and its end is
known. In a job that runs this is often only a moment's difference; in one that hangs it is the clue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.order_result import (
    GroupOrder,
    Mismatch,
    OrderCheck,
    Position,
    Shift,
    Side,
    What,
)
from overlapwatch.timeline.issued import ANY_SIZE, GroupKey, Issued, IssuedGroup, Unit
from overlapwatch.timeline.model import I64, Unknown
from overlapwatch.vocabulary import CollectiveKind

FARTHEST_SHIFT = 4
LOOK_AHEAD = 16
"""A sequence is recognised as shifted by up to so many, by comparing up to so many collectives."""
MAX_STRANDS = 200
"""More different sequences in one group are not told apart: ranks beyond them are counted only."""


@dataclass(slots=True, eq=False)
class _Strand:
    """Ranks that nowhere contradict each other, and what all of them together know."""

    rows: NDArray[np.void]
    ranks: list[int]

    def take(self, rows: NDArray[np.void], rank: int) -> bool:
        """Add the rank unless it contradicts; say whether it was added."""
        mine, theirs = _common(self.rows["sequence"], rows["sequence"])
        if _differ(self.rows[mine], rows[theirs]).any():
            return False
        self._refine(mine, rows[theirs])
        if len(theirs) < len(rows):
            new = np.delete(rows, theirs)
            joined = np.concatenate((self.rows, new))
            self.rows = joined[np.argsort(joined["sequence"], kind="stable")]
        self.ranks.append(rank)
        return True

    def _refine(self, mine: I64, theirs: NDArray[np.void]) -> None:
        """Take over what the rank knows of rows and the strand did not."""
        for column, unknown in (("size", ANY_SIZE), ("dtype", 0)):
            new = (self.rows[column][mine] == unknown) & (theirs[column] != unknown)
            if new.any():
                self.rows = self.rows.copy()  # they may be another's, or read-only
                self.rows[column][mine[new]] = theirs[column][new]


@dataclass(slots=True, eq=False)
class _Group:
    """What is known of one group so far."""

    unit: Unit
    strands: list[_Strand] = field(default_factory=list)
    ranges: dict[int, I64] = field(default_factory=dict)
    last: dict[int, int | None] = field(default_factory=dict)
    because: dict[int, str] = field(default_factory=dict)
    numbers: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    known_by: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    beyond: int = 0  # ranks that are in no strand, since there are too many

    def add(self, rank: int, issued: IssuedGroup, ranges: I64) -> None:
        rows = issued.rows
        self.last[rank], self.because[rank] = issued.last, issued.because
        self.ranges[rank] = ranges
        self._count(rows["sequence"].astype(np.int64))
        if not len(rows) or any(strand.take(rows, rank) for strand in self.strands):
            return
        if len(self.strands) < MAX_STRANDS:
            self.strands.append(_Strand(rows, [rank]))
        else:
            self.beyond += 1

    def _count(self, sequence: I64) -> None:
        if np.array_equal(sequence, self.numbers):
            self.known_by += 1
            return
        both = np.concatenate((self.numbers, sequence))
        counts = np.concatenate((self.known_by, np.ones(len(sequence), np.int64)))
        self.numbers, place = np.unique(both, return_inverse=True)
        self.known_by = np.bincount(place, counts, len(self.numbers)).astype(np.int64)


class OrderReduce:
    """Takes one rank after another; `result` says how they compare."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group] = {}
        self._ends: dict[int, str] = {}
        self._ranges: dict[bytes, I64] = {}
        self._texts: dict[int, str] = {}
        self._states: dict[str, None] = {}
        self._units: set[Unit] = set()
        self._notes: list[str] = []
        self._without_order: list[int] = []
        self._point_to_point = self._unnumbered = 0

    def add(self, issued: Issued) -> None:
        """Take in one rank. A rank that was taken before is left out, with a note."""
        rank = issued.rank
        if rank is None:
            rank = next(number for number in range(len(self._ends) + 1) if number not in self._ends)
            self._notes.append(f"{issued.path} does not say its rank: called {rank} here")
        if rank in self._ends:
            self._notes.append(f"left out: {issued.path}: rank {rank} is in another input")
            return
        if self._units and issued.unit not in self._units:
            self._notes.append(
                f"left out: {issued.path}: it tells sizes in {issued.unit}, the others do not"
            )
            return
        self._units.add(issued.unit)
        self._texts.update(issued.texts)
        self._states.setdefault(issued.state)
        self._point_to_point += issued.point_to_point
        self._unnumbered += issued.unnumbered
        self._notes += [f"rank {rank}: {note}" for note in issued.notes]
        self._ends[rank] = issued.end_unknown
        if not issued.groups:
            self._without_order.append(rank)
        for key, group in issued.groups.items():
            known = self._groups.setdefault(key, _Group(issued.unit))
            known.add(rank, group, self._shared(_ranges(group.rows["sequence"])))

    def _shared(self, ranges: I64) -> I64:
        """Return an equal array that is held already: most ranks know the same numbers."""
        return self._ranges.setdefault(ranges.tobytes(), ranges)

    def result(self) -> OrderCheck:
        """Return how the ranks compare."""
        groups = [self._group(key, group) for key, group in self._groups.items()]
        importance = ("differs", "behind", "agrees", "not compared")
        groups.sort(key=lambda one: (importance.index(one.verdict), one.group.name, one.ranks))
        return OrderCheck(
            groups=tuple(groups),
            ranks=tuple(sorted(self._ends)),
            states=tuple(self._states),
            point_to_point=self._point_to_point,
            unnumbered=self._unnumbered,
            unknown=tuple(self._unknown(groups)),
            notes=tuple(self._notes),
        )

    def _unknown(self, groups: Sequence[GroupOrder]) -> Iterable[Unknown]:
        if len(self._ends) == 1:
            yield Unknown("the order of the ranks", "there is one rank only")
        if self._without_order and len(self._without_order) == len(self._ends):
            yield Unknown("the order of the ranks", "the input numbers no collectives")
        for one in groups:
            if not one.compared and len(one.ranks) > 1:
                yield Unknown(
                    f"the order in {one.group.name}", "no collective is known of two of its ranks"
                )
            elif len(one.ranks) == 1 and len(self._ends) > 1 and len(one.group.members) != 1:
                yield Unknown(
                    f"the order in {one.group.name}", f"rank {one.ranks[0]} is its only one seen"
                )
        for key, group in self._groups.items():
            if group.beyond:
                yield Unknown(
                    f"the order of {group.beyond:,} ranks in {key.name}",
                    f"its ranks issue more than {MAX_STRANDS} different sequences",
                )
        if self._point_to_point:
            yield Unknown(
                f"the order of {self._point_to_point:,} point-to-point operations",
                "they have no place in a group's order",
            )
        if self._unnumbered:
            yield Unknown(
                f"the order of {self._unnumbered:,} collectives", "they carry no sequence number"
            )

    def _group(self, key: GroupKey, group: _Group) -> GroupOrder:
        for rank in key.members:  # it was seen, and issued nothing here
            if rank in self._ends and rank not in group.last:
                group.last[rank] = None if self._ends[rank] else 0
                group.because[rank] = self._ends[rank]
                group.ranges[rank] = np.empty((0, 2), np.int64)
        ranks = tuple(sorted(group.last))
        everywhere = group.numbers[group.known_by == len(ranks)]
        placed: dict[int, list[int]] = {}
        unknown: dict[str, list[int]] = {}
        for rank in ranks:
            last = group.last[rank]
            if last is None:
                unknown.setdefault(group.because[rank], []).append(rank)
            else:
                placed.setdefault(last, []).append(rank)
        return GroupOrder(
            group=key,
            ranks=ranks,
            absent=tuple(rank for rank in key.members if rank not in self._ends),
            compared=int((group.known_by > 1).sum()),
            first=int(everywhere[0]) if len(everywhere) else None,
            last=int(everywhere[-1]) if len(everywhere) else None,
            on_all=len(everywhere),
            late_starts=_late_starts(group),
            mismatch=_mismatch(group, self._texts),
            positions=tuple(Position(last, tuple(placed[last])) for last in sorted(placed)),
            end_unknown=tuple((why, tuple(some)) for why, some in unknown.items()),
        )


def check_order(ranks: Iterable[Issued]) -> OrderCheck:
    """Return how the ranks compare."""
    reduce = OrderReduce()
    for issued in ranks:
        reduce.add(issued)
    return reduce.result()


# -- comparing rows --------------------------------------------------------------------------------


def _common(a: I64, b: I64) -> tuple[I64, I64]:
    """Return where the numbers stand that both have; both are ascending."""
    if np.array_equal(a, b):
        everything = np.arange(len(a), dtype=np.int64)
        return everything, everything
    _, mine, theirs = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return mine, theirs


def _differ(a: NDArray[np.void], b: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say of each pair of rows whether they contradict each other; what is not known does not."""
    differ = (a["kind"] != b["kind"]) | (a["operation"] != b["operation"])
    sized = (a["size"] != ANY_SIZE) & (b["size"] != ANY_SIZE)
    typed = (a["dtype"] != 0) & (b["dtype"] != 0)
    differ |= (sized & (a["size"] != b["size"])) | (typed & (a["dtype"] != b["dtype"]))
    return np.asarray(differ, np.bool_)


def _ranges(sequence: NDArray[np.int64]) -> I64:
    """Return ascending numbers as rows of (first, last): 1 2 3 7 8 becomes (1, 3), (7, 8)."""
    if not len(sequence):
        return np.empty((0, 2), np.int64)
    gaps = np.flatnonzero(np.diff(sequence) != 1)
    first = np.concatenate((sequence[:1], sequence[gaps + 1]))
    last = np.concatenate((sequence[gaps], sequence[-1:]))
    return np.stack((first, last), axis=1).astype(np.int64)


def _knows(ranges: I64, number: int) -> bool:
    return bool(((ranges[:, 0] <= number) & (number <= ranges[:, 1])).any())


def _late_starts(group: _Group) -> tuple[Position, ...]:
    starts: dict[int, list[int]] = {}
    for rank in sorted(group.ranges):
        if len(group.ranges[rank]):
            starts.setdefault(int(group.ranges[rank][0, 0]), []).append(rank)
    return tuple(Position(first, tuple(starts[first])) for first in sorted(starts)[1:])


def _mismatch(group: _Group, texts: Mapping[int, str]) -> Mismatch | None:
    """Return the first number at which strands contradict each other."""
    if len(group.strands) < 2:
        return None
    number = min(
        int(one.rows["sequence"][mine[at[0]]])
        for place, one in enumerate(group.strands)
        for other in group.strands[:place]
        for mine, theirs in (_common(one.rows["sequence"], other.rows["sequence"]),)
        for at in (np.flatnonzero(_differ(one.rows[mine], other.rows[theirs])),)
        if len(at)
    )
    sides: list[tuple[NDArray[np.void], list[int], _Strand]] = []
    for strand in group.strands:
        row = strand.rows[strand.rows["sequence"] == number]
        ranks = [rank for rank in strand.ranks if _knows(group.ranges[rank], number)]
        if not len(row) or not ranks:
            continue
        same = next((side for side in sides if not _differ(side[0], row).any()), None)
        if same is None:
            sides.append((row, ranks, strand))
        else:
            same[1].extend(ranks)
    sides.sort(key=lambda side: (len(side[1]), min(side[1])))
    largest = sides[-1]
    alone = len(sides) < 2 or len(sides[-2][1]) < len(largest[1])
    minority = sorted(rank for side in sides[:-1] for rank in side[1]) if alone else []
    shift = None
    if alone and len(sides) == 2:
        shift = _shift(sides[0][2].rows, largest[2].rows, number, group.unit, texts, sides[0][1])
    return Mismatch(
        sequence=number,
        sides=tuple(
            Side(tuple(sorted(ranks)), _what(row[0], group.unit, texts)) for row, ranks, _ in sides
        ),
        minority=tuple(minority),
        shift=shift,
    )


def _shift(
    few: NDArray[np.void],
    many: NDArray[np.void],
    number: int,
    unit: Unit,
    texts: Mapping[int, str],
    ranks: Sequence[int],
) -> Shift | None:
    """Return by how much the sequence of the few is shifted against that of the many, if at all."""
    few, many = _from(few, number), _from(many, number)
    for distance in range(1, FARTHEST_SHIFT + 1):
        for left_out, (a, b) in (
            (distance, (few, many[distance:])),
            (-distance, (few[distance:], many)),
        ):
            compared = min(len(a), len(b), LOOK_AHEAD)
            if compared < 2 or _differ(a[:compared], b[:compared]).any():
                continue
            first = many[0] if left_out > 0 else few[0]
            return Shift(tuple(sorted(ranks)), left_out, _what(first, unit, texts), compared)
    return None


def _from(rows: NDArray[np.void], number: int) -> NDArray[np.void]:
    """Return the rows from a number on, up to the first number that is not known."""
    rows = rows[rows["sequence"] >= number][: LOOK_AHEAD + FARTHEST_SHIFT]
    unbroken = rows["sequence"] == number + np.arange(len(rows))
    return rows[: len(rows) if unbroken.all() else int(np.argmin(unbroken))]


def _what(row: np.void, unit: Unit, texts: Mapping[int, str]) -> What:
    kind, size = int(row["kind"]), int(row["size"])
    return What(
        kind=CollectiveKind(kind) if kind <= max(CollectiveKind) else CollectiveKind.UNKNOWN,
        size=None if size == ANY_SIZE else size,
        unit=unit,
        dtype=texts.get(int(row["dtype"])),
        operation=texts.get(int(row["operation"]), ""),
    )

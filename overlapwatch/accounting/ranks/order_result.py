"""What the check of the order says: of each group, where ranks differ first and who is behind.

In: what `order` found. Out: frozen results with their checks and their JSON. Nothing is compared here.
"""

from dataclasses import dataclass
from typing import Any

from overlapwatch.accounting.closure import Check
from overlapwatch.timeline.issued import GroupKey, Unit
from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import CollectiveKind


@dataclass(frozen=True, slots=True)
class What:
    """What a collective is, as far as all ranks must agree on it. None: not known, or free to differ."""

    kind: CollectiveKind
    size: int | None
    unit: Unit
    dtype: str | None
    operation: str = ""

    @property
    def text(self) -> str:
        """`AllReduce of 100 elements (Float)`."""
        words = self.operation or self.kind.title
        if self.size is not None:
            noun = self.unit if self.size != 1 else self.unit.removesuffix("s")
            words += f" of {self.size:,} {noun}"
        return words + (f" ({self.dtype})" if self.dtype else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "kind": self.kind.title,
            "size": self.size,
            "unit": self.unit,
            "dtype": self.dtype,
            "operation": self.operation or None,
        }


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that issued the same there."""

    ranks: tuple[int, ...]
    what: What

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"ranks": list(self.ranks), "what": self.what.to_dict()}


@dataclass(frozen=True, slots=True)
class Shift:
    """From there on the ranks issue what the others do, but some of it left out, or something more.

    Args:
        ranks: who.
        left_out: how many of the others' collectives they left out; negative: how many more they issued.
        what: the first of these.
        compared: how many collectives after it agree, once shifted.

    """

    ranks: tuple[int, ...]
    left_out: int
    what: What
    compared: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "ranks": list(self.ranks),
            "left_out": self.left_out,
            "what": self.what.to_dict(),
            "compared": self.compared,
        }


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first collective of a group on which ranks differ.

    Args:
        sequence: its number.
        sides: who issued what, the fewest ranks first.
        minority: the ranks that are not of the largest side; empty where two sides are as large.
        shift: how the minority's sequence goes on, where that can be told.

    """

    sequence: int
    sides: tuple[Side, ...]
    minority: tuple[int, ...]
    shift: Shift | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "sequence": self.sequence,
            "sides": [side.to_dict() for side in self.sides],
            "minority": list(self.minority),
            "shift": self.shift.to_dict() if self.shift else None,
        }


@dataclass(frozen=True, slots=True)
class Position:
    """Ranks that issued the same collective last; number 0: none at all."""

    sequence: int
    ranks: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"sequence": self.sequence, "ranks": list(self.ranks)}


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """One group.

    Args:
        group: its name and members.
        ranks: the ranks of the input that are in it.
        absent: members of which there is no input.
        compared: how many collectives are known of at least two ranks.
        first, last: the numbers known of *every* rank lie between these; None: there are none.
        on_all: how many those are.
        late_starts: ranks that know nothing before a number, where others do: (number, ranks).
        mismatch: where they differ first; None: nowhere.
        positions: how far the ranks are, those behind first.
        end_unknown: ranks whose last collective is not known: (why, ranks).

    """

    group: GroupKey
    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    compared: int
    first: int | None
    last: int | None
    on_all: int
    late_starts: tuple[Position, ...]
    mismatch: Mismatch | None
    positions: tuple[Position, ...]
    end_unknown: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def behind(self) -> tuple[Position, ...]:
        """The ranks that are not where the furthest are."""
        return self.positions[:-1]

    @property
    def minority(self) -> Position | None:
        """The position with the fewest ranks, of several; None where no one has the fewest."""
        if len(self.positions) < 2:
            return None
        few, more = sorted(self.positions, key=lambda one: len(one.ranks))[:2]
        return few if len(few.ranks) < len(more.ranks) else None

    @property
    def verdict(self) -> str:
        """`differs`, `behind`, `agrees` or `not compared`."""
        if self.mismatch is not None:
            return "differs"
        if self.behind:
            return "behind"
        return "agrees" if self.compared else "not compared"

    def checks(self) -> tuple[Check, ...]:
        """Return how the ranks add up over the sides and over the positions."""
        name = self.group.name
        placed = sum(len(one.ranks) for one in self.positions)
        unknown = sum(len(ranks) for _, ranks in self.end_unknown)
        found = [
            Check(
                f"{name}: ranks at a known position + others = ranks",
                placed + unknown,
                len(self.ranks),
                "ranks",
            )
        ]
        if self.mismatch is not None:
            sides = [rank for side in self.mismatch.sides for rank in side.ranks]
            found.append(
                Check(
                    f"{name}: every rank is on one side of the mismatch",
                    len(sides),
                    len(set(sides)),
                    "ranks",
                )
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "group": self.group.name,
            "members": list(self.group.members) or None,
            "ranks": list(self.ranks),
            "absent": list(self.absent),
            "verdict": self.verdict,
            "compared": self.compared,
            "on_all_ranks": {"count": self.on_all, "first": self.first, "last": self.last},
            "late_starts": [one.to_dict() for one in self.late_starts],
            "mismatch": self.mismatch.to_dict() if self.mismatch else None,
            "positions": [one.to_dict() for one in self.positions],
            "behind": [one.to_dict() for one in self.behind],
            "minority": self.minority.to_dict() if self.minority else None,
            "end_unknown": [
                {"because": because, "ranks": list(ranks)} for because, ranks in self.end_unknown
            ],
        }


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """All groups of a job: those that differ first, then those with ranks behind.

    Args:
        groups: one entry a group.
        ranks: the ranks that were looked at.
        states: how their processes ended or what the input is, each once.
        point_to_point, unnumbered: operations that are in no group's order; collectives without a
            number.
        unknown: what cannot be told.
        notes: sentences for the reader.

    """

    groups: tuple[GroupOrder, ...]
    ranks: tuple[int, ...]
    states: tuple[str, ...]
    point_to_point: int
    unnumbered: int
    unknown: tuple[Unknown, ...]
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether no group differs."""
        return not any(one.mismatch for one in self.groups)

    def checks(self) -> tuple[Check, ...]:
        """Return the checks of all groups."""
        return tuple(check for one in self.groups for check in one.checks())

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `order` in JSON."""
        return {
            "agrees": self.agrees,
            "ranks": list(self.ranks),
            "states": list(self.states),
            "groups": [one.to_dict() for one in self.groups],
            "point_to_point": self.point_to_point,
            "unnumbered": self.unnumbered,
            "closure": [check.to_dict() for check in self.checks()],
            "not_known": [{"what": one.what, "because": one.because} for one in self.unknown],
            "notes": list(self.notes),
        }

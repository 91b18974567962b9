"""Several ranks and devices side by side: how far apart they are, so that one is not taken for all.

In: Analyses, one a rank and device. Out: a `SideBySide`: for each number its least, middle and
largest, and on which timeline; and whether each kind of collective occurs equally often on all. It
compares nothing in time: the clocks of ranks are not aligned here.

| hidden share of three devices | least | median | most | spread |
|-------------------------------|-------|--------|------|--------|
| 0.2, 0.6, 0.3                 | 0.2   | 0.3    | 0.6  | 0.4    |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.vocabulary import CollectiveKind

Measure = Callable[[Analysis], float | int | None]

MEASURES: tuple[tuple[str, str, Measure], ...] = (
    ("window", "ns", lambda one: one.partition.window_ns),
    ("compute", "ns", lambda one: one.partition.compute_ns),
    ("communication", "ns", lambda one: _known(one, one.partition.communication_ns)),
    ("hidden", "share of communication", lambda one: _known(one, one.partition.overlap_ratio)),
    ("exposed", "ns", lambda one: _known(one, one.partition.communication_only_ns)),
    (
        "exposed share",
        "share of the window",
        lambda one: _known(one, one.partition.exposed_fraction),
    ),
    ("exposed segments", "segments", lambda one: _known(one, one.exposed.count)),
    ("idle", "ns", lambda one: _known(one, one.partition.idle_ns)),
)
"""Name, unit, and how it is taken; what is not known of a timeline takes no part."""


def _known(one: Analysis, value: float | None) -> float | int | None:
    return value if one.partition.communication_known and one.partition.observed else None


@dataclass(frozen=True, slots=True)
class Extent:
    """One number over several timelines.

    Args:
        name, unit: which.
        known: timelines in which it is known.
        least, median, most: of the known; the median is the lower middle one, a value that occurs.
        least_at, most_at: positions of the timelines, the first on a tie.

    """

    name: str
    unit: str
    known: int
    least: float | int
    median: float | int
    most: float | int
    least_at: int
    most_at: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "known": self.known,
            "least": self.least,
            "median": self.median,
            "most": self.most,
            "least_timeline": self.least_at,
            "most_timeline": self.most_at,
        }


@dataclass(frozen=True, slots=True)
class KindCount:
    """How often one kind occurs on the timelines that have communication.

    Args:
        kind: which.
        events: kernels on all of them.
        ranks: timelines with communication.
        steps: steps of each; None where not known, or not the same on all.
        equal: whether all of them have the same number.

    """

    kind: CollectiveKind
    events: int
    ranks: int
    steps: int | None
    equal: bool

    @property
    def each(self) -> int | None:
        """Events per rank and step (per rank, without steps); None unless it is whole."""
        parts = self.ranks * (self.steps or 1)
        return self.events // parts if parts and not self.events % parts and self.equal else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; a number that is not whole is null."""
        return {
            "kind": self.kind.title,
            "events": self.events,
            "ranks": self.ranks,
            "steps": self.steps,
            "each": self.each,
        }


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Several timelines side by side; `silent` of them have no recognised communication."""

    timelines: int
    silent: int
    extents: tuple[Extent, ...]
    kinds: tuple[KindCount, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "timelines": self.timelines,
            "without_communication": self.silent,
            "spread": [one.to_dict() for one in self.extents],
            "kinds": [one.to_dict() for one in self.kinds],
        }


def side_by_side(analyses: Sequence[Analysis]) -> SideBySide:
    """Return `analyses` side by side."""
    talking = [one for one in analyses if one.partition.observed]
    return SideBySide(
        timelines=len(analyses),
        silent=len(analyses) - len(talking),
        extents=tuple(
            extent
            for name, unit, measure in MEASURES
            if (extent := _extent(name, unit, [measure(one) for one in analyses])) is not None
        ),
        kinds=_kinds(talking),
    )


def _extent(name: str, unit: str, values: Sequence[float | int | None]) -> Extent | None:
    known = [(value, place) for place, value in enumerate(values) if value is not None]
    if not known:
        return None
    ordered = sorted(known)
    most = max(value for value, _ in known)
    return Extent(
        name=name,
        unit=unit,
        known=len(known),
        least=ordered[0][0],
        median=ordered[(len(ordered) - 1) // 2][0],
        most=most,
        least_at=ordered[0][1],
        most_at=next(place for value, place in known if value == most),
    )


def _kinds(talking: Sequence[Analysis]) -> tuple[KindCount, ...]:
    counts = [{cell.kind: cell.count for cell in one.kinds.cells} for one in talking]
    steps = {one.steps_in_window for one in talking}
    same = steps.pop() if len(steps) == 1 else None
    found = []
    for kind in sorted({kind for one in counts for kind in one}):
        each = np.array([one.get(kind, 0) for one in counts], np.int64)
        equal = bool((each == each[0]).all())
        found.append(KindCount(kind, int(each.sum()), len(talking), same, equal))
    return tuple(found)

"""Communication split into cells, and how the cells add up to the whole: what `kinds` and `phases`
share.

In: pieces of the collectives' spans with a label each, the lanes they come from. Out: a `Split`. It
does not know which split is asked for. Cells whose collectives run at the same time both count that
time; the excess over the whole is measured by depth of cover, not as a difference, and shown as the
remainder.

    compute 0-4    AllReduce 2-6    AllGather 3-5        AllReduce: union 4, overlap 2, exposed 2
                                                         AllGather: union 2, overlap 1, exposed 1
    whole: union 4, overlap 2, exposed 2                 remainder: union 2, overlap 1, exposed 1
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.timeline.intervals import (
    Intervals,
    Spans,
    counted_again,
    intersect,
    subtract,
    total,
    union,
)
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import CollectiveKind, Phase


@dataclass(frozen=True, slots=True)
class Amounts:
    """Communication in ns: union = overlap + exposed."""

    union_ns: int
    overlap_ns: int
    exposed_ns: int

    @staticmethod
    def of(busy: Intervals, compute: Intervals) -> "Amounts":
        """Return the amounts of communication `busy` against the compute lane."""
        return Amounts(total(busy), total(intersect(busy, compute)), total(subtract(busy, compute)))

    @staticmethod
    def counted_again(unions: list[Intervals], compute: Intervals) -> "Amounts":
        """Return by how much the amounts of `unions`, added, exceed those of their union."""
        return Amounts(
            counted_again(unions),
            counted_again([intersect(one, compute) for one in unions]),
            counted_again([subtract(one, compute) for one in unions]),
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """The collectives of one kind (and, if split so, of one phase).

    Args:
        kind: what they are.
        phase: where they count; None when the split is by kind alone.
        count: collectives; one that is cut in pieces counts once, in the cell of its first piece.
        bytes: logical bytes of the counted; None when no record tells.
        summed_ns: lengths of all spans, added; more than the union when they overlap one another.
        union_ns: time in which at least one of them ran.
        overlap_ns, exposed_ns: the part of the union with and without compute.

    """

    kind: CollectiveKind
    phase: Phase | None
    count: int
    bytes: int | None
    summed_ns: int
    union_ns: int
    overlap_ns: int
    exposed_ns: int

    @property
    def title(self) -> str:
        """The cell in words: "AllReduce in backward"."""
        where = "" if self.phase is None else f" in {self.phase.name.lower()}"
        return f"{self.kind.title}{where}"

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the cell as plain values, for JSON."""
        phase = {} if self.phase is None else {"phase": self.phase.name.lower()}
        return {
            **phase,
            "kind": self.kind.title,
            "count": self.count,
            "bytes": self.bytes,
            "summed_ns": self.summed_ns,
            "union_ns": self.union_ns,
            "overlap_ns": self.overlap_ns,
            "exposed_ns": self.exposed_ns,
        }


@dataclass(frozen=True, slots=True)
class Split:
    """Communication of a window, by cell.

    Args:
        rule: what decided the cell of a collective, in words.
        cells: by phase, then kind; only cells with a collective.
        whole: all communication of the window.
        remainder: by how much the cells' sum exceeds the whole, since collectives of several cells
            ran at once.
        collectives: collectives with a span in the window.
        unseen: (phase, kind, how many) of collectives that are in no cell, since their span cannot
            be observed; told of a split by recorded phases.

    """

    rule: str
    cells: tuple[Cell, ...]
    whole: Amounts
    remainder: Amounts
    collectives: int
    unseen: tuple[tuple[Phase, CollectiveKind, int], ...] = ()

    def checks(self) -> tuple[Check, ...]:
        """Return how each cell, and the cells together, add up."""
        cells, whole, rest = self.cells, self.whole, self.remainder
        return (
            *(
                Check(
                    f"{one.title}: overlap + exposed = union",
                    one.overlap_ns + one.exposed_ns,
                    one.union_ns,
                )
                for one in cells
            ),
            Check(
                f"union of the cells ({self.rule}) = communication + remainder",
                sum(one.union_ns for one in cells),
                whole.union_ns + rest.union_ns,
            ),
            Check(
                f"overlap of the cells ({self.rule}) = overlap + remainder",
                sum(one.overlap_ns for one in cells),
                whole.overlap_ns + rest.overlap_ns,
            ),
            Check(
                f"exposed of the cells ({self.rule}) = exposed + remainder",
                sum(one.exposed_ns for one in cells),
                whole.exposed_ns + rest.exposed_ns,
            ),
            Check(
                f"collectives of the cells ({self.rule}) = collectives",
                sum(one.count for one in cells),
                self.collectives,
                "collectives",
            ),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the split as plain values, for JSON."""
        rest = self.remainder
        return {
            "rule": self.rule,
            "cells": [one.to_dict() for one in self.cells],
            "remainder": {
                "union_ns": rest.union_ns,
                "overlap_ns": rest.overlap_ns,
                "exposed_ns": rest.exposed_ns,
            },
            "unseen": [
                {"phase": phase.name.lower(), "kind": kind.title, "count": count}
                for phase, kind, count in self.unseen
            ],
        }


def split(lanes: Lanes, pieces: Spans, phase: NDArray[np.uint8] | None, rule: str) -> Split:
    """Gather pieces into cells.

    Args:
        lanes: the window's lanes.
        pieces: (start, end, index) with the index of the lanes' span each is a piece of; together
            they are the spans.
        phase: the Phase of each piece, or None to split by kind alone.
        rule: what decided, in words.

    """
    start, end, index = pieces
    kind = lanes.kind[index]
    label = kind.astype(np.int64) if phase is None else phase.astype(np.int64) * 256 + kind
    counted = first_pieces(start, lanes.index[index])
    cells: list[Cell] = []
    unions: list[Intervals] = []
    for key in np.unique(label):
        mine = label == key
        busy = union(start[mine], end[mine])
        sizes = lanes.records["bytes"][index[mine & counted]]
        unions.append(busy)
        amounts = Amounts.of(busy, lanes.compute)
        cells.append(
            Cell(
                kind=CollectiveKind(int(key) % 256),
                phase=None if phase is None else Phase(int(key) // 256),
                count=len(sizes),
                bytes=int(sizes.sum()) if (sizes > 0).any() else None,
                summed_ns=int((end[mine] - start[mine]).sum()),
                union_ns=amounts.union_ns,
                overlap_ns=amounts.overlap_ns,
                exposed_ns=amounts.exposed_ns,
            )
        )
    return Split(
        rule=rule,
        cells=tuple(cells),
        whole=Amounts.of(lanes.communication, lanes.compute),
        remainder=Amounts.counted_again(unions, lanes.compute),
        collectives=lanes.collectives,
    )


def first_pieces(start: I64, record: I64) -> NDArray[np.bool_]:
    """Mark the earliest piece of each record: the one that counts."""
    order = np.lexsort((start, record))
    first = np.ones(len(order), np.bool_)
    first[1:] = record[order][1:] != record[order][:-1]
    marked = np.empty(len(order), np.bool_)
    marked[order] = first
    return marked

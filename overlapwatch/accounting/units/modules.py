"""Communication by module, phase and kind: how much of each module's was hidden.

In: the lanes of a window, what owner ids stand for. Out: a `ModuleTable` with one `ModuleCell` for
each module, phase and kind that occurs. Exposure is of a module's own spans against the compute
lane; modules whose collectives run at once each count that time, and the excess over the whole is
shown as the remainder, measured by depth of cover.

    compute 0-4    blocks.0 gathers 2-6, blocks.1 gathers 3-5      blocks.0: 4 busy, 2 hidden, 2 exposed
                                                                   blocks.1: 2 busy, 1 hidden, 1 exposed
    whole: 4 busy, 2 hidden, 2 exposed                             remainder: 2, 1, 1

It does not know collectives that no module owns; it counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.split import Amounts, first_pieces
from overlapwatch.timeline.intervals import union
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind, Phase, RecordFlag

UNIT_KINDS = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)
"""What a communication unit sends: an HSDP module all-reduces what it has reduce-scattered."""


@dataclass(frozen=True, slots=True)
class ModuleCell:
    """The collectives of one module, phase and kind in a window.

    Args:
        owner, module: id and name of the module.
        phase, kind: when and what.
        count: collectives with a span in the window; one that is cut counts once.
        prefetched: of them issued before their turn, by another module.
        without_span: collectives launched in the window whose span is not known; in no time below.
        bytes: logical bytes of `count` and `without_span`.
        summed_ns: lengths of all spans, added.
        union_ns: time in which at least one of them ran.
        overlap_ns, exposed_ns: the part of the union with and without compute.

    """

    owner: int
    module: str
    phase: Phase
    kind: CollectiveKind
    count: int
    prefetched: int
    without_span: int
    bytes: int
    summed_ns: int
    union_ns: int
    overlap_ns: int
    exposed_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; times are null where no span is known."""
        known = self.count > 0
        return {
            "module": self.module,
            "phase": self.phase.name.lower(),
            "kind": self.kind.title,
            "count": self.count,
            "prefetched": self.prefetched,
            "without_span": self.without_span,
            "bytes": self.bytes,
            "summed_ns": self.summed_ns if known else None,
            "union_ns": self.union_ns if known else None,
            "overlap_ns": self.overlap_ns if known else None,
            "exposed_ns": self.exposed_ns if known else None,
        }


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """The modules of a window.

    Args:
        cells: by the module's first launch, then phase and kind.
        whole: all communication that a module owns.
        remainder: by how much the cells' sum exceeds the whole, since some ran at once.
        owned: collectives of the window with a span that a module owns.
        others: collectives of the window with a span that none owns.
        collectives: collectives of the window with a span.

    """

    cells: tuple[ModuleCell, ...]
    whole: Amounts
    remainder: Amounts
    owned: int
    others: int
    collectives: int

    def checks(self) -> tuple[Check, ...]:
        """Return how the cells add up to the whole, and the whole to all collectives."""
        cells, whole, rest = self.cells, self.whole, self.remainder
        return (
            Check(
                "modules: union of the cells = their communication + remainder",
                sum(one.union_ns for one in cells),
                whole.union_ns + rest.union_ns,
            ),
            Check(
                "modules: hidden of the cells = hidden + remainder",
                sum(one.overlap_ns for one in cells),
                whole.overlap_ns + rest.overlap_ns,
            ),
            Check(
                "modules: exposed of the cells = exposed + remainder",
                sum(one.exposed_ns for one in cells),
                whole.exposed_ns + rest.exposed_ns,
            ),
            Check(
                "modules: hidden + exposed = union",
                whole.overlap_ns + whole.exposed_ns,
                whole.union_ns,
            ),
            Check(
                "collectives of the modules + of no module = collectives",
                sum(one.count for one in cells) + self.others,
                self.collectives,
                "collectives",
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON-ready values."""
        return {
            "cells": [one.to_dict() for one in self.cells],
            "whole": _amounts(self.whole),
            "remainder": _amounts(self.remainder),
            "collectives_of_no_module": self.others,
        }


def _amounts(one: Amounts) -> dict[str, int]:
    return {
        "union_ns": one.union_ns,
        "overlap_ns": one.overlap_ns,
        "exposed_ns": one.exposed_ns,
    }


def module_ids(names: Mapping[int, Name]) -> list[int]:
    """Return the ids of the modules among `names`."""
    return [name.id for name in names.values() if name.kind is NameKind.MODULE]


def owned_by_modules(records: NDArray[np.void], names: Mapping[int, Name]) -> NDArray[np.bool_]:
    """Say which COLLECTIVE records are a module's own: gathers, scatters and reductions."""
    kinds = np.array(UNIT_KINDS, np.uint8)
    owned = np.isin(records["owner"], module_ids(names)) & np.isin(records["collective"], kinds)
    return np.asarray(owned, np.bool_)


def module_table(lanes: Lanes, names: Mapping[int, Name]) -> ModuleTable:
    """Return the table of the window that `lanes` were made of."""
    mine = np.flatnonzero(owned_by_modules(lanes.records, names))
    records, start, end = lanes.records[mine], lanes.start[mine], lanes.end[mine]
    counted = first_pieces(start, lanes.index[mine])
    rest = np.concatenate((lanes.unfinished, lanes.unobservable))
    rest = rest[owned_by_modules(rest, names)]
    label, other = _labels(records), _labels(rest)
    cells: list[ModuleCell] = []
    unions = []
    for key in np.unique(np.concatenate((label, other))).tolist():
        here, spanless = label == key, rest[other == key]
        busy = union(start[here], end[here])
        amounts = Amounts.of(busy, lanes.compute)
        unions.append(busy)
        once = records[here & counted]
        flags = np.concatenate((once["flags"], spanless["flags"]))
        owner, phase, kind = key >> 16, (key >> 8) & 255, key & 255
        cells.append(
            ModuleCell(
                owner=owner,
                module=names[owner].text,
                phase=Phase(phase) if phase <= max(Phase) else Phase.OTHER,
                kind=CollectiveKind(kind),
                count=len(once),
                prefetched=int((flags & int(RecordFlag.PREFETCHED) != 0).sum()),
                without_span=len(spanless),
                bytes=int(once["bytes"].sum()) + int(spanless["bytes"].sum()),
                summed_ns=int((end[here] - start[here]).sum()),
                union_ns=amounts.union_ns,
                overlap_ns=amounts.overlap_ns,
                exposed_ns=amounts.exposed_ns,
            )
        )
    place = _first_launches(np.concatenate((records, rest)))
    cells.sort(key=lambda one: (place[one.owner], one.phase, one.kind))
    owned = len(np.unique(lanes.index[mine]))
    return ModuleTable(
        cells=tuple(cells),
        whole=Amounts.of(union(start, end), lanes.compute),
        remainder=Amounts.counted_again(unions, lanes.compute),
        owned=owned,
        others=lanes.collectives - owned,
        collectives=lanes.collectives,
    )


def _labels(records: NDArray[np.void]) -> NDArray[np.int64]:
    """Return owner, phase and kind of each record as one number."""
    owner, phase, kind = (
        records[field].astype(np.int64) for field in ("owner", "phase", "collective")
    )
    return np.asarray((owner << 16) | (phase << 8) | kind, np.int64)


def _first_launches(records: NDArray[np.void]) -> dict[int, int]:
    """Return the place of each owner in the order of their first launches."""
    records = records[np.argsort(records["launch"], kind="stable")]
    return {owner: place for place, owner in enumerate(dict.fromkeys(records["owner"].tolist()))}

"""Communication of layers: what tensor, pipeline, context and expert parallelism exchange, by place.

In: the lanes of a window, its collectives, the waits of a Timeline. Out: a `LayerTable`: one `LayerRow` for
each layer, phase and kind, and the same for alike layers together (numbers in their names become `*`).

Hidden and exposed are told of a row's own union; rows whose collectives run at once each count that
time, so unions do not add up over rows; counts do. A wait is told where it was recorded, which does
not need the finish of the collective: on gloo that of a send or a receive is never seen.

    compute 0-4, 7-9     AllGather of layers.0.fc1 2-6, waited for 4-6    count 1, busy 4, hidden 2, exposed 2, waited 2
                         AllGather of layers.1.fc1 8-9                    count 1, busy 1, hidden 1, exposed 0
    layers.*.fc1                                                          count 2, busy 5, hidden 3, exposed 2, waited 2

What no layer owns (gradients, parameters) is told elsewhere.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.timeline.intervals import intersect, subtract, total, union
from overlapwatch.timeline.model import I64, Timeline
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase

_Key = tuple[str, int, int]
"""Layer (or pattern), phase, kind."""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """The collectives of one kind that a layer, or several alike, launched in one phase.

    Args:
        layer: its name; of several, with `*` for what differs.
        layers: how many that are.
        phase, kind: which collectives.
        count, bytes: how many, and their logical bytes, added; None where none was recorded.
        spans: of them with a known beginning and end: the denominator of the next three.
        union_ns: time of the window in which at least one ran; None without any span.
        overlap_ns, exposed_ns: the part of that with and without compute.
        waits, wait_ns: how often compute waited for them, and how long in all (a union).

    """

    layer: str
    layers: int
    phase: Phase
    kind: CollectiveKind
    count: int
    bytes: int | None
    spans: int
    union_ns: int | None
    overlap_ns: int | None
    exposed_ns: int | None
    waits: int
    wait_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "layer": self.layer,
            "layers": self.layers,
            "phase": self.phase.name.lower(),
            "kind": self.kind.title,
            "count": self.count,
            "bytes": self.bytes,
            "spans": self.spans,
            "union_ns": self.union_ns,
            "overlap_ns": self.overlap_ns,
            "exposed_ns": self.exposed_ns,
            "waits": self.waits,
            "wait_ns": self.wait_ns if self.waits else None,
        }


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The layers of a window.

    Args:
        rows: each layer, the most exposed first.
        alike: layers whose names differ in numbers only, together, in the order of phases.
        collectives: those of the window that a layer owns.

    """

    rows: tuple[LayerRow, ...]
    alike: tuple[LayerRow, ...]
    collectives: int

    def checks(self) -> tuple[Check, ...]:
        """Return how the rows add up to the collectives, and each to its union."""
        name = "collectives of the layers = collectives that layers own"
        hidden = sum((row.overlap_ns or 0) + (row.exposed_ns or 0) for row in self.rows)
        return (
            Check(name, sum(row.count for row in self.rows), self.collectives, "collectives"),
            Check(
                "collectives of alike layers = collectives that layers own",
                sum(row.count for row in self.alike),
                self.collectives,
                "collectives",
            ),
            Check(
                "layers: overlap + exposed = union",
                hidden,
                sum(row.union_ns or 0 for row in self.rows),
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the value of `layers` in the JSON of a report."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "alike": [row.to_dict() for row in self.alike],
        }


def layer_table(
    launched: NDArray[np.void], lanes: Lanes, tl: Timeline, steps: NDArray[np.uint32]
) -> LayerTable:
    """Return the layers.

    Args:
        launched: RECORD rows of the window's collectives, each once, with and without a span.
        lanes: the window's lanes.
        tl: the timeline, for its names and waits.
        steps: numbers of the steps whose waits count.

    """
    text = {name.id: name.text for name in tl.names.values() if name.kind is NameKind.LAYER}
    owned = launched[np.isin(launched["owner"], list(text))]
    waited = tl.uses[np.isin(tl.uses["owner"], list(text)) & np.isin(tl.uses["step"], steps)]
    spans = np.flatnonzero(np.isin(lanes.records["owner"], list(text)))
    compute_free = subtract(lanes.window.recorded, lanes.compute)
    pattern = {owner: pattern_of(one) for owner, one in text.items()}

    def rows(names: Mapping[int, str]) -> list[LayerRow]:
        of_span = _by_key(lanes.records[spans], names)
        of_wait = _by_key(waited, names)
        made = []
        for key, mine in _by_key(owned, names).items():
            here = spans[of_span.get(key, np.empty(0, np.int64))]
            waits = waited[of_wait.get(key, np.empty(0, np.int64))]
            busy = union(lanes.start[here], lanes.end[here])
            size = int(owned["bytes"][mine].sum())
            made.append(
                LayerRow(
                    layer=key[0],
                    layers=len(np.unique(owned["owner"][mine])),
                    phase=Phase(key[1]),
                    kind=CollectiveKind(key[2]),
                    count=len(mine),
                    bytes=size or None,
                    spans=len(np.unique(lanes.index[here])),
                    union_ns=total(busy) if len(here) else None,
                    overlap_ns=total(intersect(busy, lanes.compute)) if len(here) else None,
                    exposed_ns=total(intersect(busy, compute_free)) if len(here) else None,
                    waits=len(waits),
                    wait_ns=total(union(waits["start"], waits["finish"])),
                )
            )
        return made

    each = sorted(rows(text), key=lambda r: (-(r.exposed_ns or 0), -r.wait_ns, r.layer, r.phase))
    alike = sorted(rows(pattern), key=lambda r: (r.phase, r.kind, r.layer))
    return LayerTable(tuple(each), tuple(alike), len(owned))


def pattern_of(text: str) -> str:
    """Return the name with `*` for each number that stands alone: `layers.3.fc1` is `layers.*.fc1`."""
    return re.sub(r"(?<![A-Za-z0-9_])\d+(?![A-Za-z0-9_])", "*", text)


def _by_key(records: NDArray[np.void], names: Mapping[int, str]) -> dict[_Key, I64]:
    """Return the positions of the records of each layer, phase and kind."""
    if not len(records):
        return {}
    columns = np.stack([records[field] for field in ("owner", "phase", "collective")], axis=1)
    found, of = np.unique(columns.astype(np.int64), axis=0, return_inverse=True)
    parts: dict[_Key, list[I64]] = {}
    for place, (owner, phase, kind) in enumerate(found.tolist()):
        key = (names[owner], _known(phase, Phase), _known(kind, CollectiveKind))
        parts.setdefault(key, []).append(np.flatnonzero(of.reshape(-1) == place))
    return {key: np.concatenate(lists) for key, lists in parts.items()}


def _known(value: int, kind: type[Phase] | type[CollectiveKind]) -> int:
    """Return the value, or 0 (other, unknown) where this version does not know it."""
    return value if value in set(kind) else 0

"""The two ends of a step that nothing in it can hide: its first all-gather and its last reduction.

In: a Timeline, the lanes of a window, the steps that the window is made of. Out: `Edges`: how much
of the exposed time these two are, as unions, so that their share is never over 100 %.

Before the first all-gather of a step none of its compute has the parameters to run, and after the
last backward compute nothing is left to run beside the last reduction. What of them is exposed is
the price of the layout (the size of the outermost unit), not of a missing prefetch.

    compute        4-10             first all-gather 0-4, last reduction 9-13
    communication  0-6 9-13         exposed 0-4 10-13 (7): the edges are all 7 of it
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.units.modules import owned_by_modules
from overlapwatch.timeline.intervals import Intervals, join, subtract, total, union
from overlapwatch.timeline.model import Timeline
from overlapwatch.timeline.records import begin_of, has_span
from overlapwatch.vocabulary import CollectiveKind, Phase


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of the steps.

    Args:
        module: whose collective it is, in most steps; "" where there is none.
        kind: what it is, in most steps.
        steps: in how many steps it was found.
        busy_ns: its spans, as a union.
        exposed_ns: the part of them without compute.

    """

    module: str
    kind: CollectiveKind
    steps: int
    busy_ns: int
    exposed_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "module": self.module or None,
            "kind": self.kind.title if self.steps else None,
            "steps": self.steps,
            "busy_ns": self.busy_ns,
            "exposed_ns": self.exposed_ns,
        }


@dataclass(frozen=True, slots=True)
class Edges:
    """Both ends of the steps.

    Args:
        first: the first all-gathers.
        last: the last reductions.
        exposed_ns: exposed time of both, as a union.
        rest_ns: exposed time of all other communication in the window.
        all_exposed_ns: all exposed time of the window.

    """

    first: Edge
    last: Edge
    exposed_ns: int
    rest_ns: int
    all_exposed_ns: int

    def checks(self) -> tuple[Check, ...]:
        """Return how the ends and the rest add up to the exposed time of the window."""
        return (
            Check(
                "exposed at the ends of steps + elsewhere = exposed",
                self.exposed_ns + self.rest_ns,
                self.all_exposed_ns,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "first_all_gather": self.first.to_dict(),
            "last_reduction": self.last.to_dict(),
            "exposed_ns": self.exposed_ns,
            "all_exposed_ns": self.all_exposed_ns,
        }


def edges(tl: Timeline, lanes: Lanes, steps: Iterable[int]) -> Edges:
    """Return the ends of `steps` (step numbers) within the window of `lanes`."""
    records = tl.communication
    records = records[has_span(records) & owned_by_modules(records, tl.names)]
    begin = begin_of(records)
    gathers = records["collective"] == CollectiveKind.ALL_GATHER
    reduces = ~gathers & (records["phase"] == Phase.BACKWARD)
    first, last = [], []
    for step in steps:
        mine = records["step"] == step
        if (found := np.flatnonzero(mine & gathers)).size:
            first.append(int(found[begin[found].argmin()]))
        if (found := np.flatnonzero(mine & reduces)).size:
            last.append(int(found[records["finish"][found].argmax()]))
    opening, closing = _edge(tl, lanes, records[first]), _edge(tl, lanes, records[last])
    busy = join(opening[1], closing[1])
    exposed = subtract(busy, lanes.compute)
    everything = subtract(lanes.communication, lanes.compute)
    return Edges(
        first=opening[0],
        last=closing[0],
        exposed_ns=total(exposed),
        rest_ns=total(subtract(everything, busy)),
        all_exposed_ns=total(everything),
    )


def _edge(tl: Timeline, lanes: Lanes, records: NDArray[np.void]) -> tuple[Edge, Intervals]:
    start, end, _ = lanes.window.take(begin_of(records), records["finish"])
    busy = union(start, end)
    if not len(records):
        return Edge("", CollectiveKind.UNKNOWN, 0, 0, 0), busy
    pairs = zip(records["owner"].tolist(), records["collective"].tolist(), strict=True)
    (owner, kind), _ = Counter(pairs).most_common(1)[0]
    told = Edge(
        module=tl.names[owner].text,
        kind=CollectiveKind(kind),
        steps=len(records),
        busy_ns=total(busy),
        exposed_ns=total(subtract(busy, lanes.compute)),
    )
    return told, busy

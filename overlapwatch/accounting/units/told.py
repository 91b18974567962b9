"""Everything a report tells of modules as communication units, in one value.

In: a Timeline, the timeline of the selected steps, the lanes of the window. Out: `Units`, or None
where no module owns a collective (DDP, profiles). It only puts together what the other modules of
this folder compute: the table by module and the memory speak of the window; uses, order and
queueing of the steps that are in statistics, as the tail does, and of what began before their end.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.units.edges import Edges, edges
from overlapwatch.accounting.units.modules import ModuleTable, module_table, owned_by_modules
from overlapwatch.accounting.units.order import Misordered, misordered
from overlapwatch.accounting.units.queueing import Queueing, queueing
from overlapwatch.accounting.units.residency import Residency, residency
from overlapwatch.accounting.units.uses import Uses, uses
from overlapwatch.timeline.model import I64, Timeline, Unknown
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import OUT_OF_STATISTICS, NameKind

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Modules as communication units.

    Args:
        steps: how many steps `uses`, `edges`, `order` and `queueing` speak of.
        modules, uses, edges, order, queueing, residency: see the modules of these names.

    """

    steps: int
    modules: ModuleTable
    uses: Uses
    edges: Edges
    order: tuple[Misordered, ...]
    queueing: Queueing
    residency: Residency

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What cannot be told, and why."""
        found = [*self.uses.unknown, *self.queueing.unknown, *self.residency.unknown]
        if not len(self.uses.matched):
            found.append(Unknown("prefetch slack", "no use of unsharded parameters was recorded"))
        if not self.residency.held:
            what = "memory held by unsharded parameters"
            found.append(Unknown(what, "when they were held was not recorded"))
        return tuple(found)

    def checks(self) -> tuple[Check, ...]:
        """Return how all of it adds up."""
        return (
            *self.modules.checks(),
            *self.uses.checks(),
            *self.edges.checks(),
            *self.queueing.checks(),
            *self.residency.checks(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the value of `units` in the JSON of a report."""
        return {
            "steps": self.steps,
            "modules": self.modules.to_dict(),
            "uses": self.uses.to_dict(),
            "edges": self.edges.to_dict(),
            "out_of_order": [one.to_dict() for one in self.order],
            "queueing": self.queueing.to_dict(),
            "residency": self.residency.to_dict(),
        }


def units(tl: Timeline, chosen: Timeline, lanes: Lanes) -> Units | None:
    """Return what is told of modules; None where no module owns a collective.

    Args:
        tl: the timeline.
        chosen: the same with the selected steps only.
        lanes: of the window.

    """
    if not owned_by_modules(tl.communication, tl.names).any():
        return None
    counted = chosen.steps[chosen.steps["flags"] & OUT_OF_STATISTICS == 0]
    steps = counted if len(counted) else chosen.steps
    mine = _within(chosen, steps)
    used = uses(mine)
    return Units(
        steps=len(steps),
        modules=module_table(lanes, tl.names),
        uses=used,
        edges=edges(mine, lanes, steps["step"].tolist()),
        order=misordered(mine, used.matched),
        queueing=queueing(mine),
        residency=residency(tl, lanes.window, steps),
    )


def _within(tl: Timeline, steps: NDArray[np.void]) -> Timeline:
    """Return the timeline with the collectives and uses of these steps only.

    What came after the end of its step (an evaluation before the next one) belongs to none.
    """
    sent, used = tl.communication, tl.uses
    # A layer that waits for activations uses no parameters.
    layers = [name.id for name in tl.names.values() if name.kind is NameKind.LAYER]
    return replace(
        tl,
        communication=sent[_before_end(sent["step"], begin_of(sent), steps)],
        uses=used[
            _before_end(used["step"], used["start"], steps) & ~np.isin(used["owner"], layers)
        ],
    )


def _before_end(number: NDArray[np.uint32], moment: I64, steps: NDArray[np.void]) -> Mask:
    """Say which moments of the steps `number` lie before the end of their step, one of `steps`."""
    order = np.argsort(steps["step"], kind="stable")
    numbers, ends = steps["step"][order], np.append(steps["end"][order], 0)
    at = np.searchsorted(numbers, number)
    there = np.append(numbers, 0)[at] == number
    return np.asarray(there & (at < len(numbers)) & (moment < ends[at]), np.bool_)

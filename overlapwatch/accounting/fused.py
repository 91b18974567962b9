"""Kernels that compute and communicate at once: reported beside both lanes, part of neither.

In: a Timeline, the lanes of a window. Out: a `Fused`. It does not know how much of such a kernel
was communication.

    fused 3-8, compute 0-4, communication 6-7        union 5, of which 3 in idle (4-6 and 7-8)
"""

from dataclasses import dataclass

from overlapwatch.accounting.lanes import Lanes
from overlapwatch.timeline.intervals import intersect, join, subtract, total, union
from overlapwatch.timeline.model import Timeline


@dataclass(frozen=True, slots=True)
class Fused:
    """Fused kernels of a window: how many, their union, and the part of it that counts as idle."""

    count: int
    union_ns: int
    in_idle_ns: int

    def to_dict(self) -> dict[str, int]:
        """Return the fields as plain values, for JSON."""
        return {"count": self.count, "union_ns": self.union_ns, "in_idle_ns": self.in_idle_ns}


def fused(tl: Timeline, lanes: Lanes) -> Fused:
    """Return the fused kernels of the window of `lanes`."""
    start, end, index = lanes.window.take(tl.fused.start, tl.fused.end)
    busy = union(start, end)
    idle = subtract(lanes.window.recorded, join(lanes.compute, lanes.communication))
    return Fused(len(set(index.tolist())), total(busy), total(intersect(busy, idle)))

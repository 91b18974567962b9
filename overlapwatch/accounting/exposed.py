"""Exposed segments: the maximal stretches in which there was communication and no compute.

In: a Timeline, a Window. Out: an `Exposed`: how many, how long, in which length band most of the
time lies. Many middling segments and one long one call for different work, and the verdict says
which it is. It does not know why a segment was exposed.

    compute        0-4 ... 6-8           segments 4-6 and 8-9: count 2, total 3, median 1, longest 2
    communication  .. 2-7 .... 8-9
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.window import Window
from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.intervals import cover, subtract, total
from overlapwatch.timeline.model import Timeline

BAND_EDGES_NS = (2_000_000, 4_000_000, 6_000_000, 8_000_000)
"""Default band edges: <2, 2-4, 4-6, 6-8, ≥8 ms."""

Verdict = Literal["none", "one long", "many short", "many middling", "several long"]


@dataclass(frozen=True, slots=True)
class Band:
    """The segments with `low_ns <= length < high_ns`; `high_ns` None is no limit.

    Args:
        count: segments.
        total_ns: their lengths, added.
        share: of the total of all segments; None when there are none.

    """

    low_ns: int
    high_ns: int | None
    count: int
    total_ns: int
    share: float | None

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the band as plain values, for JSON."""
        return {
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "count": self.count,
            "total_ns": self.total_ns,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True)
class Exposed:
    """The exposed segments of a window.

    Args:
        count: segments.
        total_ns: their lengths, added.
        median_ns, longest_ns: of their lengths (the median of an even count rounded down); None
            without segments.
        bands: shortest first.
        communication_only_ns: the same total by another way (length of each communication interval
            that compute does not cover), for the check.

    """

    count: int
    total_ns: int
    median_ns: int | None
    longest_ns: int | None
    bands: tuple[Band, ...]
    communication_only_ns: int

    @property
    def carrying_band(self) -> Band | None:
        """The band with the largest total, the longer one on a tie; None without segments."""
        return (
            max(self.bands, key=lambda band: (band.total_ns, band.low_ns)) if self.count else None
        )

    @property
    def verdict(self) -> Verdict:
        """What to work on: "one long" when a single segment is half of the total or more, else by
        the carrying band.

        Segments of the first band are short, of the last long, of those between middling.
        """
        band = self.carrying_band
        if band is None or self.longest_ns is None:
            return "none"
        if 2 * self.longest_ns >= self.total_ns:
            return "one long"
        if band.low_ns == 0:
            return "many short"
        return "several long" if band.high_ns is None else "many middling"

    def checks(self) -> tuple[Check, ...]:
        """Return how the segments and the bands add up."""
        bands = self.bands
        return (
            Check(
                "exposed segments = communication only", self.total_ns, self.communication_only_ns
            ),
            Check("exposed bands = total", sum(band.total_ns for band in bands), self.total_ns),
            Check("segments in bands", sum(band.count for band in bands), self.count, "segments"),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the segments as plain values, for JSON."""
        return {
            "count": self.count,
            "total_ns": self.total_ns,
            "median_ns": self.median_ns,
            "longest_ns": self.longest_ns,
            "bands": [band.to_dict() for band in self.bands],
            "verdict": self.verdict,
        }


def exposed(
    tl: Timeline,
    window: Window,
    lanes: Lanes | None = None,
    edges_ns: Sequence[int] = BAND_EDGES_NS,
) -> Exposed:
    """Return the exposed segments.

    Args:
        tl: the timeline.
        window: the stretch of it that is accounted.
        lanes: may be given when they were made already.
        edges_ns: ascending lengths between the bands, ns, above 0.

    Raises:
        ConfigurationError: the edges do not ascend from above 0.

    """
    edges = np.array(edges_ns, np.int64)
    if (np.diff(edges, prepend=0) <= 0).any():
        raise ConfigurationError(f"band edges must ascend from above 0, not {tuple(edges_ns)}")
    lanes = lanes or lanes_of(tl, window)
    busy = lanes.communication
    segments = subtract(busy, lanes.compute)
    length = np.sort(segments.end - segments.start)
    count, whole = len(length), int(length.sum())
    band = np.searchsorted(edges, length, side="right")
    limits = [0, *(int(edge) for edge in edges), None]
    bands = []
    for at in range(len(edges) + 1):
        mine = length[band == at]
        share = int(mine.sum()) / whole if whole else None
        bands.append(Band(limits[at] or 0, limits[at + 1], len(mine), int(mine.sum()), share))
    hidden = int(cover(busy.start, busy.end, lanes.compute).sum())
    return Exposed(
        count=count,
        total_ns=whole,
        median_ns=int(length[(count - 1) // 2] + length[count // 2]) // 2 if count else None,
        longest_ns=int(length[-1]) if count else None,
        bands=tuple(bands),
        communication_only_ns=total(busy) - hidden,
    )

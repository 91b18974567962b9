"""One clock against another, from moments that are the same on both.

In: moments on a reference clock, and by how much the other clock is ahead there, each with noise.
Out: a `ClockFit`: the offset, how it drifts, and how far the moments scatter around it.

The offset is a median, so that some wrong moments do not move it. It drifts when a line through the
medians of consecutive blocks fits clearly better than none:

    ahead     5.0 5.1 4.9 5.0    offset 5.0, no drift
    ahead     5.0 6.0 7.1 8.0    offset 5.0 at the first moment, 1 a step

A clock that was set during the run fits neither; it shows as a scatter that is too large to be used.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from overlapwatch.accounting.spread import percentile
from overlapwatch.timeline.model import I64

BLOCKS = 32
PER_BLOCK = 4
"""A block has at least as many moments, so that its median holds against some wrong ones."""
BETTER = 0.7
"""A drift is believed when it makes the scatter at least this much smaller."""


@dataclass(frozen=True, slots=True)
class ClockFit:
    """How far a clock is ahead of the reference.

    Args:
        at_ns: the moment on the reference clock at which the offset holds.
        offset_ns: how far ahead it is there.
        drift: ns per ns by which it gains; 0.0 without a drift.
        count: moments it was made from.
        p50_ns, p95_ns: how far the moments lie from it (absolute); None without moments.

    """

    at_ns: int
    offset_ns: int
    drift: float = 0.0
    count: int = 0
    p50_ns: int | None = None
    p95_ns: int | None = None

    def ahead(self, moment: I64) -> I64:
        """Return how far the clock is ahead at moments of the reference clock, ns."""
        drifted = np.rint((moment - self.at_ns) * self.drift).astype(np.int64)
        return np.asarray(self.offset_ns + drifted, np.int64)

    def to_reference(self, moment: I64) -> I64:
        """Return moments of the clock on the reference clock; 0 (not known) stays 0.

        With r the reference, m = r + offset + drift (r - at), which is solved for r.
        """
        if not self.drift:
            return np.where(moment != 0, moment - self.offset_ns, 0)
        since = moment - self.offset_ns - self.at_ns
        gained = np.rint(since * (self.drift / (1 + self.drift))).astype(np.int64)
        return np.where(moment != 0, self.at_ns + since - gained, 0)


SAME_CLOCK = ClockFit(0, 0)


def fit_clock(moment: I64, ahead: I64) -> ClockFit:
    """Return the fit.

    Args:
        moment: int64 ns on the reference clock, at least one.
        ahead: int64 ns by which the other clock is ahead at each.

    """
    order = np.argsort(moment, kind="stable")
    moment, ahead = moment[order], ahead[order]
    constant = ClockFit(int(moment[0]), _middle_of(ahead))
    line = _line(moment, ahead)
    if line is not None and _scatter(line, moment, ahead) <= BETTER * _scatter(
        constant, moment, ahead
    ):
        return _told(line, moment, ahead)
    return _told(constant, moment, ahead)


def _line(moment: I64, ahead: I64) -> ClockFit | None:
    """Return the line through block medians with the median of their slopes (Theil and Sen)."""
    blocks = min(BLOCKS, len(moment) // PER_BLOCK)
    if blocks < 2:
        return None
    edges = np.linspace(0, len(moment), blocks + 1).astype(np.int64)
    parts = [slice(low, high) for low, high in pairwise(edges.tolist())]
    at = np.array([_middle_of(moment[part]) for part in parts], np.int64)
    level = np.array([_middle_of(ahead[part]) for part in parts], np.int64)
    first, second = np.triu_indices(blocks, 1)
    apart = at[second] - at[first]
    if not (apart > 0).any():
        return None
    rise = (level[second] - level[first])[apart > 0] / apart[apart > 0]
    drift = float(np.median(rise))
    start = int(moment[0])
    flat = ahead - np.rint((moment - start) * drift).astype(np.int64)
    return ClockFit(start, _middle_of(flat), drift)


def _scatter(fit: ClockFit, moment: I64, ahead: I64) -> float:
    return float(np.median(np.abs(ahead - fit.ahead(moment))))


def _told(fit: ClockFit, moment: I64, ahead: I64) -> ClockFit:
    far = np.sort(np.abs(ahead - fit.ahead(moment)))
    p50, p95 = percentile(far, 50), percentile(far, 95)
    return ClockFit(fit.at_ns, fit.offset_ns, fit.drift, len(far), p50, p95)


def _middle_of(values: I64) -> int:
    """Return the lower median of at least one value."""
    return percentile(np.sort(values), 50)

"""What a collective costs: a latency and a time a byte, fitted to those that were recorded.

In: for each step the sizes of its collectives, their launches and their finishes. Out: a `Cost` with how well it fits.

The link is fitted, not the single collective. While anything is in flight the link works, whoever it works for: so each
*busy period*, from a launch with nothing in flight until everything launched by then has finished, is one equation

    latency * collectives in it + time a byte * bytes in it = its length

which holds whether collectives run one by one (NCCL) or several at once and share the link (gloo). A fit through single
collectives would not: of two at once one seems slow and the other fast.

Latency and time a byte are two unknowns. Where the periods do not tell them apart (one message size, or a latency
within twice its standard error), all is time for bytes, and `latency_ns` is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import InputError
from overlapwatch.timeline.model import I64

TOLD_APART = 2
"""A latency counts from this many standard errors on."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`latency_ns + ns_per_byte * bytes`.

    Args:
        latency_ns: of each collective; None where it cannot be told from the time for bytes.
        ns_per_byte: 1 / bandwidth; 1 ns a byte is 1 GB/s.
        count: collectives it was fitted to; 0 when it was given.
        sizes: different sizes among them.
        error: median over the steps of |fit - time| / time, of all its busy periods together; None when it was given.
    """

    latency_ns: int | None
    ns_per_byte: float
    count: int = 0
    sizes: int = 0
    error: float | None = None

    @property
    def gb_per_s(self) -> float | None:
        """Bandwidth (10^9 bytes/s); None where bytes cost nothing."""
        return 1 / self.ns_per_byte if self.ns_per_byte else None

    def of(self, sizes: I64) -> I64:
        """Return the service time of collectives of these sizes (bytes), ns."""
        return np.asarray(np.rint((self.latency_ns or 0) + self.ns_per_byte * sizes), np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "latency_ns": self.latency_ns,
            "ns_per_byte": self.ns_per_byte,
            "count": self.count,
            "sizes": self.sizes,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """The collectives of one step, all of one link.

    Args:
        sizes: bytes.
        launch: of the last rank that takes part where that is known: no byte moves before. ns.
        finish: ns, not before the launch.
    """

    sizes: I64
    launch: I64
    finish: I64


def fit(steps: Sequence[InFlight]) -> Cost:
    """Fit latency and time a byte to the busy periods of recorded steps.

    Raises:
        InputError: no collective has a size and a time.
    """
    periods = [_busy_periods(step) for step in steps]
    rows = np.concatenate([*periods, np.zeros((0, 3))])
    usable = rows[(rows[:, 1] > 0) & (rows[:, 2] > 0)]
    if not len(usable):
        raise InputError(
            "no collective with a size and a finish: what a collective costs cannot be fitted"
        )
    latency, slope = _solve(_without_stragglers(usable))
    sizes = np.concatenate([step.sizes for step in steps])
    sizes = sizes[sizes > 0]
    sums = np.array([one.sum(axis=0) for one in periods if len(one)])
    expected = (latency or 0) * sums[:, 0] + slope * sums[:, 1]
    error = float(np.median(np.abs(expected - sums[:, 2]) / np.maximum(sums[:, 2], 1)))
    seen = len(np.unique(sizes))
    return Cost(None if latency is None else round(latency), slope, len(sizes), seen, error)


def _busy_periods(step: InFlight) -> NDArray[np.float64]:
    """Return how many collectives, how many bytes and how many ns each busy period has, shape (periods, 3)."""
    if not len(step.sizes):
        return np.zeros((0, 3))
    order = np.argsort(step.launch, kind="stable")
    launch, sizes = step.launch[order], step.sizes[order]
    last = np.maximum.accumulate(np.maximum(step.finish[order], launch))
    first = np.concatenate(([0], np.flatnonzero(launch[1:] >= last[:-1]) + 1))
    end = np.append(first[1:], len(launch))
    count = np.add.reduceat((sizes > 0).astype(np.int64), first)
    return np.column_stack(
        [count, np.add.reduceat(sizes, first), last[end - 1] - launch[first]]
    ).astype(np.float64)


def _without_stragglers(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave out periods that took far longer than others of the same collectives: a hiccup is no property of a link."""
    keep = np.ones(len(rows), np.bool_)
    kinds, member = np.unique(rows[:, :2], axis=0, return_inverse=True)
    for kind in range(len(kinds)):
        mine = np.flatnonzero(member.ravel() == kind)
        middle = np.median(rows[mine, 2])
        scatter = np.median(np.abs(rows[mine, 2] - middle))
        keep[mine] = np.abs(rows[mine, 2] - middle) <= max(5 * scatter, 0.02 * middle)
    return rows[keep]


def _solve(rows: NDArray[np.float64]) -> tuple[float | None, float]:
    """Return latency (None: not told apart) and time a byte by least squares, both at least 0."""
    through_origin = float(rows[:, 2].sum() / rows[:, 1].sum())
    known, length = rows[:, :2], rows[:, 2]
    # The columns are scaled to one size: bytes are a million times collectives.
    by = known.max(axis=0)
    design = known / by
    if len(rows) <= 2 or np.linalg.matrix_rank(design, tol=1e-6 * len(rows)) < 2:
        return None, through_origin
    found, _, _, _ = np.linalg.lstsq(design, length, rcond=None)
    residual = length - design @ found
    variance = float(residual @ residual) / (len(rows) - 2)
    latency_error = float(np.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0])) / by[0]
    latency, slope = (float(value) for value in found / by)
    if latency <= TOLD_APART * latency_error or slope < 0:
        return None, through_origin
    return latency, slope

"""What a collective costs: a latency and a time a byte, fitted to those that were recorded.

In: sizes and service times. Out: a `Cost` with how well it fits. The service time is what the collective kept its
engine busy: from its launch, or from the finish of the one before it on the same group where that is later, to its
finish. The fit is a straight line through the medians of each size, so that one straggling collective does not bend it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from overlapwatch.accounting.spread import median
from overlapwatch.errors import InputError
from overlapwatch.timeline.model import I64


@dataclass(frozen=True, slots=True)
class Cost:
    """`latency_ns + ns_per_byte * bytes`.

    Args:
        latency_ns: of each collective; None where only one size was seen, which cannot tell it from the rest.
        ns_per_byte: 1 / bandwidth; 1 ns a byte is 1 GB/s.
        count: collectives it was fitted to; 0 when it was given.
        sizes: different sizes among them.
        error: median of |fit - time| / time over them; None when it was given.
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


def fit(sizes: I64, service: I64) -> Cost:
    """Fit latency and time a byte to recorded collectives.

    Args:
        sizes: bytes of each.
        service: ns of each.

    Raises:
        InputError: there is none with a size and a time.
    """
    usable = (sizes > 0) & (service > 0)
    sizes, service = sizes[usable], service[usable]
    if not len(sizes):
        raise InputError(
            "no gradient bucket with a size and a finish: what a collective costs cannot be fitted"
        )
    seen = np.unique(sizes)
    middle = np.array([median(service[sizes == size]) for size in seen], np.float64)
    latency: int | None = None
    if len(seen) > 1:
        slope, intercept = np.polyfit(seen.astype(np.float64), middle, 1)
        latency = max(0, round(float(intercept)))
    if len(seen) == 1 or latency == 0 or slope <= 0:
        # Through the origin: a time below 0 for nothing, or less for more bytes, is noise.
        slope = float((middle * seen).sum() / (seen.astype(np.float64) ** 2).sum())
        latency = None if len(seen) == 1 else 0
    cost = Cost(latency, float(slope))
    off = np.abs(cost.of(sizes) - service) / service
    return Cost(latency, float(slope), len(sizes), len(seen), float(np.median(off)))

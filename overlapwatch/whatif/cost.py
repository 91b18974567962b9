"""What a collective costs: a latency and a time a byte, fitted to those that were recorded.

In: for each bucket its size, and in each step how long it kept its engine busy: from its launch, or from the finish of
the one before it where that is later, to its finish. Out: a `Cost` with how well it fits.

The fit is a straight line through each bucket's median over the steps, so that a straggling step does not bend it. All
buckets count, and the line keeps their sum: two that run at once share the link, so that one of them seems to take
longer and the other shorter than alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

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
        error: median over the steps of |fit - time| / time of all buckets together; None when it was given.
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
        sizes: bytes of each bucket, shape (buckets,).
        service: ns, shape (steps, buckets).

    Raises:
        InputError: no bucket has a size and a time.
    """
    middle = np.median(service, axis=0) if len(service) else np.zeros(len(sizes))
    usable = (sizes > 0) & (middle > 0)
    if not usable.any():
        raise InputError(
            "no gradient bucket with a size and a finish: what a collective costs cannot be fitted"
        )
    sizes, service, middle = sizes[usable].astype(np.float64), service[:, usable], middle[usable]
    seen = len(np.unique(sizes))
    latency: int | None = None
    slope = 0.0
    if seen > 1:
        slope, intercept = (float(value) for value in np.polyfit(sizes, middle, 1))
        latency = max(0, round(intercept))
    if seen == 1 or latency == 0 or slope <= 0:
        # Through the origin: less than no time for nothing, or less for more bytes, is noise.
        slope = float(middle.sum() / sizes.sum())
        latency = None if seen == 1 else 0
    expected = float((latency or 0) * len(sizes) + slope * sizes.sum())
    taken = service.sum(axis=1)
    error = float(np.median(np.abs(expected - taken) / np.maximum(taken, 1)))
    return Cost(latency, slope, service.size, seen, error)

"""How one number spreads over steps: percentiles that are values which really occurred.

In: int64 values. Out: a `Spread` with its count. Percentiles are nearest-rank: the smallest value
that at least p % of the values do not exceed, so every printed percentile can be found in some
step, and stays an integer.

| values         | p50 | p95 | p99 |
|----------------|-----|-----|-----|
| 7              | 7   | 7   | 7   |
| 1, 2, 3, 4     | 2   | 4   | 4   |
| 1..100         | 50  | 95  | 99  |

It does not interpolate, and does not know the unit.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spread:
    """How one number in ns spreads over `count` values.

    Args:
        count: how many values there are.
        total_ns: their sum.
        mean_ns: rounded down.
        p50_ns, p95_ns, p99_ns, max_ns: nearest-rank percentiles and the largest value.

    """

    count: int
    total_ns: int
    mean_ns: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "count": self.count,
            "total_ns": self.total_ns,
            "mean_ns": self.mean_ns,
            "p50_ns": self.p50_ns,
            "p95_ns": self.p95_ns,
            "p99_ns": self.p99_ns,
            "max_ns": self.max_ns,
        }


def percentile(ordered: I64, percent: int) -> int:
    """Return the nearest-rank percentile of ascending, non-empty `ordered`; `percent` is 1..100."""
    return int(ordered[-(-len(ordered) * percent // 100) - 1])


def median(values: I64) -> int | None:
    """Return the nearest-rank median (the lower of the two middle values), None without values."""
    return percentile(np.sort(values), 50) if len(values) else None


def spread(values: I64) -> Spread | None:
    """Return how `values` (int64 ns, any order) spread; None without values."""
    if not len(values):
        return None
    ordered = np.sort(values)
    total = int(ordered.sum())
    return Spread(
        count=len(ordered),
        total_ns=total,
        mean_ns=total // len(ordered),
        p50_ns=percentile(ordered, 50),
        p95_ns=percentile(ordered, 95),
        p99_ns=percentile(ordered, 99),
        max_ns=int(ordered[-1]),
    )

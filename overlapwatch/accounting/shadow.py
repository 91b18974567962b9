"""What the watch costs, measured in the run that it watches.

In: SUMMARY rows. Shadow steps are steps in which recording was off on purpose; of them only the
boundaries, the wait and the last compute end are known. Out: a `ShadowCost`: each shadow step is
paired with the mean of its neighbours, the nearest steps in statistics before and after it, so that
slow drift of the job cancels.

| step     | 9     | 10 (shadow) | 11    |                                    |
|----------|-------|-------------|-------|------------------------------------|
| duration | 101.0 | 100.0       | 102.0 | difference 101.5 - 100.0 = +1.5 ms |

The cost is the median of the differences. Its interval comes from order statistics (the number of
differences below the true median is binomial with p = 1/2), and so assumes no shape of the noise.
Fewer than six pairs admit no interval at 95 %, and no cost is given. It does not know what would
change if the watch were not attached at all: hooks stay in place in a shadow step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.spread import I64, median
from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, StepFlag

MINIMUM_PAIRS = 6
LEVEL_PCT = 95


@dataclass(frozen=True, slots=True)
class ShadowCost:
    """The cost of recording a step.

    Args:
        shadows: shadow steps seen.
        pairs: of them paired with a step in statistics on either side; the denominator.
        difference_ns: median of recorded - shadow duration; None with fewer than `MINIMUM_PAIRS`
            pairs.
        low_ns, high_ns: interval of that median at `level` or better.
        level: the confidence that the interval really has, 0..1; None without an interval.
        shadow_step_ns: median duration of the paired shadow steps.
        wait_with_ns, wait_without_ns: median of the exposed wait in the recorded neighbours and in
            the shadow steps; None where it is not known.
        wait_low_ns, wait_high_ns: interval of the median paired difference of the waits; None with fewer
            than `MINIMUM_PAIRS` pairs.
        waits: pairs in which the wait is known on all sides.
        unknown: what cannot be told.

    """

    shadows: int
    pairs: int
    difference_ns: int | None
    low_ns: int | None
    high_ns: int | None
    level: float | None
    shadow_step_ns: int | None
    wait_with_ns: int | None
    wait_without_ns: int | None
    waits: int
    unknown: tuple[Unknown, ...]
    wait_low_ns: int | None = None
    wait_high_ns: int | None = None

    @property
    def wait_verdict(self) -> str:
        """Whether recording changed how long compute waited, in words; "" with too few pairs to say."""
        if self.wait_low_ns is None or self.wait_high_ns is None:
            return ""
        low, high = self.wait_low_ns / 1e6, self.wait_high_ns / 1e6
        if low <= 0 <= high:
            return f"not distinguishable (paired difference between {low:+.2f} and {high:+.2f} ms)"
        return f"paired difference between {low:+.2f} and {high:+.2f} ms"

    @property
    def share(self) -> float | None:
        """The difference as a share of a step without recording."""
        if self.difference_ns is None or not self.shadow_step_ns:
            return None
        return self.difference_ns / self.shadow_step_ns

    @property
    def distinguishable(self) -> bool | None:
        """Whether the interval leaves out zero; None without an interval."""
        if self.low_ns is None or self.high_ns is None:
            return None
        return self.low_ns > 0 or self.high_ns < 0

    @property
    def verdict(self) -> str:
        """The cost in words."""
        if self.difference_ns is None or self.low_ns is None or self.high_ns is None:
            return f"not known ({self.pairs} pairs of shadow steps, {MINIMUM_PAIRS} needed)"
        low, high = self.low_ns / 1e6, self.high_ns / 1e6
        if not self.distinguishable:
            return f"not distinguishable from zero (between {low:+.3f} and {high:+.3f} ms a step)"
        word = "adds" if self.difference_ns > 0 else "recorded steps are shorter by"
        size = abs(self.difference_ns) / 1e6
        low, high = sorted((abs(low), abs(high)))
        return f"{word} {size:.3f} ms a step (between {low:.3f} and {high:.3f})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "shadow_steps": self.shadows,
            "pairs": self.pairs,
            "difference_ns": self.difference_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "level": self.level,
            "shadow_step_ns": self.shadow_step_ns,
            "share": self.share,
            "wait_with_ns": self.wait_with_ns,
            "wait_without_ns": self.wait_without_ns,
            "wait_low_ns": self.wait_low_ns,
            "wait_high_ns": self.wait_high_ns,
            "waits": self.waits,
            "verdict": self.verdict,
        }


def shadow_cost(summaries: NDArray[np.void]) -> ShadowCost:
    """Return the cost of recording, from `summaries` (SUMMARY rows, any order)."""
    rows = summaries[np.argsort(summaries["step"], kind="stable")]
    rows = rows[(rows["start_ns"] != NOT_KNOWN) & (rows["end_ns"] > rows["start_ns"])]
    others = OUT_OF_STATISTICS & ~StepFlag.SHADOW
    is_shadow = rows["flags"] & StepFlag.SHADOW != 0
    shadow = np.flatnonzero(is_shadow & (rows["flags"] & others == 0))
    recorded = np.flatnonzero(rows["flags"] & OUT_OF_STATISTICS == 0)
    after = np.searchsorted(recorded, shadow)
    paired = (after > 0) & (after < len(recorded))
    before_row = rows[recorded[after[paired] - 1]]
    after_row = rows[recorded[after[paired]]]
    shadow_row = rows[shadow[paired]]
    took = [row["end_ns"] - row["start_ns"] for row in (before_row, shadow_row, after_row)]
    difference = np.sort((took[0] + took[2]) // 2 - took[1])
    low, high, level = interval_of_median(difference)
    known = level is not None
    waited = np.ones(len(shadow_row), np.bool_)
    for side in (before_row, shadow_row, after_row):
        waited &= side["wait_ns"] != NOT_KNOWN
    with_ns = (before_row["wait_ns"][waited] + after_row["wait_ns"][waited]) // 2
    wait_low, wait_high, _ = interval_of_median(np.sort(with_ns - shadow_row["wait_ns"][waited]))
    return ShadowCost(
        wait_low_ns=wait_low,
        wait_high_ns=wait_high,
        shadows=int(is_shadow.sum()),
        pairs=len(difference),
        difference_ns=median(difference) if known else None,
        low_ns=low,
        high_ns=high,
        level=level,
        shadow_step_ns=median(took[1]),
        wait_with_ns=median(with_ns),
        wait_without_ns=median(shadow_row["wait_ns"][waited]),
        waits=int(waited.sum()),
        unknown=() if known else (_too_few(int(is_shadow.sum()), len(difference)),),
    )


def _too_few(shadows: int, pairs: int) -> Unknown:
    if not shadows:
        return Unknown("what recording costs", "there are no shadow steps")
    because = f"there are {pairs} pairs of shadow and recorded steps, {MINIMUM_PAIRS} are needed"
    return Unknown("what recording costs", because)


def interval_of_median(ordered: I64) -> tuple[int | None, int | None, float | None]:
    """Return (low, high, level): the narrowest order-statistic interval of the median at
    `LEVEL_PCT`.

    The interval from the k-th smallest to the k-th largest of n values misses the median with
    probability 2 P(B <= k - 1), B binomial(n, 1/2). For n = 6 that is 2/64 at k = 1: the level is
    96.9 %.

    Args:
        ordered: int64 values, ascending.

    Returns:
        All None with fewer than `MINIMUM_PAIRS` values.

    """
    count = len(ordered)
    if count < MINIMUM_PAIRS:
        return None, None, None
    # Exact integers: 2^n outgrows a float within the shadow steps of one run.
    rank, below, ways = 0, 0, 1
    while 200 * (below + ways) <= (100 - LEVEL_PCT) * 2**count:
        below += ways
        ways = ways * (count - rank) // (rank + 1)
        rank += 1
    level = 1 - 2 * below / 2**count
    return int(ordered[rank - 1]), int(ordered[count - rank]), level

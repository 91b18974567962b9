"""Whether one series of step times is shorter than another, with an interval, or cannot be told from it.

In: step times of runs of two settings. Out: a `Verdict`.

Neighbouring steps resemble each other (a warm cache, a busy neighbour), so single steps are no independent values. A
run is cut into consecutive blocks, and a block's median is one value. How far a run drifts from its first to its last
quarter is a floor below which its difference from another run means nothing.

| runs of each  | one value is     | interval of the ratio | not below          |
|---------------|------------------|-----------------------|--------------------|
| one           | a block's median | bootstrap (BCa)       | the drift, and 1 % |
| three or more | a run's median   | Welch's t             |                    |

Both work on logarithms. Two runs of a setting cannot show how much its runs differ: they count as one longer run.

Sources: Efron, Better bootstrap confidence intervals (1987); Welch, The generalization of Student's problem (1947).
Both as SciPy computes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import ConfigurationError

F64 = NDArray[np.float64]

LEVEL = 0.95
MINIMUM_BLOCKS = 6
_BLOCK_STEPS = 5
_MOST_BLOCKS = 40
REPEATS = 3
ONE_RUN_FLOOR = 0.01
"""With one run of each, a smaller difference is not told apart, however narrow its interval: a restart alone changes
placement, memory layout and neighbours on the network, and a step by about this much."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the second setting's step time compares with the first one's.

    Args:
        base_ns, other_ns: median step times; None without steps.
        change: other / base - 1 of the estimate; None where it cannot be estimated.
        low, high: interval of `change` at `LEVEL`; None without one.
        drift: the larger of the two settings' own drift, as a share; None without enough steps.
        runs: how many runs of each.
        because: why nothing can be told apart, "" where it can.
    """

    base_ns: int | None
    other_ns: int | None
    change: float | None
    low: float | None
    high: float | None
    drift: float | None
    runs: tuple[int, int]
    because: str

    @property
    def word(self) -> str:
        """`faster`, `slower` or `not distinguishable`."""
        if self.because or self.change is None:
            return "not distinguishable"
        return "faster" if self.change < 0 else "slower"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "verdict": self.word,
            "base_ns": self.base_ns,
            "other_ns": self.other_ns,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "level": LEVEL if self.low is not None else None,
            "drift": self.drift,
            "runs": list(self.runs),
            "because": self.because or None,
        }


def verdict(base: Sequence[F64], other: Sequence[F64]) -> Verdict:
    """Compare the step times of two settings.

    Args:
        base: ns, one array of step times, in order, for each run; no run is empty.
        other: the same of the other setting.

    Raises:
        ConfigurationError: SciPy is not installed.
    """
    runs = (len(base), len(other))
    if not base or not other:
        return Verdict(*_medians(base, other), None, None, None, None, runs, "no steps to compare")
    if min(runs) >= REPEATS:
        return _of_runs(base, other, runs)
    return _of_blocks(base, other, runs)


def _medians(base: Sequence[F64], other: Sequence[F64]) -> tuple[int | None, int | None]:
    told = [round(float(np.median(np.concatenate(one)))) if one else None for one in (base, other)]
    return told[0], told[1]


def _of_runs(base: Sequence[F64], other: Sequence[F64], runs: tuple[int, int]) -> Verdict:
    stats = statistics_library()
    logs = [np.log([float(np.median(run)) for run in one]) for one in (base, other)]
    change = float(np.expm1(logs[1].mean() - logs[0].mean()))
    if max(np.ptp(one) for one in logs) == 0:
        low = high = change
    else:
        interval = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(LEVEL)
        low, high = float(np.expm1(interval.low)), float(np.expm1(interval.high))
    because = "the interval includes no difference" if low <= 0 <= high else ""
    return Verdict(*_medians(base, other), change, low, high, None, runs, because)


def _of_blocks(base: Sequence[F64], other: Sequence[F64], runs: tuple[int, int]) -> Verdict:
    medians = _medians(base, other)
    blocks = [np.log(np.concatenate([block_medians(run) for run in one])) for one in (base, other)]
    fewest = min(len(one) for one in blocks)
    if fewest < MINIMUM_BLOCKS:
        change = medians[1] / medians[0] - 1 if medians[0] and medians[1] is not None else None
        because = f"too few steps: {MINIMUM_BLOCKS * _BLOCK_STEPS} of each are needed"
        return Verdict(*medians, change, None, None, None, runs, because)
    change = float(np.expm1(blocks[1].mean() - blocks[0].mean()))
    low, high = _bootstrapped(*blocks)
    drift = max(_drift(run) for one in (base, other) for run in one)
    because = ""
    if low <= 0 <= high:
        because = "the interval includes no difference"
    elif abs(change) <= drift:
        because = f"a run drifts by as much within itself ({100 * drift:.1f} %)"
    elif abs(change) < ONE_RUN_FLOOR:
        because = (
            f"below {100 * ONE_RUN_FLOOR:.0f} % two starts of one setting differ as much: "
            f"run each {REPEATS} times"
        )
    return Verdict(*medians, change, low, high, drift, runs, because)


def block_medians(steps: F64) -> F64:
    """Return the medians of consecutive blocks of at least five steps, at most 40 of them."""
    count = min(len(steps) // _BLOCK_STEPS, _MOST_BLOCKS)
    if count == 0:
        return np.empty(0)
    return np.array([float(np.median(block)) for block in np.array_split(steps, count)])


def _drift(steps: F64) -> float:
    first, _, _, last = np.array_split(steps, 4)
    return abs(float(np.median(last) / np.median(first)) - 1)


def _bootstrapped(base: F64, other: F64) -> tuple[float, float]:
    stats = statistics_library()
    if np.ptp(base) == 0 and np.ptp(other) == 0:
        exact = float(np.expm1(other.mean() - base.mean()))
        return exact, exact
    result = stats.bootstrap(
        (base, other),
        lambda a, b, axis: b.mean(axis=axis) - a.mean(axis=axis),
        n_resamples=4000,
        confidence_level=LEVEL,
        method="BCa",
        vectorized=True,
        rng=np.random.default_rng(0),  # the same input gives the same answer
    )
    interval = result.confidence_interval
    return float(np.expm1(interval.low)), float(np.expm1(interval.high))


def statistics_library() -> Any:
    """Return `scipy.stats`.

    Raises:
        ConfigurationError: SciPy is not installed.
    """
    try:
        from scipy import stats  # noqa: PLC0415 - slow to import, and only needed here
    except ImportError:
        raise ConfigurationError(
            "comparing needs SciPy, which is not installed: pip install 'overlapwatch[compare]'"
        ) from None
    return stats

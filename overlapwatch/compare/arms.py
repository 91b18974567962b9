"""Settings tried in turn inside one running job: which is faster, with drift taken out.

In: SUMMARY rows of the job, and which steps belonged to which setting in which round. Out: a `SweepResult`. Every
round runs every setting for a block of steps, so a setting is compared with the first one (the base: the job as it was)
within each round, where both met the same machine:

| round | base, ms | other, ms | difference, % |
|-------|----------|-----------|---------------|
| 1     | 100      | 95        | -5.0          |
| 2     | 120      | 114       | -5.0          | a busy neighbour slows both

Every other round runs them in the opposite order, so that a drift within the rounds cancels too. The estimate is the
mean of the differences of logarithms, its interval Student's t over rounds, widened for the number of settings
(Bonferroni), since the best of many is looked for. Settings are ranked by step time alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.compare.statistics import F64, LEVEL, statistics_library
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS

MINIMUM_ROUNDS = 4
CLEARLY_WORSE = 0.02
"""A setting whose whole interval lies above this is not tried further."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps `first` to `last` (both included) under setting number `arm`, in one round; without warm-up."""

    arm: int
    round: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One setting.

    Args:
        name: as it is shown.
        rounds: in which both it and the base were measured.
        steps: measured.
        step_ns: median; None before any was measured.
        change, low, high: of the step time against the base; None where not known.
        hidden_share: hidden / all communication; None where not known.
        exposed_ns, tail_ns, compute_ns: medians; None where not known.
        memory_bytes: peak of the device's memory under it; None where not known.
        dropped_after: the round after which it was not tried any more; None when it was.
    """

    name: str
    rounds: int
    steps: int
    step_ns: int | None
    change: float | None
    low: float | None
    high: float | None
    hidden_share: float | None
    exposed_ns: int | None
    tail_ns: int | None
    compute_ns: int | None
    memory_bytes: int | None
    dropped_after: int | None

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `not distinguishable` from the base; "" of the base itself."""
        if self.change is None:
            return ""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "not distinguishable"
        return "faster" if self.high < 0 else "slower"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "name": self.name,
            "verdict": self.verdict or None,
            **{
                field: getattr(self, field)
                for field in (
                    *("rounds", "steps", "step_ns", "change", "low", "high", "hidden_share"),
                    *("exposed_ns", "tail_ns", "compute_ns", "memory_bytes", "dropped_after"),
                )
            },
        }


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All settings, the base first.

    Args:
        arms: in the order in which they were asked for.
        best: position of the setting to keep: the one with the shortest step among those that are faster than the base,
            else the base.
        like_best: positions of those that cannot be told from it.
        level: of each interval.
    """

    arms: tuple[ArmResult, ...]
    best: int
    like_best: tuple[int, ...]
    level: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {
            "arms": [arm.to_dict() for arm in self.arms],
            "best": self.arms[self.best].name,
            "like_best": [self.arms[place].name for place in self.like_best],
            "level": self.level,
        }


def order_of_round(turn: int, arms: Sequence[int]) -> list[int]:
    """Return in which order a round (from 0) runs the settings."""
    return list(arms if turn % 2 == 0 else reversed(arms))


def judge(
    rows: NDArray[np.void],
    blocks: Sequence[Block],
    names: Sequence[str],
    *,
    memory: Mapping[int, int] | None = None,
    dropped: Mapping[int, int] | None = None,
) -> SweepResult:
    """Judge what was measured so far.

    Args:
        rows: SUMMARY rows of the job, any order; steps out of statistics take no part.
        blocks: which steps were whose.
        names: of the settings; the first is the base.
        memory: setting → peak bytes.
        dropped: setting → round after which it was not tried any more.

    Raises:
        ConfigurationError: SciPy is not installed.
    """
    rows = rows[rows["flags"] & OUT_OF_STATISTICS == 0]
    medians: list[dict[int, float]] = [{} for _ in names]
    own: list[list[NDArray[np.void]]] = [[] for _ in names]
    for block in blocks:
        mine = rows[(rows["step"] >= block.first) & (rows["step"] <= block.last)]
        if len(mine):
            medians[block.arm][block.round] = float(np.median(mine["end_ns"] - mine["start_ns"]))
            own[block.arm].append(mine)
    level = 1 - (1 - LEVEL) / max(len(names) - 1, 1)
    arms = tuple(
        _arm(
            name,
            np.concatenate(own[place]) if own[place] else rows[:0],
            _differences(medians[0], medians[place]) if place else None,
            level,
            (memory or {}).get(place),
            (dropped or {}).get(place),
        )
        for place, name in enumerate(names)
    )
    faster = [place for place, arm in enumerate(arms) if arm.verdict == "faster"]
    best = min(faster, key=lambda place: arms[place].change or 0.0, default=0)
    like = tuple(
        place
        for place in range(len(arms))
        if place != best and _alike(_differences(medians[best], medians[place]), level)
    )
    return SweepResult(arms, best, like, level)


def clearly_worse(result: SweepResult) -> list[int]:
    """Return the settings that need no further rounds."""
    return [
        place
        for place, arm in enumerate(result.arms)
        if arm.low is not None and arm.low > CLEARLY_WORSE
    ]


def _differences(base: Mapping[int, float], other: Mapping[int, float]) -> F64:
    """Return the differences of logarithms in the rounds that both have."""
    both = sorted(base.keys() & other.keys())
    return np.array([math.log(other[turn] / base[turn]) for turn in both], np.float64)


def _arm(
    name: str,
    rows: NDArray[np.void],
    differences: F64 | None,
    level: float,
    memory: int | None,
    dropped: int | None,
) -> ArmResult:
    change = low = high = None
    if differences is not None and len(differences):
        change = float(np.expm1(differences.mean()))
        low, high = _interval(differences, level)
    whole, hidden = _sums(rows)
    return ArmResult(
        name=name,
        rounds=0 if differences is None else len(differences),
        steps=len(rows),
        step_ns=_median(rows["end_ns"] - rows["start_ns"]),
        change=change,
        low=low,
        high=high,
        hidden_share=hidden / whole if whole else None,
        exposed_ns=_median(rows["communication_only_ns"]),
        tail_ns=_median(rows["tail_ns"]),
        compute_ns=_median(rows["compute_ns"]),
        memory_bytes=memory,
        dropped_after=dropped,
    )


def _interval(differences: F64, level: float) -> tuple[float | None, float | None]:
    """Return the interval of the mean, as a share; none with too few rounds."""
    if len(differences) < MINIMUM_ROUNDS:
        return None, None
    if np.ptp(differences) == 0:
        exact = float(np.expm1(differences[0]))
        return exact, exact
    interval = statistics_library().ttest_1samp(differences, 0).confidence_interval(level)
    return float(np.expm1(interval.low)), float(np.expm1(interval.high))


def _alike(differences: F64, level: float) -> bool:
    low, high = _interval(differences, level)
    return low is not None and high is not None and low <= 0 <= high


def _sums(rows: NDArray[np.void]) -> tuple[int, int]:
    known = rows[rows["communication_ns"] != NOT_KNOWN]
    return int(known["communication_ns"].sum()), int(known["overlap_ns"].sum())


def _median(values: NDArray[Any]) -> int | None:
    known = values[values != NOT_KNOWN]
    return round(float(np.median(known))) if len(known) else None

"""Many steps in numbers: percentiles, ratios of sums, and which steps were the worst.

In: SUMMARY rows, one for every step that ran, and the numbers of the steps whose events were kept.
Out: a `StepStatistics`. Steps that are out of statistics are counted by reason. A number is taken
over the steps in which it is known, and carries how many those are.

| step | window | communication | hidden | overlap ratio         |
|------|--------|---------------|--------|-----------------------|
| 1    | 100    | 10            | 10     |                       |
| 2    | 100    | 90            | 0      |                       |
| both |        | 100           | 10     | 10 / 100, not 50 / 90 |

The mean is given, but is not the headline: one step of 200 ms among many of 1 ms says more in p99
and the worst steps.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.spread import Spread, spread
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, StepFlag

WORST_STEPS = 5
_PARTS = ("compute_only_ns", "communication_only_ns", "overlap_ns", "idle_ns")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of sums over `steps` steps, with both of its sides."""

    numerator_ns: int
    denominator_ns: int
    steps: int

    @property
    def value(self) -> float | None:
        """Numerator / denominator; None where there is nothing to divide by."""
        return self.numerator_ns / self.denominator_ns if self.denominator_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return both sides and the value as JSON-ready values."""
        return {
            "numerator_ns": self.numerator_ns,
            "denominator_ns": self.denominator_ns,
            "steps": self.steps,
            "value": self.value,
        }


@dataclass(frozen=True, slots=True)
class StepFact:
    """One step worth naming: its number, duration and tail; a tail that is not known is None."""

    step: int
    duration_ns: int
    tail_ns: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"step": self.step, "duration_ns": self.duration_ns, "tail_ns": self.tail_ns}


@dataclass(frozen=True, slots=True)
class Excluded:
    """How many steps are out of statistics for one reason, the StepFlag's name in lower case."""

    reason: str
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"reason": self.reason, "count": self.count}


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The steps of one rank.

    Args:
        steps: steps that ran and have ended.
        counted: of them in statistics; what follows speaks of these.
        kept: of all steps, those whose events are in the input.
        excluded: the others by reason; a step with several flags counts under the first.
        first_step, last_step: numbers of the first and last of all steps; None without steps.
        duration, communication, hidden, exposed, tail, wait: how each spreads over the steps in
            which it is known (its `count`); None where it is known in none.
        overlap: sum of hidden over sum of communication.
        exposed_fraction: sum of exposed over sum of the steps' windows.
        longest, longest_tails: worst steps, worst first.
        slow: numbers of the steps that were slower than the running p99 when they ended.
        closure: the checks.

    """

    steps: int
    counted: int
    kept: int
    excluded: tuple[Excluded, ...]
    first_step: int | None
    last_step: int | None
    duration: Spread | None
    communication: Spread | None
    hidden: Spread | None
    exposed: Spread | None
    tail: Spread | None
    wait: Spread | None
    overlap: Ratio
    exposed_fraction: Ratio
    longest: tuple[StepFact, ...]
    longest_tails: tuple[StepFact, ...]
    slow: tuple[int, ...]
    closure: tuple[Check, ...]

    def checks(self) -> tuple[Check, ...]:
        """Return how the steps and their parts add up."""
        return self.closure

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        spreads = ("duration", "communication", "hidden", "exposed", "tail", "wait")
        values: dict[str, Spread | None] = {name: getattr(self, name) for name in spreads}
        return {
            "steps": self.steps,
            "in_statistics": self.counted,
            "kept": self.kept,
            "excluded": [reason.to_dict() for reason in self.excluded],
            "first_step": self.first_step,
            "last_step": self.last_step,
            **{name: value.to_dict() if value else None for name, value in values.items()},
            "overlap": self.overlap.to_dict(),
            "exposed_fraction": self.exposed_fraction.to_dict(),
            "longest": [fact.to_dict() for fact in self.longest],
            "longest_tails": [fact.to_dict() for fact in self.longest_tails],
            "slow": list(self.slow),
        }


def step_statistics(summaries: NDArray[np.void], kept_steps: Collection[int]) -> StepStatistics:
    """Return the statistics of `summaries` (SUMMARY rows, any order).

    Args:
        summaries: one row for every step that ran.
        kept_steps: numbers of the steps whose events are in the input.

    """
    summaries = summaries[np.argsort(summaries["step"], kind="stable")]
    counted = summaries[(summaries["flags"] & OUT_OF_STATISTICS == 0) & _ended(summaries)]
    excluded = _excluded(summaries)
    duration = counted["end_ns"] - counted["start_ns"]
    split = _known(counted, *_PARTS, "communication_ns", "compute_ns")
    parts, windows = counted[split], int(duration[split].sum())
    tail = counted["tail_ns"]
    facts = [
        StepFact(step, took, None if tail_ns == NOT_KNOWN else tail_ns)
        for step, took, tail_ns in zip(
            counted["step"].tolist(), duration.tolist(), tail.tolist(), strict=True
        )
    ]
    return StepStatistics(
        steps=len(summaries),
        counted=len(counted),
        kept=int(np.isin(summaries["step"], np.fromiter(kept_steps, np.int64)).sum()),
        excluded=excluded,
        first_step=int(summaries["step"][0]) if len(summaries) else None,
        last_step=int(summaries["step"][-1]) if len(summaries) else None,
        duration=spread(duration),
        communication=_spread(counted, "communication_ns"),
        hidden=_spread(counted, "overlap_ns"),
        exposed=_spread(counted, "communication_only_ns"),
        tail=_spread(counted, "tail_ns"),
        wait=_spread(counted, "wait_ns"),
        overlap=Ratio(_sum(parts, "overlap_ns"), _sum(parts, "communication_ns"), len(parts)),
        exposed_fraction=Ratio(_sum(parts, "communication_only_ns"), windows, len(parts)),
        longest=_worst(facts, [fact.duration_ns for fact in facts]),
        longest_tails=_worst(facts, [fact.tail_ns for fact in facts]),
        slow=tuple(summaries["step"][summaries["flags"] & StepFlag.SLOW != 0].tolist()),
        closure=_closure(summaries, counted, excluded, parts, windows),
    )


def _ended(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    ended: NDArray[np.bool_] = (rows["start_ns"] != NOT_KNOWN) & (
        rows["end_ns"] >= rows["start_ns"]
    )
    return ended


def _known(rows: NDArray[np.void], *fields: str) -> NDArray[np.bool_]:
    known = np.ones(len(rows), np.bool_)
    for field in fields:
        known &= rows[field] != NOT_KNOWN
    return known


def _spread(rows: NDArray[np.void], field: str) -> Spread | None:
    return spread(rows[field][rows[field] != NOT_KNOWN])


def _sum(rows: NDArray[np.void], field: str) -> int:
    return int(rows[field].sum())


def _excluded(rows: NDArray[np.void]) -> tuple[Excluded, ...]:
    """Count each step that is out of statistics once, under the first of its reasons."""
    left = rows["flags"].copy()
    found = []
    for flag in StepFlag:
        if flag & OUT_OF_STATISTICS:
            mine = left & flag != 0
            if mine.any():
                found.append(Excluded((flag.name or "").lower(), int(mine.sum())))
            left[mine] = 0
    rest = rows[rows["flags"] & OUT_OF_STATISTICS == 0]
    if not _ended(rest).all():
        found.append(Excluded("not ended", int((~_ended(rest)).sum())))
    return tuple(found)


def _worst(facts: list[StepFact], by: list[int] | list[int | None]) -> tuple[StepFact, ...]:
    ranked = [(value, fact) for value, fact in zip(by, facts, strict=True) if value is not None]
    ranked.sort(key=lambda pair: (-pair[0], pair[1].step))
    return tuple(fact for _, fact in ranked[:WORST_STEPS])


def _closure(
    summaries: NDArray[np.void],
    counted: NDArray[np.void],
    excluded: tuple[Excluded, ...],
    parts: NDArray[np.void],
    windows: int,
) -> tuple[Check, ...]:
    out = sum(reason.count for reason in excluded)
    both = _sum(parts, "overlap_ns")
    return (
        Check(
            "steps in statistics + left out = steps", len(counted) + out, len(summaries), "steps"
        ),
        Check(
            "parts of the steps = windows of the steps",
            sum(_sum(parts, part) for part in _PARTS),
            windows,
        ),
        Check(
            "exposed + hidden of the steps = communication of the steps",
            _sum(parts, "communication_only_ns") + both,
            _sum(parts, "communication_ns"),
        ),
    )

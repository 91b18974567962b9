"""Two settings of one job, from whatever recorded them, number by number.

In: for each setting the Analyses of its runs. Out: a `Comparison`: the verdict on the step time, and beside it where
the time went before and after: per number, phase and kind, bucket and rank. Only the step time is judged: a higher
overlap with a slower step is a slower step.

It refuses to compare overlap between different jobs. Two inputs are of the same job when they have as many ranks and
reduce as many gradient elements (or, where no buckets are known, move as many bytes) in a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.compare.statistics import F64, Verdict, verdict
from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS

_SAME_BYTES = 0.01


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: what it is called, and the Analyses of each of its runs, one a rank and device."""

    name: str
    runs: tuple[tuple[Analysis, ...], ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One number of both settings; None where it is not known.

    Args:
        name: of the number, or of what it is told of.
        unit: "ns" (a median over steps, or a step's share of the window), "share", "count" or "bytes".
        base, other: its values.
    """

    name: str
    unit: str
    base: float | None
    other: float | None

    @property
    def change(self) -> float | None:
        """Other / base - 1; None where one is not known or there is nothing to divide by."""
        if self.base is None or self.other is None or not self.base:
            return None
        return self.other / self.base - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "base": self.base,
            "other": self.other,
            "change": self.change,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second setting against the first.

    Args:
        base, other: what they are called.
        step: the verdict on the step time.
        different: why these are not the same job; empty when nothing says so. Then all below is empty.
        numbers: of a step.
        phases: exposed communication of a step by phase and kind.
        buckets: exposed communication of each bucket, where both settings have the same buckets.
        ranks: the step time on each rank that both have.
        unknown: what cannot be told.
    """

    base: str
    other: str
    step: Verdict
    different: tuple[str, ...]
    numbers: tuple[Pair, ...]
    phases: tuple[Pair, ...]
    buckets: tuple[Pair, ...]
    ranks: tuple[Pair, ...]
    unknown: tuple[Unknown, ...]

    @property
    def misleading(self) -> bool:
        """Whether the share of communication that was hidden and the step time point in opposite directions."""
        hidden = next((pair for pair in self.numbers if pair.name == "hidden share"), None)
        if hidden is None or hidden.base is None or hidden.other is None:
            return False
        better = hidden.other > hidden.base
        return (better and self.step.word == "slower") or (
            hidden.other < hidden.base and self.step.word == "faster"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready values."""
        return {
            "base": self.base,
            "other": self.other,
            "step": self.step.to_dict(),
            "different_jobs_because": list(self.different),
            "numbers": [pair.to_dict() for pair in self.numbers],
            "phases": [pair.to_dict() for pair in self.phases],
            "buckets": [pair.to_dict() for pair in self.buckets],
            "ranks": [pair.to_dict() for pair in self.ranks],
            "not_known": [{"what": one.what, "because": one.because} for one in self.unknown],
        }


def compare(base: Setting, other: Setting) -> Comparison:
    """Compare two settings of one job.

    Raises:
        ConfigurationError: what the statistics need is not installed.
    """
    step = verdict(_step_times(base), _step_times(other))
    different = tuple(_differences(base, other))
    unknown = []
    if step.base_ns is None or step.other_ns is None:
        silent = base.name if step.base_ns is None else other.name
        unknown.append(
            Unknown("which is faster", f"{silent} has no steps in statistics to take times from")
        )
    told = () if different else tuple(_numbers(base, other))
    return Comparison(
        base=base.name,
        other=other.name,
        step=step,
        different=different,
        numbers=told,
        phases=() if different else _phases(base, other),
        buckets=() if different else _buckets(base, other),
        ranks=() if different else _ranks(base, other),
        unknown=tuple(unknown),
    )


# -- step times ------------------------------------------------------------------------------------


def _counted(analysis: Analysis) -> NDArray[np.void]:
    """Return the SUMMARY rows in statistics."""
    rows = analysis.rows
    return np.asarray(rows[rows["flags"] & OUT_OF_STATISTICS == 0])


def _step_times(setting: Setting) -> list[F64]:
    """Return the step times of each run that has any, ns: those of its first rank, which all ranks share."""
    times = [_durations(run[0]) for run in setting.runs]
    return [one for one in times if len(one)]


def _durations(analysis: Analysis) -> F64:
    rows = _counted(analysis)
    return np.asarray(rows["end_ns"] - rows["start_ns"], np.float64)


# -- whether it is the same job --------------------------------------------------------------------


def _differences(base: Setting, other: Setting) -> list[str]:
    found = []
    worlds = [
        sorted({run[0].origin.world or len(run) for run in one.runs}) for one in (base, other)
    ]
    if worlds[0] != worlds[1]:
        first, second = (" and ".join(map(str, world)) for world in worlds)
        found.append(f"{first} ranks against {second}")
    for what, of in (("gradient elements", _elements), ("bytes in a step", _bytes)):
        mine, theirs = (of(one.runs[0][0]) for one in (base, other))
        if mine is None or theirs is None:
            continue
        if abs(theirs - mine) > _SAME_BYTES * mine:
            found.append(f"{mine:,} {what} against {theirs:,}")
        break
    return found


def _elements(analysis: Analysis) -> int | None:
    """Return the elements of all gradient buckets; None where a bucket does not say."""
    elements = [row.elements for row in analysis.buckets.rows]
    return sum(elements) if elements and all(elements) else None


def _bytes(analysis: Analysis) -> int | None:
    """Return the logical bytes of a step."""
    known = _counted(analysis)["bytes"]
    known = known[known != NOT_KNOWN]
    return int(np.median(known)) if len(known) else None


# -- numbers ---------------------------------------------------------------------------------------

_MEDIANS = (
    ("compute", "compute_ns"),
    ("communication", "communication_ns"),
    ("exposed", "communication_only_ns"),
    ("tail", "tail_ns"),
    ("wait", "wait_ns"),
    ("idle", "idle_ns"),
)


def _numbers(base: Setting, other: Setting) -> list[Pair]:
    rows = [_all_rows(base), _all_rows(other)]
    pairs = [Pair("step", "ns", *(_median(one["end_ns"] - one["start_ns"]) for one in rows))]
    pairs.append(Pair("hidden share", "share", *(_hidden(one) for one in rows)))
    for name, field in _MEDIANS:
        pairs.append(Pair(name, "ns", *(_median(one[field]) for one in rows)))
    for name, field in (("collectives", "collectives"), ("buckets", "buckets")):
        pairs.append(Pair(name, "count", *(_median(one[field]) for one in rows)))
    return pairs


def _all_rows(setting: Setting) -> NDArray[np.void]:
    """Return the rows in statistics of the first rank of every run."""
    return np.concatenate([_counted(run[0]) for run in setting.runs])


def _median(values: NDArray[Any]) -> float | None:
    known = values[values != NOT_KNOWN]
    return float(np.median(known)) if len(known) else None


def _hidden(rows: NDArray[np.void]) -> float | None:
    known = rows[rows["communication_ns"] != NOT_KNOWN]
    whole = int(known["communication_ns"].sum())
    return int(known["overlap_ns"].sum()) / whole if whole else None


def _phases(base: Setting, other: Setting) -> tuple[Pair, ...]:
    return _matched(base, other, _exposed_in_a_step)


def _exposed_in_a_step(analysis: Analysis) -> dict[str, float]:
    steps = analysis.steps_in_window
    if not steps:
        return {}
    return {
        f"{cell.phase.name.lower() if cell.phase is not None else 'any'} {cell.kind.title}": cell.exposed_ns
        / steps
        for cell in analysis.phases.cells
    }


def _buckets(base: Setting, other: Setting) -> tuple[Pair, ...]:
    """Return the buckets of both; none where they are laid out differently: bucket 1 is another bucket then."""
    layouts = [
        [(row.name, row.bytes) for row in one.runs[0][0].buckets.rows] for one in (base, other)
    ]
    if layouts[0] != layouts[1]:
        return ()
    return _matched(base, other, lambda one: {row.name: row.exposed_ns for row in one.buckets.rows})


def _matched(
    base: Setting, other: Setting, of: Callable[[Analysis], dict[str, Any]]
) -> tuple[Pair, ...]:
    mine, theirs = of(base.runs[0][0]), of(other.runs[0][0])
    names = dict.fromkeys([*mine, *theirs])
    return tuple(Pair(name, "ns", mine.get(name), theirs.get(name)) for name in names)


def _ranks(base: Setting, other: Setting) -> tuple[Pair, ...]:
    mine, theirs = (
        {one.origin.rank: _median(_durations(one)) for one in setting.runs[0]}
        for setting in (base, other)
    )
    both = [rank for rank in mine if rank is not None and rank in theirs]
    return tuple(Pair(f"rank {rank}", "ns", mine[rank], theirs[rank]) for rank in both)

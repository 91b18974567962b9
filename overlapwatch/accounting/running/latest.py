"""The latest steps of one rank of a running job.

In: SUMMARY rows, the latest a log has. Out: a `Latest`: the newest step, what is usual, and each number over the
steps. Nothing is computed of spans here: the rows are what the job itself has summed up.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.spread import median
from overlapwatch.accounting.steps import StepStatistics, step_statistics
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS

_PARTS = ("compute_only_ns", "overlap_ns", "communication_only_ns", "idle_ns")


@dataclass(frozen=True, slots=True)
class Parts:
    """The partition of one step, as its summary has it."""

    step: int
    window_ns: int
    compute_only_ns: int
    hidden_ns: int
    exposed_ns: int
    idle_ns: int

    @property
    def shares_ns(self) -> tuple[int, int, int, int]:
        """Compute only, hidden, exposed, idle."""
        return self.compute_only_ns, self.hidden_ns, self.exposed_ns, self.idle_ns

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest steps of one rank.

    Args:
        step: the newest that has ended.
        duration_ns: how long it took.
        tail_ns: its tail; None where not known.
        usual_ns: the median of the steps in statistics; None without any.
        parts: of the newest step in which they are known; None: of none of them.
        steps: how many they are.
        durations, hidden, exposed, tails: of all of them, oldest first, None where not known; empty where only the
            newest step was asked for.
        statistics: of those in statistics; None where only the newest step was asked for.

    """

    step: int
    duration_ns: int
    tail_ns: int | None
    usual_ns: int | None
    parts: Parts | None
    steps: int
    durations: tuple[int, ...] = ()
    hidden: tuple[int | None, ...] = ()
    exposed: tuple[int | None, ...] = ()
    tails: tuple[int | None, ...] = ()
    statistics: StepStatistics | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        told = self.statistics
        return {
            "step": self.step,
            "duration_ns": self.duration_ns,
            "tail_ns": self.tail_ns,
            "usual_ns": self.usual_ns,
            "parts": self.parts.to_dict() if self.parts else None,
            "steps": self.steps,
            "in_statistics": told.counted if told else None,
            "overlap": told.overlap.to_dict() if told else None,
            "exposed_fraction": told.exposed_fraction.to_dict() if told else None,
        }


def latest_steps(rows: NDArray[np.void], *, newest_only: bool = False) -> Latest | None:
    """Return the latest steps of one rank; None where none has ended.

    Args:
        rows: SUMMARY array, any order.
        newest_only: leave out the series and the statistics, which cost the most.

    """
    rows = rows[(rows["start_ns"] != NOT_KNOWN) & (rows["end_ns"] >= rows["start_ns"])]
    if not len(rows):
        return None
    rows = rows[np.argsort(rows["step"], kind="stable")]
    took = rows["end_ns"] - rows["start_ns"]
    counted = rows["flags"] & np.uint32(OUT_OF_STATISTICS) == 0
    newest = Latest(
        step=int(rows["step"][-1]),
        duration_ns=int(took[-1]),
        tail_ns=_series(rows[-1:], "tail_ns")[0],
        usual_ns=median(took[counted]),
        parts=_parts(rows),
        steps=len(rows),
    )
    if newest_only:
        return newest
    return replace(
        newest,
        durations=tuple(took.tolist()),
        hidden=_series(rows, "overlap_ns"),
        exposed=_series(rows, "communication_only_ns"),
        tails=_series(rows, "tail_ns"),
        statistics=step_statistics(rows, ()),
    )


def _parts(rows: NDArray[np.void]) -> Parts | None:
    known = np.ones(len(rows), np.bool_)
    for part in _PARTS:
        known &= rows[part] != NOT_KNOWN
    found = np.flatnonzero(known)
    if not len(found):
        return None
    row = rows[found[-1]]
    window_ns = int(row["end_ns"]) - int(row["start_ns"])
    return Parts(int(row["step"]), window_ns, *(int(row[part]) for part in _PARTS))


def _series(rows: NDArray[np.void], field: str) -> tuple[int | None, ...]:
    return tuple(None if value == NOT_KNOWN else value for value in rows[field].tolist())

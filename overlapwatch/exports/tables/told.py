"""One rank and device with what the accounting says of it, and what the tables of it share."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.ranks.fit import ClockFit
from overlapwatch.exports.subject import Subject
from overlapwatch.vocabulary import NOT_KNOWN


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One subject with what the accounting says of it.

    Args:
        label: what to call it; unique in an export.
        subject, analysis: the same rank and device, by the same selection.
        fit: its clock against the reference; None where that is not known, or there is none.

    """

    label: str
    subject: Subject
    analysis: Analysis
    fit: ClockFit | None

    def whose(self, count: int) -> dict[str, list[Any]]:
        """Return the columns that say whose `count` rows are."""
        return {"timeline": [self.label] * count, "rank": [self.analysis.origin.rank] * count}

    @property
    def who(self) -> dict[str, Any]:
        """The columns that say whose one row is."""
        return {"timeline": self.label, "rank": self.analysis.origin.rank}


def not_known(column: NDArray[np.integer]) -> list[int | None]:
    """Return numbers of a summary; None where it has NOT_KNOWN."""
    return [None if value == NOT_KNOWN else value for value in column.tolist()]


def where(known: NDArray[np.bool_], values: NDArray[np.integer]) -> list[int | None]:
    """Return the values that are known, None for the others."""
    return [
        value if there else None
        for value, there in zip(values.tolist(), known.tolist(), strict=True)
    ]

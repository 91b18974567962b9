"""Adds up one rank's steps: the numbers behind every gauge, counter and histogram.

In: SUMMARY rows, one a step, and now and then a `Standing`. Out: what is known of each step that is in statistics, and,
at any time and on any thread, the values of all families of the catalogue. Sums are whole ns and bytes, so they stay
exact however long a run is. What is not known has no value. It does not know any library.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from overlapwatch.log.sinks import Standing
from overlapwatch.metrics import catalogue
from overlapwatch.metrics.catalogue import LEFT_OUT, OF_A_STEP, Row, why_left_out
from overlapwatch.vocabulary import SUMMARY, StepFlag

_SLOW = int(StepFlag.SLOW)


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a histogram.

    Args:
        counts: how many lay at or below each bound and above the one before; the last: above all.
        sum: of the values, in the family's unit.

    """

    counts: tuple[int, ...]
    sum: float


Values = Mapping[str, "float | Spread"]
"""The series of one family by the value of its own label; "" where it has none. No entry: not known."""


@dataclass(frozen=True, slots=True)
class StepValues:
    """What a tracker logs of one step in statistics.

    Args:
        step: its number.
        unix_ns: when it was summed up.
        values: by name, in the unit that the name ends in; no entry: not known.

    """

    step: int
    unix_ns: int
    values: Mapping[str, float]


class Tally:
    """The sums of one rank. `take` and `stand` are called on the drain thread, `values` on any.

    Args:
        unix_ns: the time of day.

    """

    def __init__(self, unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._unix_ns = unix_ns
        self._lock = threading.Lock()
        self._latest: Row | None = None  # of the steps in statistics
        self._number: int | None = None
        self._summed_up_ns = 0
        self._steps = self._slow = 0
        self._left_out = dict.fromkeys((word for _, word in LEFT_OUT), 0)
        self._sums: dict[str, float] = {one.name: 0 for one in OF_A_STEP}
        self._counts = {
            one.name: [0] * (len(one.histogram.bounds) + 1) for one in OF_A_STEP if one.histogram
        }
        self._standing: Standing | None = None

    def take(self, summary: np.void) -> StepValues | None:
        """Add one step, a SUMMARY row; return what is known of it, or None when it is in no statistics."""
        row: Row = dict(zip(SUMMARY.names or (), summary.item(), strict=True))
        because = why_left_out(row["flags"])
        known: dict[str, float] = {}
        with self._lock:
            self._steps += 1
            self._number, self._summed_up_ns = row["step"], self._unix_ns()
            if because is not None:
                self._left_out[because] += 1
                return None
            self._latest = row
            self._slow += bool(row["flags"] & _SLOW)
            for one in OF_A_STEP:
                taken = one.take(row)
                if taken is None:
                    continue
                known[one.name] = value = taken / one.unit.per
                self._sums[one.name] += taken
                if one.histogram is not None:
                    self._counts[one.name][bisect_left(one.histogram.bounds, value)] += 1
            known[catalogue.STEPS_LEFT_OUT.plain] = sum(self._left_out.values())
            if self._standing is not None:
                known[catalogue.RECORDS_LOST.plain] = self._standing.records_lost
            return StepValues(row["step"], self._summed_up_ns, known)

    def stand(self, standing: Standing) -> None:
        """Take in what is known between steps."""
        with self._lock:
            self._standing = standing

    def values(self) -> dict[str, Values]:
        """Return the values of all families, by the family's name."""
        with self._lock:
            found = self._of_the_watch()
            for one in OF_A_STEP:
                latest = one.value(self._latest) if self._latest else None
                found[one.latest.name] = {} if latest is None else {"": latest}
                total = self._sums[one.name] / one.unit.per
                if one.total is not None:
                    found[one.total.name] = {"": total}
                if one.histogram is not None:
                    found[one.histogram.name] = {"": Spread(tuple(self._counts[one.name]), total)}
        return found

    def _of_the_watch(self) -> dict[str, Values]:
        found: dict[str, Values] = {one.name: {} for one in catalogue.OF_THE_WATCH}
        found[catalogue.STEPS_SEEN.name] = {"": self._steps}
        found[catalogue.STEPS_LEFT_OUT.name] = dict(self._left_out)
        found[catalogue.SLOW_STEPS.name] = {"": self._slow}
        if self._number is not None:
            found[catalogue.STEP_NUMBER.name] = {"": self._number}
            found[catalogue.STEP_TIMESTAMP.name] = {"": self._summed_up_ns / 1e9}
        if (known := self._standing) is not None:
            found[catalogue.IN_FLIGHT.name] = {"": known.in_flight}
            if known.oldest_ns is not None:
                found[catalogue.OLDEST_IN_FLIGHT.name] = {"": known.oldest_ns / 1e9}
            found[catalogue.RECORDS_LOST.name] = {"": known.records_lost}
            found[catalogue.RECORDS_LATE.name] = {"": known.records_late}
            found[catalogue.DRAIN_CPU.name] = {"": known.drain_cpu_ns / 1e9}
        return found

"""Whether the same rank is late again and again, or another one each time, or nobody in particular.

In: RankTables, Waiting, an Alignment. Out: a `Lateness`: a verdict, each rank's count with its
chance, each step's late rank with the cause.

| verdict      | when                                                                              |
|--------------|-----------------------------------------------------------------------------------|
| persistent   | a rank is materially late in more than half of the steps, beyond chance           |
| rotating     | a fifth of the steps or more have a materially late rank, and it is mostly another |
| occasional   | some steps have one, too few to say more                                          |
| none         | fewer than one step in twenty has one                                             |
| not known    | too few steps, ranks or known entries                                             |

*Materially* late: by more than a hundredth of a step, than four times the spread of the ranks that
are not late, and than the clocks can tell. *Beyond chance*: if each rank were equally likely to be
the last one (or to be among those after the middle), so many steps would be met with a probability
below 1 %, the number of ranks allowed for (Bonferroni). The rest is not named: a rank that is often
last by very little is no straggler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from overlapwatch.accounting.ranks.alignment import Alignment
from overlapwatch.accounting.ranks.causes import Cause, Excess, Ways
from overlapwatch.accounting.ranks.chance import at_least, wilson
from overlapwatch.accounting.ranks.late_steps import LateSteps, late_steps
from overlapwatch.accounting.ranks.table import RankTable
from overlapwatch.accounting.ranks.waiting import Waiting
from overlapwatch.accounting.spread import Spread, spread
from overlapwatch.timeline.model import I64, Unknown

CHANCE = 0.01
FEW_STEPS = 5
OFTEN = 0.2
SELDOM = 0.05


class Verdict(Enum):
    """What can be said about lateness; the value is the word in reports."""

    PERSISTENT = "persistent"
    ROTATING = "rotating"
    OCCASIONAL = "occasional"
    NONE = "none"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class LateRank:
    """How often one rank (or host) was late.

    Args:
        label: which.
        tables: positions of its tables: one, of a host several.
        steps: judged steps in which it took part: the denominator of the counts.
        last: in so many it was the latest of all, and materially late.
        late: in so many it was materially late, first or not.
        share_low, share_high: the share of steps in which it is late, with 95 % confidence.
        chance: probability of such counts if lateness were evenly spread, ranks allowed for.
        persistent: whether it is named persistently late.
        lateness: of the steps in which it was materially late; None without.
        causes: excess by cause over the steps in which it was last, largest first; ns.
        cause: the largest, where it makes half of what it was late by; None where none does.

    """

    label: str
    tables: tuple[int, ...]
    steps: int
    last: int
    late: int
    share_low: float
    share_high: float
    chance: float
    persistent: bool
    lateness: Spread | None
    causes: tuple[tuple[Cause, int], ...]
    cause: Cause | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "rank": self.label,
            "steps": self.steps,
            "last": self.last,
            "late": self.late,
            "share_low": self.share_low,
            "share_high": self.share_high,
            "chance": self.chance,
            "persistent": self.persistent,
            "lateness": self.lateness.to_dict() if self.lateness else None,
            "cause": self.cause.value if self.cause else None,
            "causes": [{"cause": one.value, "excess_ns": ns} for one, ns in self.causes],
        }


@dataclass(frozen=True, slots=True)
class LateStep:
    """The latest rank of one step, where it was materially late."""

    step: int
    table: int
    late_ns: int
    excess: Excess

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "step": self.step,
            "rank": labels[self.table],
            "late_ns": self.late_ns,
            "cause": self.excess.cause.value if self.excess.cause else None,
            "parts": [{"cause": one.value, "excess_ns": ns} for one, ns in self.excess.parts],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Lateness:
    """Who was late, over the steps.

    Args:
        verdict: what can be said.
        ranks: those that were late in any step, the latest first.
        hosts: the same by host, where that says more: no rank is persistent, a host is.
        steps: the materially late rank of each step that has one, in order.
        judged: steps that were judged.
        by_step: whether a step is one of the job's; else a chain of collectives.
        left_out: steps out of statistics.
        material_ns, jitter_ns, step_ns: as in `LateSteps`.
        unknown: why nothing can be said.

    """

    verdict: Verdict
    ranks: tuple[LateRank, ...]
    hosts: tuple[LateRank, ...]
    steps: tuple[LateStep, ...]
    judged: int
    by_step: bool
    left_out: int
    material_ns: int
    jitter_ns: int
    step_ns: int
    unknown: tuple[Unknown, ...] = ()

    @property
    def named(self) -> tuple[LateRank, ...]:
        """The ranks, else the hosts, that are persistently late."""
        ranks = tuple(one for one in self.ranks if one.persistent)
        return ranks or tuple(one for one in self.hosts if one.persistent)

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "verdict": self.verdict.value,
            "persistent": [one.label for one in self.named],
            "steps_judged": self.judged,
            "unit": "step" if self.by_step else "chain of collectives",
            "steps_out_of_statistics": self.left_out,
            "material_ns": self.material_ns,
            "jitter_ns": self.jitter_ns,
            "step_ns": self.step_ns,
            "ranks": [one.to_dict() for one in self.ranks],
            "hosts": [one.to_dict() for one in self.hosts],
            "steps": [one.to_dict(labels) for one in self.steps],
        }


def lateness(
    tables: Sequence[RankTable],
    waiting: Waiting,
    alignment: Alignment,
    labels: Sequence[str],
) -> Lateness:
    """Return who was late, over the steps."""
    late = late_steps(tables, waiting, alignment)
    steps = _late_steps(late, Ways(tables, waiting, alignment))
    count = len(late.units)
    counts = _Counts(late, steps)
    ranks = [counts.of(labels[one], (one,)) for one in counts.late_tables()]
    ranks.sort(key=_latest_first)
    hosts = () if any(one.persistent for one in ranks) else _hosts(tables, counts)
    verdict = _verdict(ranks, hosts, len(steps), count)
    unknown: tuple[Unknown, ...] = ()
    if verdict is Verdict.NOT_KNOWN:
        unknown = (Unknown("whether a rank is persistently late", _why(late, waiting)),)
    return Lateness(
        verdict=verdict,
        ranks=tuple(ranks),
        hosts=hosts,
        steps=steps,
        judged=count,
        by_step=late.by_step,
        left_out=late.left_out,
        material_ns=late.material_ns,
        jitter_ns=late.jitter_ns,
        step_ns=late.step_ns,
        unknown=unknown,
    )


def _late_steps(late: LateSteps, ways: Ways) -> tuple[LateStep, ...]:
    order = np.lexsort((late.table, -late.late_ns, late.unit))
    unit = late.unit[order]
    first = order[np.append(True, unit[1:] != unit[:-1])] if len(order) else order
    first = first[late.late_ns[first] >= late.material_ns]
    return tuple(
        LateStep(
            int(late.unit[one]),
            int(late.table[one]),
            int(late.late_ns[one]),
            ways.excess(int(late.row[one])),
        )
        for one in first.tolist()
    )


class _Counts:
    """How often each table was late; its rows are found without looking through those of all."""

    def __init__(self, late: LateSteps, steps: Sequence[LateStep]) -> None:
        self._late = late
        self._order = np.argsort(late.table, kind="stable")
        self.tables, first = np.unique(late.table[self._order], return_index=True)
        self._edges = np.append(first, len(self._order))
        self._last: dict[int, list[LateStep]] = {}
        for one in steps:
            self._last.setdefault(one.table, []).append(one)

    def late_tables(self) -> list[int]:
        """Return the tables that were materially late in any step."""
        late = self._late.table[self._late.late_ns >= self._late.material_ns]
        found: list[int] = np.unique(late).tolist()
        return found

    def of(self, label: str, tables: tuple[int, ...]) -> LateRank:
        """Return the counts of one table, or of several together."""
        late, ranks = self._late, len(self.tables)
        place = np.searchsorted(self.tables, tables)
        rows = [self._order[self._edges[one] : self._edges[one + 1]] for one in place.tolist()]
        mine = np.concatenate(rows)
        lateness = _largest(late.unit[mine], late.late_ns[mine])
        count = len(lateness)
        material = lateness[lateness >= late.material_ns]
        last = [one for table in tables for one in self._last.get(table, ())]
        behind = ranks - (ranks + 1) // 2  # so many come after the middle rank in each step
        among = 1 - (1 - behind / ranks) ** len(tables)
        units = ranks / len(tables)
        by_last = at_least(len(last), count, len(tables) / ranks) * units
        by_late = at_least(len(material), count, among) * units
        low, high = wilson(len(material), count)
        often_last = by_last < CHANCE and 2 * len(last) > count
        often_late = by_late < CHANCE and 2 * len(material) > count
        causes = _causes(last)
        total = sum(one.excess.lateness_ns for one in last)
        return LateRank(
            label=label,
            tables=tables,
            steps=count,
            last=len(last),
            late=len(material),
            share_low=low,
            share_high=high,
            chance=min(1.0, by_last, by_late),
            persistent=count >= FEW_STEPS and (often_last or often_late),
            lateness=spread(material),
            causes=causes,
            cause=causes[0][0] if causes and 2 * causes[0][1] >= total > 0 else None,
        )


def _largest(unit: I64, late_ns: I64) -> I64:
    """Return the largest lateness of each step."""
    order = np.argsort(unit, kind="stable")
    if not len(order):
        return late_ns
    first = np.flatnonzero(np.append(True, np.diff(unit[order]) != 0))
    return np.asarray(np.maximum.reduceat(late_ns[order], first), np.int64)


def _causes(steps: Sequence[LateStep]) -> tuple[tuple[Cause, int], ...]:
    sums: dict[Cause, int] = {}
    for one in steps:
        if not one.excess.because:
            for cause, excess in one.excess.parts:
                sums[cause] = sums.get(cause, 0) + excess
    return tuple(sorted(sums.items(), key=lambda item: -item[1]))


def _hosts(tables: Sequence[RankTable], counts: _Counts) -> tuple[LateRank, ...]:
    """Return the hosts that are persistently late, one of their ranks at a time."""
    of_host: dict[str, list[int]] = {}
    for one in counts.tables.tolist():
        of_host.setdefault(tables[one].host, []).append(one)
    if len(of_host) < 2 or "" in of_host:
        return ()
    several = {host: tuple(mine) for host, mine in of_host.items() if len(mine) > 1}
    found = [counts.of(f"host {host}", mine) for host, mine in several.items()]
    return tuple(sorted((one for one in found if one.persistent), key=_latest_first))


def _latest_first(one: LateRank) -> tuple[bool, int, int]:
    return not one.persistent, -one.last, -one.late


def _verdict(
    ranks: Sequence[LateRank], hosts: Sequence[LateRank], late: int, judged: int
) -> Verdict:
    if any(one.persistent for one in (*ranks, *hosts)):
        return Verdict.PERSISTENT
    if judged < FEW_STEPS:
        return Verdict.NOT_KNOWN
    if late < SELDOM * judged:
        return Verdict.NONE
    mostly_one = any(2 * one.last > late for one in ranks)
    return Verdict.ROTATING if late >= OFTEN * judged and not mostly_one else Verdict.OCCASIONAL


def _why(late: LateSteps, waiting: Waiting) -> str:
    if not len(waiting.collectives):
        return "no collective was matched between ranks"
    if not len(late.units):
        return "the entries of no two ranks can be compared in any step in statistics"
    what = "steps" if late.by_step else "chains of collectives"
    return f"only {len(late.units)} {what} could be judged; it takes {FEW_STEPS}"

"""How far the clocks of the ranks are apart.

In: RankTables and their Matches. Out: an `Alignment`: for each table the `ClockFit` that brings its
times to one reference clock, or none.

Ranks on one host and one clock need no alignment. Between clocks, collectives that all ranks leave
together say it: the offset is the median difference of their ends, with a drift where one fits
clearly better (`fit`). What the ends scatter around it is the *residual*: no time between two clocks
is surer than that, and where it is not small against what is to be told, nothing is told.

| clock   | ranks | offset   | drift     | residual p50, p95 |
|---------|-------|----------|-----------|-------------------|
| node-a  | 0–7   | 0        |           | the reference     |
| node-b  | 8–15  | 11.56 s  | 3.2 ppm   | 4 µs, 19 µs       |

Names of hosts may be the same on two hosts: where the ends of ranks on "one clock" lie far apart,
they are taken for different clocks, and a note says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.fit import SAME_CLOCK, ClockFit, fit_clock
from overlapwatch.accounting.ranks.match import Matches
from overlapwatch.accounting.ranks.table import RankTable, few
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.model import I64, Unknown
from overlapwatch.vocabulary import CollectiveKind, RecordFlag

TOGETHER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
    CollectiveKind.UNKNOWN,
)
"""Kinds that no rank leaves before all have come, so that they end together."""
NOT_ONE_CLOCK_NS = 100_000_000
"""Ends on one clock do not lie further apart than this, as a rule, and not beyond their scatter."""
NOT_ONE_CLOCK_SCATTERS = 20
FEW = 3
"""With fewer collectives in common an offset cannot be told from chance."""


@dataclass(frozen=True, slots=True)
class Clock:
    """One clock.

    Args:
        name: host, or what else it is known by.
        tables: positions of the tables that are on it.
        fit: against the reference clock; None where it cannot be aligned.

    """

    name: str
    tables: tuple[int, ...]
    fit: ClockFit | None

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the clock as JSON-ready values."""
        fit = self.fit
        return {
            "clock": self.name or None,
            "ranks": [labels[one] for one in self.tables],
            "offset_ns": fit.offset_ns if fit else None,
            "drift_ppm": fit.drift * 1e6 if fit else None,
            "collectives": fit.count if fit else None,
            "residual_p50_ns": fit.p50_ns if fit else None,
            "residual_p95_ns": fit.p95_ns if fit else None,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The clocks of the ranks; the first one is the reference.

    Args:
        clocks: all of them.
        clock_of: for each table, the position of its clock.
        ends_p50_ns, ends_p95_ns: how far the ends of one collective lie apart within one clock;
            None where no clock has two ranks.
        notes, unknown: what is to be said about them.

    """

    clocks: tuple[Clock, ...]
    clock_of: tuple[int, ...]
    ends_p50_ns: int | None
    ends_p95_ns: int | None
    notes: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    def known(self, table: int) -> bool:
        """Say whether the times of a table can be brought to the reference clock."""
        return self.clocks[self.clock_of[table]].fit is not None

    def to_reference(self, table: int, moment: I64) -> I64:
        """Return moments of a table on the reference clock; all 0 (not known) where it has no fit."""
        fit = self.clocks[self.clock_of[table]].fit
        return np.zeros_like(moment) if fit is None else fit.to_reference(moment)

    def residual_ns(self, table: int) -> int:
        """Return how unsure times of a table are against the reference clock; 0 on that clock."""
        fit = self.clocks[self.clock_of[table]].fit
        return (fit.p95_ns or 0) if fit else 0

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the clocks as JSON-ready values."""
        return {
            "clocks": [one.to_dict(labels) for one in self.clocks],
            "ends_p50_ns": self.ends_p50_ns,
            "ends_p95_ns": self.ends_p95_ns,
        }


def ends_of(tables: Sequence[RankTable], matches: Matches) -> I64:
    """Return the end of each row of the matches on its table's clock; 0 where it was not observed."""
    ends = np.zeros(len(matches.row), np.int64)
    for place, rows in by_table(matches, len(tables)):
        ends[rows] = tables[place].records["finish"][matches.row[rows]]
    return ends


def by_table(matches: Matches, count: int) -> list[tuple[int, I64]]:
    """Return, for each table that has any, the places of its rows in the row arrays."""
    order = np.argsort(matches.table, kind="stable")
    edges = np.searchsorted(matches.table[order], np.arange(count + 1))
    return [
        (place, order[edges[place] : edges[place + 1]])
        for place in range(count)
        if edges[place] < edges[place + 1]
    ]


def align(tables: Sequence[RankTable], matches: Matches, labels: Sequence[str]) -> Alignment:
    """Return the alignment of the tables' clocks; `labels` say what to call each table."""
    ends = ends_of(tables, matches)
    collective = matches.collective
    good = (ends != 0) & _together(tables, matches)
    table, collective, ends = matches.table[good], collective[good], ends[good]
    home, names = _homes(tables)
    home, names, notes = _verified(tables, home, names, table, collective, ends)
    reference = int(np.bincount(home).argmax()) if len(home) else 0
    clock = home[table]
    fits = _fits(clock, collective, ends, len(names), reference)
    inside = _apart(clock, collective, ends)
    order = [reference, *(one for one in range(len(names)) if one != reference)]
    clocks = tuple(
        Clock(names[one], tuple(np.flatnonzero(home == one).tolist()), fits.get(one))
        for one in (order if len(home) else ())
    )
    place = {one: at for at, one in enumerate(order)}
    lost = [
        labels[at]
        for one in order
        if one not in fits
        for at in np.flatnonzero(home == one).tolist()
    ]
    unknown = (
        (Unknown(
            f"how far the clocks of {few(lost)} are from the others'",
            f"fewer than {FEW} collectives that end together were recorded on both",
        ),) if lost and len(home) else ()
    )  # fmt: skip
    return Alignment(
        clocks,
        tuple(place[one] for one in home.tolist()),
        median(inside),
        int(np.sort(inside)[-(-len(inside) * 95 // 100) - 1]) if len(inside) else None,
        tuple(notes),
        unknown,
    )


def _together(tables: Sequence[RankTable], matches: Matches) -> NDArray[np.bool_]:
    """Say which rows are of a kind that ends together, with an end that was measured."""
    good = np.zeros(len(matches.row), np.bool_)
    bad = int(RecordFlag.FINISH_ESTIMATED | RecordFlag.FINISH_UNOBSERVABLE | RecordFlag.FAILED)
    for place, rows in by_table(matches, len(tables)):
        records = tables[place].records[matches.row[rows]]
        good[rows] = np.isin(records["collective"], TOGETHER) & (records["flags"] & bad == 0)
    return good


def _homes(tables: Sequence[RankTable]) -> tuple[I64, list[str]]:
    """Return the clock of each table by what the inputs say, and the names of the clocks."""
    numbers: dict[tuple[str, str, int], int] = {}
    names: list[str] = []
    home = np.zeros(len(tables), np.int64)
    for place, table in enumerate(tables):
        told = bool(table.clock) and bool(table.host or table.clock.startswith("session"))
        key = (table.host, table.clock, -1 if told else place)
        if key not in numbers:
            numbers[key] = len(numbers)
            names.append(table.host)
        home[place] = numbers[key]
    return home, names


def _verified(
    tables: Sequence[RankTable],
    home: I64,
    names: list[str],
    table: NDArray[np.int32],
    collective: I64,
    ends: I64,
) -> tuple[I64, list[str], list[str]]:
    """Give a table a clock of its own whose ends are far from those of its host's others."""
    home, names, notes = home.copy(), list(names), []
    middle = _middles(home[table], collective, ends)
    apart = ends - middle
    for one, rows in _split(table, len(tables)):
        far = apart[rows]
        offset = median(far) or 0
        scatter = median(np.abs(far - offset)) or 0
        if len(far) >= FEW and abs(offset) > max(
            NOT_ONE_CLOCK_NS, NOT_ONE_CLOCK_SCATTERS * scatter
        ):
            notes.append(
                f"{tables[one].label} says it is on the clock of host {tables[one].host}, but its "
                f"collectives end {offset / 1e9:+.3f} s from the others': taken for another clock"
            )
            home[one] = len(names)
            names.append(f"{tables[one].host} ({tables[one].label})")
    return home, names, notes


def _split(key: NDArray[np.int32] | I64, count: int) -> list[tuple[int, I64]]:
    order = np.argsort(key, kind="stable")
    edges = np.searchsorted(key[order], np.arange(count + 1))
    return [
        (one, order[edges[one] : edges[one + 1]])
        for one in range(count)
        if edges[one] < edges[one + 1]
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The ends of one collective on one clock, each such pair once; `first` and `count` in `order`."""

    order: I64
    first: I64
    count: I64

    @classmethod
    def of(cls, clock: I64, collective: I64, ends: I64) -> "_Sides":
        order = np.lexsort((ends, clock, collective))
        clock, collective = clock[order], collective[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (collective[1:] != collective[:-1]) | (clock[1:] != clock[:-1])
        first = np.flatnonzero(new)
        return cls(order, first, np.diff(np.append(first, len(order))))

    @property
    def middle(self) -> I64:
        """The place of the lower median of each."""
        return np.asarray(self.order[self.first + (self.count - 1) // 2], np.int64)


def _middles(clock: I64, collective: I64, ends: I64) -> I64:
    """Return, for each row, the lower median of the ends of its collective on its clock."""
    sides = _Sides.of(clock, collective, ends)
    told = np.empty(len(ends), np.int64)
    told[sides.order] = np.repeat(ends[sides.middle], sides.count)
    return told


def _apart(clock: I64, collective: I64, ends: I64) -> I64:
    """Return how far the ends of each collective reach on each clock that saw several."""
    sides = _Sides.of(clock, collective, ends)
    several = sides.count > 1
    first = sides.first[several]
    last = first + sides.count[several] - 1
    return np.asarray(ends[sides.order[last]] - ends[sides.order[first]], np.int64)


def _fits(
    clock: I64, collective: I64, ends: I64, count: int, reference: int
) -> Mapping[int, ClockFit]:
    """Return the fit of each clock against the reference, through others where it must be."""
    middle = _Sides.of(clock, collective, ends).middle
    events = {
        one: np.stack((collective[middle[rows]], ends[middle[rows]]), axis=1)
        for one, rows in _split(clock[middle], count)
    }
    fits = {reference: SAME_CLOCK}
    grown = True
    while grown and len(fits) < len(events):
        grown = False
        known = [fits[one].to_reference(events[one][:, 1]) for one in fits if one in events]
        number = [events[one][:, 0] for one in fits if one in events]
        if not known:
            break
        seen, first = np.unique(np.concatenate(number), return_index=True)
        moment = np.concatenate(known)[first]
        for one in [one for one in events if one not in fits]:
            mine = events[one]
            at = np.minimum(np.searchsorted(seen, mine[:, 0]), len(seen) - 1)
            both = seen[at] == mine[:, 0]
            if int(both.sum()) >= FEW:
                base = moment[at[both]]
                fits[one] = fit_clock(base, mine[both, 1] - base)
                grown = True
    return fits

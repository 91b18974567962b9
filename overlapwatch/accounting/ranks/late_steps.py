"""How late each rank was in each step.

In: RankTables and their Waiting. Out: `LateSteps`: one value for each rank and step that are judged.

A rank's lateness in a step is the sum over the chains of its collectives (`waiting`), of each the
largest lateness; of several groups, the largest sum. So a rank that was 10 ms late in its forward is
10 ms late in a step of DDP however many buckets it has, and 20 × 1 ms late with 20 layers of FSDP
that everybody waits for:

| collectives of the step, lateness in ms | chains     | lateness of the step |
|-----------------------------------------|------------|----------------------|
| 10, 10, 11 (buckets, sent on the way)   | one        | 11                   |
| 1, 1, 1 (everybody stands still)        | three      | 3                    |

Steps count that are in statistics on every rank that has them. Where an input tells no steps, each
chain is taken for one, and `by_step` says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.alignment import TOGETHER, Alignment
from overlapwatch.accounting.ranks.table import RankTable, steps_out
from overlapwatch.accounting.ranks.waiting import NOT_KNOWN_LATENESS, Waiting
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.model import I64

LEAST_SHARE = 0.01
"""Lateness below this part of a step is too little to matter."""
JITTERS = 4
"""Lateness must exceed the spread of the ranks that are not late by this factor."""


@dataclass(frozen=True, slots=True, eq=False)
class LateSteps:
    """Lateness by rank and step. Arrays are by step, then table.

    Args:
        unit: the step's number, or the chain's where no steps are told.
        table: position of the table.
        late_ns: its lateness, 0 or more.
        row: place in `waiting`'s row arrays of its largest lateness; -1 where it was not late.
        units: numbers of the judged steps, ascending.
        by_step: whether `unit` is a step.
        material_ns: lateness that matters: more than a hundredth of a step, than the jitter of the
            ranks that are not late, and than the clocks can tell.
        step_ns: median length of a step (between chains, where no steps are told).
        jitter_ns: median spread of the ranks that are not late.
        left_out: steps that are out of statistics on some rank.

    """

    unit: I64
    table: I64
    late_ns: I64
    row: I64
    units: I64
    by_step: bool
    material_ns: int
    step_ns: int
    jitter_ns: int
    left_out: int

    def __len__(self) -> int:
        return len(self.unit)


def late_steps(tables: Sequence[RankTable], waiting: Waiting, alignment: Alignment) -> LateSteps:
    """Return the lateness of each rank in each step that is judged."""
    told, matches = waiting.collectives, waiting.matches
    by_step = bool((told["step"] != 0).any()) and any(len(one.steps) for one in tables)
    out = steps_out(tables)
    counted = waiting.counted & np.isin(told["kind"], TOGETHER)
    if by_step:
        counted &= np.isin(told["step"], np.concatenate([one.steps["step"] for one in tables]))
    unit = told["step"].astype(np.int64) if by_step else told["chain"].astype(np.int64)
    collective = matches.collective
    rows = np.flatnonzero(counted[collective] & (waiting.lateness != NOT_KNOWN_LATENESS))
    late = np.maximum(waiting.lateness[rows], 0)
    table, chain = matches.table[rows].astype(np.int64), told["chain"][collective[rows]]
    # The largest of each chain, then their sum for each group, then the largest group.
    order = np.lexsort((-late, chain, table))
    rows, late, table, chain = rows[order], late[order], table[order], chain[order]
    first = _begins(table, chain)
    rows, late, table = rows[first], late[first], table[first]
    place = collective[rows]
    number, channel = unit[place], told["channel"][place].astype(np.int64)
    order = np.lexsort((-late, channel, table, number))
    rows, late, table = rows[order], late[order], table[order]
    number, channel = number[order], channel[order]
    first = _begins(number, table, channel)
    if len(first):
        late = np.add.reduceat(late, first)
    rows, table, number = rows[first], table[first], number[first]
    order = np.lexsort((-late, table, number))
    rows, late, table, number = rows[order], late[order], table[order], number[order]
    first = _begins(number, table)
    rows, late, table, number = rows[first], late[first], table[first], number[first]
    judged, several = np.unique(number, return_counts=True)
    kept = np.isin(number, judged[several > 1])
    step_ns = _step_ns(tables, out, told, by_step=by_step)
    jitter = _jitter(waiting, counted)
    unsure = max((alignment.residual_ns(one) for one in range(len(tables))), default=0)
    return LateSteps(
        number[kept],
        table[kept],
        late[kept],
        np.where(late > 0, rows, -1)[kept],
        judged[several > 1],
        by_step,
        max(round(LEAST_SHARE * step_ns), JITTERS * jitter, unsure, 1),
        step_ns,
        jitter,
        len(out),
    )


def _begins(*keys: NDArray[np.generic]) -> I64:
    """Return where a new combination of the (sorted) keys begins."""
    if not len(keys[0]):
        return np.empty(0, np.int64)
    new = np.ones(len(keys[0]), np.bool_)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(new)


def _step_ns(
    tables: Sequence[RankTable], out: I64, told: NDArray[np.void], *, by_step: bool
) -> int:
    if by_step:
        lengths = [
            (one.steps["end"] - one.steps["start"])[~np.isin(one.steps["step"], out)]
            for one in tables
        ]
        return median(np.concatenate(lengths)) or 0
    first = np.sort(told["first"][told["first"] != 0])
    chains = len(np.unique(told["chain"])) if len(told) else 0
    return int(first[-1] - first[0]) // max(chains, 1) if len(first) else 0


def _jitter(waiting: Waiting, counted: NDArray[np.bool_]) -> int:
    """Return the median, over the collectives, of how long before the middle rank the first came."""
    if not len(waiting.collectives):
        return 0
    known = np.where(waiting.lateness == NOT_KNOWN_LATENESS, 0, waiting.lateness)
    earliest = -np.minimum.reduceat(np.minimum(known, 0), waiting.matches.first[:-1])
    several = counted & (waiting.collectives["seen"] > 2)
    return median(earliest[several]) or 0

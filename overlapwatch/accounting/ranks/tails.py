"""The tails of the steps over all ranks: late ready, queue, waiting for the last rank, transfer.

In: RankTables (whose tails `accounting.chain` has cut) and their Waiting. Out: `RankTails`. A
residence, and the time in a queue behind another collective, is cut once more where the transfer of
that collective begins:

    tail of a rank      6 ------------------------ 14
    one rank alone      queue, behind the second   10   residence of the third
    with the others     9: wait, 1: transfer of the second; 10-13 wait for rank 3, 13-14 transfer

The pieces still add up to each tail exactly. Where a collective has no match its piece stays whole.
The job's tail of a step is what remains if nobody waited: the last end of a reduction on any rank
minus the last end of compute on any rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.chain import PieceKind
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.ranks.alignment import Alignment, by_table
from overlapwatch.accounting.ranks.table import PIECE_KINDS, RankTable, steps_out
from overlapwatch.accounting.ranks.waiting import Waiting
from overlapwatch.accounting.spread import Spread, spread
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import NOT_KNOWN

WORST = 5


class TailPart(Enum):
    """What a tail was spent on; the value is the word in reports."""

    LATE_READY = "late ready"
    LAUNCH_DELAY = "launch delay"
    QUEUE_WAIT = "queue behind waiting"  # behind a collective that waited for its last rank
    QUEUE_TRANSFER = "queue behind transfer"
    QUEUE = "queue"  # behind nothing that is known, or that has no match
    WAIT = "wait for the last rank"
    TRANSFER = "transfer"
    RESIDENCE = "wait and transfer"  # not matched: one rank cannot tell
    UNSPLIT = "not separable"


_PARTS = tuple(TailPart)
_AS_IT_IS = {
    PieceKind.LATE_READY: TailPart.LATE_READY,
    PieceKind.LAUNCH_DELAY: TailPart.LAUNCH_DELAY,
    PieceKind.QUEUE: TailPart.QUEUE,
    PieceKind.RESIDENCE: TailPart.RESIDENCE,
    PieceKind.UNSPLIT: TailPart.UNSPLIT,
}
_SPLIT = {
    PieceKind.QUEUE: (TailPart.QUEUE_WAIT, TailPart.QUEUE_TRANSFER),
    PieceKind.RESIDENCE: (TailPart.WAIT, TailPart.TRANSFER),
    PieceKind.UNSPLIT: (TailPart.UNSPLIT, TailPart.TRANSFER),
}


@dataclass(frozen=True, slots=True)
class PartTotal:
    """One part, summed over the tails of all ranks; `tails` have it."""

    part: TailPart
    total_ns: int
    tails: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"part": self.part.value, "total_ns": self.total_ns, "tails": self.tails}


@dataclass(frozen=True, slots=True)
class WorstTail:
    """One of the longest tails.

    Args:
        step, table: whose.
        tail_ns: how long.
        parts: what it was spent on, in order of time; adjacent parts of one kind are one.
        late: the table that the last reduction waited for; -1 = not told.

    """

    step: int
    table: int
    tail_ns: int
    parts: tuple[tuple[TailPart, int], ...]
    late: int

    @property
    def dominant(self) -> TailPart | None:
        """What it was mostly spent on; None without parts."""
        sums: dict[TailPart, int] = {}
        for part, length in self.parts:
            sums[part] = sums.get(part, 0) + length
        return max(sums, key=lambda part: sums[part]) if sums else None

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "step": self.step,
            "rank": labels[self.table],
            "tail_ns": self.tail_ns,
            "parts": [{"part": one.value, "ns": length} for one, length in self.parts],
            "cause": self.dominant.value if self.dominant else None,
            "waited_for": labels[self.late] if self.late >= 0 else None,
        }


@dataclass(frozen=True, slots=True, eq=False)
class RankTails:
    """The tails of all ranks in the steps in statistics.

    Args:
        tails: how many tails are known, of so many steps and ranks.
        of: steps in statistics, counted on each rank.
        spread: over the known tails of all ranks; None without.
        parts: what they were spent on; adds up to `spread.total_ns`.
        worst: the longest, of different steps.
        job: spread of the job's tails, one a step; None where the clocks do not say.
        mismatched: tails whose parts do not add up; 0.

    """

    tails: int
    of: int
    spread: Spread | None
    parts: tuple[PartTotal, ...]
    worst: tuple[WorstTail, ...]
    job: Spread | None
    mismatched: int

    def checks(self) -> tuple[Check, ...]:
        """Return the closure, over all tails and tail by tail."""
        if self.spread is None:
            return ()
        left = sum(one.total_ns for one in self.parts)
        return (
            Check("tail parts add up to the tails of all ranks", left, self.spread.total_ns),
            Check("tails whose parts do not add up", self.mismatched, 0, "tails"),
        )

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "tails": self.tails,
            "of": self.of,
            "spread": self.spread.to_dict() if self.spread else None,
            "parts": [one.to_dict() for one in self.parts],
            "worst": [one.to_dict(labels) for one in self.worst],
            "job": self.job.to_dict() if self.job else None,
        }


_PIECE = np.dtype([("table", "<i4"), ("step", "<u4"), ("part", "u1"), ("start", "<i8"), ("ns", "<i8")])  # fmt: skip
_TAIL = np.dtype([("table", "<i4"), ("step", "<u4"), ("ns", "<i8"), ("late", "<i4")])


def rank_tails(tables: Sequence[RankTable], waiting: Waiting, alignment: Alignment) -> RankTails:
    """Return the tails of all ranks, with waiting told from transfer."""
    out = steps_out(tables)
    rows = dict(by_table(waiting.matches, len(tables)))
    told = _OfRows.of(waiting)
    none = np.empty(0, np.int64)
    pieces, tails, of = [], [], 0
    for place, table in enumerate(tables):
        steps = table.steps[~np.isin(table.steps["step"], out)]
        of += len(steps)
        place_of = _place_of(table, waiting, rows.get(place, none))
        known = steps[steps["tail"] != NOT_KNOWN]
        tails.append(_tails(place, known, place_of, told))
        mine = table.pieces[np.isin(table.pieces["step"], known["step"])]
        pieces.append(_cut(place, table, mine, place_of, told))
    piece = np.concatenate([np.empty(0, _PIECE), *pieces])
    tail = np.concatenate([np.empty(0, _TAIL), *tails])
    return RankTails(
        tails=len(tail),
        of=of,
        spread=spread(tail["ns"]),
        parts=_totals(piece),
        worst=_worst(tail, piece),
        job=spread(_job(tables, alignment, out)),
        mismatched=_mismatched(tail, piece),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _OfRows:
    """What is told of each row of the matches; the last one stands for no match at all."""

    wait: I64
    transfer: I64
    late: I64

    @classmethod
    def of(cls, waiting: Waiting) -> "_OfRows":
        told = waiting.collectives
        return cls(
            np.append(waiting.wait, NOT_KNOWN),
            np.append(np.repeat(told["transfer"], told["seen"]), NOT_KNOWN),
            np.append(np.repeat(told["late"].astype(np.int64), told["seen"]), -1),
        )


def _place_of(table: RankTable, waiting: Waiting, rows: I64) -> I64:
    """Return, for each row of the table, its place in the row arrays; -1 without a match."""
    place_of = np.full(len(table.records), -1, np.int64)
    place_of[waiting.matches.row[rows]] = rows
    return place_of


def _tails(place: int, steps: NDArray[np.void], place_of: I64, told: _OfRows) -> NDArray[np.void]:
    tails = np.zeros(len(steps), _TAIL)
    tails["table"], tails["step"], tails["ns"] = place, steps["step"], steps["tail"]
    tails["late"] = told.late[np.append(place_of, -1)[steps["last"]]]  # -1: what is not known
    return tails


def _cut(
    place: int, table: RankTable, pieces: NDArray[np.void], place_of: I64, told: _OfRows
) -> NDArray[np.void]:
    """Return the pieces of one table, those with a match cut where the transfer begins."""
    at = np.append(place_of, -1)[pieces["row"]]
    split = (at >= 0) & np.isin(pieces["kind"], [PIECE_KINDS.index(one) for one in _SPLIT])
    split &= told.wait[at] != NOT_KNOWN
    transfer = told.transfer[at]
    finish = np.append(table.records["finish"], 0)[pieces["row"]]
    moves = np.where(split, np.clip(finish - transfer, pieces["start"], pieces["end"]), 0)
    whole = np.array([_PARTS.index(_AS_IT_IS[one]) for one in PIECE_KINDS], np.uint8)
    pairs = [_SPLIT.get(one, (_AS_IT_IS[one],) * 2) for one in PIECE_KINDS]
    before = np.array([_PARTS.index(one) for one, _ in pairs], np.uint8)[pieces["kind"]]
    after = np.array([_PARTS.index(two) for _, two in pairs], np.uint8)[pieces["kind"]]
    kept = ~split
    found = [
        _pieces(place, pieces[kept], whole[pieces["kind"][kept]], "start", "end"),
        _pieces(place, pieces[split], before[split], "start", moves[split]),
        _pieces(place, pieces[split], after[split], moves[split], "end"),
    ]
    together = np.concatenate(found)
    together = together[together["ns"] > 0]
    return together[np.lexsort((together["start"], together["step"]))]


def _pieces(
    place: int, pieces: NDArray[np.void], part: NDArray[np.uint8], low: str | I64, high: str | I64
) -> NDArray[np.void]:
    found = np.zeros(len(pieces), _PIECE)
    found["table"], found["step"], found["part"] = place, pieces["step"], part
    found["start"] = pieces[low] if isinstance(low, str) else low
    found["ns"] = (pieces[high] if isinstance(high, str) else high) - found["start"]
    return found


def _totals(piece: NDArray[np.void]) -> tuple[PartTotal, ...]:
    found = []
    for number, part in enumerate(_PARTS):
        mine = piece[piece["part"] == number]
        if len(mine):
            tails = len(np.unique(_key(mine)))
            found.append(PartTotal(part, int(mine["ns"].sum()), tails))
    return tuple(found)


def _key(rows: NDArray[np.void]) -> I64:
    return np.asarray(rows["table"].astype(np.int64) * 2**32 + rows["step"], np.int64)


def _mismatched(tail: NDArray[np.void], piece: NDArray[np.void]) -> int:
    order = np.argsort(_key(tail), kind="stable")
    key = _key(tail)[order]
    place = np.searchsorted(key, _key(piece))
    left = np.zeros(len(tail), np.int64)
    np.add.at(left, place, piece["ns"])
    return int((left != tail["ns"][order]).sum())


def _worst(tail: NDArray[np.void], piece: NDArray[np.void]) -> tuple[WorstTail, ...]:
    """Return the longest tail of each of the worst steps."""
    order = np.argsort(-tail["ns"], kind="stable")
    _, first = np.unique(tail["step"][order], return_index=True)
    chosen = order[np.sort(first)][:WORST]
    found = []
    for one in tail[chosen]:
        if one["ns"]:
            mine = piece[(piece["table"] == one["table"]) & (piece["step"] == one["step"])]
            found.append(
                WorstTail(
                    int(one["step"]),
                    int(one["table"]),
                    int(one["ns"]),
                    _in_order(mine),
                    int(one["late"]),
                )
            )
    return tuple(found)


def _in_order(pieces: NDArray[np.void]) -> tuple[tuple[TailPart, int], ...]:
    found: list[tuple[TailPart, int]] = []
    for one in pieces[np.argsort(pieces["start"], kind="stable")]:
        part, length = _PARTS[int(one["part"])], int(one["ns"])
        if found and found[-1][0] is part:
            length += found.pop()[1]
        found.append((part, length))
    return tuple(found)


def _job(tables: Sequence[RankTable], alignment: Alignment, out: I64) -> I64:
    """Return the job's tail of each step that all tables have."""
    if not tables or not all(alignment.known(one) for one in range(len(tables))):
        return np.empty(0, np.int64)
    step, compute, reduce_end = [], [], []
    for place, table in enumerate(tables):
        known = table.steps[(table.steps["last"] >= 0) & (table.steps["compute_end"] > 0)]
        known = known[~np.isin(known["step"], out)]
        step.append(known["step"].astype(np.int64))
        compute.append(alignment.to_reference(place, known["compute_end"]))
        finish = table.records["finish"][known["last"]]
        reduce_end.append(alignment.to_reference(place, finish))
    number = np.concatenate(step)
    order = np.argsort(number, kind="stable")
    number = number[order]
    if not len(number):
        return number
    first = np.flatnonzero(np.append(True, np.diff(number) != 0))
    count = np.diff(np.append(first, len(number)))
    last_compute = np.maximum.reduceat(np.concatenate(compute)[order], first)
    last_end = np.maximum.reduceat(np.concatenate(reduce_end)[order], first)
    tails = np.maximum(last_end - last_compute, 0)
    return np.asarray(tails[count == len(tables)], np.int64)

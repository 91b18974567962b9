"""The tail of a step: how long the last gradient reduction outlived the last forward or backward
compute, and why.

In: a Timeline. Out: one `StepTail` per step (the four marks, the critical tail, the pieces it is
made of) and their `TailDistribution` over the steps in statistics.

Optimizer work comes after the waiting, so it never ends the compute of a tail. The tail [last
compute end, last reduce end) is cut at the marks of the reduction that finished last; the time it
stood in its queue is cut again by the collectives that ran there before it. With three 4 ms
reductions sent at 2, 4 and 6 ms while compute ends at 6 ms:

| piece                       | from | to | ns        |
|-----------------------------|------|----|-----------|
| queue, behind the second    | 6    | 10 | 4,000,000 |
| residence of the third      | 10   | 14 | 4,000,000 |
| tail                        | 6    | 14 | 8,000,000 |

It does not know how much of a residence was waiting for the last rank (one rank cannot tell), and
gives no tail when a reduction of the step has no finish, when records of the step were lost, or
when the step is a shadow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.chain import Piece, PieceKind, finishing_chain, label
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.spread import Spread, median, spread
from overlapwatch.timeline.model import Lane, Timeline, Unknown
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import (
    OUT_OF_STATISTICS,
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    StepFlag,
)

WORST_STEPS = 5

# UNKNOWN is among them: a library with generic kernel names (RCCL) has no other.
_REDUCING = np.array(
    [
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.REDUCE,
        CollectiveKind.UNKNOWN,
    ],
    np.uint8,
)


@dataclass(frozen=True, slots=True)
class StepTail:
    """The four marks of one step, its critical tail, and the pieces of the tail in time order.

    Args:
        step, flags: number and StepFlag of the step.
        first_ready_ns .. last_reduce_end_ns: the marks on this rank's clock, None where not known.
        tail_ns: max(0, last reduce end - last compute end), None where not known.
        last_owner, last_bucket: id and name of the reduction that finished last; 0 and "" where not
            known.
        pieces: adjacent stretches that add up to the tail; none when the tail is 0 or not known.
        reductions: gradient reductions of the step.
        buckets: different buckets (or modules) they belong to; where none is named, each is one.
        without_finish: of them without a known finish.
        because: why the tail is not known, "" when it is.

    """

    step: int
    flags: int
    first_ready_ns: int | None = None
    first_reduce_start_ns: int | None = None
    last_compute_end_ns: int | None = None
    last_reduce_end_ns: int | None = None
    tail_ns: int | None = None
    last_owner: int = 0
    last_bucket: str = ""
    pieces: tuple[Piece, ...] = ()
    reductions: int = 0
    buckets: int = 0
    without_finish: int = 0
    because: str = ""

    @property
    def serial(self) -> bool:
        """Whether no reduction started before the last compute ended: nothing could be hidden."""
        start, end = self.first_reduce_start_ns, self.last_compute_end_ns
        return start is not None and end is not None and start >= end

    @property
    def dominant(self) -> tuple[PieceKind, int] | None:
        """What the tail was mostly spent on, and how long; None without pieces."""
        sums: dict[PieceKind, int] = {}
        for piece in self.pieces:
            sums[piece.kind] = sums.get(piece.kind, 0) + piece.duration_ns
        return max(sums.items(), key=lambda item: item[1]) if sums else None

    def check(self) -> Check:
        """Return the closure of this step: the pieces add up to the tail."""
        left = sum(piece.duration_ns for piece in self.pieces)
        return Check(
            f"tail pieces add up to the tail (step {self.step})", left, self.tail_ns or 0, "ns"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "step": self.step,
            "first_ready_ns": self.first_ready_ns,
            "first_reduce_start_ns": self.first_reduce_start_ns,
            "last_compute_end_ns": self.last_compute_end_ns,
            "last_reduce_end_ns": self.last_reduce_end_ns,
            "tail_ns": self.tail_ns,
            "last_bucket": self.last_bucket or None,
            "pieces": [piece.to_dict() for piece in self.pieces],
            "because": self.because or None,
        }


@dataclass(frozen=True, slots=True)
class PieceTotal:
    """One kind of piece, summed over steps."""

    kind: PieceKind
    total_ns: int
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"kind": self.kind.value, "total_ns": self.total_ns, "steps": self.steps}


@dataclass(frozen=True, slots=True)
class TailDistribution:
    """The tails of the steps in statistics.

    Args:
        steps: steps in statistics.
        known: how many of them have a known tail; the denominator of everything below.
        tail: spread of the known tails, None when there is none.
        pieces: what the tails were spent on, summed; adds up to `tail.total_ns`.
        worst: the steps with the longest tails, longest first.
        serial: steps whose first reduction started at or after the last compute end.
        explanation: one sentence saying why nothing could be hidden, when `serial` is all of them;
            else "".
        unknown: what cannot be told about tails.

    """

    steps: int
    known: int
    tail: Spread | None
    pieces: tuple[PieceTotal, ...]
    worst: tuple[StepTail, ...]
    serial: int
    explanation: str
    unknown: tuple[Unknown, ...]

    def checks(self) -> tuple[Check, ...]:
        """Return the closure over all steps."""
        if self.tail is None:
            return ()
        left = sum(piece.total_ns for piece in self.pieces)
        return (
            Check("tail pieces add up to the tails of all steps", left, self.tail.total_ns, "ns"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "steps": self.steps,
            "known": self.known,
            "spread": self.tail.to_dict() if self.tail else None,
            "pieces": [piece.to_dict() for piece in self.pieces],
            "worst": [
                {
                    "step": tail.step,
                    "tail_ns": tail.tail_ns,
                    "last_bucket": tail.last_bucket or None,
                    "dominant": tail.dominant[0].value if tail.dominant else None,
                    "dominant_ns": tail.dominant[1] if tail.dominant else None,
                }
                for tail in self.worst
            ],
            "serial_steps": self.serial,
            "explanation": self.explanation or None,
        }


def reductions(records: NDArray[np.void], names: Mapping[int, Name]) -> NDArray[np.void]:
    """Return those of `records` (RECORD) that reduce gradients.

    These are the collectives owned by a bucket, and those of a reducing kind in the backward phase
    (profiles know no buckets; an all-gather in the backward is a prefetch, not a reduction).
    """
    reducing = (records["phase"] == Phase.BACKWARD) & (
        records["collective"][:, None] == _REDUCING
    ).any(axis=1)
    owned = [
        (name := names.get(owner)) is not None and name.kind is NameKind.BUCKET
        for owner in records["owner"].tolist()
    ]
    chosen: NDArray[np.void] = records[reducing | np.array(owned, np.bool_)]
    return chosen


def step_tail(tl: Timeline, step: np.void) -> StepTail:
    """Return the tail of one step (a row of `tl.steps`)."""
    lane = tl.compute
    inside = (lane.start >= step["start"]) & (lane.start < step["end"])
    return _tail(
        int(step["step"]),
        int(step["flags"]),
        tl.communication[tl.communication["step"] == step["step"]],
        Lane(lane.start[inside], lane.end[inside], lane.name[inside], lane.phase[inside]),
        tl.names,
    )


def step_tails(tl: Timeline) -> tuple[StepTail, ...]:
    """Return the tail of every step of the timeline, in its order."""
    return tuple(_tails(tl))


def _tails(tl: Timeline) -> Iterator[StepTail]:
    order = np.argsort(tl.communication["step"], kind="stable")
    records = tl.communication[order]
    numbers = tl.steps["step"]
    first = np.searchsorted(records["step"], numbers, "left")
    last = np.searchsorted(records["step"], numbers, "right")
    lane = _by_start(tl.compute)
    begin = np.searchsorted(lane.start, tl.steps["start"], "left")
    end = np.searchsorted(lane.start, tl.steps["end"], "left")
    for i, step in enumerate(tl.steps):
        inside = slice(begin[i], end[i])
        yield _tail(
            int(step["step"]),
            int(step["flags"]),
            records[first[i] : last[i]],
            Lane(lane.start[inside], lane.end[inside], lane.name[inside], lane.phase[inside]),
            tl.names,
        )


def _by_start(lane: Lane) -> Lane:
    if len(lane) < 2 or bool((lane.start[1:] >= lane.start[:-1]).all()):
        return lane
    order = np.argsort(lane.start, kind="stable")
    return Lane(lane.start[order], lane.end[order], lane.name[order], lane.phase[order])


def _tail(
    step: int,
    flags: int,
    records: NDArray[np.void],
    compute: Lane,
    names: Mapping[int, Name],
) -> StepTail:
    """Return the tail of one step from its own records and the compute spans that start in it."""
    reduces = reductions(records, names)
    unfinished = int((reduces["finish"] == 0).sum())
    named = {owner for owner in reduces["owner"].tolist() if owner in names}
    reduce_end = int(reduces["finish"].max()) if len(reduces) and not unfinished else None
    compute_end = _last_compute_end(compute, reduce_end)
    if flags & StepFlag.PARTIAL:
        because = "records of this step were lost, or the job ended inside it"
        buckets = len(named) or len(reduces)
        return StepTail(step, flags, reductions=len(reduces), buckets=buckets, because=because)
    if flags & StepFlag.SHADOW:
        because = "recording was off in this step on purpose"
        return StepTail(step, flags, last_compute_end_ns=compute_end, because=because)
    because = ""
    if not len(reduces):
        because = "no gradient reduction was seen in this step"
    elif unfinished:
        because = f"{unfinished} of {len(reduces)} gradient reductions have no known finish"
    elif compute_end is None:
        because = "the end of forward and backward compute is not known"
    tail = pieces = None
    last = (
        reduces[np.lexsort((reduces["start"], reduces["finish"]))[-1]]
        if reduce_end is not None
        else None
    )
    if last is not None and reduce_end is not None and compute_end is not None:
        tail = max(0, reduce_end - compute_end)
        pieces = tuple(finishing_chain(last, records, compute_end, names)) if tail else ()
    return StepTail(
        step=step,
        flags=flags,
        first_ready_ns=_earliest(reduces["ready"]),
        first_reduce_start_ns=_earliest(begin_of(reduces)),
        last_compute_end_ns=compute_end,
        last_reduce_end_ns=reduce_end,
        tail_ns=tail,
        last_owner=int(last["owner"]) if last is not None else 0,
        last_bucket=label(last, names) if last is not None else "",
        pieces=pieces or (),
        reductions=len(reduces),
        buckets=len(named) or len(reduces),
        without_finish=unfinished,
        because=because,
    )


def _last_compute_end(compute: Lane, reduce_end: int | None) -> int | None:
    """Return the end of the last forward or backward span, ns; None without any compute.

    Where no phases are known, every span counts that is not of the optimizer. Compute that begins
    only after the last reduction ended works on its result (it copies the bucket back): it hid
    nothing, and does not count where there was compute before.
    """
    counted = (compute.phase == Phase.FORWARD) | (compute.phase == Phase.BACKWARD)
    if not counted.any():
        counted = compute.phase != Phase.OPTIMIZER
    if reduce_end is not None:
        early = counted & (compute.start < reduce_end)
        counted = early if early.any() else counted
    ends = compute.end[counted]
    return int(ends.max()) if len(ends) else None


def _earliest(moments: NDArray[np.int64]) -> int | None:
    """Return the earliest moment; None when one is not known (0): it may have been earlier."""
    return int(moments.min()) if len(moments) and moments.all() else None


def distribution(tails: tuple[StepTail, ...]) -> TailDistribution:
    """Return how the tails of the steps in statistics spread; other steps are left out."""
    counted = [tail for tail in tails if not tail.flags & OUT_OF_STATISTICS]
    known = [tail for tail in counted if tail.tail_ns is not None]
    worst = sorted(known, key=lambda tail: -(tail.tail_ns or 0))[:WORST_STEPS]
    sums: dict[PieceKind, list[int]] = {}
    for tail in known:
        for kind in dict.fromkeys(piece.kind for piece in tail.pieces):
            sums.setdefault(kind, []).append(
                sum(piece.duration_ns for piece in tail.pieces if piece.kind is kind)
            )
    serial = [tail for tail in counted if tail.serial]
    return TailDistribution(
        steps=len(counted),
        known=len(known),
        tail=spread(np.array([tail.tail_ns for tail in known], np.int64)),
        pieces=tuple(
            PieceTotal(kind, sum(sums[kind]), len(sums[kind])) for kind in PieceKind if kind in sums
        ),
        worst=tuple(worst),
        serial=len(serial),
        explanation=_explain(serial) if serial and len(serial) == len(counted) else "",
        unknown=tuple(_unknown(counted, known, sums)),
    )


def _explain(serial: list[StepTail]) -> str:
    """Say why nothing was hidden, and what was ready when."""
    after = [
        tail.first_reduce_start_ns - tail.last_compute_end_ns
        for tail in serial
        if tail.first_reduce_start_ns is not None and tail.last_compute_end_ns is not None
    ]
    text = (
        f"the first reduction started {(median(np.array(after, np.int64)) or 0) / 1e6:.2f} ms "
        f"(median) after the last forward or backward compute had ended, in all "
        f"{len(serial)} steps"
    )
    early = [
        tail.last_compute_end_ns - tail.first_ready_ns
        for tail in serial
        if tail.first_ready_ns is not None and tail.last_compute_end_ns is not None
    ]
    if len(early) < len(serial):
        return f"{text}; when the first bucket was ready is not known"
    before = median(np.array(early, np.int64)) or 0
    if before <= 0:
        return f"{text}; no bucket was ready before"
    return f"{text}; the first bucket had been ready {before / 1e6:.2f} ms (median) before that end"


def _unknown(
    counted: list[StepTail], known: list[StepTail], sums: Mapping[PieceKind, list[int]]
) -> Iterator[Unknown]:
    if PieceKind.RESIDENCE in sums:
        yield Unknown(
            "how much of a tail's residence was waiting for the last rank, how much transfer",
            "one rank alone cannot separate them",
        )
    if PieceKind.UNSPLIT in sums:
        yield Unknown(
            f"the pieces of {len(sums[PieceKind.UNSPLIT])} tails in full",
            "the ready, launch or start time of the last reduction is not known there",
        )
    if len(known) < len(counted):
        reasons = dict.fromkeys(tail.because for tail in counted if tail.tail_ns is None)
        yield Unknown(
            f"the tail of {len(counted) - len(known)} of {len(counted)} steps", "; ".join(reasons)
        )

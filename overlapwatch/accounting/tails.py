"""The tails of many steps: how they spread, what they were spent on, which steps were the worst.

In: `StepTail`s. Out: a `TailDistribution` over those of the steps in statistics. It does not know
how much of a residence was waiting for the last rank, and says so.

| tails of steps 1 to 100, ms | p50 | p99 | worst           |
|-----------------------------|-----|-----|-----------------|
| 98 of 0.7, one of 42, 210   | 0.7 | 42  | the step of 210 |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlapwatch.accounting.chain import PieceKind
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.spread import Spread, median, spread
from overlapwatch.accounting.tail import StepTail
from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import OUT_OF_STATISTICS

WORST_STEPS = 5


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
        f"(median) after the last forward or backward compute had ended, in "
        f"{len(serial)} of {len(serial)} steps"
    )
    early = [
        tail.last_compute_end_ns - tail.first_ready_ns
        for tail in serial
        if tail.first_ready_ns is not None and tail.last_compute_end_ns is not None
    ]
    if len(early) < len(serial):
        return f"{text}; when the first gradients were ready is not known"
    before = median(np.array(early, np.int64)) or 0
    if before <= 0:
        return f"{text}; no gradients were ready before"
    return (
        f"{text}; the first gradients had been ready {before / 1e6:.2f} ms (median) before that end"
    )


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

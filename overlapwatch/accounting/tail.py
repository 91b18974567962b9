"""The tail of a step: how long the last gradient reduction outlived the last forward or backward
compute, and why.

In: a Timeline. Out: a `StepTail` for each step: the four marks, the critical tail, and the pieces it
is made of (`chain`).

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
from overlapwatch.timeline.model import Lane, Timeline
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import (
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    StepFlag,
)

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


def reductions(records: NDArray[np.void], names: Mapping[int, Name]) -> NDArray[np.void]:
    """Return those of `records` (RECORD) that reduce gradients.

    These are the collectives owned by a bucket, and those of a reducing kind in the backward phase
    (profiles know no buckets; an all-gather in the backward is a prefetch, not a reduction). With
    FSDP2 these are a module's reduce-scatter and, with HSDP, the all-reduce behind it. What a
    layer owns reduces activations (tensor parallelism).
    """
    reducing = (records["phase"] == Phase.BACKWARD) & (
        records["collective"][:, None] == _REDUCING
    ).any(axis=1)
    owners = [names.get(owner) for owner in records["owner"].tolist()]
    owned = [name is not None and name.kind is NameKind.BUCKET for name in owners]
    layers = [name is not None and name.kind is NameKind.LAYER for name in owners]
    chosen: NDArray[np.void] = records[
        reducing & ~np.array(layers, np.bool_) | np.array(owned, np.bool_)
    ]
    return chosen


def reduced_by_module(tl: Timeline) -> bool:
    """Say whether gradients are reduced module by module (FSDP2), not by buckets."""
    kinds = {
        name.kind
        for owner in np.unique(reductions(tl.communication, tl.names)["owner"]).tolist()
        if (name := tl.names.get(owner)) is not None
    }
    return NameKind.MODULE in kinds and NameKind.BUCKET not in kinds


def step_tail(tl: Timeline, step: np.void, *, chain: bool = True) -> StepTail:
    """Return the tail of one step (a row of `tl.steps`); without `chain`, without its pieces."""
    lane = tl.compute
    inside = (lane.start >= step["start"]) & (lane.start < step["end"])
    return _tail(
        int(step["step"]),
        int(step["flags"]),
        tl.communication[tl.communication["step"] == step["step"]],
        Lane(lane.start[inside], lane.end[inside], lane.name[inside], lane.phase[inside]),
        tl.names,
        chain=chain,
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
    *,
    chain: bool = True,
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
    tail, last = None, None
    pieces: tuple[Piece, ...] = ()
    if reduce_end is not None:
        last = reduces[np.lexsort((reduces["start"], reduces["finish"]))[-1]]
        if compute_end is not None:
            tail = max(0, reduce_end - compute_end)
            if tail and chain:
                pieces = tuple(finishing_chain(last, records, compute_end, names))
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
        pieces=pieces,
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

"""The finishing chain: what a tail was spent on, followed back from the reduction that finished
last.

In: that record, the other records of its step, and where the tail begins. Out: adjacent `Piece`s
that cover the tail exactly, in time order: late ready, launch delay, queue (behind which
collective), residence.

With three 4 ms reductions on one queue, ready at 2, 4 and 6 ms, and compute that ends at 6 ms:

| piece                       | from | to | ms |
|-----------------------------|------|----|----|
| queue, behind the second    | 6    | 10 | 4  |
| residence of the third      | 10   | 14 | 4  |

It does not know how a residence splits into waiting for the last rank and transfer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.vocabulary import CollectiveKind, Name, RecordFlag


class PieceKind(Enum):
    """What the tail was spent on; the value is the word in reports."""

    LATE_READY = "late ready"  # the last bucket's gradients were not complete yet
    LAUNCH_DELAY = "launch delay"  # ready, not launched
    QUEUE = "queue"  # launched, its turn had not come
    RESIDENCE = "residence"  # waiting for the last rank and transfer; one rank cannot tell which
    UNSPLIT = "not separable"  # a mark in between is not known


@dataclass(frozen=True, slots=True)
class Piece:
    """One stretch `[start_ns, end_ns)` of a tail.

    Args:
        kind: what it was spent on.
        start_ns, end_ns: where it lies.
        bucket: what occupied it: the last reduction itself, or for QUEUE the collective it stood
            behind ("" when none is known to have been there).
        estimated: one of its edges is an estimated time.

    """

    kind: PieceKind
    start_ns: int
    end_ns: int
    bucket: str
    estimated: bool

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "kind": self.kind.value,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "duration_ns": self.duration_ns,
            "bucket": self.bucket,
            "provenance": "estimated" if self.estimated else "measured",
        }


_MARKS = (
    ("ready", RecordFlag.READY_ESTIMATED, PieceKind.LATE_READY),
    ("launch", RecordFlag.LAUNCH_ESTIMATED, PieceKind.LAUNCH_DELAY),
    ("start", RecordFlag.START_ESTIMATED, PieceKind.QUEUE),
    ("finish", RecordFlag.FINISH_ESTIMATED, PieceKind.RESIDENCE),
)
"""The marks of a collective, in order, and what the time up to each is spent on."""


def label(record: np.void, names: Mapping[int, Name]) -> str:
    """Return what people call a collective: its bucket or module, else its kind and sequence."""
    name = names.get(int(record["owner"]))
    if name is not None:
        return name.text
    sequence = int(record["sequence"])
    return CollectiveKind(record["collective"]).title + (f" {sequence}" if sequence else "")


def finishing_chain(
    last: np.void, records: NDArray[np.void], begin: int, names: Mapping[int, Name]
) -> Iterator[Piece]:
    """Cut `[begin, finish of last)` at the marks of `last`; the pieces add up to it.

    A mark that is not known leaves the pieces around it unsplit. Estimated marks may lie out of
    order; each counts as not before the one in front of it.

    Args:
        last: RECORD of the reduction that finished last; its finish is known.
        records: RECORD array of the collectives of the same step.
        begin: ns, the last compute end; before `last`'s finish.
        names: what owner ids stand for.

    """
    cursor, cursor_estimated, missing = begin, False, False
    bucket, finish, flags = label(last, names), int(last["finish"]), int(last["flags"])
    for mark, flag, spent_on in _MARKS:
        moment, estimated = min(int(last[mark]), finish), bool(flags & flag)
        if not moment:
            missing = True
            continue
        if moment > cursor:
            kind = PieceKind.UNSPLIT if missing else spent_on
            piece = Piece(kind, cursor, moment, bucket, estimated or cursor_estimated)
            yield from _behind(piece, last, records, names) if kind is PieceKind.QUEUE else (piece,)
            cursor, cursor_estimated = moment, estimated
        missing = False


def _behind(
    queue: Piece, last: np.void, records: NDArray[np.void], names: Mapping[int, Name]
) -> Iterator[Piece]:
    """Cut the time in the queue by the collectives that ran on the same queue meanwhile."""
    ahead = records[
        (records["group"] == last["group"])
        & (records["stream"] == last["stream"])
        & (records["start"] > 0)
        & (records["start"] < queue.end_ns)
        & (records["finish"] > queue.start_ns)
    ]
    cursor = queue.start_ns
    for one in ahead[np.argsort(ahead["start"], kind="stable")]:
        start, finish = max(int(one["start"]), cursor), min(int(one["finish"]), queue.end_ns)
        if finish <= start:
            continue
        if start > cursor:
            yield Piece(PieceKind.QUEUE, cursor, start, "", queue.estimated)
        yield Piece(PieceKind.QUEUE, start, finish, label(one, names), queue.estimated)
        cursor = finish
    if cursor < queue.end_ns:
        yield Piece(PieceKind.QUEUE, cursor, queue.end_ns, "", queue.estimated)

"""Calls of the communication library by kind: communicators, sizes, and each exact size with how
often it occurs.

In: PAYLOAD rows of a profile, or RECORDs that carry sizes. Out: a `Calls`. Sizes are the bytes that
a call was given: an AllGather its own part, a ReduceScatter what it receives, an AllReduce the
buffer. Where only records tell, they are the bytes moved, as a RECORD holds them. A call without a
size is counted beside them, never as 0 bytes.

| calls (kind, communicator, bytes)          | kind      | calls | communicators | p50 | total | sizes      |
|--------------------------------------------|-----------|-------|---------------|-----|-------|------------|
| AllReduce 1 4, AllReduce 2 4, AllReduce 1 8 | AllReduce | 3     | 2             | 4   | 16    | 4 ×2, 8 ×1 |
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.spread import percentile
from overlapwatch.timeline.intervals import cover
from overlapwatch.timeline.model import I64, Timeline
from overlapwatch.vocabulary import NOT_KNOWN, PAYLOAD, CollectiveKind

Told = Literal["calls", "records", "none"]


@dataclass(frozen=True, slots=True)
class CallKind:
    """The calls of one kind.

    Args:
        kind: what they are.
        calls: how many.
        unsized: of them without a size.
        communicators: how many different ones are named; 0 where none is.
        p50_bytes, p99_bytes, total_bytes: over those with a size; None without any.
        sizes: (bytes, how many calls), largest first.

    """

    kind: CollectiveKind
    calls: int
    unsized: int
    communicators: int
    p50_bytes: int | None
    p99_bytes: int | None
    total_bytes: int | None
    sizes: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "kind": self.kind.title,
            "calls": self.calls,
            "unsized": self.unsized,
            "communicators": self.communicators or None,
            "p50_bytes": self.p50_bytes,
            "p99_bytes": self.p99_bytes,
            "total_bytes": self.total_bytes,
            "sizes": [{"bytes": size, "calls": count} for size, count in self.sizes],
        }


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a window by kind; `told` says what they were read from."""

    told: Told
    kinds: tuple[CallKind, ...]

    def checks(self) -> tuple[Check, ...]:
        """Return how the exact sizes of each kind add up to its total."""
        sums = sum(size * count for one in self.kinds for size, count in one.sizes)
        counts = sum(count for one in self.kinds for _, count in one.sizes)
        sized = sum(one.calls - one.unsized for one in self.kinds)
        total = sum(one.total_bytes or 0 for one in self.kinds)
        return (
            Check("exact sizes of the calls = bytes of the calls", sums, total, "bytes"),
            Check("calls by exact size = calls with a size", counts, sized, "calls"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"told_by": self.told, "kinds": [one.to_dict() for one in self.kinds]}


def payloads_of(tl: Timeline, lanes: Lanes, *, whole: bool) -> NDArray[np.void]:
    """Return the PAYLOAD rows that belong to the window.

    A call that is attributed to a kernel belongs where its kernel does, since the host runs ahead;
    any other belongs where it was made. `whole`: the window is the whole capture, which all do.
    """
    rows = tl.payloads
    if whole or not len(rows):
        return rows
    attributed = rows["kernel"] >= 0
    made = cover(rows["start"], rows["start"] + 1, lanes.window.recorded) > 0
    inside: NDArray[np.void] = rows[
        np.where(attributed, np.isin(rows["kernel"], lanes.index), made)
    ]
    return inside


def calls_of(payloads: NDArray[np.void], launched: NDArray[np.void]) -> Calls:
    """Return the calls by kind.

    Args:
        payloads: PAYLOAD rows of the window.
        launched: RECORD rows of the window's collectives: told of where there are no payloads.

    """
    if len(payloads):
        return Calls(
            "calls", _by_kind(payloads["collective"], payloads["group"], payloads["bytes"])
        )
    sizes = np.where(launched["bytes"] > 0, launched["bytes"], NOT_KNOWN)
    kinds = _by_kind(launched["collective"], launched["group"], sizes)
    return Calls("records" if len(launched) else "none", kinds)


def calls_of_records(tl: Timeline, lanes: Lanes) -> NDArray[np.void]:
    """Return the calls of the window as PAYLOAD rows where only its kernels tell of them.

    A kernel whose launch was seen or whose size is known is a call, with the bytes moved where they
    are known. None where no kernel has a size: then nothing can close.
    """
    index = np.unique(lanes.index)
    records = tl.communication[index]
    if not (records["bytes"] > 0).any():
        return np.empty(0, PAYLOAD)
    made = records[(records["launch"] != 0) | (records["bytes"] > 0)]
    rows = np.zeros(len(made), PAYLOAD)
    rows["collective"], rows["group"], rows["peer"] = made["collective"], made["group"], NOT_KNOWN
    rows["bytes"] = np.where(made["bytes"] > 0, made["bytes"], NOT_KNOWN)
    rows["start"] = rows["end"] = made["launch"]
    rows["kernel"] = index[(records["launch"] != 0) | (records["bytes"] > 0)]
    return rows


def _by_kind(
    kind: NDArray[np.uint8], group: NDArray[np.uint16], sizes: I64
) -> tuple[CallKind, ...]:
    known = np.where(kind > max(CollectiveKind), np.uint8(CollectiveKind.UNKNOWN), kind)
    rows = []
    for one, mine in parted(known.astype(np.int64)):
        sized = np.sort(sizes[mine][sizes[mine] >= 0])
        exact, count = np.unique(sized, return_counts=True)
        pairs = zip(exact[::-1].tolist(), count[::-1].tolist(), strict=True)
        rows.append(
            CallKind(
                kind=CollectiveKind(one),
                calls=len(mine),
                unsized=len(mine) - len(sized),
                communicators=len(np.unique(group[mine][group[mine] != 0])),
                p50_bytes=percentile(sized, 50) if len(sized) else None,
                p99_bytes=percentile(sized, 99) if len(sized) else None,
                total_bytes=int(sized.sum()) if len(sized) else None,
                sizes=tuple(pairs),
            )
        )
    return tuple(rows)

"""What one rank issued, group by group, in order: all that a check of the order needs.

In: a Recording, or the entries that a source without durations reads. Out: `Issued`, small enough to
be sent between processes for thousands of ranks. Sequence numbers count the collectives of one group
on one rank. Point-to-point operations have no place in that order and are counted, not listed.

Whether the *end* is known decides if a rank may be called behind: of a log that sampled its last
steps away, or that was flushed up to a moment that says nothing, the last number is not known.

    log   summaries 1..120, events of 100, 110      the end is not known
    ring  steps 118..121, 121 in flight             the end is what the rank issued last
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import CollectiveKind, Name

ISSUED = np.dtype(
    [
        ("sequence", "<i8"),  # place in the group's order, from 1
        ("kind", "u1"),  # CollectiveKind
        ("size", "<i8"),  # elements or bytes, see `unit`; -1 = not known, or free to differ
        ("dtype", "<u4"),  # code of a text (`code_of`); 0 = not known
        ("operation", "<u4"),  # the same, of an operation that has no CollectiveKind
    ]
)
"""One collective as one rank issued it. Rows of one group, ascending in `sequence`, each once."""

ANY_SIZE = -1
Unit = Literal["bytes", "elements"]

_SAME_ON_ALL_RANKS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
"""Of a profile only the sizes of these say the same on every rank: it tells one side of the others."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A process group as all its ranks name it: its name, and its global ranks where known."""

    name: str
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class IssuedGroup:
    """What one rank issued on one group.

    Args:
        rows: ISSUED rows.
        last: the number that the rank issued last; None where the end is not known.
        because: why the end is not known, or why there are no rows; "".

    """

    rows: NDArray[np.void]
    last: int | None
    because: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Issued:
    """What one rank issued.

    Args:
        rank: None where the input does not say.
        path, source, state: the input; how the process ended, as in `Recording`.
        unit: what `size` counts.
        groups: by group.
        texts: what the codes in `dtype` and `operation` stand for.
        point_to_point: operations that have no place in a group's order.
        unnumbered: collectives without a sequence number.
        end_unknown: why it is not known what the rank issued last; "" where it is.
        notes: sentences for the reader.

    """

    rank: int | None
    path: str
    source: str
    state: str
    unit: Unit
    groups: Mapping[GroupKey, IssuedGroup]
    texts: Mapping[int, str] = field(default_factory=dict)
    point_to_point: int = 0
    unnumbered: int = 0
    end_unknown: str = ""
    notes: tuple[str, ...] = ()


def code_of(text: str) -> int:
    """Return the code of a text, the same in every process; 0 for ""."""
    return zlib.crc32(text.encode("utf-8", "backslashreplace")) if text else 0


def in_order(rows: NDArray[np.void], last: int | None, because: str = "") -> IssuedGroup:
    """Return the rows of one group ascending, each number once; none where a number is ambiguous.

    A collective that ran as several kernels has several rows that say the same. Rows that
    contradict each other come from groups that share a name and cannot be told apart.
    """
    rows = np.unique(rows)  # ascending by all fields, the sequence first
    if len(rows) > 1 and (rows["sequence"][1:] == rows["sequence"][:-1]).any():
        twice = "collectives carry the same number: several groups share this name and these ranks"
        return IssuedGroup(np.empty(0, ISSUED), None, twice)
    return IssuedGroup(rows, last, because)


def issued_of(recording: Recording) -> Issued:
    """Return what the rank of a log or profile issued."""
    tl = recording.timeline
    records = np.concatenate((tl.communication, recording.in_flight))
    one_sided = records["collective"] == CollectiveKind.SEND_RECV
    numbered = (records["sequence"] > 0) & ~one_sided
    found: dict[GroupKey, IssuedGroup] = {}
    because = _end_unknown(recording)
    for number in np.unique(records["group"][numbered]).tolist():
        mine = records[numbered & (records["group"] == number)]
        rows = np.zeros(len(mine), ISSUED)
        rows["sequence"], rows["kind"] = mine["sequence"], mine["collective"]
        rows["size"] = _sizes(mine, of_profile=recording.state == "profile")
        last = None if because else int(rows["sequence"].max())
        key = group_key(tl.groups.get(number), number)
        known = found.get(key)
        if known is not None:  # two ids, one name: two groups that nobody can tell apart
            rows = np.concatenate((known.rows, rows))
        found[key] = in_order(rows, last, because)
    lone = np.concatenate((tl.communication, recording.in_flight))[~numbered & ~one_sided]
    return Issued(
        rank=tl.origin.rank,
        path=tl.origin.path,
        source=tl.origin.source,
        state=recording.state,
        unit="bytes",
        groups=found,
        point_to_point=int(one_sided.sum()),
        unnumbered=len(lone),
        end_unknown=because,
        notes=recording.notes,
    )


def texts_of(texts: Iterable[str]) -> dict[int, str]:
    """Return the table of codes for these texts."""
    return {code_of(text): text for text in texts if text}


def group_key(name: Name | None, number: int) -> GroupKey:
    """Return how the ranks of a group call it; `number` is its id on this rank."""
    return GroupKey(name.text, name.members) if name is not None else GroupKey(f"group {number}")


def _sizes(records: NDArray[np.void], *, of_profile: bool) -> NDArray[np.int64]:
    sizes = records["bytes"].astype(np.int64)
    free = np.isin(records["collective"], (CollectiveKind.ALL_TO_ALL, CollectiveKind.BARRIER))
    if of_profile:
        free |= ~np.isin(records["collective"], _SAME_ON_ALL_RANKS) | (sizes <= 0)
    return np.where(free, ANY_SIZE, sizes)


def _end_unknown(recording: Recording) -> str:
    """Say why the last number is not the rank's last; "" when it is."""
    if recording.state == "profile":
        return "a profile ends when the profiler does"
    kept = recording.timeline.steps["step"]
    summed = recording.summaries["step"]
    last_kept = int(kept.max()) if len(kept) else -1
    last_summed = int(summed.max()) if len(summed) else -1
    if recording.state == "closed":
        return "" if last_kept >= last_summed else "the events of its last steps were not kept"
    # The ring holds the step that is not summed up yet; a log alone ends at its last flush.
    return "" if last_kept > last_summed else "its ring is out of reach: the log ends at a flush"

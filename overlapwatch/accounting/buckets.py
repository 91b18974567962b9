"""Gradient buckets over the steps: when each was ready, launched, started and finished, and what
hid it.

In: a Timeline. Out: a `BucketTable` with one `BucketRow` per bucket, in the order in which the
buckets are launched. Moments are medians relative to the start of that step's backward, so a
bucket's life reads from left to right.

Hidden and exposed are told of each bucket's own span against the compute lane. Buckets may overlap
one another, so their exposed times may add up to more than a step's.

| bucket | span    | compute | hidden | exposed |
|--------|---------|---------|--------|---------|
| 0      | 2 to 6  | 0 to 6  | 4      | 0       |
| 1      | 4 to 10 | 0 to 6  | 2      | 4       |

Steps out of statistics are left out. The buckets of the first, unbucketed iterations are other
buckets than the later ones; they are told apart. It does not know moments that were not recorded,
and says of the others whether they were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.spread import median
from overlapwatch.timeline.intervals import Intervals, cover, union
from overlapwatch.timeline.model import I64, Timeline, Unknown
from overlapwatch.timeline.records import begin_of, has_span
from overlapwatch.vocabulary import OUT_OF_STATISTICS, Name, NameKind, Phase, RecordFlag, StepFlag

_UNBUCKETED = StepFlag.UNBUCKETED | StepFlag.REBUILT
ESTIMATED = {
    "ready": RecordFlag.READY_ESTIMATED,
    "launch": RecordFlag.LAUNCH_ESTIMATED,
    "start": RecordFlag.START_ESTIMATED,
    "finish": RecordFlag.FINISH_ESTIMATED,
}


class Provenance(Enum):
    """How the times of one kind came to be; the value is the word in reports."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    UNOBSERVABLE = "unobservable"
    UNFINISHED = "unfinished"  # a finish that had not come when the input was read
    NOT_RECORDED = "not recorded"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Moment:
    """One of the four times of a bucket, over its steps.

    Args:
        median_ns: relative to the start of the step's backward; None where not known.
        known: in how many of the bucket's collectives it is known.
        provenance: how it came to be.

    """

    median_ns: int | None
    known: int
    provenance: Provenance

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "median_ns": self.median_ns,
            "known": self.known,
            "provenance": self.provenance.value,
        }


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One bucket over the steps.

    Args:
        owner, name: its id and text.
        parameters: how many it holds; 0 when the input does not say.
        first_parameter, last_parameter: their names, in the bucket's order; "" when not known.
        elements, bytes, dtype: of the bucket; 0 and "" when not known.
        count: collectives seen, the denominator of everything below.
        steps: steps they were seen in.
        ready, launch, start, finish: the four moments.
        launch_delay_ns .. launch_to_finish_ns: medians of ready to launch, launch to start, start
            to finish, launch to finish; None where an end is not known. Launch to finish is not
            communication time: it holds the queue.
        hidden_ns, exposed_ns: medians of the part of the bucket's own span with and without
            compute.
        hidden_total_ns, span_total_ns: sums over `spans` collectives with a known span.
        gated_by: the parameter whose gradient most often came last; "" when not known.
        gated_count: how often it did.

    """

    owner: int
    name: str
    parameters: int
    first_parameter: str
    last_parameter: str
    elements: int
    bytes: int
    dtype: str
    count: int
    steps: int
    ready: Moment
    launch: Moment
    start: Moment
    finish: Moment
    launch_delay_ns: int | None
    queue_ns: int | None
    residence_ns: int | None
    launch_to_finish_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None
    hidden_total_ns: int
    span_total_ns: int
    spans: int
    gated_by: str
    gated_count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "name": self.name,
            "parameters": self.parameters or None,
            "first_parameter": self.first_parameter or None,
            "last_parameter": self.last_parameter or None,
            "elements": self.elements or None,
            "bytes": self.bytes or None,
            "dtype": self.dtype or None,
            "count": self.count,
            "steps": self.steps,
            "ready": self.ready.to_dict(),
            "launch": self.launch.to_dict(),
            "start": self.start.to_dict(),
            "finish": self.finish.to_dict(),
            "launch_delay_ns": self.launch_delay_ns,
            "queue_ns": self.queue_ns,
            "residence_ns": self.residence_ns,
            "launch_to_finish_ns": self.launch_to_finish_ns,
            "hidden_ns": self.hidden_ns,
            "exposed_ns": self.exposed_ns,
            "hidden_total_ns": self.hidden_total_ns if self.spans else None,
            "span_total_ns": self.span_total_ns if self.spans else None,
            "spans": self.spans,
            "gated_by": self.gated_by or None,
            "gated_count": self.gated_count,
        }


@dataclass(frozen=True, slots=True)
class BucketTable:
    """The buckets of a timeline.

    Args:
        rows: buckets of the steps in statistics, in launch order.
        unbucketed: buckets of the first iterations, before the buckets were laid out; not in
            statistics.
        unknown: what cannot be told.

    """

    rows: tuple[BucketRow, ...]
    unbucketed: tuple[BucketRow, ...]
    unknown: tuple[Unknown, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON-ready values."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "unbucketed": [row.to_dict() for row in self.unbucketed],
        }


def bucket_table(tl: Timeline) -> BucketTable:
    """Return the buckets of the steps in statistics, and those of the unbucketed steps."""
    buckets = [name.id for name in tl.names.values() if name.kind is NameKind.BUCKET]
    records = tl.communication[np.isin(tl.communication["owner"], buckets)]
    order = np.argsort(tl.steps["step"], kind="stable")
    steps = tl.steps[order]
    at = np.searchsorted(steps["step"], records["step"])
    there = at < len(steps)
    there[there] = steps["step"][at[there]] == records["step"][there]
    strays = int((~there).sum())
    records, at = records[there], at[there]
    flags = steps["flags"][at]
    origin = _backward_starts(tl, steps)[at]
    compute = union(tl.compute.start, tl.compute.end)
    counted = flags & OUT_OF_STATISTICS == 0
    rows = _rows(tl.names, records[counted], origin[counted], compute)
    # An owner that also occurs in statistics belongs to the layout in force.
    early = ~np.isin(records["owner"], [row.owner for row in rows]) & (flags & _UNBUCKETED != 0)
    early &= flags & (OUT_OF_STATISTICS & ~_UNBUCKETED) == 0
    unknown: list[Unknown] = []
    if strays:
        what = f"when {strays} bucket reductions happened within their step"
        unknown.append(Unknown(what, "their steps are not in the input"))
    if not origin[counted].all():
        what = f"the moments of {int((origin[counted] == 0).sum())} bucket reductions"
        unknown.append(Unknown(what, "the start of the backward of their step is not known"))
    return BucketTable(
        rows=rows,
        unbucketed=_rows(tl.names, records[early], origin[early], compute),
        unknown=tuple(unknown),
    )


def _backward_starts(tl: Timeline, steps: NDArray[np.void]) -> I64:
    """Return when the backward of each step began, ns; 0 where not known."""
    lane = tl.phases if bool((tl.phases.phase == Phase.BACKWARD).any()) else tl.compute
    starts = np.sort(lane.start[lane.phase == Phase.BACKWARD])
    first = np.searchsorted(starts, steps["start"])
    begun = np.append(starts, np.iinfo(np.int64).max)[first]
    return np.where(begun < steps["end"], begun, 0)


def _rows(
    names: Mapping[int, Name], records: NDArray[np.void], origin: I64, compute: Intervals
) -> tuple[BucketRow, ...]:
    rows = []
    for owner in np.unique(records["owner"]).tolist():
        own = records["owner"] == owner
        rows.append(_row(names, names[owner], records[own], origin[own], compute))
    far = np.iinfo(np.int64).max
    rows.sort(key=lambda row: (far if (at := row.launch.median_ns) is None else at, row.owner))
    return tuple(rows)


def _row(
    names: Mapping[int, Name],
    bucket: Name,
    records: NDArray[np.void],
    origin: I64,
    compute: Intervals,
) -> BucketRow:
    whole = has_span(records)
    begin, end = begin_of(records)[whole], records["finish"][whole]
    hidden = cover(begin, end, compute)
    gates, votes = np.unique(records["cause"][records["cause"] != 0], return_counts=True)
    gate = names.get(int(gates[votes.argmax()])) if len(gates) else None
    first, last = (names.get(bucket.members[i]) if bucket.members else None for i in (0, -1))
    return BucketRow(
        owner=bucket.id,
        name=bucket.text,
        parameters=len(bucket.members),
        first_parameter=first.text if first else "",
        last_parameter=last.text if last else "",
        elements=bucket.elements,
        bytes=bucket.bytes or int(records["bytes"].max()),
        dtype=bucket.dtype,
        count=len(records),
        steps=len(np.unique(records["step"])),
        ready=_moment(records, "ready", origin),
        launch=_moment(records, "launch", origin),
        start=_moment(records, "start", origin),
        finish=_moment(records, "finish", origin),
        launch_delay_ns=_between(records, "ready", "launch"),
        queue_ns=_between(records, "launch", "start"),
        residence_ns=_between(records, "start", "finish"),
        launch_to_finish_ns=_between(records, "launch", "finish"),
        hidden_ns=median(hidden),
        exposed_ns=median(end - begin - hidden),
        hidden_total_ns=int(hidden.sum()),
        span_total_ns=int((end - begin).sum()),
        spans=len(begin),
        gated_by=gate.text if gate else "",
        gated_count=int(votes.max()) if gate else 0,
    )


def _moment(records: NDArray[np.void], field: str, origin: I64) -> Moment:
    times = records[field]
    known = (times != 0) & (origin != 0)
    return Moment(
        median_ns=median(times[known] - origin[known]),
        known=int(known.sum()),
        provenance=provenance(records, field),
    )


def _between(records: NDArray[np.void], first: str, second: str) -> int | None:
    known = (records[first] != 0) & (records[second] != 0)
    return median(records[second][known] - records[first][known])


def provenance(records: NDArray[np.void], field: str) -> Provenance:
    """Return how the `field` times of `records` (RECORD, not empty) came to be."""
    present = records[field] != 0
    estimated = records["flags"] & ESTIMATED[field] != 0
    found = set()
    if bool((present & ~estimated).any()):
        found.add(Provenance.MEASURED)
    if bool((present & estimated).any()):
        found.add(Provenance.ESTIMATED)
    if not present.all():
        absent = records["flags"][~present] & RecordFlag.FINISH_UNOBSERVABLE != 0
        if field != "finish":
            found.add(Provenance.NOT_RECORDED)
        else:
            if absent.any():
                found.add(Provenance.UNOBSERVABLE)
            if not absent.all():
                found.add(Provenance.UNFINISHED)
    return found.pop() if len(found) == 1 else Provenance.MIXED

"""Single collectives, and the single stretches in which communication was exposed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.lanes import launched_in
from overlapwatch.exports import records as told
from overlapwatch.exports.columns import Batch, Column, Type, parts, table
from overlapwatch.exports.subject import Subject
from overlapwatch.exports.tables.told import Told, where
from overlapwatch.timeline.intervals import cover, union
from overlapwatch.timeline.model import I64
from overlapwatch.timeline.records import begin_of, has_span
from overlapwatch.vocabulary import RecordFlag

COLLECTIVES = table(
    "collectives",
    "one collective on one rank, finished or not",
    Column("step", "number of its step"),
    Column("phase", "in which it was launched", Type.TEXT),
    Column("kind", "AllReduce, AllGather, ...", Type.TEXT),
    Column("owner", "bucket or module; of a profile, the call site", Type.TEXT),
    Column("owner_kind", "what the owner is", Type.TEXT),
    Column("cause", "parameter that was ready last, or module that prefetched it", Type.TEXT),
    Column("group", "process group", Type.TEXT),
    Column("sequence", "position in the order of the group"),
    Column("stream", "stream on the device; 0: the host, or not known"),
    Column("message_bytes", "logical bytes"),
    *(
        column
        for mark, about in (
            ("ready", "its inputs were complete"),
            ("launch", "it was called"),
            ("start", "its turn had come"),
            ("finish", "it was over"),
        )
        for column in (
            Column(f"{mark}_ns", about),
            Column(f"{mark}_provenance", "how that time came to be", Type.TEXT),
        )
    ),
    Column("span_begin_ns", "where its span begins: start on a device, launch on the host"),
    Column("span_ns", "from there to its finish"),
    Column("hidden_ns", "of the span: compute ran"),
    Column("exposed_ns", "of the span: no compute ran"),
    Column("state", "finished, running, unobservable, damaged", Type.TEXT),
    Column("prefetched", "launched ahead of its use", Type.BOOLEAN),
    Column("synchronous", "the caller stood still until it was over", Type.BOOLEAN),
    Column("failed", "it ended in an error", Type.BOOLEAN),
    Column("in_window", "the numbers of the report count it", Type.BOOLEAN),
)


def collectives(one: Told) -> Iterator[Batch]:
    """Yield its collectives."""
    subject, tl = one.subject, one.subject.timeline
    records = subject.collectives()
    counted = _in_window(subject, records)
    phases_known = bool(tl.communication["phase"].any())
    busy = union(tl.compute.start, tl.compute.end)
    numbers = np.union1d(tl.steps["step"], one.analysis.rows["step"])
    for part in parts(len(records)):
        mine = records[part]
        whole = has_span(mine)
        begin = begin_of(mine).astype(np.int64)
        finish = mine["finish"].astype(np.int64)
        hidden = np.where(whole, cover(begin, finish, busy), 0)
        known_step = np.isin(mine["step"], numbers)
        span = np.where(whole, finish - begin, 0)
        times: dict[str, Sequence[Any]] = {}
        for mark in told.MARKS:
            times[f"{mark}_ns"] = told.or_none(mine[mark])
            times[f"{mark}_provenance"] = told.provenance(mine, mark)
        yield COLLECTIVES.batch(
            **one.whose(len(mine)),
            step=where(known_step, mine["step"]),
            phase=[
                told.phase_word(value) if phases_known else None for value in mine["phase"].tolist()
            ],
            kind=told.kinds(mine),
            owner=told.texts(mine["owner"], tl.names),
            owner_kind=told.owner_kinds(mine, tl.names),
            cause=told.texts(mine["cause"], tl.names),
            group=told.texts(mine["group"], tl.groups),
            sequence=told.or_none(mine["sequence"]),
            stream=mine["stream"].tolist(),
            message_bytes=told.or_none(mine["bytes"]),
            **times,
            span_begin_ns=where(whole, begin),
            span_ns=where(whole, span),
            hidden_ns=where(whole, hidden),
            exposed_ns=where(whole, span - hidden),
            state=told.states(mine),
            prefetched=told.flagged(mine, RecordFlag.PREFETCHED),
            synchronous=told.flagged(mine, RecordFlag.SYNCHRONOUS),
            failed=told.flagged(mine, RecordFlag.FAILED),
            in_window=counted[part].tolist(),
        )


def _in_window(subject: Subject, records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say which collectives the window holds: by their span, or by where they were launched."""
    window = subject.choice.window
    whole = has_span(records)
    inside = ~whole & launched_in(records, window)
    spans = np.flatnonzero(whole)
    begin, finish = begin_of(records)[spans], records["finish"][spans]
    inside[spans[window.take(begin, finish)[2]]] = True
    return inside


EXPOSED = table(
    "exposed_segments",
    "one stretch of the window with communication and without compute",
    Column("step", "in which it begins"),
    Column("start_ns", "on the clock of the rank"),
    Column("end_ns", "on the clock of the rank"),
    Column("length_ns", "end_ns - start_ns"),
)


def exposed(one: Told) -> Iterator[Batch]:
    """Yield its exposed segments."""
    segments, steps = one.subject.exposed, one.subject.timeline.steps
    for part in parts(len(segments)):
        start, end = segments.start[part], segments.end[part]
        yield EXPOSED.batch(
            **one.whose(len(start)),
            step=_step_at(steps, start),
            start_ns=start.tolist(),
            end_ns=end.tolist(),
            length_ns=(end - start).tolist(),
        )


def _step_at(steps: NDArray[np.void], moment: I64) -> list[int | None]:
    if not len(steps):
        return [None] * len(moment)
    place = np.searchsorted(steps["start"], moment, side="right") - 1
    inside = (place >= 0) & (moment < steps["end"][place])
    return where(inside, steps["step"][place])

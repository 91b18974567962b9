"""Subjects -> a trace that ui.perfetto.dev and chrome://tracing open: one process a rank and device.

In: Subjects, one after the other, with a Clock each. Out: events. What each row shows:

| row                         | what it holds                                                            |
|-----------------------------|--------------------------------------------------------------------------|
| steps                       | every selected step, with its numbers; also those without events         |
| accounted                   | the window that the numbers of the report speak of                       |
| compute                     | kernels, or marked spans of modules: the compute lane                    |
| communication               | collectives from start to finish (on the host: launch to finish)         |
| communication, not finished | collectives without a finish: spans without an end                       |
| exposed                     | the exposed segments of the window                                       |
| waits                       | compute stood still for communication                                    |
| tail                        | from the last compute end to the last reduce end, in its pieces          |
| copies, fused, annotations  | what else the input holds                                                |

Spans that ran at once are on several rows of one name. An arrow leads from the moment at which a
collective's inputs were ready, in the span that computed them, to the collective. Times are exact to
the ns. It computes nothing: rows are arranged, not accounted.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import flag_words
from overlapwatch.accounting.chain import Piece, PieceKind
from overlapwatch.accounting.tail import StepTail, step_tails
from overlapwatch.exports import records as told
from overlapwatch.exports.clocks import Clock
from overlapwatch.exports.rows import CHUNK, Row, Rows, as_args
from overlapwatch.exports.subject import Subject
from overlapwatch.exports.trace_events import TraceFile, as_json
from overlapwatch.exports.tracks import Places, apart
from overlapwatch.timeline.model import I64
from overlapwatch.timeline.records import begin_of, from_marks, has_span
from overlapwatch.vocabulary import (
    NOT_KNOWN,
    OUT_OF_STATISTICS,
    SUMMARY,
    NameKind,
    RecordFlag,
)

COUNTER = "communication per step, ms (last known)"
NOT_KNOWN_TEXT = "not known"


def add_process(file: TraceFile, number: int, title: str, subject: Subject, clock: Clock) -> None:
    """Add all that is shown of one subject.

    Args:
        file: takes the events.
        number: from 1, once in a file.
        title: what to call it.
        subject: one rank on one device.
        clock: of its times.

    """
    process = _Process(file, number, title, subject, clock)
    process.steps()
    process.accounted()
    process.lanes()
    process.collectives()
    process.tails()


class _Process:
    """Writes one process."""

    def __init__(
        self, file: TraceFile, number: int, title: str, subject: Subject, clock: Clock
    ) -> None:
        self._subject = subject
        self._names = subject.timeline.names
        self._tails = step_tails(subject.choice.timeline)
        self._rows = Rows(file, number, title, clock, self._names)

    # -- steps -------------------------------------------------------------------------------

    def steps(self) -> None:
        """Add the steps, and the counters of those whose communication is known."""
        rows = self._subject.steps()
        rows = rows[(rows["start_ns"] != NOT_KNOWN) & (rows["end_ns"] >= rows["start_ns"])]
        rows = rows[np.argsort(rows["start_ns"], kind="stable")]
        start, end = rows["start_ns"].astype(np.int64), rows["end_ns"].astype(np.int64)
        tails = {one.step: one for one in self._tails}
        self._rows.spans(
            Row.STEPS,
            (start, end),
            apart(start, end),
            lambda part: [_step_name(row) for row in rows[part]],
            lambda part: [
                as_args(_step_facts(row, tails.get(int(row["step"])))) for row in rows[part]
            ],
        )
        known = rows[rows["communication_ns"] != NOT_KNOWN]
        self._rows.moments(
            "C",
            [self._rows.number] * len(known),
            known["start_ns"].astype(np.int64),
            (
                f'"name":"{COUNTER}","args":{{"hidden":{hidden},"exposed":{exposed}}}'
                for hidden, exposed in zip(
                    _ms(known["overlap_ns"]), _ms(known["communication_only_ns"]), strict=True
                )
            ),
        )

    def accounted(self) -> None:
        """Add the window and its exposed segments."""
        window, segments = self._subject.choice.window, self._subject.exposed
        recorded = window.recorded
        rule = as_json(window.rule)
        facts = as_args({"boundary": window.boundary, "rule": window.rule})
        for row, spans, name, more in (
            (Row.ACCOUNTED, recorded, rule, facts),
            (Row.EXPOSED, segments, '"exposed"', ""),
        ):
            self._rows.spans(
                row,
                (spans.start, spans.end),
                np.zeros(len(spans), np.int64),
                lambda part, spans=spans, name=name: [name] * len(spans.start[part]),  # type: ignore[misc]
                lambda part, spans=spans, more=more: [more] * len(spans.start[part]),  # type: ignore[misc]
            )

    def lanes(self) -> None:
        """Add compute, waits, and what is neither lane."""
        tl, shown = self._subject.timeline, self._subject.shown
        marks = from_marks(tl)
        self._compute = shown(tl.compute)
        self._compute_rows = self._rows.lane(Row.COMPUTE, self._compute, "compute")
        self._rows.lane(Row.WAITS, shown(tl.waits), "wait", inside=marks)
        self._rows.lane(Row.COPIES, shown(tl.copies), "copy")
        self._rows.lane(Row.FUSED, shown(tl.fused), "fused")
        self._rows.lane(Row.ANNOTATIONS, shown(tl.ranges), "annotation", inside=True)

    # -- collectives -------------------------------------------------------------------------

    def collectives(self) -> None:
        """Add the collectives: those with a span, those that still run, those that nobody can see."""
        records = self._subject.collectives()
        begin = begin_of(records)
        order = np.argsort(begin, kind="stable")
        records, begin = records[order], begin[order]
        whole = has_span(records)
        spans, start = records[whole], begin[whole]
        end = spans["finish"].astype(np.int64)
        places = apart(start, end)
        self._rows.spans(
            Row.COMMUNICATION,
            (start, end),
            places,
            lambda part: self._collective_names(spans[part]),
            lambda part: [as_args(facts) for facts in self._collective_facts(spans[part])],
        )
        self._arrows(spans, start, places)
        rest = records[~whole]
        since = np.where(rest["launch"] != 0, rest["launch"], begin[~whole]).astype(np.int64)
        runs = np.array([one == told.RUNNING for one in told.states(rest)], np.bool_)
        # Without any moment it can stand nowhere; the tables have it.
        placed = since != 0
        self._moments("B", Row.NOT_FINISHED, rest[runs & placed], since[runs & placed])
        self._moments("i", Row.COMMUNICATION, rest[~runs & placed], since[~runs & placed])

    def _moments(self, phase: str, row: Row, records: NDArray[np.void], since: I64) -> None:
        """Add collectives of which only the beginning can be shown."""
        if not len(records):
            return
        order = np.argsort(since, kind="stable")
        tid, category = self._rows.tid(row), row.name.lower()
        scope = ',"s":"t"' if phase == "i" else ""
        for first in range(0, len(order), CHUNK):
            part = order[first : first + CHUNK]
            facts = self._collective_facts(records[part])
            names = self._collective_names(records[part])
            self._rows.moments(
                phase,
                [tid] * len(part),
                since[part],
                (
                    f'"cat":"{category}","name":{name}{scope}{as_args(fact)}'
                    for name, fact in zip(names, facts, strict=True)
                ),
            )

    def _collective_names(self, records: NDArray[np.void]) -> list[str]:
        """Return the names to show: `AllReduce bucket 3`; of a profile, whose owner is a place, the kind."""
        found = []
        for kind, owner in zip(told.kinds(records), records["owner"].tolist(), strict=True):
            name = self._names.get(owner)
            mine = name is not None and name.kind is not NameKind.OPERATION
            found.append(as_json(f"{kind} {name.text}" if name and mine else kind))
        return found

    def _collective_facts(self, records: NDArray[np.void]) -> Iterator[dict[str, Any]]:
        """Yield what is known of each; its times are ns on the axis."""
        tl, clock = self._subject.timeline, self._rows.clock
        owner_kinds = told.owner_kinds(records, tl.names)
        owners, causes = (told.texts(records[one], tl.names) for one in ("owner", "cause"))
        groups = told.texts(records["group"], tl.groups)
        flags = {
            (flag.name or "").lower(): told.flagged(records, flag)
            for flag in (RecordFlag.PREFETCHED, RecordFlag.SYNCHRONOUS, RecordFlag.FAILED)
        }
        marks: dict[str, list[Any]] = {}
        for mark in told.MARKS:
            moments = clock.on_axis(records[mark].astype(np.int64)).tolist()
            known = (records[mark] != 0).tolist()
            marks[f"{mark}_ns"] = [
                moment if there else NOT_KNOWN_TEXT
                for moment, there in zip(moments, known, strict=True)
            ]
            marks[f"{mark} is"] = told.provenance(records, mark)
        names, columns = tuple(marks), tuple(zip(*marks.values(), strict=True))
        numbers = (
            records[one].tolist() for one in ("phase", "step", "sequence", "bytes", "stream")
        )
        for at, (kind, state, phase, step, sequence, size, stream) in enumerate(
            zip(told.kinds(records), told.states(records), *numbers, strict=True)
        ):
            facts: dict[str, Any] = {
                "kind": kind,
                "state": state,
                "phase": told.phase_word(phase),
                "step": step,
                owner_kinds[at] or "owner": owners[at] or NOT_KNOWN_TEXT,
                "group": groups[at] or NOT_KNOWN_TEXT,
                "sequence": sequence or NOT_KNOWN_TEXT,
                "bytes": size or NOT_KNOWN_TEXT,
                "stream": stream,
            }
            facts.update(zip(names, columns[at], strict=True))
            facts |= {word: True for word, there in flags.items() if there[at]}
            if causes[at]:
                facts["prefetched by" if flags["prefetched"][at] else "last ready"] = causes[at]
            yield facts

    def _arrows(self, spans: NDArray[np.void], start: I64, places: Places) -> None:
        """Add an arrow from where the inputs were ready to the collective, where a span computed then."""
        ready = spans["ready"].astype(np.int64)
        lane = self._compute
        if not len(lane):
            return
        place = np.maximum(np.searchsorted(lane.start, ready, side="right") - 1, 0)
        # The last moment in the span: at its very end a reader would bind the arrow to what comes next.
        moment = np.minimum(ready, lane.end[place] - 1)
        found = (ready != 0) & (ready <= start) & (ready >= lane.start[place])
        found &= (ready <= lane.end[place]) & (moment >= lane.start[place])
        chosen = np.flatnonzero(found)
        for first in range(0, len(chosen), CHUNK):
            part = chosen[first : first + CHUNK]
            sides = (
                ("s", self._compute_rows[place[part]], moment[part], Row.COMPUTE, ""),
                ("f", places[part], start[part], Row.COMMUNICATION, ',"bp":"e"'),
            )
            for phase, rows, moments, row, more in sides:
                first_id = self._rows.number * 2**20
                self._rows.moments(
                    phase,
                    [self._rows.tid(row, one) for one in rows.tolist()],
                    moments,
                    (
                        f'"cat":"ready","name":"ready","id":{first_id + number}{more}'
                        for number in part.tolist()
                    ),
                )

    # -- tails -------------------------------------------------------------------------------

    def tails(self) -> None:
        """Add the tails of the selected steps whose events are there, each with its pieces."""
        known = [one for one in self._tails if one.tail_ns and one.last_compute_end_ns is not None]
        begin = np.array([one.last_compute_end_ns for one in known], np.int64)
        end = begin + np.array([one.tail_ns for one in known], np.int64)
        order = np.argsort(begin, kind="stable")
        places = apart(begin[order], end[order]).tolist()
        told_in_order = [known[at] for at in order.tolist()]
        for first in range(0, len(known), CHUNK):
            part = slice(first, first + CHUNK)
            spans = [
                span
                for tail, place in zip(told_in_order[part], places[part], strict=True)
                for span in _tail_spans(tail, place)
            ]
            begins, ends, rows, inside = (
                np.array([one[column] for one in spans], np.int64) for column in range(4)
            )
            names, facts = [as_json(one[4]) for one in spans], [as_args(one[5]) for one in spans]
            self._rows.spans(
                Row.TAIL,
                (begins, ends),
                rows,
                names.__getitem__,
                facts.__getitem__,
                inside,
            )


_TailSpan = tuple[int, int, int, int, str, dict[str, Any]]
"""Beginning, end, row, depth, name, facts."""


def _tail_spans(tail: StepTail, place: int) -> Iterator[_TailSpan]:
    """Yield a known tail and, in it, its pieces."""
    begin, length = tail.last_compute_end_ns or 0, tail.tail_ns or 0
    yield begin, begin + length, place, 0, f"tail of step {tail.step}", _tail_facts(tail)
    for piece in tail.pieces:
        name = f"{_WORDS.get(piece.kind, piece.kind.value)} {piece.bucket}".rstrip()
        yield piece.start_ns, piece.end_ns, place, 1, name, _piece_facts(piece)


def _ms(ns: NDArray[np.int64]) -> list[str]:
    return [f"{one // 1_000_000}.{one % 1_000_000:06d}" for one in ns.tolist()]


def _step_name(row: np.void) -> str:
    out = flag_words(int(row["flags"]) & int(OUT_OF_STATISTICS))
    return as_json(f"step {row['step']}" + (f" ({', '.join(out)})" if out else ""))


def _step_facts(row: np.void, tail: StepTail | None) -> dict[str, Any]:
    """Return the numbers of a step; its four moments are told by the row of tails."""
    facts: dict[str, Any] = {"flags": ", ".join(flag_words(int(row["flags"])))}
    for name in SUMMARY.names or ():
        if name in {"step", "flags"} or name.startswith(("start", "end", "first_", "last_")):
            continue
        value = int(row[name])
        facts[name] = NOT_KNOWN_TEXT if value == NOT_KNOWN else value
    if tail is not None and tail.because:
        facts["tail is not known because"] = tail.because
    return facts


_WORDS = {
    PieceKind.QUEUE: "queue behind",
    PieceKind.RESIDENCE: "residence of",
    PieceKind.LATE_READY: "late ready:",
    PieceKind.LAUNCH_DELAY: "launch delay of",
}


def _piece_facts(piece: Piece) -> dict[str, Any]:
    return {
        "duration_ns": piece.duration_ns,
        "provenance": "estimated" if piece.estimated else "measured",
    }


def _tail_facts(tail: StepTail) -> dict[str, Any]:
    return {
        "tail_ns": tail.tail_ns,
        "last reduction": tail.last_bucket or NOT_KNOWN_TEXT,
        "gradient reductions": tail.reductions,
    }

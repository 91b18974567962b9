"""Traces: every rule of the format, and the same partition again from the spans that were exported."""

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.analyse import Rules, analyse
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.ranks.fit import ClockFit
from overlapwatch.accounting.selection import Choice, Selection
from overlapwatch.exports import trace_events
from overlapwatch.exports.clocks import Clock
from overlapwatch.exports.perfetto import add_process
from overlapwatch.exports.subject import Subject, subject_of
from overlapwatch.exports.trace_events import TraceFile
from overlapwatch.timeline.intervals import total
from overlapwatch.timeline.model import STEP, Lane, Origin, Recording, Timeline
from overlapwatch.vocabulary import (
    NOT_KNOWN,
    RECORD,
    SUMMARY,
    Name,
    NameKind,
    RecordFlag,
)
from tests.properties.test_partition import LANE, collectives, lane, windows
from tests.reports.recordings import BASE_NS, MS, Job, killed, queued, typical, worked
from tests.support.scenarios import record, records
from tests.support.trace_events import read_trace


def traced(*subjects: Subject, clock: Clock | None = None):
    """The facts and processes of a trace of these, read back."""
    out = io.BytesIO()
    file = TraceFile(out, {"made by": "a test"})
    for number, subject in enumerate(subjects, 1):
        add_process(file, number, f"rank {number - 1}", subject, clock or Clock(BASE_NS))
    file.close({"rank 0": {"state": "closed"}})
    whole, processes = read_trace(out.getvalue())
    phases = [event["ph"] for event in whole["traceEvents"]]
    assert file.counts == {one: phases.count(one) for one in file.counts}
    return whole, processes


def of(recording: Recording, **selection) -> Subject:
    return subject_of(recording, Selection(**selection), Rules())


# -- closure through the export ------------------------------------------------------------------


@pytest.mark.parametrize("make", [worked, queued, typical, killed])
@pytest.mark.parametrize(
    "selection",
    [{}, {"first_step": 3, "last_step": 5}, {"boundary": "contained"}, {"trim": (0.02, 0.05)}],
)
def test_the_spans_of_a_trace_give_the_partition_of_the_report(make, selection):
    recording = make()
    _, (process,) = traced(of(recording, **selection))
    back = partition(process.timeline(), process.window())
    told = analyse(recording, Selection(**selection)).partition
    assert replace(back, unfinished=told.unfinished, observed=told.observed) == told
    talked = total(lanes_of(process.timeline(), process.window()).communication)
    assert talked > 0 or "trim" in selection  # that may be a moment of compute alone
    exposed = process.lane("exposed")
    assert int((exposed.end - exposed.start).sum()) == told.communication_only_ns


def drawn_subject(data) -> Subject:
    sends = data.draw(st.lists(collectives(), max_size=6))
    whole = data.draw(st.booleans())
    tl = Timeline(
        Origin("drawn", "drawn"),
        compute=lane(data.draw(LANE)),
        communication=records([record(**one) for one in sends]),
        copies=lane(data.draw(LANE)),
        waits=lane(data.draw(LANE)),
        ranges=lane(data.draw(LANE)),
        steps=np.array([(1, 0, 1, 20), (2, 0, 20, 45)], STEP),
    )
    window = data.draw(windows())
    choice = Choice(window, tl, np.empty(0, SUMMARY), np.empty(0, np.uint32))
    return Subject(Recording(tl), choice, lanes_of(tl, window), whole)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_timeline_makes_a_trace_that_obeys_the_rules_and_closes(data):
    subject = drawn_subject(data)
    _, (process,) = traced(subject, clock=Clock(0))
    told = partition(subject.timeline, subject.choice.window, subject.lanes)
    back = partition(process.timeline(), process.window())
    for part in (
        "window_ns",
        "compute_ns",
        "communication_ns",
        "overlap_ns",
        "communication_only_ns",
        "idle_ns",
    ):
        assert getattr(back, part) == getattr(told, part)
    tl, shown = subject.timeline, subject.collectives()
    kept = {
        "X": int((shown["finish"] != 0).sum()),
        "B": int((shown["finish"] == 0).sum()),
    }
    mine = [
        one for one in process.events if one.get("cat", "").startswith(("communication", "not_fin"))
    ]
    assert len(mine) == kept["X"] + kept["B"]
    if subject.whole:
        assert len(process.of("compute")) == len(tl.compute)
        assert len(process.of("annotations")) == len(tl.ranges)


# -- what is in it -------------------------------------------------------------------------------


def test_the_worked_example_row_by_row():
    whole, (process,) = traced(of(Job(steps=1).recording()))
    assert whole["otherData"] == {"made by": "a test"}
    assert whole["overlapwatch"] == {"rank 0": {"state": "closed"}}
    at = {
        category: [
            ((one["start"]) / MS, (one["end"]) / MS, one["name"]) for one in process.of(category)
        ]
        for category in (
            "steps",
            "accounted",
            "compute",
            "communication",
            "exposed",
            "waits",
            "tail",
        )
    }
    assert at["steps"] == [(0, 7, "step 0")]
    assert at["accounted"] == [(0, 7, "1 step in statistics: 0")]
    assert at["compute"] == [(0, 6, "backward")]
    assert at["communication"] == [
        (2, 3, "AllReduce bucket 0"), (4, 5, "AllReduce bucket 1"), (6, 7, "AllReduce bucket 2")
    ]  # fmt: skip
    assert at["exposed"] == [(6, 7, "exposed")]
    assert at["waits"] == [(6, 7, "wait")]
    assert at["tail"] == [(6, 7, "tail of step 0"), (6, 7, "residence of bucket 2")]
    (counter,) = [one for one in process.events if one["ph"] == "C"]
    assert {key: float(value) for key, value in counter["args"].items()} == {
        "hidden": 2,
        "exposed": 1,
    }
    facts = process.of("communication")[1]["args"]
    assert (facts["kind"], facts["bucket"], facts["group"], facts["sequence"]) == (
        "AllReduce", "bucket 1", "default", 2,
    )  # fmt: skip
    assert facts["bytes"] == 8_400_000
    assert [facts[f"{mark}_ns"] for mark in ("ready", "launch", "start", "finish")] == [
        4 * MS, 4 * MS, 4 * MS, 5 * MS,
    ]  # fmt: skip
    assert {facts[f"{mark} is"] for mark in ("ready", "launch", "start", "finish")} == {"measured"}
    arrows = [(one["ph"], one["start"]) for one in process.events if one["ph"] in "sf"]
    # The third is ready at the very end of the backward: its arrow begins in the last ns of it.
    assert sorted(arrows) == [
        ("f", 2 * MS), ("f", 4 * MS), ("f", 6 * MS),
        ("s", 2 * MS), ("s", 4 * MS), ("s", 6 * MS - 1),
    ]  # fmt: skip


def test_what_did_not_finish_is_open_and_what_nobody_saw_is_a_moment():
    subject = of(killed())
    _, (process,) = traced(subject)
    running = [one for one in process.events if one["ph"] == "B"]
    assert len(running) == 2
    assert all(one["args"]["state"] == "running" for one in running)
    assert all(one["args"]["finish_ns"] == "not known" for one in running)
    assert all(one["args"]["finish is"] == "unfinished" for one in running)
    job = Job(steps=1)
    seen = job.recording()
    hidden = seen.timeline.communication.copy()
    hidden["finish"][1] = 0
    hidden["flags"][1] |= RecordFlag.FINISH_UNOBSERVABLE
    _, (process,) = traced(of(replace(seen, timeline=replace(seen.timeline, communication=hidden))))
    (moment,) = [one for one in process.events if one["ph"] == "i"]
    assert (moment["name"], moment["args"]["state"]) == ("AllReduce bucket 1", "unobservable")


def test_in_flight_collectives_that_the_timeline_lacks_are_shown_once():
    recording = killed()
    held = recording.timeline.communication
    assert (held["finish"] == 0).sum() == 2
    alone = replace(
        recording, timeline=replace(recording.timeline, communication=held[held["finish"] != 0])
    )
    for one in (recording, alone):
        _, (process,) = traced(of(one))
        assert sum(event["ph"] == "B" for event in process.events) == 2
    _, (process,) = traced(of(alone, first_step=1, last_step=2))
    assert not any(event["ph"] == "B" for event in process.events)


def test_steps_without_events_and_unknown_numbers():
    recording = typical()
    _, (process,) = traced(of(recording))
    assert len(process.of("steps")) == len(recording.summaries) == 60
    names = {one["name"]: one["args"] for one in process.of("steps")}
    assert names["step 0 (unbucketed)"]["communication_ns"] > 0
    assert names["step 15 (shadow)"]["communication_ns"] == "not known"
    counted = [one for one in process.events if one["ph"] == "C"]
    assert len(counted) == int((recording.summaries["communication_ns"] != NOT_KNOWN).sum()) == 52
    assert all("last known" in one["name"] for one in counted)


def test_a_selection_shows_what_reaches_into_it_uncut():
    recording = queued()  # sends of 4 ms reach beyond the compute of their step
    _, (process,) = traced(of(recording, trim=(0.003, 0.005)))
    (send,) = process.of("communication")
    assert (send["start"], send["end"]) == (2 * MS, 6 * MS)
    (window,) = process.of("accounted")
    assert (window["start"], window["end"]) == (3 * MS, 5 * MS)


def test_names_are_only_names():
    hostile = '"},{"ph":"X",<script>\x7f\x00\n\ud800 é'
    job = Job(steps=1, bucket_label=hostile)
    whole, (process,) = traced(of(job.recording()))
    names = [one["name"] for one in process.of("communication")]
    assert names[0] == f"AllReduce {hostile.replace(chr(0xD800), '?')} 0"
    assert len(names) == 3
    assert whole["traceEvents"]


def test_kernels_that_ran_at_once_stand_on_several_rows():
    names = {1: Name(1, NameKind.OPERATION, "gemm"), 2: Name(2, NameKind.OPERATION, "softmax")}
    start = np.array([0, 2, 5, 6], np.int64) * MS + BASE_NS
    end = np.array([5, 4, 6, 9], np.int64) * MS + BASE_NS
    tl = Timeline(
        Origin("kineto", "trace.json", 0),
        compute=Lane(start, end, np.array([1, 2, 1, 9], np.uint32), np.zeros(4, np.uint8)),
        names=names,
    )
    _, (process,) = traced(of(Recording(tl)))
    rows = {one["args"]["name"] for one in process.events if one["name"] == "thread_name"}
    assert {"compute", "compute 2"} <= rows
    assert [one["name"] for one in process.of("compute")] == ["gemm", "softmax", "gemm", "compute"]
    tids = [one["tid"] for one in process.of("compute")]
    assert tids[0] == tids[2] == tids[3] == tids[1] - 1


def test_another_clock_is_brought_to_the_axis_and_an_order_is_kept():
    fit = ClockFit(BASE_NS, 11_560_000_000, 3.2e-6, 40, 4_000, 19_000)
    subject = of(typical())
    clock = Clock(BASE_NS - 20_000_000_000, fit, "clock aligned")
    _, (process,) = traced(subject, clock=clock)
    tl = subject.timeline
    moved = np.sort(np.array([one["start"] for one in process.of("compute")], np.int64))
    expected = np.sort(fit.to_reference(tl.compute.start)) - clock.zero_ns
    assert (moved == expected).all()
    labels = [one["args"] for one in process.events if one["name"] == "process_labels"]
    assert labels == [{"labels": "clock aligned"}]


def test_an_input_without_anything_is_an_empty_process():
    empty = Recording(Timeline(Origin("kineto", "trace.json")))
    _, (process,) = traced(of(empty))
    assert process.spans == []


# -- the stream ----------------------------------------------------------------------------------


class _Counting(io.RawIOBase):
    def __init__(self):
        self.sizes = []

    def write(self, data):
        self.sizes.append(len(data))
        return len(data)


def test_little_is_held_while_much_is_written(monkeypatch):
    monkeypatch.setattr(trace_events, "HELD", 10_000)
    out = _Counting()
    file = TraceFile(out, {})
    subject = of(typical())
    for number in range(1, 6):
        add_process(file, number, f"rank {number}", subject, Clock(BASE_NS))
    file.close({})
    assert len(out.sizes) > 50
    assert max(out.sizes) < 12_000


def test_chunks_do_not_show(monkeypatch):
    from overlapwatch.exports import perfetto, rows

    subject = of(replace(typical(), in_flight=np.empty(0, RECORD)))
    whole, _ = traced(subject)
    monkeypatch.setattr(perfetto, "CHUNK", 7)
    monkeypatch.setattr(rows, "CHUNK", 7)
    small, _ = traced(subject)

    def in_order(trace):
        return sorted(
            (
                event["ph"],
                event["pid"],
                event["tid"],
                event.get("start", 0),
                event["name"],
                event.get("id", 0),
            )
            for event in trace["traceEvents"]
        )

    assert in_order(whole) == in_order(small)

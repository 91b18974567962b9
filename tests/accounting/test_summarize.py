from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.summarize import summarize, summarize_step
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.model import Lane
from overlapwatch.vocabulary import (
    NOT_KNOWN,
    SUMMARY,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    StepFlag,
)
from tests.support.scenarios import (
    MS,
    SCENARIOS,
    at,
    collective,
    lane,
    lanes,
    profile,
    step_rows,
    worked,
)

PARTS = ("communication_ns", "compute_only_ns", "communication_only_ns", "overlap_ns", "idle_ns")
MARKS = (
    "first_ready_ns",
    "first_reduce_start_ns",
    "last_compute_end_ns",
    "last_reduce_end_ns",
    "tail_ns",
)
NAMES = {number: Name(number, NameKind.BUCKET, f"bucket {number}") for number in (1, 2)}


def one_step(flags=0, *, waits=((60, 70),)):
    """A step of 100 ms: backward 10-60, optimizer 70-90, reductions 30-40 and 50-70 of 1,000 bytes each."""
    sends = [
        collective(30, 40, ready=29, owner=1, step=4, phase=Phase.BACKWARD),
        collective(50, 70, ready=45, owner=2, step=4, phase=Phase.BACKWARD),
    ]
    compute = lanes(lane([(10, 60)], Phase.BACKWARD), lane([(70, 90)], Phase.OPTIMIZER))
    base = profile([], sends, steps=step_rows([(4, 0, 100)], flags), names=NAMES, waits=lane(waits))
    return replace(base, compute=compute)


def only(tl):
    row = summarize_step(tl, tl.steps[0])
    assert row.dtype == SUMMARY
    assert row.item() == summarize(tl)[0].item()
    return {name: int(row[name]) for name in SUMMARY.names}


def test_a_whole_step():
    assert only(one_step()) == {
        "step": 4,
        "flags": 0,
        "start_ns": at(0),
        "end_ns": at(100),
        "compute_ns": 70 * MS,
        "communication_ns": 30 * MS,
        "compute_only_ns": 50 * MS,
        "communication_only_ns": 10 * MS,
        "overlap_ns": 20 * MS,
        "idle_ns": 20 * MS,
        "first_ready_ns": at(29),
        "first_reduce_start_ns": at(30),
        "last_compute_end_ns": at(60),
        "last_reduce_end_ns": at(70),
        "tail_ns": 10 * MS,
        "wait_ns": 10 * MS,
        "bytes": 2000,
        "collectives": 2,
        "buckets": 2,
        "unfinished": 0,
        "unobservable": 0,
    }


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("worked")])
def test_worked_example(name):
    case = SCENARIOS[name]()
    tl = replace(case.timeline, steps=step_rows([(0, 0, case.window)]))
    row = only(tl)
    assert row["tail_ns"] == case.tail * MS
    assert row["overlap_ns"] == case.overlap * MS
    assert row["communication_only_ns"] == case.communication_only * MS
    assert row["buckets"] == 3


def test_a_shadow_step_knows_boundaries_wait_and_last_compute():
    row = only(one_step(StepFlag.SHADOW))
    assert (row["start_ns"], row["end_ns"]) == (at(0), at(100))
    assert (row["wait_ns"], row["last_compute_end_ns"]) == (10 * MS, at(60))
    known = {"step", "flags", "start_ns", "end_ns", "wait_ns", "last_compute_end_ns"}
    counts = {"collectives", "buckets", "unfinished", "unobservable"}
    assert {name for name, value in row.items() if value != NOT_KNOWN} == known | counts
    assert [row[name] for name in counts] == [0, 0, 0, 0]


def test_a_partial_step_knows_what_is_left_of_it():
    row = only(one_step(StepFlag.PARTIAL))
    assert all(
        row[name] == NOT_KNOWN for name in (*PARTS, *MARKS, "compute_ns", "wait_ns", "bytes")
    )
    assert (row["collectives"], row["buckets"]) == (2, 2)


@pytest.mark.parametrize(
    ("flags", "count"), [(0, "unfinished"), (RecordFlag.FINISH_UNOBSERVABLE, "unobservable")]
)
def test_a_reduction_without_a_finish_leaves_communication_unknown(flags, count):
    tl = one_step()
    tl.communication["finish"][1] = 0
    tl.communication["flags"][1] = flags
    row = only(tl)
    assert all(row[name] == NOT_KNOWN for name in (*PARTS, "tail_ns", "last_reduce_end_ns"))
    assert (row["compute_ns"], row["first_ready_ns"]) == (70 * MS, at(29))
    assert (row["collectives"], row[count]) == (2, 1)
    assert row["unfinished"] + row["unobservable"] == 1


def test_another_collective_without_a_finish_leaves_lower_bounds():
    tl = one_step()
    other = collective(80, 90, step=4, phase=Phase.FORWARD)
    other["finish"] = 0
    row = only(replace(tl, communication=np.concatenate((tl.communication, other))))
    assert (row["communication_ns"], row["tail_ns"]) == (30 * MS, 10 * MS)
    assert (row["collectives"], row["unfinished"]) == (3, 1)


def test_only_collectives_without_a_span_leave_communication_unknown():
    other = collective(80, 90, step=1, phase=Phase.FORWARD)
    other["finish"] = 0
    row = only(profile([(0, 50)], [other], steps=step_rows([(1, 0, 100)])))
    assert all(row[name] == NOT_KNOWN for name in PARTS)
    assert row["compute_ns"] == 50 * MS


def test_no_collective_is_a_known_zero():
    row = only(profile([(0, 50)], steps=step_rows([(1, 0, 100)])))
    assert (row["communication_ns"], row["idle_ns"], row["wait_ns"], row["bytes"]) == (
        0,
        50 * MS,
        0,
        0,
    )
    assert (row["tail_ns"], row["first_ready_ns"]) == (NOT_KNOWN, NOT_KNOWN)


def test_waits_are_unions_cut_at_the_step():
    row = only(one_step(waits=((-5, 5), (60, 65), (62, 70), (95, 120))))
    assert row["wait_ns"] == (5 + 10 + 5) * MS


def test_waits_that_nobody_recorded_are_not_known():
    assert only(one_step(waits=()))["wait_ns"] == NOT_KNOWN


def test_sizes_that_nobody_recorded_are_not_known():
    tl = one_step()
    tl.communication["bytes"] = 0
    assert only(tl)["bytes"] == NOT_KNOWN


def test_without_names_each_reduction_is_a_bucket():
    assert only(replace(one_step(), names={}))["buckets"] == 2
    same = one_step()
    same.communication["owner"] = 1  # two passes over one bucket
    assert only(same)["buckets"] == 1


def test_steps_are_summed_as_if_alone_and_together_they_are_the_whole():
    """A collective that runs over the edge of a step counts on both sides of it, cut there."""
    compute = [(0, 30), (45, 95), (100, 140)]
    sends = [collective(20, 60, step=1), collective(90, 110, step=1), collective(150, 240, step=2)]
    tl = profile(compute, sends, steps=step_rows([(1, 0, 50), (2, 50, 150), (3, 150, 200)]))
    rows = summarize(tl)
    whole = partition(tl, Window(at(0), at(200), "all"))
    for field in ("compute_ns", *PARTS):
        assert rows[field].sum() == getattr(whole, field)
    alone = [summarize_step(tl, step) for step in tl.steps]
    assert [row.item() for row in rows] == [row.item() for row in alone]
    assert rows["communication_only_ns"].tolist() == [15 * MS, 5 * MS, 50 * MS]


def test_no_steps_no_rows():
    rows = summarize(profile([(0, 1)]))
    assert (rows.dtype, len(rows)) == (SUMMARY, 0)


def test_input_is_left_as_it_was():
    case = worked(4, overlapped=True)
    tl = replace(case.timeline, steps=step_rows([(0, 0, case.window)]))
    before = [
        column.tobytes()
        for column in (tl.communication, tl.compute.start, tl.compute.end, tl.steps)
    ]
    for column in (tl.communication, tl.compute.start, tl.compute.end, tl.steps):
        column.flags.writeable = False
    summarize(tl)
    assert before == [
        column.tobytes()
        for column in (tl.communication, tl.compute.start, tl.compute.end, tl.steps)
    ]
    assert isinstance(tl.compute, Lane)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_step_finds_its_spans_among_those_of_all_steps(shuffled):
    spans = [(0, 95), *((start, start + 1 + start % 9) for start in range(1, 200, 4)), (130, 131)]
    spans.sort()
    if shuffled:
        spans = spans[1::2] + spans[::2]
    numbered = [(number, number * 10, number * 10 + 10) for number in range(21)]
    tl = replace(profile([], steps=step_rows(numbered)), compute=lane(spans), copies=lane(spans))
    assert summarize(tl)["compute_ns"].tolist() == [
        partition(tl, Window(at(low), at(high), "step")).compute_ns for _, low, high in numbered
    ]

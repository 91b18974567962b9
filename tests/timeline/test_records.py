import numpy as np
import pytest

from overlapwatch.timeline.model import Origin, Skipped, Unknown
from overlapwatch.timeline.records import (
    COMPUTE_RULE,
    COMPUTE_RULE_COPIES,
    PHASE_RULE,
    from_marks,
    from_records,
)
from overlapwatch.vocabulary import (
    RECORD,
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)
from tests.support.scenarios import record, records

ORIGIN = Origin("log", "rank0.owlog", rank=0, world=2)
STEP, PHASE, WAIT = RecordKind.STEP, RecordKind.PHASE, RecordKind.WAIT
COLLECTIVE, MARK = RecordKind.COLLECTIVE, RecordKind.MARK


def assemble(*rows, **options):
    return from_records(records(rows), origin=ORIGIN, **options)


def spans(lane):
    columns = (lane.start, lane.end, lane.name, lane.phase)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_whole_step():
    tl = assemble(
        record(kind=STEP, step=7, start=100, finish=200),
        record(kind=PHASE, phase=Phase.BACKWARD, step=7, owner=3, start=130, finish=180),
        record(kind=PHASE, phase=Phase.FORWARD, step=7, owner=3, start=105, finish=130),
        record(kind=WAIT, step=7, start=150, finish=160),
        record(kind=COLLECTIVE, step=7, owner=9, launch=140, start=145, finish=158, bytes=64),
        record(kind=MARK, step=7, start=190, finish=190),
        step_flags={7: StepFlag.SLOW},
        names={9: Name(9, NameKind.BUCKET, "bucket 0")},
        skipped=[Skipped("frames", 1, "torn")],
        unknown=[Unknown("start", "gloo")],
    )
    assert tl.steps.tolist() == [(7, StepFlag.SLOW, 100, 200)]
    assert spans(tl.phases) == [(105, 130, 3, Phase.FORWARD), (130, 180, 3, Phase.BACKWARD)]
    assert spans(tl.compute) == [
        (105, 130, 3, Phase.FORWARD),
        (130, 150, 3, Phase.BACKWARD),
        (160, 180, 3, Phase.BACKWARD),
    ]
    assert spans(tl.waits) == [(150, 160, 0, 0)]
    assert tl.communication["owner"].tolist() == [9]
    assert (tl.compute_rule, tl.phase_rule) == (COMPUTE_RULE, PHASE_RULE)
    assert from_marks(tl)
    assert tl.names[9].text == "bucket 0"
    assert [one.what for one in tl.skipped] == ["frames"]
    assert [one.what for one in tl.unknown] == ["start"]


def test_overlapping_spans_of_two_modules_both_stay():
    tl = assemble(
        record(kind=PHASE, phase=Phase.BACKWARD, owner=1, start=10, finish=30),
        record(kind=PHASE, phase=Phase.FORWARD, owner=2, start=20, finish=40),
        record(kind=WAIT, start=22, finish=25),
    )
    assert spans(tl.compute) == [
        (10, 22, 1, Phase.BACKWARD),
        (25, 30, 1, Phase.BACKWARD),
        (20, 22, 2, Phase.FORWARD),
        (25, 40, 2, Phase.FORWARD),
    ]


def test_a_synchronous_collective_is_a_wait_of_its_caller():
    times = {"launch": 20, "start": 24, "finish": 30}
    tl = assemble(
        record(kind=PHASE, phase=Phase.BACKWARD, start=10, finish=40),
        record(kind=COLLECTIVE, owner=5, flags=RecordFlag.SYNCHRONOUS, **times),
        record(kind=COLLECTIVE, **times),
    )
    assert spans(tl.waits) == [(20, 30, 5, 0)]
    assert [one[:2] for one in spans(tl.compute)] == [(10, 20), (30, 40)]


def test_what_still_runs_ends_at_the_last_moment_its_step_has_seen():
    tl = assemble(
        record(kind=STEP, step=1, start=10, finish=50),
        record(kind=STEP, step=2, start=50),
        record(kind=PHASE, phase=Phase.BACKWARD, step=2, start=60),
        record(kind=COLLECTIVE, step=2, launch=70, flags=RecordFlag.SYNCHRONOUS),
        record(kind=COLLECTIVE, step=2, launch=65, finish=90),
        record(kind=STEP, step=3, start=500, finish=600),
    )
    assert tl.steps.tolist() == [
        (1, 0, 10, 50),
        (2, StepFlag.PARTIAL, 50, 91),
        (3, 0, 500, 600),
    ]
    assert spans(tl.phases) == [(60, 91, 0, Phase.BACKWARD)]
    # A hang is not compute: the caller stands still up to now.
    assert spans(tl.waits) == [(70, 91, 0, 0)]
    assert [one[:2] for one in spans(tl.compute)] == [(60, 70)]
    assert tl.communication["finish"].tolist() == [0, 90]  # and stays unfinished


def test_other_phases_are_no_compute():
    tl = assemble(record(kind=PHASE, phase=Phase.OTHER, start=10, finish=20))
    assert len(tl.phases) == 1
    assert len(tl.compute) == 0


@pytest.mark.parametrize("times", [{"start": 0, "finish": 20}, {"start": 30, "finish": 20}])
def test_what_is_no_span_is_left_out_and_counted(times):
    tl = assemble(record(kind=WAIT, **times), record(kind=200, start=1, finish=2))
    assert len(tl.waits) == 0
    assert [(one.what, one.count) for one in tl.skipped] == [
        ("step, phase and wait records", 1),
        ("records", 1),
    ]


def test_no_records():
    tl = from_records(np.empty(0, RECORD), origin=ORIGIN)
    assert not len(tl.compute)
    assert not len(tl.steps)
    assert tl.skipped == ()


COPY, HELD = RecordKind.COPY, RecordKind.HELD
GATHER = CollectiveKind.ALL_GATHER


def test_copies_are_cut_out_of_compute_where_they_are_on_its_queue():
    forward = record(kind=PHASE, phase=Phase.FORWARD, step=1, start=10, finish=30)
    in_line = record(kind=COPY, step=1, owner=4, start=12, finish=15)
    beside = record(kind=COPY, step=1, owner=4, stream=2, start=20, finish=25)
    tl = assemble(forward, in_line, beside)
    assert spans(tl.compute) == [(10, 12, 0, Phase.FORWARD), (15, 30, 0, Phase.FORWARD)]
    assert spans(tl.copies) == [(12, 15, 4, 0), (20, 25, 4, 0)]
    assert (tl.compute_rule, from_marks(tl)) == (COMPUTE_RULE_COPIES, True)
    assert assemble(forward, beside).compute_rule == COMPUTE_RULE


def test_a_wait_for_a_collective_is_a_wait_and_a_use():
    use = record(kind=WAIT, collective=GATHER, owner=4, step=1, start=20, finish=22)
    short = record(kind=WAIT, collective=GATHER, owner=5, step=1, start=12, finish=12)
    nameless = record(kind=WAIT, step=1, start=15, finish=16)
    tl = assemble(use, short, nameless)
    assert tl.uses["owner"].tolist() == [5, 4]
    assert [span[:2] for span in spans(tl.waits)] == [(12, 12), (15, 16), (20, 22)]


def test_what_is_held_at_the_end_ends_where_its_step_was_seen_to_and_says_so():
    closed = record(kind=HELD, owner=4, step=1, bytes=64, start=20, finish=25)
    still = record(kind=HELD, owner=5, step=1, bytes=32, start=12)
    tl = assemble(record(kind=STEP, step=1, start=10, finish=40), closed, still)
    assert tl.held[["owner", "bytes", "start", "finish"]].tolist() == [
        (5, 32, 12, 41),
        (4, 64, 20, 25),
    ]
    assert tl.held["flags"].tolist() == [RecordFlag.FINISH_ESTIMATED, 0]
    assert still["finish"].tolist() == [0]  # the records themselves are left as they were


def test_damaged_copies_and_holds_are_counted():
    tl = assemble(
        record(kind=COPY, step=1, start=9, finish=3),
        record(kind=HELD, step=1, finish=3),
        record(kind=HELD, step=1, start=2, finish=3),
    )
    assert len(tl.held) == 1
    assert len(tl.copies) == 0
    assert [(one.what, one.count) for one in tl.skipped] == [("copy and held records", 2)]

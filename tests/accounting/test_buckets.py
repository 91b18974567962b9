from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.buckets import Provenance, bucket_table, provenance
from overlapwatch.vocabulary import Name, NameKind, Phase, RecordFlag, StepFlag
from tests.support.scenarios import MS, collective, lane, profile, records, step_rows

NAMES = {
    1: Name(
        1, NameKind.BUCKET, "bucket 0", members=(11, 12), elements=300, bytes=1200, dtype="float32"
    ),
    2: Name(
        2, NameKind.BUCKET, "bucket 1", members=(13,), elements=100, bytes=400, dtype="float32"
    ),
    3: Name(
        3,
        NameKind.BUCKET,
        "whole model",
        members=(11, 12, 13),
        elements=400,
        bytes=1600,
        dtype="float32",
    ),
    11: Name(11, NameKind.PARAMETER, "head.weight"),
    12: Name(12, NameKind.PARAMETER, "head.bias"),
    13: Name(13, NameKind.PARAMETER, "embed.weight"),
}


def bucket(begin, start, finish, *, ready, launch, owner=1, **fields):
    """A reduction; times in ms after `begin`."""
    row = collective(begin + start, begin + finish, ready=begin + ready, owner=owner, **fields)
    row["launch"] += round((launch - ready) * MS)
    return row


def step(number, begin, *, slower=0.0):
    """Backward at 10-60 ms of a step of 100 ms; two buckets."""
    return [
        bucket(begin, 22, 30, ready=20, launch=21, owner=1, step=number, cause=12),
        bucket(begin, 50, 70 + slower, ready=40, launch=41, owner=2, step=number, cause=13),
    ]


def timeline(rows, steps, flags=(), names=NAMES):
    steps = step_rows([(number, begin, begin + 100) for number, begin in steps])
    for number, flag in flags:
        steps["flags"][steps["step"] == number] = flag
    backward = lane(
        [(begin + 10, begin + 60) for begin in (steps["start"] - 1_000_000_000) / MS],
        Phase.BACKWARD,
    )
    return replace(profile([], rows, steps=steps, names=names, phases=backward), compute=backward)


def test_one_life():
    table = bucket_table(timeline(step(5, 0), [(5, 0)]))
    first, second = table.rows
    assert [row.name for row in table.rows] == ["bucket 0", "bucket 1"]
    assert (first.ready.median_ns, first.launch.median_ns) == (10 * MS, 11 * MS)
    assert (first.start.median_ns, first.finish.median_ns) == (12 * MS, 20 * MS)
    assert (first.launch_delay_ns, first.queue_ns, first.residence_ns) == (MS, MS, 8 * MS)
    assert first.launch_to_finish_ns == 9 * MS
    assert (first.hidden_ns, first.exposed_ns) == (8 * MS, 0)
    assert (second.queue_ns, second.residence_ns, second.launch_to_finish_ns) == (
        9 * MS,
        20 * MS,
        29 * MS,
    )
    assert (second.hidden_ns, second.exposed_ns) == (10 * MS, 10 * MS)
    assert (second.hidden_total_ns, second.span_total_ns, second.spans) == (10 * MS, 20 * MS, 1)
    assert table.unbucketed == table.unknown == ()


def test_what_a_bucket_is_made_of():
    first, second = bucket_table(timeline(step(5, 0), [(5, 0)])).rows
    assert (first.parameters, first.first_parameter, first.last_parameter) == (
        2,
        "head.weight",
        "head.bias",
    )
    assert (first.elements, first.bytes, first.dtype) == (300, 1200, "float32")
    assert (first.gated_by, first.gated_count) == ("head.bias", 1)
    assert (second.first_parameter, second.last_parameter) == ("embed.weight", "embed.weight")


def test_medians_over_steps_are_relative_to_each_backward():
    rows = [
        one
        for number, slower in enumerate((0, 30, 2))
        for one in step(number, 200 * number, slower=slower)
    ]
    _, second = bucket_table(timeline(rows, [(number, 200 * number) for number in range(3)])).rows
    assert (second.count, second.steps) == (3, 3)
    assert second.ready.median_ns == 30 * MS
    assert second.residence_ns == 22 * MS
    assert second.finish.median_ns == 62 * MS
    assert second.exposed_ns == 12 * MS


def test_overlapping_buckets_may_expose_more_than_the_step():
    rows = [
        bucket(0, 50, 80, ready=50, launch=50, owner=1, step=1, stream=1),
        bucket(0, 55, 80, ready=55, launch=55, owner=2, step=1, stream=2),
    ]
    found = bucket_table(timeline(rows, [(1, 0)])).rows
    assert [row.exposed_ns for row in found] == [20 * MS, 20 * MS]  # the step exposes 20


def test_the_unbucketed_first_iteration_is_listed_apart():
    early = bucket(0, 61, 95, ready=60, launch=60, owner=3, step=1)
    rows = [early, *step(2, 200), *step(3, 400)]
    flags = [(1, StepFlag.UNBUCKETED), (2, StepFlag.REBUILT)]
    table = bucket_table(timeline(rows, [(1, 0), (2, 200), (3, 400)], flags))
    assert [(row.name, row.count) for row in table.rows] == [("bucket 0", 1), ("bucket 1", 1)]
    assert [(row.name, row.count, row.bytes) for row in table.unbucketed] == [
        ("whole model", 1, 1600)
    ]


@pytest.mark.parametrize("flag", [StepFlag.SHADOW, StepFlag.PARTIAL, StepFlag.DISTURBED])
def test_other_steps_out_of_statistics_are_in_no_row(flag):
    table = bucket_table(timeline([*step(1, 0), *step(2, 200)], [(1, 0), (2, 200)], [(1, flag)]))
    assert [row.count for row in table.rows] == [1, 1]
    assert bucket_table(timeline(step(1, 0), [(1, 0)], [(1, flag)])).unbucketed == ()


def test_the_gate_is_the_most_frequent_one():
    rows = [one for number in range(3) for one in step(number, 200 * number)]
    rows[0]["cause"] = 11
    first, _ = bucket_table(timeline(rows, [(number, 200 * number) for number in range(3)])).rows
    assert (first.gated_by, first.gated_count, first.count) == ("head.bias", 2, 3)
    for one in rows:
        one["cause"] = 0
    first, _ = bucket_table(timeline(rows, [(number, 200 * number) for number in range(3)])).rows
    assert (first.gated_by, first.gated_count) == ("", 0)
    assert first.to_dict()["gated_by"] is None


def test_what_was_not_recorded_is_not_a_number():
    rows = step(1, 0)
    rows[0]["ready"] = rows[0]["start"] = 0
    rows[1]["finish"] = 0
    first, second = bucket_table(timeline(rows, [(1, 0)])).rows
    assert (first.ready.median_ns, first.ready.known) == (None, 0)
    assert first.ready.provenance is Provenance.NOT_RECORDED
    assert (first.launch_delay_ns, first.queue_ns, first.residence_ns) == (None, None, None)
    assert first.launch_to_finish_ns == 9 * MS
    assert second.finish.provenance is Provenance.UNFINISHED
    assert (second.residence_ns, second.hidden_ns, second.exposed_ns) == (None, None, None)
    assert second.to_dict()["hidden_total_ns"] is None
    assert second.to_dict()["finish"] == {"median_ns": None, "known": 0, "provenance": "unfinished"}


def test_without_a_backward_moments_are_not_known_and_durations_are():
    tl = timeline(step(1, 0), [(1, 0)])
    nothing = lane([])
    table = bucket_table(replace(tl, phases=nothing, compute=nothing))
    assert table.rows[0].ready.median_ns is None
    assert table.rows[0].residence_ns == 8 * MS
    assert table.unknown[0].because == "the start of the backward of their step is not known"


def test_buckets_of_steps_that_are_not_there_are_said():
    table = bucket_table(timeline([*step(1, 0), *step(7, 700)], [(1, 0)]))
    assert [row.count for row in table.rows] == [1, 1]
    assert table.unknown[0].what.startswith("when 2 bucket reductions")


def test_no_buckets_no_rows():
    other = collective(20, 30, owner=13, step=1)
    table = bucket_table(timeline([other], [(1, 0)]))
    assert (table.rows, table.unbucketed, table.unknown) == ((), (), ())
    assert bucket_table(profile()).to_dict() == {"rows": [], "unbucketed": []}


@pytest.mark.parametrize(
    ("field", "times", "flags", "word"),
    [
        ("start", (1, 2), (0, 0), "measured"),
        ("start", (1, 2), (RecordFlag.START_ESTIMATED,) * 2, "estimated"),
        ("start", (1, 2), (RecordFlag.START_ESTIMATED, 0), "mixed"),
        ("start", (0, 0), (0, 0), "not recorded"),
        ("start", (1, 0), (0, 0), "mixed"),
        ("ready", (1, 2), (RecordFlag.START_ESTIMATED,) * 2, "measured"),  # another time's flag
        ("finish", (0, 0), (RecordFlag.FINISH_UNOBSERVABLE,) * 2, "unobservable"),
        ("finish", (0, 0), (0, 0), "unfinished"),
        ("finish", (0, 0), (RecordFlag.FINISH_UNOBSERVABLE, 0), "mixed"),
    ],
)
def test_provenance_words(field, times, flags, word):
    rows = records([collective(1, 2), collective(1, 2)])
    rows[field] = np.array(times)
    rows["flags"] = np.array(flags)
    assert provenance(rows, field).value == word

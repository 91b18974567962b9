from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlapwatch.accounting import blocks
from overlapwatch.accounting.blocks import Drawing, longest, provenance_letters
from overlapwatch.accounting.buckets import bucket_table, provenance
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.intervals import subtract, total, union
from overlapwatch.timeline.model import Lane, Origin, Timeline
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import (
    NOT_KNOWN,
    OUT_OF_STATISTICS,
    RECORD,
    Phase,
    RecordFlag,
    RecordKind,
)
from tests.reports import recordings
from tests.support.scenarios import at, collective, lane, records, step_rows

MS = 1_000_000
WORDS = {
    "m": "measured",
    "e": "estimated",
    "u": "unobservable",
    "f": "unfinished",
    "n": "not recorded",
}


def pairs(iv, zero: int) -> list[tuple[float, float]]:
    return [
        ((start - zero) / MS, (end - zero) / MS)
        for start, end in zip(iv.start.tolist(), iv.end.tolist(), strict=True)
    ]


def test_a_step_of_the_worked_example():
    """Sends at 2-3, 4-5 and 6-7 ms, compute to 6: one is exposed, and compute waits for it."""
    tl = recordings.worked().timeline
    one = Drawing(tl).step(tl.steps[3])
    zero = one.start_ns
    assert (one.step, one.end_ns - zero) == (3, 7 * MS)
    assert pairs(one.compute, zero) == [(0, 6)]
    assert [(begin - zero) // MS for begin in one.begin.tolist()] == [2, 4, 6]
    assert one.hidden.tolist() == [MS, MS, 0]
    assert one.waited.tolist() == [0, 0, MS]
    assert pairs(one.exposed, zero) == pairs(one.waits, zero) == [(6, 7)]
    assert (one.merged, one.gap_ns, one.left_out) == (0, 0, 0)
    assert all(check.ok for check in one.checks())


@pytest.mark.parametrize("name", ["worked", "queued", "serial", "typical", "host_times", "fsdp2"])
def test_what_is_drawn_of_all_steps_is_what_is_told_of_them(name):
    tl = getattr(recordings, name)().timeline
    drawing = Drawing(tl)
    steps = [(drawing.step(row), int(row["flags"])) for row in tl.steps]
    assert all(check.ok for one, _ in steps for check in one.checks())
    drawn = [one for one, flags in steps if not flags & OUT_OF_STATISTICS]
    for row in bucket_table(tl).rows:
        hidden = [
            int(value)
            for one in drawn
            for value in one.hidden[
                (one.records["owner"] == row.owner) & (one.records["step"] == one.step)
            ]
        ]
        assert len(hidden) == row.spans
        assert median(np.array(hidden, np.int64)) == row.hidden_ns


def test_a_collective_that_outlives_its_step_is_in_both():
    tl = Timeline(
        Origin("test", "x"),
        compute=lane([(0, 10), (10, 20)], Phase.BACKWARD),
        communication=records([collective(8, 12, step=1), collective(15, 16, step=2)]),
        steps=step_rows([(1, 0, 10), (2, 10, 20)]),
    )
    first, second = (Drawing(tl).step(row) for row in tl.steps)
    assert first.records["step"].tolist() == [1]
    assert second.records["step"].tolist() == [1, 2]
    assert first.hidden.tolist() == [4 * MS]
    assert first.waited.tolist() == [NOT_KNOWN]  # a timeline without waits does not know


def test_what_has_no_span_is_there_all_the_same():
    flying = collective(5, 6, step=1)
    flying["finish"] = flying["start"] = 0
    without = collective(5, 6, step=1)
    for field in ("ready", "launch", "start"):
        without[field] = 0
    without["finish"] = 0
    without["flags"] = RecordFlag.FINISH_UNOBSERVABLE
    tl = Timeline(
        Origin("test", "x"), communication=records([flying, without]), steps=step_rows([(1, 0, 10)])
    )
    one = Drawing(tl).step(tl.steps[0])
    assert sorted(one.begin.tolist()) == [0, at(5)]
    assert one.hidden.tolist() == [NOT_KNOWN] * 2
    assert sorted(provenance_letters(one.records)) == ["mmnf", "nnnu"]
    stretch = Drawing(tl).stretch(at(0), at(10))
    assert len(stretch.records) == 1  # nobody knows when the other one was


times = st.integers(0, 12)


@given(
    st.lists(st.tuples(times, times, times, st.integers(1, 3)), max_size=12),
    times,
    times,
    st.integers(1, 4),
)
@example([(0, 1, 3, 1)], 2, 0, 2)  # a stretch without a moment, inside a collective
def test_which_collectives_are_drawn(rows, low, length, step):
    """Those of the step, and those of which a moment lies in the stretch."""
    array = np.zeros(len(rows), RECORD)
    for place, (launch, start, finish, number) in enumerate(rows):
        array[place]["kind"], array[place]["step"] = RecordKind.COLLECTIVE, number
        for field, moment in (("launch", launch), ("start", start), ("finish", finish)):
            array[place][field] = 100 + moment if moment else 0
    one = Drawing(Timeline(Origin("test", "x"), communication=array)).stretch(
        100 + low, 100 + low + length, step
    )
    expected = []
    for row, begin in zip(array, begin_of(array).tolist(), strict=True):
        at = begin or int(row["launch"])
        inside = range(100 + low, 100 + low + length)
        reaches = at and any(
            moment in inside for moment in range(at, max(int(row["finish"]), at + 1))
        )
        if reaches or row["step"] == step:
            expected.append(row.tobytes())
    assert sorted(row.tobytes() for row in one.records) == sorted(expected)


def test_a_stretch_without_anything():
    one = Drawing(Timeline(Origin("test", "x"))).stretch(at(0), at(10))
    assert len(one.count) == len(one.records) == 0
    assert all(check.ok for check in one.checks())


spans = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20), st.integers(0, 2)), max_size=40)


@given(spans, st.integers(1, 12))
def test_at_most_so_many_blocks_and_only_short_gaps_are_lost(rows, most):
    start = np.array([at(low) for low, _, _ in rows], np.int64)
    end = start + np.array([length for _, length, _ in rows], np.int64) * MS
    name = np.array([one for _, _, one in rows], np.uint32)
    tl = Timeline(
        Origin("test", "x"), compute=Lane(start, end, name, np.zeros(len(rows), np.uint8))
    )
    one = Drawing(tl).stretch(at(0), at(300), most=most)
    inside = end > at(0)
    assert len(one.count) <= most
    assert one.count.sum() == inside.sum()
    drawn, there = union(one.compute.start, one.compute.end), union(start, end)
    assert total(subtract(there, drawn)) == 0
    lost = subtract(drawn, there)
    assert max((lost.end - lost.start).tolist(), default=0) <= one.gap_ns
    kept = subtract(union(np.array([at(0)]), np.array([at(300)])), drawn)
    between = (kept.end - kept.start)[
        (kept.start > start.min(initial=at(300))) & (kept.end < at(300))
    ]
    assert min(between.tolist(), default=one.gap_ns) >= one.gap_ns
    for block in range(len(one.count)):
        mine = name[inside & (start >= one.compute.start[block]) & (end <= one.compute.end[block])]
        if one.count[block] == 1:
            assert one.compute.name[block] in mine
        elif one.compute.name[block]:
            assert set(mine.tolist()) == {int(one.compute.name[block])}


def test_the_shortest_collectives_are_left_out_and_counted():
    tl = Timeline(
        Origin("test", "x"),
        communication=records([collective(10 * i, 10 * i + 1 + i % 5) for i in range(20)]),
    )
    one = Drawing(tl).stretch(at(0), at(200), most=8)
    assert one.left_out == 12
    assert (one.records["finish"] - one.records["start"]).min() >= 3 * MS
    assert one.begin.tolist() == sorted(one.begin.tolist())
    whole = Drawing(tl).stretch(at(0), at(200))
    assert total(one.exposed) == total(whole.exposed)
    assert all(check.ok for check in one.checks())


def test_what_has_no_length_is_never_left_out():
    assert longest(np.array([5, NOT_KNOWN, 9, 1]), 2).tolist() == [1, 2]


@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=4, max_size=4), st.integers(0, 255)),
        min_size=1,
        max_size=5,
    )
)
def test_letters_are_the_words_of_the_table_of_buckets(rows):
    array = np.zeros(len(rows), RECORD)
    array["kind"] = RecordKind.COLLECTIVE
    for place, (present, flags) in enumerate(rows):
        array["flags"][place] = flags
        for field, there in zip(("ready", "launch", "start", "finish"), present, strict=True):
            array[field][place] = 7 if there else 0
    for place, letters in enumerate(provenance_letters(array)):
        for field, letter in zip(("ready", "launch", "start", "finish"), letters, strict=True):
            assert WORDS[letter] == provenance(array[place : place + 1], field).value


def test_a_check_can_fail():
    tl = recordings.worked().timeline
    one = Drawing(tl).step(tl.steps[0])
    assert not replace(one, communication_only_ns=5).checks()[0].ok
    assert blocks.MOST >= 1000

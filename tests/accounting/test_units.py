"""Modules as communication units: the FSDP2 step of `tests/support/units.py`, whose answers are in its table."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.accounting.selection import Selection
from overlapwatch.accounting.tail import reduced_by_module
from overlapwatch.timeline.records import COMPUTE_RULE_COPIES, from_marks
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag, RecordKind
from tests.reports import recordings
from tests.support import units as job
from tests.support.units import BLOCK0, BLOCK1, BLOCK2, GPT

MS = 1_000_000
FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
GATHER, SCATTER, REDUCE = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)


def told(steps: int = 1, records: np.ndarray | None = None, **selection):
    analysis = analyse(job.recording(steps, records), Selection(**selection))
    assert [check for check in analysis.checks if not check.ok] == []
    return analysis


def changed(change, *, steps: int = 1):
    records = np.concatenate([job.step_records(step) for step in range(1, steps + 1)])
    change(records)
    return told(records=records)


def collective(records, kind, owner, phase=None):
    chosen = (records["kind"] == RecordKind.COLLECTIVE) & (records["collective"] == kind)
    chosen &= records["owner"] == owner
    return chosen if phase is None else chosen & (records["phase"] == phase)


def test_a_job_of_buckets_has_no_units():
    analysis = analyse(recordings.worked())
    assert analysis.units is None
    assert analysis.to_dict()["units"] is None


def test_each_module_against_the_compute_lane():
    cells = {
        (one.module, one.phase, one.kind): (
            one.count,
            one.prefetched,
            one.overlap_ns,
            one.exposed_ns,
        )
        for one in told().units.modules.cells
    }
    assert cells == {
        ("GPT", FORWARD, GATHER): (1, 0, 0, 2 * MS),
        ("GPT", BACKWARD, SCATTER): (1, 0, 0, 2 * MS),
        ("blocks.0", FORWARD, GATHER): (1, 0, 0, 2 * MS),
        ("blocks.0", BACKWARD, GATHER): (1, 1, MS, MS),
        ("blocks.0", BACKWARD, SCATTER): (1, 0, 0, 3 * MS),
        ("blocks.1", FORWARD, GATHER): (1, 0, 0, 2 * MS),
        ("blocks.1", BACKWARD, GATHER): (1, 1, 2 * MS, 0),
        ("blocks.1", BACKWARD, SCATTER): (1, 0, 3 * MS, 0),
        ("blocks.2", FORWARD, GATHER): (1, 1, 2 * MS, 2 * MS),
        ("blocks.2", BACKWARD, SCATTER): (1, 0, 3 * MS, 0),
    }


def test_modules_that_overlap_leave_a_remainder():
    def together(records):
        # blocks.1's reduce-scatter runs while blocks.2's does: 20-23 and 21-24, three of them under compute.
        one = collective(records, SCATTER, BLOCK1)
        records["launch"][one] = records["start"][one] = job.at(21)
        records["finish"][one] = job.at(24)

    table = changed(together).units.modules
    assert (table.remainder.union_ns, table.remainder.overlap_ns) == (3 * MS, 3 * MS)
    assert table.remainder.exposed_ns == 0


def test_a_collective_of_no_module_is_counted_beside_them():
    def stranger(records):
        records["owner"][collective(records, SCATTER, BLOCK2)] = 0

    table = changed(stranger).units.modules
    assert (table.owned, table.others, table.collectives) == (9, 1, 10)


def test_slack_by_module_and_phase():
    rows = {(row.module, row.phase): row for row in told(2).units.uses.rows}
    slack = {key: (row.median_ns, row.stalls, row.stall_ns) for key, row in rows.items()}
    assert slack == {
        ("GPT", FORWARD): (-2 * MS, 2, 4 * MS),
        ("GPT", BACKWARD): (None, 0, 0),
        ("blocks.0", FORWARD): (-2 * MS, 2, 4 * MS),
        ("blocks.0", BACKWARD): (-MS, 2, 2 * MS),
        ("blocks.1", FORWARD): (-4 * MS, 2, 8 * MS),
        ("blocks.1", BACKWARD): (2 * MS, 0, 0),
        ("blocks.2", FORWARD): (5 * MS, 0, 0),
        ("blocks.2", BACKWARD): (None, 0, 0),
    }
    held = {key for key, row in rows.items() if row.held}
    assert held == {("GPT", BACKWARD), ("blocks.2", BACKWARD)}
    assert rows["blocks.0", BACKWARD].to_dict()["prefetched"] == 2
    assert rows["GPT", BACKWARD].to_dict()["stalls"] is None


def test_stalls_and_the_waits_recorded():
    uses = told().units.uses
    assert (uses.stall_ns, uses.wait_ns, uses.known_wait_ns) == (9 * MS, 19 * MS // 2, 19 * MS // 2)
    assert sum(row.beyond_ns for row in uses.rows) == MS // 2  # GPT is copied out at 2-2.5
    (wait,) = uses.gradients
    assert (wait.module, wait.count, wait.wait_ns) == ("GPT", 1, 5 * MS)


def test_a_finish_stamped_late_counts_as_the_moment_of_use():
    def late(records):
        records["finish"][collective(records, GATHER, BLOCK1, FORWARD)] = job.at(13)

    (row,) = [
        row
        for row in changed(late).units.uses.rows
        if (row.module, row.phase) == ("blocks.1", FORWARD)
    ]
    assert (row.stall_ns, row.estimated, row.beyond_ns) == (4 * MS, 1, 0)


@pytest.mark.parametrize("flags", [0, RecordFlag.FINISH_UNOBSERVABLE])
def test_a_finish_that_is_not_known_leaves_the_slack_unknown(flags):
    def unseen(records):
        one = collective(records, GATHER, BLOCK1, BACKWARD)
        records["finish"][one], records["flags"][one] = 0, flags

    analysis = changed(unseen)
    (row,) = [
        row for row in analysis.units.uses.rows if (row.module, row.phase) == ("blocks.1", BACKWARD)
    ]
    assert (row.known, row.median_ns, row.to_dict()["stall_ns"]) == (0, None, None)
    assert any(one.what.startswith("the prefetch slack of 1 of 8") for one in analysis.unknown)


def test_an_all_gather_that_no_use_consumed():
    def unused(records):
        wait = (records["kind"] == RecordKind.WAIT) & (records["owner"] == BLOCK2)
        records["owner"][wait] = 0

    uses = changed(unused).units.uses
    assert uses.never_used == 0  # of modules without a use nothing is claimed

    def twice(records):
        one = collective(records, GATHER, BLOCK1, FORWARD)
        other = collective(records, GATHER, BLOCK0, FORWARD)
        records["owner"][other] = BLOCK1
        assert one.sum() == other.sum() == 1

    assert changed(twice).units.uses.never_used == 1


def test_the_ends_of_a_step():
    ends = told(3).units.edges
    assert (ends.first.module, ends.first.kind, ends.first.exposed_ns) == ("GPT", GATHER, 6 * MS)
    assert (ends.last.module, ends.last.kind, ends.last.exposed_ns) == ("GPT", SCATTER, 6 * MS)
    assert (ends.exposed_ns, ends.rest_ns, ends.all_exposed_ns) == (12 * MS, 30 * MS, 42 * MS)


def test_the_wrong_prefetch_is_named():
    (one,) = told(3).units.order
    assert (one.module, one.by, one.needed, one.phase) == (
        "blocks.2",
        "blocks.0",
        "blocks.1",
        FORWARD,
    )
    assert (one.count, one.steps, one.never_used, one.stalls) == (3, 3, 0, 3)
    assert (one.stall_ns, one.behind_ns) == (12 * MS, 6 * MS)


def test_a_prefetch_that_nobody_used_and_its_bytes():
    def gone(records):
        """blocks.2 is not used in this step at all: it was gathered for nothing."""
        wait = (records["kind"] == RecordKind.WAIT) & (records["owner"] == BLOCK2)
        records["owner"][wait] = 0

    (one,) = changed(gone).units.order
    assert (one.module, one.never_used, one.bytes, one.needed) == (
        "blocks.2",
        1,
        8_000_000,
        "blocks.1",
    )


def test_prefetches_in_order_are_not_accused():
    def right(records):
        """blocks.0 prefetches blocks.1, and blocks.1 blocks.2, two levels deep."""
        two, one = (collective(records, GATHER, owner, FORWARD) for owner in (BLOCK2, BLOCK1))
        records["launch"][one], records["start"][one], records["finish"][one] = map(
            job.at, (5, 5, 7)
        )
        records["launch"][two], records["start"][two], records["finish"][two] = map(
            job.at, (5.1, 7, 9)
        )
        for which in (one, two):
            records["cause"][which] = BLOCK0
            records["flags"][which] = RecordFlag.PREFETCHED

    assert changed(right).units.order == ()


def test_what_queued_behind_what():
    queues = told(2).units.queueing
    rows = {(row.kind, row.ahead): row for row in queues.rows}
    assert {key: (row.count, row.launched, row.queued_ns) for key, row in rows.items()} == {
        (GATHER, SCATTER): (2, 12, 5 * MS),
        (SCATTER, GATHER): (2, 8, 2 * MS),
        (SCATTER, SCATTER): (2, 8, 6 * MS),
        (GATHER, GATHER): (2, 12, 4 * MS),
    }
    assert rows[GATHER, SCATTER].longest == ("blocks.0", "blocks.2")
    assert queues.crossed_ns == 7 * MS
    assert [row.crossed for row in queues.rows] == [True, True, False, False]


def test_a_group_of_its_own_ends_the_queue_between_kinds():
    def apart(records):
        records["group"][records["collective"] == SCATTER] = 2

    queues = changed(apart).units.queueing
    assert queues.crossed_ns == 0
    assert {(row.kind, row.ahead) for row in queues.rows} == {(SCATTER, SCATTER), (GATHER, GATHER)}
    assert (queues.stood_ns, queues.seen_ns, queues.nothing_seen_ns) == (
        17 * MS // 2,
        5 * MS,
        7 * MS // 2,
    )


def test_a_start_that_is_not_known_leaves_the_queue_unknown():
    def untold(records):
        records["start"][collective(records, SCATTER, BLOCK1)] = 0

    analysis = changed(untold)
    queues = analysis.units.queueing
    assert (queues.without_queue, queues.collectives) == (1, 10)
    assert any(one.what.startswith("what 1 of 10 collectives") for one in analysis.unknown)
    assert not any(row.kind is SCATTER and row.ahead is GATHER for row in queues.rows)


def test_on_a_device_the_communicator_shows_its_queue_by_what_ran_on_another_stream():
    def device(records):
        """Both streams came to theirs at 20: the reduce-scatter 20-23, the all-gather waits for it and ends at 25."""
        gathers, scatters = (records["collective"] == kind for kind in (GATHER, SCATTER))
        sent = records["kind"] == RecordKind.COLLECTIVE
        records["stream"][sent & gathers], records["stream"][sent & scatters] = 2, 3
        one = collective(records, GATHER, BLOCK0, BACKWARD)
        records["start"][one] = job.at(20.5)

    rows = {(row.kind, row.ahead): row for row in changed(device).units.queueing.rows}
    assert rows[GATHER, SCATTER].queued_ns == 5 * MS // 2
    assert (GATHER, GATHER) not in rows


def test_memory_over_time():
    memory = told(2).units.residency
    assert (memory.peak_bytes, memory.peak_step, memory.peak_ns) == (20_000_000, 1, 5 * MS)
    assert [name for name, _ in memory.peak_modules] == ["blocks.0", "blocks.2", "GPT"]
    assert (memory.median_peak_bytes, memory.all_bytes, memory.held) == (20_000_000, 28_000_000, 12)
    assert (memory.with_next_bytes, memory.next_module) == (28_000_000, "blocks.1")
    assert memory.at_peak_next_bytes == 8_000_000
    area = 4 * 28 + 8 * (4 + 15 + 7 + 8 + 7.5)
    assert memory.byte_ns == 2 * area * MS * 1_000_000
    assert memory.course(job.at(0), job.at(4), 4) == [
        (job.at(0), 4_000_000),
        (job.at(1), 4_000_000),
        (job.at(2), 4_000_000),
        (job.at(3), 12_000_000),
    ]


def test_parameters_that_stay_held_count_to_the_end_of_their_step_and_it_says_so():
    def kept(records):
        held = (records["kind"] == RecordKind.HELD) & (records["owner"] == GPT)
        records["finish"][held] = 0

    analysis = changed(kept)
    memory = analysis.units.residency
    assert (memory.open, memory.byte_ns) == (1, int((4 * 34 + 8 * 41.5) * MS * 1_000_000))
    assert any(one.what.startswith("how long 1 of 6 holds") for one in analysis.unknown)


def test_a_part_that_stays_held_after_resharding_counts_with_its_own_bytes():
    def part(records):
        rest = (records["kind"] == RecordKind.HELD) & (records["owner"] == BLOCK1)
        first, second = np.flatnonzero(rest)
        records["bytes"][second] = 1_000_000  # 16-24 ms: an eighth of it
        assert records["start"][first] == job.at(7)

    memory = changed(part).units.residency
    assert memory.byte_ns == int((4 * 28 + 8 * (4 + 15 + 7 + 7.5) + 1 * 8) * MS * 1_000_000)
    assert memory.all_bytes == 28_000_000


def test_nothing_held_is_not_known_rather_than_zero():
    def none(records):
        records["kind"][records["kind"] == RecordKind.HELD] = RecordKind.NONE

    analysis = changed(none)
    assert analysis.units.residency.peak_bytes is None
    assert analysis.units.residency.to_dict()["all_modules_bytes"] is None
    assert any(one.what == "memory held by unsharded parameters" for one in analysis.unknown)


def test_hsdp_all_reduces_are_a_kind_of_their_own_and_end_the_step():
    def hsdp(records):
        last = collective(records, SCATTER, GPT)
        more = records[last].copy()
        more["collective"], more["group"] = REDUCE, 2
        more["launch"], more["start"], more["finish"] = job.at(33), job.at(33), job.at(33.5)
        more["ready"] = job.at(33)
        return np.concatenate([records, more])

    analysis = told(records=hsdp(job.step_records(1)))
    (cell,) = [one for one in analysis.units.modules.cells if one.kind is REDUCE]
    # The optimizer's span lies beside it, which ends no tail.
    assert (cell.module, cell.phase, cell.overlap_ns) == ("GPT", BACKWARD, MS // 2)
    assert analysis.units.edges.last.kind is REDUCE
    (tail,) = analysis.tails
    assert (tail.tail_ns, tail.reductions, tail.buckets) == (11 * MS // 2, 5, 4)


def test_the_tail_of_a_step_without_buckets():
    analysis = told()
    (tail,) = analysis.tails
    assert (tail.tail_ns, tail.last_bucket, tail.buckets, tail.reductions) == (5 * MS, "GPT", 4, 4)
    assert [(piece.kind.value, piece.bucket, piece.duration_ns) for piece in tail.pieces] == [
        ("queue", "blocks.0", 3 * MS),
        ("residence", "GPT", 2 * MS),
    ]
    assert analysis.rows["buckets"].tolist() == [4]
    assert analysis.rows["first_ready_ns"].tolist() == [job.at(20)]
    assert reduced_by_module(job.recording().timeline)
    assert not reduced_by_module(recordings.worked().timeline)


def test_copies_around_collectives_are_neither_lane():
    analysis = told()
    assert analysis.partition.idle_ns == analysis.partition.copies_only_ns == MS // 2
    tl = job.recording(1).timeline
    assert tl.compute_rule == COMPUTE_RULE_COPIES
    assert from_marks(tl)

    records = job.step_records(1)
    copy = records["kind"] == RecordKind.COPY
    records["start"][copy], records["finish"][copy], records["stream"][copy] = (
        job.at(5),
        job.at(6),
        2,
    )
    beside = told(records=records)
    assert (
        beside.partition.compute_ns == 39 * MS // 2
    )  # on another stream a copy runs beside compute
    assert beside.units.modules.whole.union_ns == 25 * MS


def test_steps_are_selected_and_steps_out_of_statistics_left_out():
    analysis = told(4, first_step=2, last_step=3)
    assert analysis.units.steps == 2
    assert len(analysis.units.uses.matched) == 16
    assert set(analysis.units.uses.matched["step"].tolist()) == {2, 3}
    assert analysis.units.modules.collectives == 20

    recording = job.recording(3)
    steps = recording.timeline.steps.copy()
    steps["flags"][0] = 64  # disturbed
    disturbed = analyse(replace(recording, timeline=replace(recording.timeline, steps=steps)))
    assert disturbed.units.steps == 2
    assert 1 not in disturbed.units.uses.matched["step"]


def test_an_evaluation_after_a_step_belongs_to_no_step():
    """The same forward again, after the end of step 1 and still under its number."""
    later = np.concatenate([job.step_records(1), job.step_records(3)])
    forward = (later["phase"] == FORWARD) & np.isin(
        later["kind"], [RecordKind.COLLECTIVE, RecordKind.WAIT]
    )
    later["step"][(later["step"] == 3) & forward] = 1
    records = later[(later["step"] == 1)]
    found, plain = told(records=records).units, told().units
    assert len(records) > len(job.step_records(1))
    assert found.uses.to_dict() == plain.uses.to_dict()
    assert found.queueing.to_dict() == plain.queueing.to_dict()
    assert found.edges.to_dict() == plain.edges.to_dict()

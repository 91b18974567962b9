"""The comparison of ranks on simulated jobs: what is told, and when nothing is."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.ranks.across import across_ranks
from overlapwatch.accounting.ranks.causes import Cause
from overlapwatch.accounting.ranks.lateness import Verdict
from overlapwatch.accounting.ranks.table import rank_table
from overlapwatch.accounting.ranks.tails import TailPart
from overlapwatch.accounting.selection import Selection, choose
from overlapwatch.timeline.model import STEP, Lane, Origin, Recording, Timeline
from overlapwatch.vocabulary import (
    PAYLOAD,
    RECORD,
    CollectiveKind,
    Name,
    NameKind,
    RecordFlag,
    RecordKind,
    StepFlag,
)
from tests.support.simulated_ranks import Clock, SimulatedJob

MS = 1_000_000
BASE = 1_000_000_000


def slow(ms, rank):
    return lambda mine, _step: ms if mine == rank else 0.0


def told_of(job):
    told = across_ranks(job.run().tables())
    assert not [check for check in told.checks() if not check.ok]
    return told


# -- who was late ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "cause", "late_ms"),
    [
        ({"slow_forward": slow(5, 2)}, Cause.FORWARD, 5),
        ({"slow_loading": slow(6, 2)}, Cause.INPUT, 6),
        ({"slow_block": slow(2, 2)}, Cause.BUCKET, 6),  # three blocks, one chain
        ({"slow_block": slow(2, 2), "blocking": True}, Cause.BUCKET, 6),  # three chains of 2
    ],
)
@pytest.mark.parametrize("host", [False, True])
def test_a_slow_rank_is_named_with_its_cause_and_size(fields, cause, late_ms, host):
    told = told_of(SimulatedJob(host=host, **fields))
    (late,) = told.lateness.named
    assert (late.label, late.cause, late.last, late.steps) == ("rank 2", cause, 20, 20)
    assert late.lateness.p50_ns == late_ms * MS
    assert late.chance < 1e-6
    assert all(
        one.excess.lateness_ns == sum(ns for _, ns in one.excess.parts)
        for one in told.lateness.steps
    )


def test_two_slow_ranks_are_both_named_though_each_is_last_half_of_the_time():
    told = told_of(
        SimulatedJob(
            ranks=8,
            jitter=0.4,
            steps=40,
            slow_forward=lambda rank, _: 9.0 if rank in {4, 5} else 0.0,
        )
    )
    assert {one.label for one in told.lateness.named} == {"rank 4", "rank 5"}


def test_lateness_in_turn_is_told_from_a_slow_rank():
    told = told_of(
        SimulatedJob(jitter=0.3, slow_forward=lambda rank, step: 8.0 if step % 4 == rank else 0.0)
    )
    assert told.lateness.verdict is Verdict.ROTATING
    assert not told.lateness.named


def test_a_host_whose_ranks_are_late_in_turn_is_named_as_a_host():
    clocks = {rank: Clock("node-b" if rank >= 4 else "node-a") for rank in range(8)}
    told = told_of(
        SimulatedJob(
            ranks=8,
            steps=60,
            jitter=0.3,
            clocks=clocks,
            slow_loading=lambda rank, step: 9.0 if rank == 4 + step % 4 else 0.0,
        )
    )
    assert told.lateness.verdict is Verdict.PERSISTENT
    assert [one.label for one in told.lateness.named] == ["host node-b"]


def test_without_a_slow_rank_nobody_is_named():
    for seed in range(20):
        told = told_of(SimulatedJob(jitter=1.0, steps=40, seed=seed))
        assert not told.lateness.named


def test_few_steps_name_nobody():
    told = told_of(SimulatedJob(steps=4, slow_forward=slow(5, 2)))
    assert told.lateness.verdict is Verdict.NOT_KNOWN
    assert not told.lateness.named
    # But each collective has its late rank.
    assert set(told.waiting.collectives["late"].tolist()) == {2}


def test_lateness_that_is_nothing_beside_the_step_is_not_named():
    told = told_of(SimulatedJob(slow_forward=slow(0.1, 2)))
    assert told.lateness.verdict is Verdict.NONE


def test_steps_out_of_statistics_are_left_out_of_all_sums():
    tables = SimulatedJob(slow_forward=slow(5, 2)).run().tables()
    steps = tables[1].steps.copy()
    steps["flags"][:2] = StepFlag.UNBUCKETED
    told = across_ranks([tables[0], replace(tables[1], steps=steps), *tables[2:]])
    assert told.lateness.judged == 18
    assert told.lateness.left_out == 2
    assert int(told.waiting.counted.sum()) == 54
    assert sum(one.collectives for one in told.owners) == 54


# -- tails -----------------------------------------------------------------------------------------


def test_the_tail_of_the_waiting_ranks_is_waiting_and_that_of_the_late_one_transfer():
    told = told_of(SimulatedJob(buckets=1, slow_block=slow(6, 3), transfer=2))
    parts = {one.part: one.total_ns for one in told.tails.parts}
    assert parts == {TailPart.WAIT: 3 * 20 * 6 * MS, TailPart.TRANSFER: 4 * 20 * 2 * MS}
    assert told.tails.spread.p50_ns == 8 * MS
    assert told.tails.job.p99_ns == 2 * MS
    worst = told.tails.worst[0]
    assert (told.labels[worst.late], worst.dominant) == ("rank 3", TailPart.WAIT)


def test_a_queue_behind_a_waiting_collective_is_waiting_too():
    # Two buckets of which the first waits for rank 1, the second behind it.
    job = SimulatedJob(ranks=2, buckets=2, block=1, transfer=3, slow_forward=slow(10, 1))
    told = told_of(job)
    parts = {one.part for one in told.tails.parts}
    assert {TailPart.QUEUE_WAIT, TailPart.QUEUE_TRANSFER, TailPart.TRANSFER} <= parts
    assert sum(one.total_ns for one in told.tails.parts) == told.tails.spread.total_ns


# -- public cases, in small ------------------------------------------------------------------------


def device_recording(rank, rows, *, groups, steps=(), world=4, host="a", computes=(), peers=()):
    """A profile of one rank. Rows: (group, start ms, finish ms, kind, bytes, sequence, step)."""
    records = np.zeros(len(rows), RECORD)
    for place, (group, start, finish, kind, size, sequence, step) in enumerate(rows):
        one = records[place]
        one["kind"], one["collective"], one["bytes"] = RecordKind.COLLECTIVE, kind, size
        one["group"], one["sequence"], one["step"], one["stream"] = group, sequence, step, 7
        one["launch"] = one["start"] = BASE + round(start * MS)
        one["finish"] = BASE + round(finish * MS)
    start, end = (
        np.array([BASE + round(one[at] * MS) for one in computes], np.int64) for at in (0, 1)
    )
    lane = Lane(start, end, np.zeros(len(start), np.uint32), np.zeros(len(start), np.uint8))
    payloads = np.zeros(len(peers), PAYLOAD)
    payloads["peer"], payloads["kernel"] = list(peers), np.arange(len(peers))
    timeline = Timeline(
        Origin("kineto", f"rank{rank}.json", rank, world, "GPU 0", "", host),
        compute=lane,
        communication=records,
        payloads=payloads,
        groups=groups,
        compute_rule="kernels",
        steps=np.array(
            [
                (number, 0, BASE + round(low * MS), BASE + round(high * MS))
                for number, low, high in steps
            ],
            STEP,
        ),
    )
    return Recording(timeline)


def table_of(recording):
    return rank_table(recording, choose(recording, Selection()))


WORLD = {1: Name(1, NameKind.GROUP, "default", (0, 1, 2, 3))}


def test_the_straggler_has_the_least_nccl_time_and_is_named():
    """Rank 3 arrives last in most of 400 collectives and has by far the lowest time in them."""
    random = np.random.default_rng(3)
    rows = {rank: [] for rank in range(4)}
    now = 0.0
    for number in range(400):
        entry = [now + 1 + random.uniform(0, 0.05) for _ in range(4)]
        if random.uniform() < 0.86:
            entry[3] += 0.6
        end = max(entry) + 0.1
        for rank in range(4):
            rows[rank].append(
                (1, entry[rank], end, CollectiveKind.ALL_REDUCE, 4096, number + 1, 1 + number // 10)
            )
        now = end
    steps = [(one, one * 20 - 20, one * 20) for one in range(1, 41)]
    told = across_ranks(
        [
            table_of(device_recording(rank, rows[rank], groups=WORLD, steps=steps))
            for rank in range(4)
        ]
    )
    assert [one.label for one in told.lateness.named] == ["rank 3"]
    assert told.lateness.named[0].cause is Cause.GAP  # nothing ran on its device meanwhile
    least = min(told.waits, key=lambda one: one.stay_ns)
    assert told.labels[least.table] == "rank 3"
    transfers = told.waiting.collectives["transfer"]
    assert abs(transfers - 100_000).max() <= 1


def test_a_rank_whose_kernels_take_longer_computed_longer():
    rows = {rank: [] for rank in range(4)}
    computes = {rank: [] for rank in range(4)}
    now = 0.0
    for number in range(60):
        entry = [now + (3 if rank == 1 else 2) for rank in range(4)]
        end = max(entry) + 0.5
        for rank in range(4):
            rows[rank].append(
                (1, entry[rank], end, CollectiveKind.ALL_REDUCE, 4096, number + 1, 1 + number // 5)
            )
            computes[rank].append((now, entry[rank]))
        now = end
    steps = [(one, (one - 1) * 17.5, one * 17.5) for one in range(1, 13)]
    told = across_ranks(
        [
            table_of(
                device_recording(
                    rank, rows[rank], groups=WORLD, steps=steps, computes=computes[rank]
                )
            )
            for rank in range(4)
        ]
    )
    (late,) = told.lateness.named
    assert (late.label, late.cause) == ("rank 1", Cause.COMPUTE)


def test_rates_are_told_per_group_without_the_waiting():
    """Two groups of the same size, one of them slower: 5.3 GB in 439 and 277 ms."""
    tables = []
    for rank in range(4):
        pair, slower = (0, rank < 2)[1], rank < 2
        transfer = 439.0 if slower else 277.0
        name = Name(1, NameKind.GROUP, "dp", (0, 1) if pair else (2, 3), 0)
        rows = []
        for number in range(4):
            late = 20.0 if rank % 2 else 0.0
            begin = number * 1000.0
            rows.append(
                (
                    1,
                    begin + late,
                    begin + 20 + transfer,
                    CollectiveKind.ALL_REDUCE,
                    5_300_000_000,
                    number + 1,
                    0,
                )
            )
        tables.append(table_of(device_recording(rank, rows, groups={1: name})))
    told = across_ranks(tables)
    speeds = {tuple(one.members): round(one.algbw_gb_s, 1) for one in told.rates}
    assert speeds == {(0, 1): 12.1, (2, 3): 19.1}
    assert all(one.complete == one.collectives == 4 for one in told.rates)
    assert all(one.with_waiting_gb_s < one.algbw_gb_s for one in told.rates)
    assert all(
        one.busbw_gb_s == pytest.approx(one.algbw_gb_s) for one in told.rates
    )  # 2(n-1)/n = 1


def test_point_to_point_pairs_are_matched_by_peer():
    groups = {1: Name(1, NameKind.GROUP, "pp", (0, 1, 2))}
    spans = {0: [(1, 2), (5, 6)], 1: [(1.2, 2), (3, 4), (5, 6), (7, 8)], 2: [(3.5, 4), (7, 8)]}
    peers = {0: [1, 1], 1: [0, 2, 0, 2], 2: [1, 1]}
    tables = []
    for rank, mine in spans.items():
        rows = [(1, low, high, CollectiveKind.SEND_RECV, 1000, 0, 0) for low, high in mine]
        tables.append(
            table_of(device_recording(rank, rows, groups=groups, world=3, peers=peers[rank]))
        )
    told = across_ranks(tables)
    assert len(told.matches) == 4
    assert {one.pair for one in told.matches.channels} == {(0, 1), (1, 2)}
    assert sum(told.matches.alone) == 0


def test_sends_without_a_recorded_peer_are_not_guessed():
    tables = [
        table_of(
            device_recording(
                rank, [(1, 1, 2, CollectiveKind.SEND_RECV, 1000, 0, 0)], groups={}, world=3
            )
        )
        for rank in range(3)
    ]
    told = across_ranks(tables)
    assert len(told.matches) == 0
    assert any("other side" in one.because for one in told.unknown)


# -- clocks ----------------------------------------------------------------------------------------


def test_hosts_11_seconds_apart_are_aligned():
    clocks = {rank: Clock("b", 11_560_000_000, 2e-5) for rank in (2, 3)}
    told = told_of(
        SimulatedJob(
            slow_forward=slow(1.6, 2), jitter=0.1, end_jitter_us=10, clocks=clocks, steps=60
        )
    )
    fit = told.alignment.clocks[1].fit
    assert abs(fit.offset_ns - 11_560_000_000) < 20_000
    assert abs(fit.drift - 2e-5) < 2e-6
    assert [one.label for one in told.lateness.named] == ["rank 2"]


def test_clocks_that_are_too_unsure_tell_no_late_rank_between_them():
    clocks = {2: Clock("b", -5_000_000_000), 3: Clock("c", 77)}
    told = told_of(SimulatedJob(jitter=0.05, end_jitter_us=400, clocks=clocks))
    assert told.lateness.verdict is Verdict.NOT_KNOWN
    assert any("not small against the entry skew" in one.because for one in told.unknown)
    # Waiting needs no clocks: it is told.
    assert sum(one.collectives for one in told.waits) == 4 * 60


def test_two_hosts_of_one_name_are_found_out():
    clocks = {rank: Clock("localhost", 3_000_000_000) for rank in (2, 3)}
    told = told_of(
        SimulatedJob(
            slow_forward=slow(5, 1),
            clocks={**clocks, 0: Clock("localhost"), 1: Clock("localhost")},
            end_jitter_us=5,
        )
    )
    assert len(told.alignment.clocks) == 3
    assert any("taken for another clock" in one for one in told.notes)
    assert [one.label for one in told.lateness.named] == ["rank 1"]


def test_a_clock_that_was_set_during_the_run_makes_it_abstain():
    truth = SimulatedJob(slow_forward=slow(2, 1), clocks={1: Clock("b")}, ranks=2, steps=40).run()
    first, second = truth.tables()
    records = second.records.copy()
    for field in ("ready", "launch", "start", "finish"):
        records[field][60:] += 50 * MS
    told = across_ranks([first, replace(second, records=records)])
    assert not told.lateness.named
    assert told.alignment.clocks[1].fit.p95_ns > 10 * MS


# -- what is missing or does not belong ------------------------------------------------------------


def test_missing_and_short_ranks_are_said_and_the_rest_is_judged():
    job = SimulatedJob(ranks=5, slow_forward=slow(5, 2), absent={4}, last_step={1: 15})
    told = told_of(job)
    text = " ".join(told.notes)
    assert "judged on 4 of 5 ranks: no input of rank 4" in text
    assert "rank 1 ends with step 15, the others with step 20" in text
    assert [one.label for one in told.lateness.named] == ["rank 2"]
    assert told.lateness.judged == 20
    assert told.rates[0].complete == 0  # no collective was seen on all five ranks
    assert "lower bound" in told.rates[0].label


def test_a_rank_that_is_there_twice_counts_once():
    tables = SimulatedJob(slow_forward=slow(5, 2)).run().tables()
    shorter = replace(tables[1], records=tables[1].records[:5], peer=tables[1].peer[:5],
                      computed=tables[1].computed[:5], path="other/rank1.owlog")  # fmt: skip
    told = across_ranks([shorter, *tables])
    assert len(told.tables) == 4
    assert any(
        "is there twice: run/rank1.owlog is compared, other/rank1.owlog left out" in one
        for one in told.notes
    )
    assert [one.label for one in told.lateness.named] == ["rank 2"]


def test_tables_of_another_run_are_left_out():
    tables = SimulatedJob(slow_forward=slow(5, 2)).run().tables()
    strange = replace(tables[3], run="r0", rank=7, label="rank 7")
    told = across_ranks([*tables, strange])
    assert len(told.tables) == 4
    assert any("of other runs" in one for one in told.notes)


def test_a_rank_that_was_attached_late_is_realigned():
    told = told_of(SimulatedJob(slow_forward=slow(5, 2), jitter=0.3, attached_late={1: 4}))
    assert any(
        "counts the collectives of group default from elsewhere" in one for one in told.notes
    )
    assert len(told.matches) == 60
    assert [one.label for one in told.lateness.named] == ["rank 2"]


def test_one_rank_alone_tells_nothing_and_says_so():
    (table, *_) = SimulatedJob().run().tables()
    told = across_ranks([table])
    assert not len(told.matches)
    assert any("one rank alone cannot tell" in one.because for one in told.unknown)
    assert told.to_dict()["collectives"] == []
    assert not across_ranks([]).tables


def test_collectives_without_an_end_still_tell_who_came_last():
    tables = []
    for one in SimulatedJob(slow_forward=slow(5, 2), host=True).run().tables():
        records = one.records.copy()
        records["finish"] = 0
        records["flags"] = RecordFlag.FINISH_UNOBSERVABLE
        records["start"] = 0
        tables.append(replace(one, records=records))
    told = across_ranks(tables)
    assert [one.label for one in told.lateness.named] == ["rank 2"]
    assert all(one.wait_ns == 0 and one.collectives == 0 for one in told.waits)
    assert any("was waiting" in one.what for one in told.unknown)


def test_json_is_plain_and_complete():
    import json

    told = told_of(SimulatedJob(slow_forward=slow(5, 2)))
    entry = json.loads(json.dumps(told.to_dict(), allow_nan=False))
    assert entry["lateness"]["persistent"] == ["rank 2"]
    one = entry["collectives"][0]
    assert (one["late_rank"], one["entry_skew_ns"], one["transfer_ns"]) == ("rank 2", 5 * MS, MS)
    assert one["waits_ns"] == [5 * MS, 5 * MS, 0, 5 * MS]

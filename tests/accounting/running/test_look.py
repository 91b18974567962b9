import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.ranks.live_lateness import live_lateness
from overlapwatch.accounting.ranks.order_result import Position
from overlapwatch.accounting.running import ORDERS, look
from overlapwatch.accounting.running.latest import latest_steps
from overlapwatch.accounting.steps import step_statistics
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, CollectiveKind, StepFlag
from tests.accounting.running.running_ranks import MS, S, rank, reductions, run, summaries


def seen(view, number):
    return next(one for one in view.ranks if one.rank == number)


# -- the latest steps ------------------------------------------------------------------------------


def test_the_newest_step_and_what_is_usual():
    told = latest_steps(summaries(100, 300, 101, first=7))
    assert (told.step, told.duration_ns, told.usual_ns) == (9, 101 * MS, 101 * MS)
    assert told.parts.shares_ns == (50_500_000, 30_300_000, 10_100_000, 10_100_000)
    assert told.durations == (100 * MS, 300 * MS, 101 * MS)
    assert told.hidden == (30 * MS, 90 * MS, 30_300_000)
    assert told.steps == 3


def test_what_is_not_known_of_a_step_is_no_number():
    rows = summaries(100, 100, 100)
    for field in ("overlap_ns", "communication_only_ns", "compute_only_ns", "idle_ns", "tail_ns"):
        rows[field][2] = NOT_KNOWN
    rows["flags"][2] = StepFlag.SHADOW
    told = latest_steps(rows)
    assert (told.step, told.parts.step, told.tail_ns) == (3, 2, None)
    assert (told.hidden[-1], told.exposed[-1], told.tails[-1]) == (None, None, None)
    assert told.statistics.counted == 2


def test_steps_out_of_statistics_are_not_usual():
    rows = summaries(900, 100, 100)
    rows["flags"][0] = StepFlag.UNBUCKETED
    assert latest_steps(rows).usual_ns == 100 * MS
    rows["flags"] = StepFlag.UNBUCKETED
    assert latest_steps(rows).usual_ns is None


def test_no_step_yet():
    assert latest_steps(np.empty(0, SUMMARY)) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.randoms())
def test_the_statistics_are_those_of_the_report_in_any_order(took, random):
    rows = summaries(*took)
    shuffled = rows[random.sample(range(len(rows)), len(rows))]
    told = latest_steps(shuffled)
    assert told.statistics == step_statistics(rows, ())
    assert told.durations == tuple(ms * MS for ms in took)
    view = look(run(rank(0, rows=shuffled)))
    assert all(check.ok for check in view.checks())


# -- what does not finish --------------------------------------------------------------------------


def test_the_example_who_waits_who_is_behind_who_is_not_seen():
    view = look(
        run(
            rank(0, reductions(6, finish=5), reductions(7, 8)),
            rank(1, reductions(6, finish=5), reductions(7)),
            rank(2, reductions(6, finish=5)),
            rank(3, ring=False, process="elsewhere", host="node-1", now_ns=None),
        )
    )
    seven, eight = view.unfinished
    assert (seven.first.sequence, seven.ranks, seven.behind, seven.not_seen) == (
        7, (0, 1), (Position(6, (2,)),), (3,),
    )  # fmt: skip
    assert (eight.first.sequence, eight.ranks, eight.not_seen) == (8, (0,), (3,))
    assert eight.behind == (Position(6, (2,)), Position(7, (1,)))
    assert [one.trouble for one in view.ranks] == ["behind", "waiting", "waiting", "no step"]
    assert [one.rank for one in view.ranks] == [2, 0, 1, 3]
    (unknown,) = view.unknown
    assert unknown.what == "unfinished collectives of rank 3"
    assert unknown.because == "its ring is on host node-1"


def test_a_rank_that_has_launched_nothing_in_the_group():
    view = look(run(rank(0, reductions(1), members=(0, 1)), rank(1, members=(0, 1))))
    (one,) = view.unfinished
    assert one.behind == (Position(0, (1,)),)


def test_a_collective_that_is_young_is_no_trouble():
    view = look(run(rank(0, reductions(7), now_s=0.9), rank(1, reductions(7), now_s=0.9), world=2))
    (one,) = view.unfinished
    assert (one.old, one.age_ns, one.behind, one.not_seen) == (False, 899_999_999, (), None)
    assert {one.trouble for one in view.ranks} == {""}
    assert view.old == ()


def test_steps_that_take_long_make_collectives_old_later():
    slow = summaries(*[4000] * 5)
    assert not look(run(rank(0, reductions(7), now_s=7.9, rows=slow))).unfinished[0].old
    assert look(run(rank(0, reductions(7), now_s=8.1, rows=slow))).unfinished[0].old


def test_of_a_killed_rank_no_age_is_told():
    gone = rank(0, reductions(7), process="killed")
    (one,) = look(run(gone, rank(1, reductions(7, finish=9)))).unfinished
    assert (one.ranks, one.killed, one.age_ns, one.old) == ((0,), (0,), None, True)
    (one,) = look(run(gone, rank(1, reductions(7), now_s=3))).unfinished
    assert (one.ranks, one.killed, one.age_ns) == ((0, 1), (0,), 3 * S - 1)


def test_what_has_no_number_is_each_rank_s_own():
    sends = reductions(0, 0, kind=CollectiveKind.SEND_RECV)
    view = look(run(rank(0, sends), rank(1, sends)))
    assert sorted(one.ranks for one in view.unfinished) == [(0,), (0,), (1,), (1,)]
    assert {one.not_seen for one in view.unfinished} == {None}


def test_ranks_that_issue_different_collectives_are_named():
    gather = reductions(7, kind=CollectiveKind.ALL_GATHER)
    view = look(run(rank(0, reductions(7)), rank(1, gather), rank(2, reductions(7))))
    (group,) = view.differing
    assert (group.group.name, group.mismatch.sequence, group.mismatch.minority) == ("dp", 7, (1,))
    assert len(view.unfinished) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 6), max_size=4, unique=True), min_size=1, max_size=4))
def test_every_collective_in_flight_is_told_once_for_each_of_its_ranks(launched):
    ranks = [rank(at, reductions(*sorted(some))) for at, some in enumerate(launched)]
    view = look(run(*ranks))
    told = [(one.first.sequence, at) for one in view.unfinished for at in one.ranks]
    assert sorted(told) == sorted((one, at) for at, some in enumerate(launched) for one in some)
    furthest = {at: max(some, default=0) for at, some in enumerate(launched)}
    for one in view.unfinished:
        behind = {at: position.sequence for position in one.behind for at in position.ranks}
        assert behind == {at: last for at, last in furthest.items() if last < one.first.sequence}


# -- trouble, order, ranks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({}, ""),
        ({"process": "killed"}, "killed"),
        ({"process": "stopped"}, "stopped"),
        ({"problem": "not an overlapwatch log"}, "unreadable"),
        ({"ended_ago_ns": 4 * S}, ""),
        ({"ended_ago_ns": 6 * S}, "no step"),
        ({"ended_ago_ns": 6 * S, "rows": summaries(2000, 2000)}, ""),
        ({"ended_ago_ns": 6 * S, "process": "closed"}, ""),
        ({"ended_ago_ns": 6 * S, "caught_up": False}, ""),
        ({"silent_ns": 29 * S}, ""),
        ({"silent_ns": 31 * S}, "silent"),
        ({"silent_ns": 31 * S, "full": True}, ""),
        ({"silent_ns": 31 * S, "process": "killed"}, "killed"),
    ],
)
def test_trouble(fields, trouble):
    (view,) = look(run(rank(0, **{"ended_ago_ns": 0, **fields}))).ranks
    assert view.trouble == trouble


def test_which_rank_comes_first():
    ranks = (
        rank(0, rows=summaries(100, 110, exposed=0.1), ended_ago_ns=0),
        rank(1, rows=summaries(100, 130, exposed=0.2), ended_ago_ns=0),
        rank(2, rows=summaries(100, 120, exposed=0.3), ended_ago_ns=0, process="stopped"),
    )
    firsts = {order: [one.rank for one in look(run(*ranks), order).ranks] for order in ORDERS}
    assert firsts == {
        "trouble": [2, 0, 1],
        "rank": [0, 1, 2],
        "step": [1, 2, 0],
        "exposed": [2, 1, 0],
    }


def test_the_late_rank_comes_before_those_without_trouble():
    tails = {0: 20.0, 1: 20.0, 2: 5.0}
    ranks = [rank(at, rows=summaries(*[100] * 20, tail_ms=ms), ended_ago_ns=0) for at, ms in tails.items()]  # fmt: skip
    view = look(run(*ranks))
    assert view.lateness == live_lateness({at: one.rows for at, one in enumerate(ranks)})
    assert view.lateness.worst_rank == 2
    assert [one.rank for one in view.ranks] == [2, 0, 1]


def test_the_slowest():
    took = {0: 100, 1: 140, 2: 101, 3: 99}
    view = look(run(*(rank(at, rows=summaries(ms, ms)) for at, ms in took.items())))
    told = view.slowest
    assert (told.rank, told.usual_ns, told.median_ns, told.ranks) == (1, 140 * MS, 100 * MS, 4)
    assert look(run(rank(0))).slowest is None


def test_ranks_without_a_log_and_the_checks():
    view = look(run(rank(1), rank(3), world=5))
    assert view.absent == (0, 2, 4)
    assert [(check.name, check.left, check.right) for check in view.checks()][-1] == (
        "ranks with a log + ranks without = world", 5, 5,
    )  # fmt: skip
    assert not view.over


@pytest.mark.parametrize(
    ("processes", "over"),
    [(("closed", "killed"), True), (("closed", "running"), False), (("elsewhere",), False)],
)
def test_whether_it_is_over(processes, over):
    assert look(run(*(rank(at, process=what) for at, what in enumerate(processes)))).over is over


def test_series_are_given_for_so_many_ranks():
    view = look(run(*(rank(at) for at in range(4))), in_full=2)
    assert [bool(one.latest.durations) for one in view.ranks] == [True, True, False, False]
    assert all(one.latest.parts for one in view.ranks)


def test_json_holds_what_is_not_known_as_null():
    view = look(run(rank(0, reductions(7)), rank(1, ring=False, rows=summaries()), world=3))
    told = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert [one["rank"] for one in told["ranks"]] == [0, 1]
    assert (told["ranks"][1]["latest"], told["ranks"][1]["in_flight"]) == (None, None)
    assert told["unfinished"][0]["age_ns"] == 10 * S - 1
    assert told["not_known"] == [
        {"what": "unfinished collectives of rank 1", "because": "the ring was not read"}
    ]
    assert told["absent"] == [2]

"""Lanes and a link against a simulation that goes on one tick at a time, and the recorded link read back from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.vocabulary import Phase
from overlapwatch.whatif.engines import queue
from overlapwatch.whatif.fsdp2_engines import Does, Job, Lane, Link, Op, course
from overlapwatch.whatif.fsdp2_link import Carried, candidates, met, most_at_once, services

TICKS = 1000

JOBS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(0, 1)), min_size=1, max_size=7
)


def sent_at(jobs, link):
    """Run collectives that each have a lane of their own which sends them at a given time."""
    lanes = [
        Lane(0, 0, [Op(Does.UNTIL, ns=at * TICKS), Op(Does.SEND, str(n))])
        for n, (at, _, _) in enumerate(jobs)
    ]
    wanted = {str(n): Job(took * TICKS, channel) for n, (_, took, channel) in enumerate(jobs)}
    return course(lanes, wanted, link).sent


def tick_by_tick(jobs, link):
    """The same, one tick after another: (start, finish) of each in ticks."""
    left = [float(took * 20) for _, took, _ in jobs]
    start, finish = [None] * len(jobs), [None] * len(jobs)
    arrival = sorted(range(len(jobs)), key=lambda n: (jobs[n][0], n))
    order = range(len(jobs)) if link.in_order else arrival
    now = 0
    while None in finish:
        for channel in (0, 1):
            waiting = [n for n in order if jobs[n][2] == channel and start[n] is None]
            for n in waiting:
                busy = sum(
                    jobs[m][2] == channel and start[m] is not None and finish[m] is None
                    for m in range(len(jobs))
                )
                if busy >= link.width or jobs[n][0] * 20 > now:
                    break  # nobody overtakes
                start[n] = now
        running = [n for n in range(len(jobs)) if start[n] is not None and finish[n] is None]
        now += 1
        for n in running:
            left[n] -= 1 / (len(running) if link.shared else 1)
            if left[n] <= 1e-6:
                finish[n] = now
    return start, finish


@settings(deadline=None, max_examples=60)
@given(JOBS, st.integers(1, 2), st.booleans(), st.booleans())
def test_the_link_is_that_of_a_simulation_by_ticks(jobs, width, shared, in_order):
    link = Link(width, shared, in_order)
    sent = sent_at(jobs, link)
    start, finish = tick_by_tick(jobs, link)
    for n in range(len(jobs)):
        # A tick is a twentieth; each end in it may shift the next one by as much.
        assert abs(sent[str(n)].finish_ns / TICKS - finish[n] / 20) <= 0.05 * (len(jobs) + 1)
        assert abs(sent[str(n)].start_ns / TICKS - start[n] / 20) <= 0.05 * (len(jobs) + 1)


@given(JOBS)
def test_one_at_a_time_is_the_queue_of_ddp(jobs):
    jobs = sorted((at, took, 0) for at, took, _ in jobs)
    sent = sent_at(jobs, Link(width=1))
    launch, service, _ = (np.array(column, np.int64) * TICKS for column in zip(*jobs, strict=True))
    start, finish = queue(launch, service)
    assert [sent[str(n)].start_ns for n in range(len(jobs))] == start.tolist()
    assert [sent[str(n)].finish_ns for n in range(len(jobs))] == finish.tolist()


@settings(deadline=None)
@given(JOBS, st.integers(1, 2), st.booleans())
def test_what_each_took_alone_is_read_back(jobs, width, in_order):
    link = Link(1 if in_order else width, shared=not in_order, in_order=in_order)
    jobs = [(at, took, channel if in_order else 0) for at, took, channel in jobs]
    sent = sent_at(jobs, link)
    rows = [sent[str(n)] for n in range(len(jobs))]
    begin = np.array([row.launch_ns for row in rows], np.int64)
    finish = np.array([row.finish_ns for row in rows], np.int64)
    channel = np.array([c for _, _, c in jobs], np.int64)
    alone = services(begin, finish, channel, link)
    assert np.abs(alone - [took * TICKS for _, took, _ in jobs]).max() <= len(jobs)


def test_a_shared_link_as_in_the_docstring():
    jobs = [(0, 4, 0), (2, 4, 0)]
    both, one = sent_at(jobs, Link(width=2)), sent_at(jobs, Link(width=1))
    assert [one_.finish_ns // TICKS for one_ in both.values()] == [6, 8]
    assert [one_.finish_ns // TICKS for one_ in one.values()] == [4, 8]


def test_a_collective_begins_when_the_last_rank_has_sent_it():
    def lane(rank, works):
        return Lane(rank, 0, [Op(Does.WORK, "", works, True, Phase.FORWARD), Op(Does.SEND, "x"), Op(Does.AWAIT, "x")])  # fmt: skip

    done = course([lane(0, 5), lane(1, 9)], {"x": Job(3)}, Link())
    assert done.sent["x"][:3] == (5, 9, 12)
    assert done.end_ns == 12
    assert [(work.start_ns, work.end_ns) for work in done.work] == [(0, 5)]
    late = course([lane(0, 5), lane(1, 9)], {"x": Job(3)}, Link(), told=1)
    assert late.sent["x"].launch_ns == 9


def test_what_is_held_lasts_until_it_is_freed_or_the_end():
    ops = [
        Op(Does.HOLD, "a"), Op(Does.WORK, ns=4), Op(Does.HOLD, "b"), Op(Does.WORK, ns=2),
        Op(Does.FREE, "a"), Op(Does.WORK, ns=3), Op(Does.FREE, "a"),
    ]  # fmt: skip
    done = course([Lane(0, 10, ops)], {}, Link())
    assert sorted(done.held) == [("a", 10, 16), ("b", 14, 19)]


def test_a_lane_that_waits_for_nothing_is_one_sentence():
    with pytest.raises(InputError, match="do not fit each other"):
        course([Lane(0, 0, [Op(Does.AWAIT, "x")])], {}, Link())


def test_how_many_ran_at_once():
    begin, finish = np.array([0, 2, 3, 9]), np.array([3, 5, 9, 12])
    assert most_at_once(begin, finish) == 2
    assert most_at_once(begin[:0], finish[:0]) == 0


def test_what_a_link_may_be_like():
    queued, shared = candidates(device=False, at_once=1, ranks=2)
    assert queued.link.width == 1
    assert shared.link.width == 2
    assert candidates(device=False, at_once=1, ranks=4) == [shared, queued]
    together, apart = candidates(device=True, at_once=5, ranks=8)
    assert together.link.in_order
    assert together.channel(2, 1) == together.channel(3, 1)
    assert apart.channel(2, 1) != apart.channel(3, 1)
    assert Carried(Link()).channel(2, 1) != Carried(Link()).channel(2, 2)


def test_how_long_collectives_were_under_way_together():
    assert met(np.array([0, 2]), np.array([6, 8])) == 0.5
    assert met(np.array([0, 6]), np.array([6, 8])) == 0
    assert met(np.empty(0, np.int64), np.empty(0, np.int64)) == 0

"""A run that is followed: which logs, which process, what the ring adds."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.errors import InputError
from overlapwatch.log.frames import MAGIC, Clock, ClockPair, End, Note, Summaries, encode
from overlapwatch.ring import Ring
from overlapwatch.sources.live import LiveRun
from overlapwatch.timeline.running import RankNow
from overlapwatch.vocabulary import RecordFlag
from tests.log.samples import FRAMES, log_bytes, step_summary
from tests.sources.test_owlog import (
    begin_step,
    collective,
    dead_pid,
    header,
    make_ring,
    whole_step,
    write_rank,
)


def append(path: Path, *frames) -> None:
    with path.open("ab") as file:
        file.write(b"".join(map(encode, frames)))


def follow(directory: Path, ranks=None) -> LiveRun:
    run = LiveRun(directory, ranks)
    assert run.read()
    return run


def only(run: LiveRun) -> RankNow:
    (rank,) = run.now().ranks
    return rank


# -- which logs ------------------------------------------------------------------------------------


def test_ranks_that_start_later_are_found(tmp_path):
    write_rank(tmp_path, header(0, world=3), end=False)
    run = follow(tmp_path)
    assert ([one.rank for one in run.now().ranks], run.now().absent) == ([0], (1, 2))
    write_rank(tmp_path, header(2, world=3), end=False)
    assert run.read()
    assert ([one.rank for one in run.now().ranks], run.now().absent) == ([0, 2], (1,))
    assert (run.now().world, run.now().run_id) == (3, "run-a")


def test_a_directory_without_logs_waits(tmp_path):
    run = follow(tmp_path)
    assert (run.now().ranks, run.now().world, run.now().run_id) == ((), None, "")
    write_rank(tmp_path, header(0), end=False)
    run.read()
    assert only(run).rows["step"].tolist() == [1, 2]


def test_a_log_that_has_just_been_made(tmp_path):
    path = tmp_path / "rank0-run-a.owlog"
    path.write_bytes(b"")
    run = follow(tmp_path)
    assert run.now().ranks == ()
    assert run.now().notes == (f"{path}: the file is empty",)
    path.write_bytes(log_bytes((header(0), Summaries(step_summary(1)))))
    run.read()
    assert only(run).rows["step"].tolist() == [1]
    assert run.now().notes == ()


def test_the_newest_run_is_shown_and_a_newer_one_takes_over(tmp_path):
    write_rank(tmp_path, header(0, run="old", created=-9), end=False)
    write_rank(tmp_path, header(0, run="new"), end=False)
    run = follow(tmp_path)
    assert run.now().run_id == "new"
    assert run.now().notes == (f"run new is shown; {tmp_path} also holds old, older",)
    write_rank(tmp_path, header(0, run="newest", created=10**9), end=False)
    run.read()
    assert run.now().run_id == "newest"
    assert "new, old" in run.now().notes[0]


def test_only_the_ranks_that_were_asked_for_are_read(tmp_path):
    for rank in range(3):
        write_rank(tmp_path, header(rank, world=4), end=False)
    now = follow(tmp_path, ranks=[3, 1]).now()
    assert ([one.rank for one in now.ranks], now.absent, now.asked) == ([1], (3,), (1, 3))


def test_one_log_is_a_run_of_one_rank(tmp_path):
    path = write_rank(tmp_path, header(1, world=4), end=False)
    now = follow(path).now()
    assert ([one.rank for one in now.ranks], now.absent) == ([1], ())


def test_a_damaged_header_leaves_the_rest(tmp_path):
    path = write_rank(tmp_path, header(3), *FRAMES[1:-1], end=False)
    raw = bytearray(path.read_bytes())
    raw[len(MAGIC) + 20] ^= 1
    path.write_bytes(raw)
    rank = only(follow(tmp_path))
    assert (rank.rank, rank.process, rank.damaged) == (3, "not known", 1)
    assert rank.rows["step"].tolist() == [1, 2, 3, 10]
    assert "header" in rank.in_flight_because


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("nothing", None, "there is no such directory"), ("a.owlog", b"{}", "not an overlapwatch log but JSON")],
)  # fmt: skip
def test_what_is_no_run_is_refused(tmp_path, name, content, says):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        LiveRun(tmp_path / name)


def test_a_look_that_is_cut_short_goes_on_with_the_next_rank(tmp_path):
    for rank in range(5):
        write_rank(tmp_path, header(rank, world=5), end=False)
    run = LiveRun(tmp_path)
    looks = 0
    while not run.read(-1.0):
        assert not all(one.caught_up for one in run.now().ranks)
        looks += 1
        assert looks < 100
    assert looks >= 5
    assert all(one.steps == 2 and one.caught_up for one in run.now().ranks)
    done, total = run.bytes_read
    assert done == total == sum(path.stat().st_size for path in tmp_path.iterdir())


# -- the process -----------------------------------------------------------------------------------


def test_what_became_of_the_process(tmp_path):
    far = replace(header(2, host="node-9"), ring="/dev/shm/ring")
    heads = [header(0, world=4), header(1, pid=dead_pid()), far, header(3)]
    for head in heads:
        write_rank(tmp_path, head, end=head.rank == 3)
    ranks = follow(tmp_path).now().ranks
    assert [one.process for one in ranks] == ["running", "killed", "elsewhere", "closed"]
    assert [one.now_ns is None for one in ranks] == [False, False, True, True]
    assert ranks[2].in_flight_because == "the ring was not read: it is on host node-9"
    assert (ranks[2].names, ranks[2].groups) == ({}, {})  # nothing there needs them


def test_how_long_ago_the_newest_step_ended(tmp_path):
    summary = step_summary(1)
    summary["end_ns"] = time.perf_counter_ns() - 5 * 10**9
    write_rank(tmp_path, header(0), Summaries(summary), end=False)
    summary = step_summary(1)
    summary["end_ns"] = 1000
    pair = ClockPair(1000 + 7 * 10**9, time.time_ns())  # its clock says something else altogether
    write_rank(tmp_path, header(1, host="node-9"), Summaries(summary), Clock(pair), end=False)
    here, there = follow(tmp_path).now().ranks
    assert (here.by_wall_clock, there.by_wall_clock) == (False, True)
    assert 5 * 10**9 <= (here.ended_ago_ns or 0) < 60 * 10**9
    assert 7 * 10**9 <= (there.ended_ago_ns or 0) < 62 * 10**9


def test_how_long_a_log_has_been_silent(tmp_path):
    path = write_rank(tmp_path, header(0), end=False)
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    run = follow(tmp_path)
    assert only(run).silent_ns > 3599 * 10**9
    append(path, Note(1, "new"))
    run.read()
    assert only(run).silent_ns < 3000 * 10**9
    assert only(run).notes == ("new",)


def test_a_full_log_is_told_from_a_silent_one(tmp_path):
    head = header(0)
    head.settings["max_log_mb"] = "1"
    path = write_rank(tmp_path, head, end=False)
    run = follow(tmp_path)
    assert not only(run).full
    append(path, *(Note(1, "x" * 16_000) for _ in range(60)))
    run.read()
    assert only(run).full


# -- the ring --------------------------------------------------------------------------------------


@pytest.fixture
def ring(tmp_path) -> Ring:
    return make_ring(tmp_path)


def test_what_is_in_flight_is_read_anew_each_time(tmp_path, ring):
    write_rank(tmp_path, header(0, ring=ring), end=False)
    for step in (1, 2):
        whole_step(ring, step)
    run = follow(tmp_path)
    assert (len(only(run).in_flight), only(run).step_now) == (0, 2)
    begin_step(ring, 3)
    assert (only(run).step_now, only(run).only_begun) == (3, True)
    late, unobservable = (
        collective(ring, 3, 0, launch=30),
        collective(ring, 3, 0, flags=RecordFlag.FINISH_UNOBSERVABLE),
    )
    early = collective(ring, 3, 0, launch=10)
    rank = only(run)
    assert rank.in_flight["launch"].tolist() == [
        310,
        330,
    ]  # oldest first; one that nobody can see is not in flight
    assert (rank.step_now, rank.only_begun) == (3, False)
    assert rank.recent.timeline.communication["step"].tolist() == [1, 2, 3, 3, 3]
    ring.stamp(early, "finish", 390)
    assert only(run).in_flight["launch"].tolist() == [330]
    assert unobservable != late


def test_a_ring_is_still_read_after_its_process_died(tmp_path, ring):
    write_rank(tmp_path, header(0, ring=ring, pid=dead_pid()), end=False)
    begin_step(ring, 3)
    collective(ring, 3, 0)
    rank = only(follow(tmp_path))
    assert (rank.process, len(rank.in_flight), rank.step_now) == ("killed", 1, 3)


def test_a_ring_of_another_run_is_not_taken_for_it(tmp_path):
    ring = make_ring(tmp_path, run="other")
    write_rank(tmp_path, header(0, ring=ring), end=False)
    rank = only(follow(tmp_path))
    assert rank.in_flight is None
    assert "another run or rank" in rank.in_flight_because


def test_when_the_log_is_closed_the_ring_is_let_go(tmp_path, ring):
    path = write_rank(tmp_path, header(0, ring=ring), end=False)
    begin_step(ring, 3)
    collective(ring, 3, 0)
    run = follow(tmp_path)
    assert len(only(run).in_flight) == 1
    append(path, End("closed", 9, {}))
    ring.close(remove=True)
    run.read()
    rank = only(run)
    assert (rank.process, rank.in_flight, rank.step_now) == ("closed", None, None)


def test_the_newest_step_may_have_pushed_its_own_record_out(tmp_path, ring):
    write_rank(tmp_path, header(0, ring=ring), end=False)
    begin_step(ring, 7)
    for _ in range(100):  # more than the ring holds
        collective(ring, 7, 50)
    rank = only(follow(tmp_path))
    assert rank.recent.timeline.steps["step"].tolist() == [7]
    assert np.all(rank.recent.timeline.communication["step"] == 7)

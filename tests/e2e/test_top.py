"""The live view of a real job, from another process: while it trains, is stopped, goes on, hangs and is killed.

Rank 1 stops itself (SIGSTOP) before the backward of one step, so rank 0 waits in its reductions; told to go on, the job
trains on, until rank 1 sleeps before another backward and rank 0 is killed while it waits.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlapwatch.accounting.running import RunView, look
from overlapwatch.log.reader import read_log
from overlapwatch.sources.live import LiveRun
from tests.support import jobs

pytestmark = pytest.mark.e2e

STOPPED, ASLEEP = 6, 9
JOB = f"""
    import os, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from tests.support.training import SMALL_BUCKETS_MB, Net

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("none",), keep_first=3, shadow_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, {ASLEEP} + 1):
        loss = model(torch.ones(2, 48)).square().mean()
        if dist.get_rank() == 1 and step == {STOPPED}:
            time.sleep(1.5)  # the finishes of the step before are told on other threads, which will stop as well
            os.kill(os.getpid(), signal.SIGSTOP)
        if dist.get_rank() == 1 and step == {ASLEEP}:
            time.sleep(600)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass
class Story:
    """What could be seen at four moments."""

    run: Path
    stopped: RunView
    later: RunView
    stopped_text: str
    asleep: RunView
    killed: RunView
    killed_json: dict


def top(run: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "overlapwatch", "top", str(run), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=jobs.ROOT).stdout


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    run = tmp_path_factory.mktemp("top")
    live = LiveRun(run)  # before there is a log: it finds them

    def wait_until(holds: Callable[[RunView], bool], *, alive: bool = True) -> RunView:
        deadline = time.monotonic() + 120
        while True:
            live.read()
            view = look(live.now())
            if holds(view):
                return view
            if alive and any(process.poll() is not None for process in job.processes):
                job.wait(1).check()
            assert time.monotonic() < deadline, json.dumps(view.to_dict(), indent=1)
            time.sleep(0.05)

    def hangs_in(step: int) -> Callable[[RunView], bool]:
        def holds(view: RunView) -> bool:
            told = [
                one.latest.step if one.latest else 0
                for one in view.ranks
                if one.process == "running"
            ]
            return len(view.old) == 4 and view.old[0].first.step == step and set(told) == {step - 1}

        return holds

    with jobs.start_ranks(JOB, 2, args=[str(run)]) as job:
        stopped = wait_until(
            lambda view: hangs_in(STOPPED)(view) and seen(view, 1).process == "stopped"
        )
        stopped_text = top(run, "--once")
        live.read()
        later = look(live.now())
        job.kill(1, signal.SIGCONT)
        asleep = wait_until(hangs_in(ASLEEP))
        job.kill(0)
        killed = wait_until(
            lambda view: any(one.trouble == "killed" for one in view.ranks), alive=False
        )
        killed_json = json.loads(top(run, "--json"))["top"]
        job.kill(1)
        job.wait()
    return Story(run, stopped, later, stopped_text, asleep, killed, killed_json)


def seen(view: RunView, rank: int):
    return next(one for one in view.ranks if one.rank == rank)


def check_unfinished(view: RunView) -> None:
    """Rank 0 waits in its four reductions, none of which rank 1 has launched."""
    names = [f"bucket {place}" for place in range(4)]
    assert [(one.first.kind.title, one.first.name) for one in view.old] == [("AllReduce", name) for name in names]  # fmt: skip
    sequences = [one.first.sequence for one in view.old]
    assert sequences == list(range(sequences[0], sequences[0] + 4))
    for one in view.old:
        assert (one.ranks, one.first.group, one.first.bytes) == (
            (0,),
            "default",
            view.old[0].first.bytes,
        )
        assert [(at.sequence, at.ranks) for at in one.behind] == [(sequences[0] - 1, (1,))]
        assert one.not_seen == ()


def test_a_rank_that_is_stopped_is_named_and_what_waits_for_it(story: Story) -> None:
    check_unfinished(story.stopped)
    assert [(one.rank, one.trouble) for one in story.stopped.ranks] == [
        (1, "stopped"),
        (0, "waiting"),
    ]
    assert {one.step_now for one in story.stopped.ranks} == {STOPPED}
    assert f"stopped in step {STOPPED}" in story.stopped_text
    assert "1 stopped, 1 waiting for others" in story.stopped_text
    (line,) = [one for one in story.stopped_text.splitlines() if "AllReduce bucket 0" in one]
    assert "rank 0 " in line
    assert f"rank 1 (last: {story.stopped.old[0].first.sequence - 1})" in line


def test_the_age_grows_while_the_job_hangs(story: Story) -> None:
    check_unfinished(story.later)
    for before, after in zip(story.stopped.old, story.later.old, strict=True):
        assert before.age_ns is not None
        assert after.age_ns is not None
        assert after.age_ns > before.age_ns > 1_000_000_000


def test_it_goes_on_and_hangs_again(story: Story) -> None:
    check_unfinished(story.asleep)
    assert [(one.rank, one.trouble) for one in story.asleep.ranks] == [
        (1, "behind"),
        (0, "waiting"),
    ]
    assert {one.process for one in story.asleep.ranks} == {"running"}
    assert {one.step_now for one in story.asleep.ranks} == {ASLEEP}


def test_a_rank_that_was_killed_while_it_waited(story: Story) -> None:
    assert (seen(story.killed, 0).process, seen(story.killed, 1).process) == ("killed", "running")
    check_unfinished(story.killed)
    assert [(one.killed, one.age_ns) for one in story.killed.old] == [((0,), None)] * 4
    told = story.killed_json
    assert [one["process"] for one in told["ranks"]] == ["killed", "running"]
    assert [one["name"] for one in told["unfinished"]] == [f"bucket {place}" for place in range(4)]
    assert told["not_known"] == []
    assert all(check["ok"] for check in told["closure"])


def test_the_numbers_are_those_of_the_log(story: Story) -> None:
    for one in story.asleep.ranks:
        log = read_log(Path(one.path))
        rows = log.summaries[log.summaries["step"] < ASLEEP]
        assert one.latest is not None
        assert one.latest.durations == tuple((rows["end_ns"] - rows["start_ns"]).tolist())
        known = [None if value == -1 else value for value in rows["communication_only_ns"].tolist()]
        assert list(one.latest.exposed) == known
        parts, row = one.latest.parts, rows[rows["step"] == one.latest.parts.step][0]
        assert parts.shares_ns == tuple(
            int(row[name])
            for name in ("compute_only_ns", "overlap_ns", "communication_only_ns", "idle_ns")
        )
        assert sum(parts.shares_ns) == parts.window_ns

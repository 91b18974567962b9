"""What a job leaves behind when it hangs or is killed, and what sampling must not drop.

A rank that sleeps forever before its backward leaves its peer with reductions in flight. That is told while the job
runs, after the peer is killed, and by the report of the command line.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.log.reader import read_log
from overlapwatch.sources import open_trace
from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import CollectiveKind, RecordKind, StepFlag
from tests.support import jobs

pytestmark = pytest.mark.e2e

HUNG_STEP = 7
HANGING = f"""
    import sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from tests.support.training import SMALL_BUCKETS_MB, Net

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    overlapwatch.watch(
        model, log_dir=sys.argv[1], sinks=("none",), keep_first=3, keep_every=1000, hang_seconds=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, {HUNG_STEP} + 1):
        loss = model(torch.ones(2, 48)).square().mean()
        if step == {HUNG_STEP}:
            print("last forward done", flush=True)
            if dist.get_rank() == 1:
                time.sleep(600)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def wait_until(what: str, holds: "Iterator[bool]", timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    for held in holds:
        if held:
            return
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def report(run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlapwatch", "report", str(run), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=jobs.ROOT)


@dataclass
class Story:
    """What could be read of the hanging job, at three moments."""

    running: list[Recording]
    running_report: str
    flushed: list[Recording]
    killed: list[Recording]
    killed_report: str
    killed_json: dict
    stderr: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    run = tmp_path_factory.mktemp("hang")
    with jobs.start_ranks(HANGING, 2, args=[str(run)]) as job:
        for rank in (0, 1):
            job.wait_for(rank, "last forward done")

        def reading(rank: int = 0) -> Iterator[Recording]:
            while True:
                yield open_trace(run)[rank]

        wait_until("four reductions in flight", (len(r.in_flight) == 4 for r in reading()))
        running = open_trace(run)
        running_report = report(run).stdout
        wait_until(
            "the steps before are in the log",
            (r.summaries["step"].tolist() == list(range(1, HUNG_STEP)) for r in reading()),
        )
        wait_until(
            "the hang is in the log", (bool(r.notes) and "ago" in r.notes[0] for r in reading())
        )
        flushed = open_trace(run)
        job.kill(0)
        wait_until("rank 0 is gone", (job.processes[0].poll() is not None for _ in iter(int, 1)))
        killed, killed_report = open_trace(run), report(run, "--rank", "0")
        killed_json = json.loads(report(run, "--json").stdout)
        job.kill(1)
        stderr = job.wait().ranks[0].stderr
    return Story(
        running, running_report, flushed, killed, killed_report.stdout, killed_json, stderr
    )


def check_in_flight(waiting: Recording, asleep: Recording) -> None:
    """Rank 0 waits for its four buckets; rank 1 has launched none in that step."""
    assert waiting.timeline.origin.rank == 0
    assert waiting.in_flight["step"].tolist() == [HUNG_STEP] * 4
    assert waiting.in_flight["collective"].tolist() == [CollectiveKind.ALL_REDUCE] * 4
    owners = [waiting.timeline.names[int(owner)].text for owner in waiting.in_flight["owner"]]
    assert owners == [f"bucket {place}" for place in range(4)]
    assert (np.diff(waiting.in_flight["launch"]) > 0).all()
    assert len(asleep.in_flight) == 0


def test_a_hanging_job_is_read_while_it_runs(story: Story) -> None:
    assert [recording.state for recording in story.running] == ["running", "running"]
    check_in_flight(*story.running)
    for recording in story.running:
        # Whether flushed or not: the log and the ring together have every step.
        known = {*recording.summaries["step"].tolist(), *recording.timeline.steps["step"].tolist()}
        assert set(range(1, HUNG_STEP)) <= known
    assert re.search(r"rank 0 is running, in step 7; last collective launched and not finished:\s+AllReduce bucket 3", story.running_report)  # fmt: skip
    assert "rank 1 is running; " in story.running_report


def test_the_hang_is_said_on_stderr_and_in_the_log(story: Story) -> None:
    check_in_flight(*story.flushed)
    said = [line for line in story.stderr.splitlines() if "has not finished" in line]
    assert len(said) == 4  # each reduction once, however long it hangs
    assert said[0].startswith("rank 0: AllReduce bucket 0 (")
    assert "step 7) was launched" in said[0]
    assert [note for note in story.flushed[0].notes if "AllReduce bucket 0" in note]


def test_a_killed_job_is_read_up_to_the_end(story: Story) -> None:
    assert [recording.state for recording in story.killed] == ["killed", "running"]
    check_in_flight(*story.killed)
    (killed, _) = story.killed
    assert killed.summaries["step"].tolist() == list(range(1, HUNG_STEP))
    # Of the step it was killed in, the ring has the forward, and the wait that never ended.
    assert killed.timeline.steps["step"].tolist() == [1, 2, 3, HUNG_STEP]
    assert killed.timeline.steps["flags"][-1] & StepFlag.PARTIAL
    assert "rank 0 was killed, in step 7" in story.killed_report
    assert "AllReduce bucket 3" in story.killed_report
    rank0, rank1 = story.killed_json["timelines"]
    assert (rank0["state"], rank1["state"]) == ("killed", "running")
    assert len(rank0["in_flight"]) == 4
    assert rank1["in_flight"] == []


# -- what sampling must not drop -----------------------------------------------------------------

LATE_STEP, SLOW_STEP, STEPS = 20, 45, 50
SAMPLED = f"""
    import sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    import overlapwatch.watching.assemble
    from tests.support.training import SMALL_BUCKETS_MB, Net

    overlapwatch.watching.assemble.GRACE_NS = 300_000_000  # what comes later than this is late
    dist.init_process_group("gloo")
    aside = dist.new_group([0, 1])
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    watch = overlapwatch.watch(
        model, log_dir=sys.argv[1], sinks=("none",), keep_first=3, keep_every=1000, shadow_every=0
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    value = torch.ones(1)
    for step in range(1, {STEPS} + 1):
        loss = model(torch.ones(2, 48)).square().mean()
        if step == {LATE_STEP} and dist.get_rank() == 0:
            late = dist.all_reduce(value, group=aside, async_op=True)
        if step == {SLOW_STEP}:
            time.sleep(0.5)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.5)
    if dist.get_rank() == 1:
        late = dist.all_reduce(value, group=aside, async_op=True)
    late.wait()
    print(value.item())
    watch.close()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> list:
    run = tmp_path_factory.mktemp("sampled")
    result = jobs.run_ranks(SAMPLED, 2, args=[str(run)], timeout_s=60).check()
    assert result.stdout.split() == ["2.0", "2.0"]
    return [read_log(path) for path in sorted(run.glob("*.owlog"))]


def flags_of(log, step: int) -> StepFlag:
    return StepFlag(int(log.summaries["flags"][log.summaries["step"] == step][0]))


def events_of(log) -> dict[int, np.ndarray]:
    blocks = [block.records for block in log.events]
    return {int(block["step"][0]): block for block in blocks}


def test_only_some_steps_keep_their_events(sampled: list) -> None:
    for log in sampled:
        assert log.summaries["step"].tolist() == list(range(1, STEPS + 1))
        kept = {int(s["step"]) for s in log.summaries if s["flags"] & StepFlag.EVENTS_KEPT}
        assert kept == set(events_of(log))
        special = {
            int(s["step"])
            for s in log.summaries
            if s["flags"] & (StepFlag.SLOW | StepFlag.UNFINISHED)
        }
        assert kept == {1, 2, 3} | special
        assert len(kept) < STEPS / 2


def test_a_slow_step_is_kept_whole(sampled: list) -> None:
    for log in sampled:
        assert StepFlag.SLOW | StepFlag.EVENTS_KEPT in flags_of(log, SLOW_STEP)
        records = events_of(log)[SLOW_STEP]
        kinds = [int((records["kind"] == kind).sum()) for kind in RecordKind]
        assert kinds == [
            0,
            1,
            3,
            4,
            1,
            0,
            0,
            0,
        ]  # one step, its phases, its buckets and the wait for them
        (step,) = records[records["kind"] == RecordKind.STEP]
        assert step["finish"] - step["start"] >= 500_000_000


def test_a_step_with_an_unfinished_collective_is_kept_whole(sampled: list) -> None:
    waited, joined_late = sampled
    assert StepFlag.UNFINISHED | StepFlag.EVENTS_KEPT in flags_of(waited, LATE_STEP)
    records = events_of(waited)[LATE_STEP]
    collectives = records[records["kind"] == RecordKind.COLLECTIVE]
    assert len(collectives) == 5
    unfinished = collectives[collectives["finish"] == 0]
    assert unfinished["bytes"].tolist() == [4]
    row = waited.summaries[waited.summaries["step"] == LATE_STEP][0]
    assert row["unfinished"] == 1
    assert StepFlag.UNFINISHED not in flags_of(joined_late, LATE_STEP)

"""Whatever fails around the watch, training does not notice, and one line says what happened.

One job goes through all failures (see `failures_job`); a rank that dies takes a job of its own.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from overlapwatch.log.reader import read_log
from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("failures_job.py")
TMPFS_SIZE = "8k"
STEPS = 8

# What the one line must say, and whether the watch is still at work afterwards.
SAYS = {
    "log_directory_below_a_file": ("no log in .*: Not a directory", True),
    "log_directory_is_a_file": ("no log in .*: File exists", True),
    "log_directory_not_writable": ("no log in /proc/.*: .*", True),
    "log_directory_removed": (r".*: nothing more is logged \(the file was removed\); training goes on", True),
    "log_outgrows_the_file_size_limit": (r".*: nothing more is logged \(File too large\); .*", True),
    "log_disk_full": (r".*: nothing more is logged \(No space left on device\); training goes on", True),
    "ring_directory_not_writable": ("no ring in /proc/.*", True),
    "ring_disk_full": ("no ring in .*: No space left on device", True),
    "no_place_for_a_ring": ("no ring in .*; no ring in /dev/shm.*; it is private memory.*", True),
    "callback_raises": ("step lines to CallbackSink stopped: LookupError: rank ., the user's own mistake", True),
    "fault_when_a_span_begins": ("", False),
    "fault_when_a_span_ends": ("", False),
    "fault_at_a_launch": ("", False),
    "fault_when_a_step_begins": ("", False),
    "fault_following_a_finish": ("", False),
    "fault_in_the_drain": ("", False),
    "fault_writing_the_log": ("", False),
    "fault_while_attaching": (r"overlapwatch could not start \(ZeroDivisionError: injected\); training is not affected", False),
}  # fmt: skip
TURNED_OFF = (
    r"overlapwatch turned itself off \(.*: ZeroDivisionError: injected\); training is not affected"
)


@functools.cache
def told() -> dict[str, list[dict[str, Any]]]:
    """Run the job; return what each rank told, by failure."""
    with tempfile.TemporaryDirectory() as directory:
        small = Path(directory) / "small"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_SIZE}", "tmpfs", str(small)]
        mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
        try:
            arguments = [directory, str(small)] if mounted else [directory]
            result = jobs.run_ranks(JOB, 2, args=arguments, timeout_s=120).check()
        finally:
            if mounted:
                subprocess.run(["umount", str(small)], check=True)
        found: dict[str, list[dict[str, Any]]] = {}
        for rank in result.ranks:
            assert rank.stderr == ""  # nothing beside what the job caught
            for line in rank.stdout.splitlines():
                one = json.loads(line)
                if one.get("log") and Path(one["log"]).is_file():
                    log = read_log(Path(one["log"]))
                    one["log_read"] = {"notes": log.notes, "steps": len(log.summaries)}
                    one["log_read"]["damage"] = [damage.why for damage in log.damage]
                found.setdefault(one["name"], []).append(one)
        return found


@pytest.mark.parametrize("failure", SAYS)
def test_training_does_not_notice_and_one_line_says_it(failure: str) -> None:
    if failure not in told():
        pytest.skip("needs a small file system, which only root can mount")
    says, active = SAYS[failure]
    ranks = told()[failure]
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["identical"]
        assert rank["installed"] == rank["rings"] == []
        (line,) = rank["said"]
        assert matches(says or TURNED_OFF, line), line
        assert rank["active"] is active
        if active:
            assert rank["steps"] == STEPS  # step lines go on


def matches(pattern: str, line: str) -> bool:

    return re.fullmatch(pattern, line) is not None


@pytest.mark.parametrize("failure", [name for name in SAYS if name.startswith("fault_")])
def test_after_a_fault_the_log_reads_up_to_it_and_says_why_it_ends(failure: str) -> None:
    for rank in told()[failure]:
        if failure == "fault_while_attaching":
            assert rank["log"] == ""
            continue
        read = rank["log_read"]
        assert read["damage"] == []
        if failure == "fault_writing_the_log":
            continue
        assert read["steps"] == rank["steps"] < STEPS
        (note,) = read["notes"]
        assert note.startswith("the watch turned itself off: ")
        assert note.endswith(": ZeroDivisionError: injected")


@pytest.mark.parametrize("failure", ["log_outgrows_the_file_size_limit", "log_disk_full"])
def test_a_full_disk_leaves_a_readable_log(failure: str) -> None:
    for rank in told().get(failure, []):
        if "log_read" in rank:  # the small file system is gone by now
            assert rank["log_read"]["damage"] == []


@pytest.mark.parametrize("mode", ["passive", "hook"])
@pytest.mark.parametrize("register", ["before", "after"])
def test_a_users_hook_that_raises_surfaces_as_without_us(register: str, mode: str) -> None:
    for rank in told()[f"hook {register}, {mode}"]:
        assert rank["plain"][0] == "__main__.UsersError: bucket 1 of the third step"
        assert len(rank["plain"]) == 3  # DDP then refuses to go on, in its own words
        assert rank["watched"] == [*rank["plain"], "active True"]
        assert rank["said"] == []


def test_afterwards_the_process_trains_as_before() -> None:
    assert [rank["identical"] for rank in told()["afterwards"]] == [True, True]


DYING = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from tests.support.training import SMALL_BUCKETS_MB, Net

    class Dies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            if dist.get_rank() == 1 and step == 5:
                os._exit(7)
            return gradient

    class Mortal(Net):
        def forward(self, x):
            for number, layer in enumerate(self.layers):
                x = layer(x).relu()
                if number == 1:
                    x = Dies.apply(x)
            return x

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mortal(), bucket_cap_mb=SMALL_BUCKETS_MB)
    if len(sys.argv) > 1:
        overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("none",))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step in range(1, 9):
            model(torch.ones(2, 48)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    except Exception as error:
        print(step, type(error).__module__, type(error).__qualname__, str(error).split("]")[-1].strip())
        raise
"""


def test_a_rank_that_dies_is_met_as_without_us_and_the_survivors_log_tells_where(
    tmp_path: Path,
) -> None:
    survivors = []
    for arguments in ([], [str(tmp_path)]):
        result = jobs.run_ranks(DYING, 2, args=arguments, timeout_s=60)
        assert not result.timed_out
        assert [rank.returncode for rank in result.ranks] == [1, 7]
        survivors.append(result.ranks[0])
    plain, watched = survivors
    assert watched.stdout.split(" ")[:3] == plain.stdout.split(" ")[:3]
    assert watched.stdout.startswith("5 builtins RuntimeError")
    for survivor in survivors:
        # "Connection closed" or "reset by peer", or only what usually causes that: whichever thread of gloo noticed first.
        assert "onnection" in survivor.stdout or "remote worker crashing" in survivor.stdout
    assert watched.stderr.count("Traceback") == plain.stderr.count("Traceback")
    assert "overlapwatch turned" not in watched.stderr

    for path in sorted(tmp_path.glob("rank0-*.owlog")):
        log = read_log(path)
        assert log.end is not None
        assert log.damage == ()
        assert log.summaries["step"].tolist() == [1, 2, 3, 4, 5]
    report = subprocess.run(
        [sys.executable, "-m", "overlapwatch", "report", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=jobs.ROOT,
    )
    assert report.returncode == 0, report.stderr
    assert len(json.loads(report.stdout)["timelines"]) == 2

"""A real offline run of W&B, and its file read back."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapwatch.metrics.tracker import Tracker
from overlapwatch.metrics.wandb import STEP, WeightsAndBiases
from overlapwatch.vocabulary import StepFlag
from tests.metrics.rows import full, row

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wandb():
    module = pytest.importorskip("wandb")
    yield module
    module.teardown()


@pytest.fixture
def begin(wandb, tmp_path):
    """Return a function that begins the script's run."""
    quick = {"disable_git": True, "x_save_requirements": False, "x_disable_meta": True}

    def begin():
        settings = wandb.Settings(console="off", x_disable_stats=True, quiet=True, **quick)
        return wandb.init(mode="offline", dir=tmp_path, project="p", settings=settings)

    yield begin
    if wandb.run is not None:
        wandb.finish()


def records(data: bytes) -> Iterator[bytes]:
    """Return the records of an offline run's file: LevelDB's log format, in blocks of 32 KiB behind 7 bytes."""
    at, so_far = 7, b""
    while at + 7 <= len(data):
        left_in_block = 32768 - at % 32768
        if left_in_block < 7:
            at += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        so_far += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield so_far
            so_far = b""


def history(directory) -> list[dict[str, float]]:
    """Return the rows of the one run in a directory."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    found: list[Record] = []
    deadline = time.monotonic() + 60
    # The file is written after finish() is back.
    while not found or found[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < deadline, [one.WhichOneof("record_type") for one in found]
        found = [Record.FromString(data) for data in records(path.read_bytes())]
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]


def sink(warnings: list[str]) -> Tracker:
    made = Tracker(WeightsAndBiases(), every_s=0, warn=warnings.append)
    made.open()
    return made


def delivered(tracker: Tracker, count: int) -> None:
    while tracker._outbox._delivered < count:
        pass


def test_values_join_the_rows_of_the_scripts_run(begin, tmp_path):
    warnings: list[str] = []
    tracker = sink(warnings)  # watch() comes before wandb.init()
    run = begin()
    shadow = full(4)
    shadow["flags"] = StepFlag.SHADOW
    tracker.step(shadow, None)
    for step, one in enumerate((full(1, hidden_ms=10), full(2, hidden_ms=20), row(3)), 1):
        tracker.step(one, None)
        delivered(tracker, step)
        run.log({"loss": 1 / step}, step=10 * step)
    run.finish()
    tracker.step(full(5), None)  # behind the end of the run, as the last step of a script is
    tracker.close()
    assert warnings == []
    rows = history(tmp_path)
    # Every row that the script logged is there, at the step it gave.
    theirs = [(row["_step"], row["loss"]) for row in rows if "loss" in row]
    assert theirs == [(10, 1), (20, 1 / 2), (30, 1 / 3)]
    hidden = "overlapwatch/hidden_communication_seconds"
    ours = [(row[STEP], row.get(hidden)) for row in rows if STEP in row]
    assert ours == [(1, 0.01), (2, 0.02), (3, None)]
    assert all("overlapwatch/step_seconds" in row for row in rows if STEP in row)


def test_without_a_run_none_is_begun_and_it_is_said_once(wandb):
    assert wandb.run is None
    warnings: list[str] = []
    tracker = sink(warnings)
    tracker.step(full(1), None)
    tracker.close()
    assert wandb.run is None
    assert warnings == [
        "metrics to W&B: no run is active on this rank; wandb.init() begins one, and steps wait for it",
        "metrics to W&B: 1 of 1 steps were not delivered",
    ]


AT_EXIT = """
import atexit, sys
from tests.metrics.rows import full
from overlapwatch.metrics.tracker import Tracker
from overlapwatch.metrics.wandb import WeightsAndBiases

tracker = Tracker(WeightsAndBiases(), every_s=0)
tracker.open()

def ends():  # as a watch that began before wandb.init() does, behind W&B's own handler
    tracker.step(full(2), None)
    tracker.close()
    print("ended")

atexit.register(ends)
import wandb

settings = wandb.Settings(console="off", x_disable_stats=True, quiet=True, disable_git=True, x_save_requirements=False)
wandb.init(mode="offline", dir=sys.argv[1], project="p", settings=settings)
tracker.step(full(1), None)
while not tracker._outbox._delivered:
    pass
"""


def test_a_script_that_leaves_the_ending_to_wandb_ends_quietly(tmp_path):
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path)],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.endswith("ended\n")
    assert "metrics to W&B" not in done.stderr
    assert len(history(tmp_path)) == 1

"""The order check on what real gloo jobs leave behind: logs, rings and Flight Recorder dumps of a job that hangs."""

import contextlib
import json
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from overlapwatch.commands import main
from tests.support import jobs

pytestmark = pytest.mark.e2e

WORLD = 4
HUNG_STEP = 5

# Everything is issued asynchronously, so that no rank waits for one that does not come; then all leave at once.
DUMPS = """
    import os, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    directory, what = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1], group_desc="pair"), dist.new_group([2, 3], group_desc="pair")]
    uneven = [torch.ones(rank + 1) for _ in range(4)]
    works = []
    for step in range(1, 6):
        if what == "left out" and rank == 3 and step == 3:
            pass
        else:
            works.append(dist.all_reduce(torch.ones(10 * step), async_op=True))
        # Which of the two groups comes first differs by rank, which is legal.
        both = [None, pairs[rank // 2]]
        for group in both if rank % 2 else both[::-1]:
            works.append(dist.all_reduce(torch.ones(4 + step), group=group, async_op=True))
        dtype = torch.float64 if what == "dtype" and rank == 1 and step == 4 else torch.float32
        works.append(dist.broadcast(torch.ones(3, dtype=dtype), 0, async_op=True))
        received = [torch.ones(source + 1) for source in range(4)]
        works.append(dist.all_to_all_single(
            torch.ones(10), torch.ones(4 * (rank + 1)),
            [source + 1 for source in range(4)], [rank + 1] * 4, async_op=True))
        if what == "behind" and rank in (1, 2) and step == 4:
            break
    (directory / f"trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    (directory / f"as_json_rank_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    store = dist.distributed_c10d._get_default_store()
    store.set(f"dumped {rank}", "1")
    store.wait([f"dumped {other}" for other in range(4)])
    if rank == 0:  # it holds the store
        store.wait([f"left {other}" for other in range(1, 4)])
    else:
        store.set(f"left {rank}", "1")
    os._exit(0)
"""

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
    overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("none",))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, {HUNG_STEP} + 1):
        loss = model(torch.ones(2, 48)).square().mean()
        if step == {HUNG_STEP}:
            print("last forward done", flush=True)
            if dist.get_rank() == 2:
                time.sleep(600)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass
class Told:
    """What the command said."""

    code: int
    text: str
    order: dict

    def group(self, name: str) -> dict:
        (found,) = (group for group in self.order["groups"] if group["group"] == name)
        return found


def order(*inputs: Path) -> Told:
    def run(*flags: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(StringIO()) as out:
            code = main(["order", *map(str, inputs), *flags])
        return code, out.getvalue()

    code, text = run()
    same_code, as_json = run("--json")
    assert same_code == code
    return Told(code, text, json.loads(as_json)["order"])


def dumps(directory: Path, what: str, slots: int = 2000) -> list[Path]:
    env = {"TORCH_FR_BUFFER_SIZE": str(slots)}
    jobs.run_ranks(DUMPS, WORLD, args=[str(directory), what], env=env).check()
    return sorted(directory.glob("trace_rank_*"))


def test_legal_differences_are_not_flagged(tmp_path) -> None:
    files = dumps(tmp_path, "in order")
    told = order(*files)
    assert told.code == 0
    assert told.order["agrees"]
    assert {group["verdict"] for group in told.order["groups"]} == {"agrees"}
    assert told.group("default")["on_all_ranks"] == {"count": 20, "first": 1, "last": 20}
    assert len(told.order["groups"]) == 3
    assert "they issue the same collectives in 3 groups" in told.text
    assert "no time in it is used" in told.text
    from_json = order(*sorted(tmp_path.glob("*.json")))
    assert from_json.order["groups"] == told.order["groups"]


def test_a_rank_that_leaves_one_out(tmp_path) -> None:
    told = order(*dumps(tmp_path, "left out"))
    assert told.code == 3
    default = told.group("default")
    assert default["mismatch"]["sequence"] == 9  # four a step: the first of the third
    assert default["mismatch"]["minority"] == [3]
    shift = default["mismatch"]["shift"]
    assert (shift["ranks"], shift["left_out"], shift["what"]["size"]) == ([3], 1, 30)
    assert [place["ranks"] for place in default["behind"]] == [[3]]
    assert "rank 3 left out AllReduce of 30 elements (Float)" in told.text
    assert told.group("pair (2)")["verdict"] == "agrees"


def test_a_dtype_that_differs(tmp_path) -> None:
    told = order(*dumps(tmp_path, "dtype"))
    mismatch = told.group("default")["mismatch"]
    assert (mismatch["sequence"], mismatch["minority"]) == (15, [1])
    assert [side["what"]["dtype"] for side in mismatch["sides"]] == ["Double", "Float"]


def test_a_ring_that_overwrote_its_first_entries(tmp_path) -> None:
    told = order(*dumps(tmp_path, "behind", slots=9))
    assert told.code == 0
    default = told.group("default")
    assert default["verdict"] == "behind"
    assert [(p["sequence"], p["ranks"]) for p in default["positions"]] == [
        (16, [1, 2]),
        (20, [0, 3]),
    ]
    # Nine entries reach back less than two and a half steps, and not equally far on all ranks.
    assert 1 < default["on_all_ranks"]["first"] <= 16
    assert default["on_all_ranks"]["last"] == 16
    assert default["late_starts"]
    assert "earlier entries were overwritten" in told.text


def test_logs_of_a_job_that_hangs(tmp_path) -> None:
    with jobs.start_ranks(HANGING, WORLD, args=[str(tmp_path)]) as job:
        for rank in range(WORLD):
            job.wait_for(rank, "last forward done")
        jobs_are_stuck(tmp_path)
        running = order(tmp_path)
        for rank in range(WORLD):
            job.kill(rank)
        job.wait()
        killed = order(tmp_path)
    for told in (running, killed):
        assert told.code == 0
        default = told.group("default")
        assert default["verdict"] == "behind"
        assert [place["ranks"] for place in default["positions"]] == [[2], [0, 1, 3]]
        assert default["positions"][1]["sequence"] - default["positions"][0]["sequence"] == 4
        assert default["minority"]["ranks"] == [2]
    assert "the job runs" in running.text
    assert "the job runs" not in killed.text


def jobs_are_stuck(directory: Path) -> None:
    """Wait until the other ranks have all their reductions in flight."""
    from overlapwatch.sources import open_trace
    from tests.e2e.test_hang_and_kill import wait_until

    def in_flight():
        while True:
            yield [len(one.in_flight) for one in open_trace(directory)] == [4, 4, 0, 4]

    wait_until("reductions in flight", in_flight())

"""Settings tried in a real running DDP job: training goes on, the caps really change, and every end leaves it sound."""

import json

import pytest

from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = """
    import json, os, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from overlapwatch.hooks.knobs import BucketCapKnob
    from overlapwatch.vocabulary import StepFlag

    how, logs = sys.argv[1], sys.argv[2]
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def train(swept):
        torch.manual_seed(0)
        net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        model = DistributedDataParallel(
            net, bucket_cap_mb=0.05, gradient_as_bucket_view="views" in how, static_graph="static" in how
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        if "hooked" in how:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
            model.register_comm_hook(None, fp16_compress_hook)
        watch = overlapwatch.watch(model, log_dir=logs, sinks=("none",)) if swept else None
        sweep, steps, after = None, 0, 0
        data = torch.Generator().manual_seed(1 + rank)
        while steps < (2000 if swept else swept_steps):
            if swept and steps == 4:
                values = [0.02, 0.1] if not (how == "disagree" and rank) else [0.02, 0.2]
                if how == "fails":
                    plain = BucketCapKnob.apply
                    def apply(self, value):
                        if value == 0.1:
                            raise RuntimeError("no such cap today")
                        plain(self, value)
                    BucketCapKnob.apply = apply
                sweep = overlapwatch.sweep(
                    watch, bucket_cap_mb=values, rounds=2, block=3, apply="original" if "original" in how else "best",
                    stop_file=logs + "/stop" if how == "stop" else None,
                )
                if how == "stop" and rank == 0:
                    open(logs + "/stop", "w").close()
            optimizer.zero_grad(set_to_none="views" not in how)
            model(torch.randn(8, 64, generator=data)).square().mean().backward()
            optimizer.step()
            steps += 1
            if swept:
                time.sleep(0.005)
                if how == "closed" and sweep is not None and sweep._current:
                    watch.close()
                    break
                after += bool(sweep and sweep.done)
                if after == 6:
                    break
        caps = None
        if swept:
            caps = {
                "state": sweep.state.value,
                "because": sweep.because,
                "cap": model.bucket_bytes_cap,
                "steps": steps,
                "sizes": model._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""),
                "arms": len(sweep.result.arms) if sweep.result else 0,
                "table": sweep.table(),
                "buckets": sorted(set(watch.summaries["buckets"].tolist())),
            }
            watch.close()
        return [p.detach().clone() for p in net.parameters()], caps

    watched, told = train(True)
    swept_steps = told["steps"]
    plain, _ = train(False)
    told["same"] = all(torch.equal(a, b) for a, b in zip(watched, plain))
    told["close"] = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(watched, plain))
    print(json.dumps(told), flush=True)
    dist.destroy_process_group()
"""

MIB = 1 << 20


def run(how, tmp_path, world=2):
    result = jobs.run_ranks(JOB, world, args=[how, str(tmp_path)], timeout_s=90).check()
    told = [json.loads(rank.stdout.splitlines()[-1]) for rank in result.ranks]
    return told, result


@pytest.mark.parametrize("how", ["plain", "views, hooked", "static, original"])
def test_a_sweep_runs_to_its_end_and_training_is_the_same(how, tmp_path):
    told, _ = run(how, tmp_path)
    for rank in told:
        assert rank["state"] == "done"
        assert rank["because"] == ""
        assert rank["arms"] == 3
        assert rank["same"]  # two ranks: no order in which to add
        assert len(rank["buckets"]) >= 3  # each cap really had a layout of its own
        assert "bucket_cap_mb 0.02 MiB" in rank["table"]
    assert told[0]["cap"] == told[1]["cap"]
    if "original" in how:
        assert told[0]["cap"] == int(0.05 * MIB)
    assert told[0]["sizes"] == told[1]["sizes"]


def test_on_three_ranks_the_mathematics_stay(tmp_path):
    told, _ = run("plain", tmp_path, world=3)
    assert all(rank["close"] for rank in told)
    assert len({rank["cap"] for rank in told}) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("disagree", "rank 1 asks for other settings than rank 0"),
        ("stop", "stopped as asked"),
        ("fails", "RuntimeError: no such cap today"),
        ("closed", "the watch was closed before the sweep was over"),
    ],
)
def test_what_ends_it_early_is_told_and_the_setting_is_back(how, says, tmp_path):
    told, result = run(how, tmp_path)
    for rank in told:
        assert rank["state"] == "done"
        assert rank["because"] == says
        assert rank["close"]
    if how != "stop":
        assert {rank["cap"] for rank in told} == {int(0.05 * MIB)}
    assert "Traceback" not in result.stderr


ENDS = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch

    dist.init_process_group("gloo")
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    model = DistributedDataParallel(net, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    watch = overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("stdout",), line_every=1000)
    sweep = overlapwatch.sweep(watch, bucket_cap_mb=[0.02, 0.1], rounds=50, block=3)
    while not sweep._current:
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_a_job_that_ends_in_the_middle_prints_what_there_is(tmp_path):
    result = jobs.run_ranks(ENDS, 2, args=[str(tmp_path)], timeout_s=60).check()
    assert "Ended early: the watch was closed before the sweep was over" in result.stdout
    assert "turned itself off" not in result.stderr
    assert "Traceback" not in result.stderr

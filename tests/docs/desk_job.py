"""Makes what the pages talk about: runs, profiler traces and Flight Recorder dumps. Run on two ranks, in an empty directory."""

import os
import sys
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "200"

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import overlapwatch


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 256)).square().mean().backward()
        optimizer.step()


def main() -> None:
    os.chdir(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    for name in ("a", "b", "c", "a1", "a2", "a3", "b1", "b2", "b3"):
        model = DistributedDataParallel(net, bucket_cap_mb=0.6 if name[0] == "a" else 0.3)
        settings = {"sinks": ("none",), "gradients_every": 1, "shadow_every": 0}
        watch = overlapwatch.watch(model, log_dir=f"runs/{name}", **settings)
        train(model, 206 if name == "a" else 20)
        watch.close()
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3)
    trace = f"trace_rank{rank}.json.gz"
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(trace)
    ) as profiler:
        for _ in range(4):
            train(model, 1)
            profiler.step()
    Path(f"trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

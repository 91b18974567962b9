"""One DDP job whose backward sleeps: run by `bench_whatif.py` on every rank of a slow link.

Trains the same model with each cap in turn, watched, and prints (rank 0) one line of JSON: per cap the medians of tail,
exposed communication and step time, in ns. Its logs are left under DIRECTORY/CAP.

    _whatif_job.py DIRECTORY MODEL CAP,CAP,... STEPS
"""

import json
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import overlapwatch
from overlapwatch.vocabulary import OUT_OF_STATISTICS

MB = 1 << 20
MODELS = {
    # name: (MiB of gradient, ms of backward) of each block, in forward order
    "equal": [(2, 20)] * 12,
    "heavy first layer": [(12, 10), *[(1, 20)] * 12],
    "heavy last layer": [*[(1, 20)] * 12, (12, 10)],
    "many small": [(0.25, 5)] * 48,
}


class Delay(torch.autograd.Function):
    """The identity forward; backward takes a given time, then returns the gradients."""

    @staticmethod
    def forward(
        ctx: object, x: Tensor, _weight: Tensor, gradient: Tensor, delay_s: float
    ) -> Tensor:
        ctx.gradient, ctx.delay_s = gradient, delay_s
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.delay_s)
        return upstream, ctx.gradient, None, None


class Block(nn.Module):
    """One parameter; its gradient is there already, its backward only takes time."""

    def __init__(self, mib: float, ms: float) -> None:
        super().__init__()
        elements = int(mib * MB) // 4
        self.weight = nn.Parameter(torch.zeros(elements))
        self.gradient = torch.ones(elements)
        self.delay_s = ms / 1000

    def forward(self, x: Tensor) -> Tensor:
        return Delay.apply(x, self.weight, self.gradient, self.delay_s)


def main() -> None:
    directory, model, caps, steps = sys.argv[1:]
    dist.init_process_group("gloo")
    net = nn.Sequential(*[Block(mib, ms) for mib, ms in MODELS[model]])
    measured = {}
    for cap in caps.split(","):
        ddp = DistributedDataParallel(net, bucket_cap_mb=float(cap))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        watch = overlapwatch.watch(
            ddp, log_dir=f"{directory}/{cap}", sinks=("none",), gradients_every=1, shadow_every=0
        )
        for _ in range(int(steps)):
            ddp(torch.ones(1, requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
        rows = watch.summaries
        rows = rows[rows["flags"] & OUT_OF_STATISTICS == 0]
        measured[cap] = {
            "tail_ns": int(np.median(rows["tail_ns"])),
            "exposed_ns": int(np.median(rows["communication_only_ns"])),
            "step_ns": int(np.median(rows["end_ns"] - rows["start_ns"])),
        }
        del ddp, optimizer
    if dist.get_rank() == 0:
        print(json.dumps(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

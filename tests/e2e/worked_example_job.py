"""The worked example of docs/definitions.md as a real DDP job: run by `test_worked_example_live`.

Three blocks whose backward sleeps for two units and then has a gradient of one bucket ready. The all-reduce of that
bucket takes `--communication-units` units, because the unit is derived from it: the job measures its own link first,
so neither the machine's speed nor the link's exact rate matters. Prints one line of JSON: the unit.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import overlapwatch

BLOCKS = 3
COMPUTE_UNITS = 2


class Delay(torch.autograd.Function):
    """The identity forward; backward takes a given time, then returns the gradients."""

    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor, gradient: Tensor, delay_s: float) -> Tensor:
        ctx.gradient, ctx.delay_s = gradient, delay_s
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.delay_s)
        return upstream, ctx.gradient, None, None


class Block(nn.Module):
    def __init__(self, elements: int, delay_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.gradient = torch.ones(
            elements
        )  # no buffer: DDP would send it round before every forward
        self.delay_s = delay_s

    def forward(self, x: Tensor) -> Tensor:
        return Delay.apply(x, self.weight, self.gradient, self.delay_s)


def measured_all_reduce_s(elements: int) -> float:
    """The median time of one bucket's all-reduce with nothing else going on, the same number on every rank."""
    bucket = torch.ones(elements)
    times = []
    for _ in range(8):
        time.sleep(0.05)  # as in the job, a link that has rested lets a first burst through
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(bucket)
        times.append(time.perf_counter() - began)
    agreed = torch.tensor([statistics.median(times[1:])], dtype=torch.float64)
    dist.broadcast(agreed, src=0)
    return agreed.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--block-bytes", type=int, required=True)
    parser.add_argument("--communication-units", type=int, required=True)
    parser.add_argument(
        "--one-bucket", action="store_true", help="the serial case: one bucket for everything"
    )
    args = parser.parse_args()

    dist.init_process_group("gloo")
    elements = args.block_bytes // 4
    unit_s = measured_all_reduce_s(elements) / args.communication_units
    net = nn.Sequential(*(Block(elements, COMPUTE_UNITS * unit_s) for _ in range(BLOCKS)))
    # A bucket closes with the parameter that makes it as large as the limit: half a block means one block each.
    limit_mb = 1000 if args.one_bucket else args.block_bytes / 2**20 / 2
    model = DistributedDataParallel(net, bucket_cap_mb=limit_mb, gradient_as_bucket_view=True)
    watch = overlapwatch.watch(model, log_dir=args.log_dir)
    # It marks the end of a step; with one block's weight it does as little as it can.
    optimizer = torch.optim.SGD([net[0].weight], lr=0.0)
    x = torch.ones(1, requires_grad=True)
    for _ in range(args.steps):
        model(x).sum().backward()
        optimizer.step()  # and no zero_grad: what the gradients add up to is nobody's business here
    watch.close()
    if dist.get_rank() == 0:
        print(json.dumps({"unit_ns": round(unit_s * 1e9)}))
    time.sleep(
        0.2
    )  # see tests/support/zygote.py: gloo's threads let go of the last reduction first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""An FSDP2 job whose compute sleeps, for a link of known rate: run by `test_fsdp2_report`.

Four blocks; the forward and the backward of each sleep for `--compute-units` units, and a unit is what one all-gather
takes on this link: the job measures that first, so neither the machine's speed nor the link's exact rate matters.
`--prefetch` says what blocks prefetch in forward: each the "next" one, or "wrong": blocks.0 prefetches blocks.2, which
is not used next, and nobody prefetches the others.
"""

import argparse
import itertools
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import overlapwatch

BLOCKS = 4


class Work(torch.autograd.Function):
    """Takes its time, forward and backward; uses the weight in both."""

    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor, delay_s: float) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.delay_s = delay_s
        time.sleep(delay_s)
        return x + weight[0]

    @staticmethod
    def backward(ctx: object, upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.delay_s)
        (weight,) = ctx.saved_tensors
        return upstream, torch.ones_like(weight), None


class Block(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(elements))
        self.delay_s = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return Work.apply(x, self.weight, self.delay_s)


class Net(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(elements) for _ in range(BLOCKS)))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x) * self.scale.sum()


def measured_all_gather_s(elements: int) -> float:
    """The median time of one all-gather with nothing else going on, the same number on every rank."""
    world = dist.get_world_size()
    whole, part = torch.ones(elements), torch.ones(elements // world)
    times = []
    for _ in range(6):
        time.sleep(0.05)  # as in the job, a link that has rested lets a first burst through
        dist.barrier()
        began = time.perf_counter()
        dist.all_gather_into_tensor(whole, part)
        times.append(time.perf_counter() - began)
    agreed = torch.tensor([statistics.median(times[1:])], dtype=torch.float64)
    dist.broadcast(agreed, src=0)
    return agreed.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--block-bytes", type=int, required=True)
    parser.add_argument("--compute-units", type=float, required=True)
    parser.add_argument("--prefetch", choices=("next", "wrong"), required=True)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    elements = args.block_bytes // 4
    net = Net(elements)
    delay_s = args.compute_units * measured_all_gather_s(elements)
    blocks = list(net.blocks)
    for block in blocks:
        block.delay_s = delay_s
        fully_shard(block)
    fully_shard(net)
    net._set_unshard_async_op(
        True
    )  # private in torch: on CPUs too an all-gather runs in the background
    if args.prefetch == "next":
        for block, following in itertools.pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])
    else:
        blocks[0].set_modules_to_forward_prefetch([blocks[2]])
    watch = overlapwatch.watch(net, log_dir=args.log_dir)
    optimizer = torch.optim.SGD([net.scale], lr=0.0)  # it marks the end of a step
    x = torch.ones(8, requires_grad=True)
    for _ in range(args.steps):
        net(x).sum().backward()
        optimizer.step()
    watch.close()
    time.sleep(
        0.2
    )  # see tests/support/zygote.py: gloo's threads let go of the last reduction first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

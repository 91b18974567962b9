"""A DDP job whose ranks are late as told: run by `test_ranks`. Compute is sleep, so it does not depend on the machine."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import overlapwatch

BLOCKS = 3
LOADING_S, FORWARD_S, BLOCK_S = 0.003, 0.006, 0.004


class Delay(torch.autograd.Function):
    """The identity forward; backward takes a given time, then returns the gradients."""

    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor, block: "Block") -> Tensor:
        ctx.block = block
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.block.backward_s)
        return upstream, ctx.block.gradient, None


class Block(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.gradient = torch.ones(elements)
        self.backward_s = BLOCK_S

    def forward(self, x: Tensor) -> Tensor:
        return Delay.apply(x, self.weight, self)


class Net(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(elements) for _ in range(BLOCKS)))
        self.forward_s = FORWARD_S

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.forward_s)
        return self.blocks(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--slow", choices=("nobody", "forward", "backward", "loading", "in turn"))
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--extra-s", type=float, default=0.009)
    parser.add_argument("--elements", type=int, default=4096)
    parser.add_argument(
        "--stops-after", type=int, default=-1, help="that rank's log ends with this step"
    )
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = Net(args.elements)
    model = DistributedDataParallel(
        net, bucket_cap_mb=args.elements * 4 / 2**20 / 2, gradient_as_bucket_view=True
    )
    watch = overlapwatch.watch(model, log_dir=args.log_dir)
    optimizer = torch.optim.SGD([net.blocks[0].weight], lr=0.0)
    x = torch.ones(1, requires_grad=True)
    for step in range(args.steps):
        late = rank == (step % world if args.slow == "in turn" else args.rank)
        extra_s = args.extra_s if late else 0.0
        time.sleep(LOADING_S + (extra_s if args.slow == "loading" else 0))
        net.forward_s = FORWARD_S + (extra_s if args.slow in {"forward", "in turn"} else 0)
        for block in net.blocks:
            block.backward_s = BLOCK_S + (extra_s / BLOCKS if args.slow == "backward" else 0)
        model(x).sum().backward()
        optimizer.step()
        if rank == args.rank and step + 1 == args.stops_after:
            watch.close()
    watch.close()
    time.sleep(
        0.2
    )  # see tests/support/zygote.py: gloo's threads let go of the last reduction first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

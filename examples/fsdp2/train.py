"""Train a small GPT on real English with FSDP2, on CPUs (gloo) or GPUs (nccl), and watch what its communication costs.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2/train.py --log-dir runs/fsdp2
    torchrun --standalone --nproc-per-node 4 examples/fsdp2/train.py --replicas 2      # HSDP, 2 x 2

The text is Python's own manual (the standard library's help topics), read byte by byte. It is plain PyTorch: the
watch is one line in `main`, and the loop below it would not change without it.
"""

import argparse
import os
import pydoc_data.topics
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import overlapwatch

CONTEXT = 64  # bytes that the model sees at once
VOCABULARY = 256  # a token is a byte


class Block(nn.Module):
    """One transformer layer: causal self-attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.query_key_value(self.attention_norm(x))
        q, k, v = qkv.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(x)


class GPT(nn.Module):
    """Bytes in, the loss of predicting each next byte out."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Text:
    """Random passages of the manual; every rank draws its own."""

    def __init__(self, batch: int, seed: int, device: torch.device) -> None:
        manual = "\n".join(pydoc_data.topics.topics.values()).encode()
        self.data = torch.frombuffer(bytearray(manual), dtype=torch.uint8)
        self.batch = batch
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return tokens and the bytes that follow them, each `[batch, CONTEXT]`."""
        starts = torch.randint(len(self.data) - CONTEXT, (self.batch, 1), generator=self.generator)
        passages = self.data[starts + torch.arange(CONTEXT + 1)].long().to(self.device)
        return passages[:, :-1], passages[:, 1:]


def shard(model: GPT, args: argparse.Namespace, device: torch.device) -> None:
    """Wrap each block, then the rest, and say what is gathered ahead of its turn."""
    world = dist.get_world_size()
    shape, axes = (world,), ("shard",)
    if args.replicas > 1:  # HSDP: shards within a replica, an all-reduce between replicas
        shape, axes = (args.replicas, world // args.replicas), ("replicate", "shard")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=axes)
    blocks = list(model.blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=not args.keep)
    fully_shard(model, mesh=mesh)
    if args.background and device.type == "cpu":
        # On CPUs an all-gather blocks whoever issues it, unless it is issued like this.
        model._set_unshard_async_op(True)  # noqa: FBT003, SLF001 - private in torch
    for place, block in enumerate(blocks):
        ahead = blocks[place + 1 : place + 1 + args.prefetch]
        behind = blocks[max(0, place - args.prefetch) : place][::-1]
        if args.wrong_order:  # a fault to look for in the report: the farthest first
            ahead, behind = ahead[::-1], behind[::-1]
        block.set_modules_to_forward_prefetch(ahead)
        block.set_modules_to_backward_prefetch(behind)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT with FSDP2, watched.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=6, help="passages per rank and backward pass")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 4")
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
    parser.add_argument(
        "--replicas", type=int, default=1, help="HSDP: how many copies of the shards"
    )
    parser.add_argument("--prefetch", type=int, default=1, help="blocks to gather ahead")
    parser.add_argument(
        "--keep", action="store_true", help="keep blocks gathered until the backward"
    )
    parser.add_argument(
        "--background",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="gather in the background on CPUs too",
    )
    parser.add_argument("--wrong-order", action="store_true", help="prefetch the farthest first")
    parser.add_argument("--log-dir", default="runs/fsdp2", help="where the watch writes its log")
    parser.add_argument(
        "--loss-every", type=int, default=10, help="steps between two losses printed"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(minutes=5))
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = GPT(args.layers, args.width).to(device)
    shard(model, args, device)
    overlapwatch.watch(model, log_dir=args.log_dir)  # that is all

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = Text(args.batch, seed=1 + rank, device=device)
    losses: list[Tensor] = []
    for step in range(1, args.steps + 1):
        for part in range(args.accumulate):
            # Only the last backward pass of a step needs to reduce the gradients.
            model.set_requires_gradient_sync(part == args.accumulate - 1)
            loss = model(*text.draw()) / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach() * args.accumulate)
        if rank == 0 and (step == 1 or step % args.loss_every == 0):
            mean = torch.stack(losses[-args.loss_every :]).mean().item()
            print(f"loss {mean:.3f} at step {step}", flush=True)

    with torch.no_grad():
        final = torch.stack([model(*text.draw()) for _ in range(20)]).mean()
    if rank == 0:
        print(f"final loss {final.item():.3f} on 20 new batches", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Runs the pages' Python blocks one after another, each with what it is given, and says what became of each.

Before a block: a model for what it shows, not yet watched. Behind it: a few steps of training, then the watch is closed.
Prints one line of JSON: place -> "ok" or a traceback.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import overlapwatch
from overlapwatch.commands import main


class Net(nn.Module):
    """Blocks in a list, as the pages have them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return x


def wrapped():
    return {"model": DistributedDataParallel(Net())}


def watched():
    given = wrapped()
    return given | {"watch": overlapwatch.watch(given["model"], sinks=("none",))}


def sharded():
    model = Net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return {"model": model, "watch": overlapwatch.watch(model, sinks=("none",))}


def tables():
    model = wrapped()["model"]
    watch = overlapwatch.watch(model, log_dir="runs/exported", sinks=("none",))
    train(model)
    watch.close()
    assert main(["export", "runs/exported", "--to", "parquet", "--output", "tables"]) == 0
    return {}


GIVEN = {
    "": dict,
    "a model that is not wrapped": lambda: {"net": (net := Net()), "model": net},
    "a DDP model": wrapped,
    "a watched DDP model": watched,
    "exported tables": tables,
    "a watched FSDP2 model": sharded,
}


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()


def become_of(block):
    names = {
        "overlapwatch": overlapwatch,
        "torch": torch,
        "dist": dist,
        "Path": Path,
        "DistributedDataParallel": DistributedDataParallel,
        "fully_shard": fully_shard,
        "rank": dist.get_rank(),
    }
    try:
        names |= GIVEN[block["given"]]()
        exec(compile(block["text"], block["name"], "exec"), names)
        if "model" in names:
            train(names["model"])
    except Exception:
        return traceback.format_exc()
    finally:
        if "watch" in names:
            names["watch"].close()
    return "ok"


def all_blocks() -> None:
    os.chdir(sys.argv[1])
    chosen = json.loads(Path("blocks.json").read_text())
    dist.init_process_group("gloo")
    print(json.dumps({block["place"]: become_of(block) for block in chosen}))
    dist.destroy_process_group()


if __name__ == "__main__":
    all_blocks()

"""One FSDP2 job whose compute sleeps: run by `bench_whatif_fsdp2.py` on every rank of a slow link.

Trains the same model under each setting in turn, watched, and prints (rank 0) one line of JSON: per setting the medians
of tail, exposed communication and step time, in ns, and of the peak of unsharded parameters, in bytes. Its logs are
left under DIRECTORY/SETTING; a setting is FORWARD-BACKWARD-RESHARD, as `1-2-True`.

    _whatif_fsdp2_job.py DIRECTORY MODEL SETTING,SETTING,... STEPS
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import overlapwatch
from overlapwatch.accounting.units.residency import residency
from overlapwatch.accounting.window import capture_window
from overlapwatch.sources import open_trace
from overlapwatch.vocabulary import OUT_OF_STATISTICS

MB = 1 << 20
MODELS = {
    # name: (MiB of parameters, ms of forward, ms of backward) of each block, in forward order
    "equal": [(2, 40, 80)] * 6,
    "heavy in the middle": [*[(2, 30, 60)] * 2, (8, 30, 60), *[(2, 30, 60)] * 3],
    "uneven": [(5, 20, 20), (2, 60, 120)] * 3,
}


class Work(torch.autograd.Function):
    """Takes its time, forward and backward; uses the weight in both."""

    @staticmethod
    def forward(
        ctx: object, x: Tensor, weight: Tensor, forward_s: float, backward_s: float
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x + weight[0]

    @staticmethod
    def backward(ctx: object, upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.backward_s)
        (weight,) = ctx.saved_tensors
        return upstream, torch.ones_like(weight), None, None


class Block(nn.Module):
    """One parameter, and time."""

    def __init__(self, mib: float, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(int(mib * MB) // 4))
        self.times = (forward_ms / 1000, backward_ms / 1000)

    def forward(self, x: Tensor) -> Tensor:
        return Work.apply(x, self.weight, *self.times)


class Net(nn.Module):
    """Blocks, and a scale that the outermost unit holds."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block(*one) for one in MODELS[model]])
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x) * self.scale.sum()


def wrapped(model: str, setting: str) -> Net:
    """Return the model sharded, gathering in the background, under a setting."""
    forward, backward, reshard = setting.split("-")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = Net(model)
    blocks = list(net.blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard == "True")
    fully_shard(net, mesh=mesh)
    net._set_unshard_async_op(
        True
    )  # private in torch: on CPUs too an all-gather runs beside compute
    for place, block in enumerate(blocks):
        ahead = blocks[place + 1 : place + 1 + int(forward)]
        behind = blocks[max(0, place - int(backward)) : place][::-1]
        block.set_modules_to_forward_prefetch(ahead)
        block.set_modules_to_backward_prefetch(behind)
    return net


def main() -> None:
    directory, model, settings, steps = sys.argv[1:]
    dist.init_process_group("gloo")
    measured = {}
    for setting in settings.split(","):
        net = wrapped(model, setting)
        optimizer = torch.optim.SGD([net.scale], lr=0.0)
        log = f"{directory}/{setting}"
        watch = overlapwatch.watch(net, log_dir=log, sinks=("none",), shadow_every=0)
        for _ in range(int(steps)):
            net(torch.ones(8, requires_grad=True)).sum().backward()
            optimizer.step()
        watch.close()
        rows = watch.summaries
        rows = rows[rows["flags"] & OUT_OF_STATISTICS == 0][1:]
        tl = open_trace(Path(watch.log_path))[0].timeline
        held = residency(tl, capture_window(tl), tl.steps)
        measured[setting] = {
            "tail_ns": int(np.median(rows["tail_ns"])),
            "exposed_ns": int(np.median(rows["communication_only_ns"])),
            "step_ns": int(np.median(rows["end_ns"] - rows["start_ns"])),
            "peak_bytes": held.median_peak_bytes,
        }
        del net, optimizer
    if dist.get_rank() == 0:
        print(json.dumps(measured))
    time.sleep(0.2)  # gloo's threads let go of the last reduction first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

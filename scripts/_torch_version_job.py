"""The job of scripts/check_torch_versions: trains small models unwatched and watched, prints table rows.

DDP in both modes, and FSDP2 where this PyTorch has what watching it needs (2.9); below that, the sentence that says so.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import overlapwatch

STEPS = 10


def layers():
    """Return a small model, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(300, 300), nn.ReLU())])


def ddp():
    """Return (the model to train, the model to watch)."""
    model = DistributedDataParallel(layers(), bucket_cap_mb=1)
    return model, model


def fsdp2():
    """Return the same for FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = layers()
    for layer in model[::2]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), model


def train(make, mode):
    """Return (digest of the parameters, summaries, whether the watch was active to the end); mode None: unwatched."""
    model, to_watch = make()
    watch = overlapwatch.watch(to_watch, mode=mode or "off", sinks="none")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(32, 300, generator=generator)).square().mean().backward()
        optimizer.step()
    active = watch.active
    watch.close()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().numpy().tobytes())
    return digest.hexdigest(), watch.summaries, active


def row(kind, make, mode):
    """Print one row of the table."""
    unwatched, _, _ = train(make, None)
    try:
        watched, steps, active = train(make, mode)
    except overlapwatch.ConfigurationError as refusal:
        if dist.get_rank() == 0:
            print(f"| {torch.__version__} | {kind} | {mode} | refused: {refusal} | | | |")
        return
    if dist.get_rank() == 0:
        same = "yes" if watched == unwatched and active else "NO"
        units = sorted(set(steps["buckets"][2:].tolist()))
        print(
            f"| {torch.__version__} | {kind} | {mode} | {same} | {len(steps)} of {STEPS} | "
            f"{', '.join(map(str, units))} | {int(steps['unfinished'].sum())} |"
        )


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for mode in ("passive", "hook"):
        row("DDP", ddp, mode)
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        if dist.get_rank() == 0:
            print(f"| {torch.__version__} | FSDP2 | | there is none | | | |")
    else:
        row("FSDP2", fsdp2, "passive")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

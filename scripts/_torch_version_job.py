"""The job of scripts/check_torch_versions: trains one small model unwatched and watched, prints table rows."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import overlapwatch

STEPS = 10


def train(mode: str | None):
    """Return (digest of the parameters, summaries, whether the watch was active to the end)."""
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(300, 300), nn.ReLU())])
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    watch = overlapwatch.watch(model, mode=mode or "off", sinks="none")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(32, 300, generator=generator)).square().mean().backward()
        optimizer.step()
    active = watch.active
    watch.close()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters()))
    return digest.hexdigest(), watch.summaries, active


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    unwatched, _, _ = train(None)
    for mode in ("passive", "hook"):
        watched, steps, active = train(mode)
        if dist.get_rank() == 0:
            same = "yes" if watched == unwatched and active else "NO"
            buckets = sorted(set(steps["buckets"][2:].tolist()))
            print(
                f"| {torch.__version__} | {mode} | {same} | {len(steps)} of {STEPS} | "
                f"{', '.join(map(str, buckets))} | {int(steps['unfinished'].sum())} |"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

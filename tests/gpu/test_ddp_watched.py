"""DDP over NCCL in one process: the parameters after some steps are the same bits with and without a watch."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

ROOT = Path(__file__).parents[2]

PROGRAM = """
import hashlib, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

directory = sys.argv[1]
dist.init_process_group("nccl")
torch.cuda.set_device(0)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
model = DDP(net, device_ids=[0], bucket_cap_mb=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
watch = None
if directory:
    import overlapwatch
    watch = overlapwatch.watch(model, log_dir=directory)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
if watch is not None:
    watch.close()
digest = hashlib.sha256()
for parameter in net.parameters():
    digest.update(parameter.detach().cpu().numpy().tobytes())
print("digest", digest.hexdigest())
dist.destroy_process_group()
"""


def train(directory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    done = subprocess.run(
        check=False,
        args=[sys.executable, "-c", PROGRAM, str(directory)],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("digest "))


def test_watched_parameters_are_the_same_bits(tmp_path, number):
    unwatched = train("")
    assert train("") == unwatched, "the job itself is not deterministic here"
    assert train(tmp_path / "run") == unwatched
    logs = list((tmp_path / "run").glob("*.owlog"))
    number("logs written", len(logs))
    assert logs

"""What `test_accelerate.py` runs on each rank: a loop of one's own with a real `Accelerator`."""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.tracking import GeneralTracker
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overlapwatch.hooks import installed
from overlapwatch.integrations.accelerate import watching
from tests.support.parameters import digest

WORK = Path(sys.argv[1])
ALONE = sys.argv[2:] == ["alone"]
if ALONE:  # as without torchrun
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]


class Kept(GeneralTracker):
    """A tracker that keeps what it is given."""

    name = "kept"
    requires_logging_directory = False
    tracker = None

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict]] = []

    def store_init_configuration(self, values):
        pass

    def log(self, values, step, **_):
        self.rows.append((step, values))


def train(name: str, watched: str, fails_at: int = -1) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    samples = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(samples), batch_size=4)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    settings = {"log_dir": WORK / name / "log", "sinks": "none", "drain_ms": 5}
    settings["disable"] = watched == "unwatched"
    with watching(accelerator, model, **settings) as watch:
        for number, (batch,) in enumerate(loader):
            if number == fails_at:
                raise RuntimeError("the data ends here")
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            watch.log(number)
            if number % 4 == 3:  # evaluation between two steps, with a collective of its own
                model.eval()
                with torch.no_grad():
                    accelerator.gather(model(batch).mean())
                model.train()
    told[f"{name} {watched}"] = digest(model)
    told[f"{name} {watched} left"] = installed()


tracker = Kept()
handlers = [DistributedDataParallelKwargs(bucket_cap_mb=0.01)]
accelerator = Accelerator(
    cpu=True,
    mixed_precision="bf16",
    gradient_accumulation_steps=2,
    kwargs_handlers=handlers,
    log_with=[tracker],
)
accelerator.init_trackers("test")
told: dict[str, object] = {}
if ALONE:
    train("alone", "watched")
    sys.exit()
train("much", "unwatched")
train("much", "watched")
try:
    train("fails", "watched", fails_at=5)
except RuntimeError as error:
    told["fails"] = str(error)
told["fails left"] = installed()
told["logged"] = [(step, sorted(values)) for step, values in tracker.rows]
accelerator.end_training()
print(json.dumps(told))

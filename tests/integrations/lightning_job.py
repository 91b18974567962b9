"""What `test_lightning.py` runs on each rank: real `Trainer.fit`s in the directory that is given."""

import json
import os
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks import installed
from overlapwatch.integrations.lightning import WatchCallback
from tests.support.parameters import digest

WORK = Path(sys.argv[1])


class Module(pl.LightningModule):
    """Fails in training batch `fails_at`."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 4))
        self.fails_at = fails_at

    def training_step(self, batch, number):
        if number == self.fails_at:
            raise RuntimeError("the data ends here")
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch, number):
        self.log("seen", self.net(batch[0]).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class ShardedModule(Module):
    """The same by FSDP2."""

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        mesh = self.device_mesh["data_parallel"]
        for layer in (self.net[0], self.net[2], self.net[3], self.net):
            fully_shard(layer, mesh=mesh)


def data() -> DataLoader:
    samples = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(samples), batch_size=4)


def fit(name: str, module: Module, callbacks: list, **options) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        callbacks=callbacks,
        logger=CSVLogger(WORK, name=name, version=0),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=WORK / name,
        **{"max_steps": 3, "limit_val_batches": 2, **options},
    )
    trainer.fit(module, data(), data())


def ddp() -> DDPStrategy:
    return DDPStrategy(bucket_cap_mb=0.01)


def watch(name: str, **settings) -> WatchCallback:
    return WatchCallback(log_dir=WORK / name / "log", sinks="none", drain_ms=5, **settings)


told: dict[str, object] = {}
if os.environ["WORLD_SIZE"] == "1":
    fit("alone", Module(), [watch("alone")])
    sys.exit()

KINDS = {
    "plain": (Module, lambda: {"strategy": ddp()}),
    # Accumulation, clipping, validation and checkpoints between the steps, mixed precision.
    "much": (
        Module,
        lambda: {
            "strategy": ddp(),
            "max_steps": 4,
            "accumulate_grad_batches": 2,
            "gradient_clip_val": 0.5,
            "val_check_interval": 2,
            "precision": "bf16-mixed",
        },
    ),
    "sharded": (
        ShardedModule,
        lambda: {"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)},
    ),
}
for name, (kind, options) in KINDS.items():
    for watched in ("unwatched", "watched"):
        torch.manual_seed(0)
        module = kind()
        fit(f"{name}/{watched}", module, [watch(name)] * (watched == "watched"), **options())
        told[f"{name} {watched}"] = digest(module)
        told[f"{name} {watched} left"] = installed()

# The same callback in two fits, and one that fails.
callback = watch("again", metrics=False)
for _ in range(2):
    fit("again", Module(), [callback], strategy=ddp())
try:
    fit("fails", Module(fails_at=2), [callback], strategy=ddp())
except RuntimeError as error:
    told["fails"] = str(error)
told["fails left"] = installed()
try:
    WatchCallback(log_dri="runs/a")
except ConfigurationError as error:
    told["misspelled"] = str(error)
print(json.dumps(told))

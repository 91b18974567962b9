"""What `test_torchtitan.py` runs on each rank: torchtitan's own `main`, with a small Llama and random tokens.

`torchtitan_cpu` has been imported before.
"""

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torchtitan.train
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.trainer import Trainer

from overlapwatch.hooks import installed
from tests.support.parameters import digest

WORK = Path(sys.argv[1])
SEQUENCE = 16


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    def encode(self, *_, **__):
        raise NotImplementedError

    def decode(self, *_, **__):
        raise NotImplementedError

    def get_vocab_size(self):
        return 2048


class RandomTokens(BaseDataLoader):
    """Fails on batch `fails_at`."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        fails_at: int = -1

    def __init__(self, config, *, dp_rank, local_batch_size, **_):
        self.fails_at = config.fails_at
        self.rows = local_batch_size
        self.generator = torch.Generator().manual_seed(1 + dp_rank)

    def __iter__(self):
        number = 0
        while True:
            if number == self.fails_at:
                raise RuntimeError("the data ends here")
            number += 1
            tokens = torch.randint(2048, (self.rows, SEQUENCE + 1), generator=self.generator)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def close(self):
        pass


def parallelize(model, **options):
    """By torchtitan's own function; then sum and divide apart, since gloo cannot do both at once."""
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(enable=True)
    return model


def configure(fails_at: int) -> Trainer.Config:
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:1]
    for layer in spec.model.layers:  # its default, FlexAttention, would be compiled for a minute
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    spec = replace(spec, parallelize_fn=parallelize)
    return Trainer.Config(
        model_spec=spec,
        dump_folder=str(WORK / "titan"),
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        tokenizer=NoTokenizer.Config(),
        dataloader=RandomTokens.Config(fails_at=fails_at),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=8,  # two backward passes a step
            seq_len=SEQUENCE,
            steps=3,
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=False),
        activation_checkpoint=None,
        debug=DebugConfig(seed=0),
    )


class Manager:
    """Gives torchtitan's `main` this configuration in place of a command line's."""

    def parse_args(self):
        return configure(int(os.environ.get("FAILS_AT", "-1")))


made: list[Trainer] = []
original = Trainer.train


def train(self):
    made.append(self)
    original(self)


Trainer.train = train
torchtitan.train.ConfigManager = Manager
# A barrier that names a device, which gloo refuses; and two seconds of sleep at the end.
torchtitan.distributed.utils.set_pg_timeouts = lambda **_: None
torchtitan.trainer.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)
told: dict[str, object] = {}
try:
    torchtitan.train.main()
except RuntimeError as error:
    told["fails"] = str(error)
told["steps"] = made[0].step
told["parameters"] = digest(made[0].model_parts[0])
told["left"] = installed()
print(json.dumps(told))

"""What `test_transformers.py` runs on each rank: real `Trainer.train()`s of a tiny model with random weights."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from overlapwatch.hooks import installed
from overlapwatch.integrations.transformers import WatchCallback
from tests.support.parameters import digest

WORK = Path(sys.argv[1])
ALONE = sys.argv[2:] == ["alone"]
if ALONE:  # as without torchrun
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]


class Tokens(Dataset):
    """Random token ids; the label of each is the token itself."""

    def __init__(self) -> None:
        self.ids = torch.randint(64, (64, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[number], "labels": self.ids[number]}


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )


def trainer(name: str, **options) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(WORK / name),
        use_cpu=True,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        ddp_bucket_cap_mb=0.01,
        seed=3,
        **{"max_steps": 3, "save_strategy": "no", **options},
    )
    return Trainer(model=model(), args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())


class Fails(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise RuntimeError("the data ends here")


OPTIONS = {
    "plain": {},
    # Accumulation, evaluation and checkpoints between the steps, clipping (by default), mixed precision.
    "much": {
        "max_steps": 4,
        "gradient_accumulation_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "bf16": True,
    },
}


def watch(one: Trainer, name: str, **settings) -> None:
    one.add_callback(
        WatchCallback(one, log_dir=WORK / name / "log", sinks="none", drain_ms=5, **settings)
    )


told: dict[str, object] = {}
if ALONE:
    one = trainer("alone")
    watch(one, "alone")
    one.train()
    sys.exit()

for name, options in OPTIONS.items():
    for watched in ("unwatched", "watched"):
        one = trainer(f"{name}/{watched}", **options)
        if watched == "watched":
            watch(one, name)
        one.train()
        told[f"{name} {watched}"] = digest(one.model)
        told[f"{name} {watched} left"] = installed()
        told[f"{name} {watched} logs"] = one.state.log_history

# The same trainer again, and then it fails: nobody is told of that, so the watch goes on until the next training.
again = trainer("again")
watch(again, "again", metrics=False)
again.train()
again.add_callback(Fails())
try:
    again.train()
except RuntimeError as error:
    told["fails"] = str(error)
told["fails left"] = installed()
again.remove_callback(Fails)
again.train()
told["again left"] = installed()
told["again logs"] = again.state.log_history
print("\n" + json.dumps(told))

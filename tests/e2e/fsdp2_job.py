"""Runs the trainings of `tests.support.fsdp2_training`, each without and with a watch, and tells what came of both.

Run by `test_fsdp2_bit_identity`, one process a rank. Prints one line of JSON per training; whatever a training raises is
told in its line, and the next one runs.
"""

import hashlib
import json
import logging
import sys
import tempfile
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import optimizer as optimizers

import overlapwatch
from overlapwatch.hooks import installed
from overlapwatch.hooks.c10d import OPERATIONS
from overlapwatch.hooks.fsdp2_layout import groups_of
from overlapwatch.log.reader import read_log
from tests.support.fsdp2_seen import seen
from tests.support.fsdp2_training import CASES, Run, collectives_counted
from tests.support.training import NoWatch

COPIES = ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")


def digest(run: Run) -> str:
    """Return a hash of every bit that the training made."""
    total = hashlib.sha256(json.dumps([loss.hex() for loss in run.losses]).encode())
    tensors = [t for model in run.models for t in model.state_dict().values()]
    for optimizer in run.optimizers:
        states = optimizer.state_dict()["state"]
        tensors += [
            t for state in states.values() for t in state.values() if isinstance(t, torch.Tensor)
        ]
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        total.update(
            local.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return total.hexdigest()


def train(name: str, attach: Any) -> tuple[Run, set[str]]:
    """Train; return also the Python warnings that the training gave."""
    torch.manual_seed(0)
    run = Run(attach)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        CASES[name].train(run)
    return run, {f"{one.category.__name__}: {one.message}" for one in given}


def surroundings() -> dict[str, Any]:
    """Return the state of the process that a watch changes and must put back."""
    ops = [f"c10d::{op.name}" for op in OPERATIONS if hasattr(torch.ops.c10d, op.name)]
    ops += [f"fsdp::{name}" for name in COPIES]
    counts = {
        "optimizer pre hooks": len(optimizers._global_optimizer_pre_hooks),
        "optimizer post hooks": len(optimizers._global_optimizer_post_hooks),
        "installed": installed(),
    }
    return {**{op: torch._C._dispatch_dump(op) for op in ops}, **counts}


def shape(model: nn.Module) -> list[Any]:
    """Return everything about a model's wrapping in which a hook of ours could sit."""
    found: list[Any] = []
    for name, module in model.named_modules():
        found.append((name, sorted(vars(module)), type(module).__name__))
        found += [
            [getattr(hook, "__qualname__", "?") for hook in getattr(module, hooks).values()]
            for hooks in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called")
        ]
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            found.append(sorted(vars(state)))
            for group in groups_of(state):
                found.append(sorted(vars(group)))
                kinds = [type(c) for c in (group._all_gather_comm, group._reduce_scatter_comm)]
                found.append([f"{kind.__name__} {id(kind)}" for kind in kinds])
    return found


def watched(name: str, log_dir: Path) -> tuple[Run, set[str], dict[str, Any]]:
    """Train under a watch and close it."""
    watch: list[Any] = []

    def attach(model: Any) -> Any:
        watch.append(
            overlapwatch.watch(model, log_dir=log_dir, sinks=("none",), shadow_every=0, drain_ms=5)
        )
        return watch[0]

    logged: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("overlapwatch")
    logger.addHandler(listener)
    active = False
    try:
        run, given = train(name, attach)
        active = run.closed or watch[0].active
    finally:
        for one in watch:
            one.close()
        logger.removeHandler(listener)
    return run, given, {"active": active, "logged": logged, "log": str(watch[0].log_path)}


def compare(name: str, before: dict[str, Any]) -> dict[str, Any]:
    """Train without and with a watch, and put both side by side."""
    plain, given = train(name, lambda _: NoWatch())
    counted = np.diff(plain.counted).tolist()
    if not plain.closed:  # what comes after the last step is counted to it
        counted[-1] += collectives_counted() - plain.counted[-1]
    with tempfile.TemporaryDirectory() as directory:
        run, also_given, told = watched(name, Path(directory))
        after = surroundings()
        told |= {
            "counted": counted,
            "identical": digest(run) == digest(plain),
            "python_warnings": sorted(also_given - given),
            "leftovers": [what for what in after if after[what] != before[what]],
            "same shape": [shape(m) for m in run.models] == [shape(m) for m in plain.models],
        }
        if told["active"]:
            told["seen"] = seen(read_log(Path(told["log"])))
    return told


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    before = surroundings()
    for name in sys.argv[1:]:
        try:
            told = compare(name, before)
        except Exception:
            told = {"raised": traceback.format_exc()}
        print(json.dumps({"case": name, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What lies around an FSDP2 training: state dicts, checkpoints, copies, shadow steps, the process's end. One rank's part.

Run by `test_fsdp2_around`. Prints one line of JSON.
"""

import copy
import hashlib
import json
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

import overlapwatch
from overlapwatch.log.reader import read_log
from overlapwatch.vocabulary import CollectiveKind, RecordKind, StepFlag
from tests.support.fsdp2_training import WIDTH, Net, shard


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def digest(state: Any) -> str:
    """Return a hash of names, types, placements and bits."""
    total = hashlib.sha256()

    def take(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                take(f"{prefix}/{key}", value[key])
        elif isinstance(value, DTensor):
            total.update(f"{prefix} {value.placements} {value.shape}".encode())
            take(prefix, value.to_local())
        elif isinstance(value, torch.Tensor):
            total.update(prefix.encode())
            total.update(
                value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        else:
            total.update(f"{prefix} {value!r}".encode())

    take("", state)
    return total.hexdigest()


def refused(action: Any) -> str:
    """Return what an action raises: FSDP2 allows no copies, watched or not."""
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return ""


def train(directory: Path, *, watched: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = shard(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    watch = overlapwatch.watch(model, sinks="none", shadow_every=0) if watched else None
    random = torch.Generator().manual_seed(dist.get_rank())

    def steps(count: int) -> None:
        for _ in range(count):
            model(torch.randn(4, WIDTH, generator=random)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    steps(2)
    plain = digest(model.state_dict())
    saved = state_of(model, optimizer)
    told = {"keys": list(saved["model"]), "plain": plain, "saved": digest(saved)}
    dcp.save(saved, checkpoint_id=directory)
    steps(2)
    told["later"] = digest(state_of(model, optimizer))
    loaded = state_of(model, optimizer)
    dcp.load(loaded, checkpoint_id=directory)
    set_state_dict(
        model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    told["loaded"] = digest(state_of(model, optimizer))
    steps(1)
    told["end"] = digest(state_of(model, optimizer))
    told["copied"] = refused(lambda: copy.deepcopy(model))
    told["pickled"] = refused(lambda: pickle.dumps(model))
    if watch is not None:
        assert watch.active
        watch.close()
    return told


def shadow_and_log(directory: Path) -> dict[str, Any]:
    """Train with shadow steps and a log; close before anything else is done."""
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = overlapwatch.watch(
        model, sinks="none", shadow_every=5, log_dir=directory, drain_ms=5, keep_first=100
    )
    for _ in range(20):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    rows = watch.summaries
    shadow = rows["flags"] & StepFlag.SHADOW != 0
    assert watch.log_path is not None
    records = np.concatenate([block.records for block in read_log(watch.log_path).events])
    uses = records[
        (records["kind"] == RecordKind.WAIT) & (records["collective"] == CollectiveKind.ALL_GATHER)
    ]
    return {
        "steps": len(rows),
        "shadow": rows["step"][shadow].tolist(),
        "in shadow": int(rows["collectives"][shadow].sum()),
        "in others": sorted(set(rows["collectives"][~shadow][1:].tolist())),
        "uses per step": sorted(set(np.unique(uses["step"], return_counts=True)[1].tolist())),
    }


def main() -> None:
    dist.init_process_group("gloo")
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("overlapwatch").addHandler(listener)
    directory = Path(sys.argv[1])
    told = {
        "plain": train(directory / "plain", watched=False),
        "watched": train(directory / "watched", watched=True),
        "shadow": shadow_and_log(directory / "log"),
        "said": said,
    }
    print(json.dumps(told), flush=True)
    model = shard(Net())
    overlapwatch.watch(model, sinks="none")
    model(torch.randn(4, WIDTH)).sum().backward()
    dist.destroy_process_group()  # and the process ends with the watch open


if __name__ == "__main__":
    main()

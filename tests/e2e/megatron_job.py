"""Runs trainings of `tests.support.megatron_training`, each without and with a watch, and tells what came of both.

Run by `test_megatron`, one process a rank. Prints one line of JSON per layout; whatever a training raises is told in its
line, and the next one runs.
"""

import contextlib
import itertools
import json
import logging
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

import overlapwatch
from overlapwatch.hooks import installed
from overlapwatch.log.reader import LogContents, read_log
from overlapwatch.vocabulary import (
    CollectiveKind,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)
from tests.support.megatron_training import LAYOUTS, init, train

GLOBALS = (
    ("megatron.core.tensor_parallel.layers", "dist_all_gather_func"),
    ("megatron.core.tensor_parallel.layers", "dist_reduce_scatter_func"),
    ("megatron.core.tensor_parallel.mappings", "dist_all_gather_func"),
    ("megatron.core.tensor_parallel.mappings", "dist_reduce_scatter_func"),
    ("megatron.core.pipeline_parallel.p2p_communication", "_communicate"),
    ("torch.distributed", "all_reduce"),
)


def surroundings(chunks: list[Any]) -> dict[str, Any]:
    """Return everything that a watch changes and must put back."""
    from megatron.core.pipeline_parallel import p2p_communication
    from megatron.core.tensor_parallel import layers

    found: dict[str, Any] = {
        f"{module}.{name}": getattr(sys.modules.get(module), name, None) for module, name in GLOBALS
    }
    linear = layers.LinearWithGradAccumulationAndAsyncCommunication
    found["linear"] = vars(linear)["backward"]
    found["p2p"] = vars(getattr(p2p_communication, "P2PCommunicator", object)).get("_communicate")
    found["optimizer hooks"] = (
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
    )
    for op in ("allreduce_", "allreduce_coalesced_", "send"):
        found[op] = torch._C._dispatch_dump(f"c10d::{op}")
    for number, chunk in enumerate(chunks):
        found[f"attributes of chunk {number}"] = sorted(vars(chunk))
        groups = [
            group
            for name in ("bucket_groups", "expert_parallel_bucket_groups")
            for group in getattr(chunk, name, ())
        ]
        for place, group in enumerate(groups):
            found[f"attributes of {number}.{place}"] = sorted(vars(group))
        for name, module in chunk.named_modules():
            found[f"hooks of {number} {name}"] = (
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
                len(module._backward_hooks),
            )
            dispatcher = getattr(module, "token_dispatcher", None)
            if dispatcher is not None:
                found[f"dispatcher of {number} {name}"] = [
                    method for method in vars(dispatcher) if method.startswith("token_")
                ]
    return found


def counted() -> int:
    """Return how many collectives gloo has been asked for in all groups since they were made."""
    groups = dist.distributed_c10d._world.pg_map
    return sum(
        int(group._get_backend(torch.device("cpu"))._get_sequence_number_for_group())
        for group in groups
        if dist.get_process_group_ranks(group)
    )


class Job:
    """A training that is watched, and what it told."""

    def __init__(self, log_dir: Path, every: list[int]) -> None:
        self._log_dir = log_dir
        self._every = every
        self.told: dict[str, Any] = {}

    @contextlib.contextmanager
    def attach(self, chunks: list[Any]) -> Iterator[None]:
        before = surroundings(chunks)
        heard: list[str] = []
        listener = logging.Handler()
        listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("overlapwatch").addHandler(listener)
        watch = overlapwatch.watch(
            chunks, log_dir=self._log_dir, sinks=("none",), shadow_every=0, drain_ms=5
        )
        self._every.append(counted())
        yield
        self.told["active"] = watch.active
        watch.close()
        watch.close()
        logging.getLogger("overlapwatch").removeHandler(listener)
        after = surroundings(chunks)
        self.told["left"] = [what for what, state in after.items() if state != before.get(what)]
        self.told["left"] += [name for name in before if name not in after] + installed()
        self.told["heard"] = heard
        self.told["log"] = str(watch.log_path)


def rows(log: LogContents) -> list[dict[str, Any]]:
    """Return the records of the log in words."""
    records = np.concatenate([block.records for block in log.events])
    names, groups = log.names, log.groups
    kinds = {number: name.kind.name for number, name in names.items()}
    told = []
    for r in records[np.argsort(np.maximum(records["launch"], records["start"]), kind="stable")]:
        owner, cause = int(r["owner"]), int(r["cause"])
        told.append(
            {
                "kind": RecordKind(int(r["kind"])).name,
                "phase": Phase(int(r["phase"])).name,
                "collective": CollectiveKind(int(r["collective"])).name,
                "step": int(r["step"]),
                "owner": names[owner].text if owner else "",
                "what": kinds.get(owner, ""),
                "members": len(names[owner].members) if owner else 0,
                "cause": names[cause].text if cause else "",
                "group": groups[int(r["group"])].text if r["group"] else "",
                "ranks": len(groups[int(r["group"])].members) if r["group"] else 0,
                "bytes": int(r["bytes"]),
                "flags": [f.name for f in RecordFlag if f & int(r["flags"])],
                "times": [int(r[field]) for field in ("ready", "launch", "start", "finish")],
            }
        )
    return told


def tell(name: str) -> dict[str, Any]:
    """Train twice and compare."""
    layout = LAYOUTS[name]
    plain = train(layout)
    every: list[int] = []
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory), every)
        watched = train(layout, job.attach, lambda _step: every.append(counted()))
        log = read_log(Path(job.told.pop("log")))
    return {
        "equal": plain.digest == watched.digest and plain.losses == watched.losses,
        "losses": len(plain.losses),
        "counted": [after - before for before, after in itertools.pairwise(every)],
        **job.told,
        "rows": rows(log),
        "flags": [[f.name for f in StepFlag if f & int(one)] for one in log.summaries["flags"]],
        "facts": dict(log.header.environment) if log.header else {},
        "counts": dict(log.counts),
        "names": {
            n.text: [n.elements, n.bytes, n.dtype]
            for n in log.names.values()
            if n.kind is NameKind.BUCKET
        },
    }


def main() -> None:
    warnings.simplefilter("ignore")
    init()
    for name in sys.argv[1:]:
        try:
            told = tell(name)
        except Exception:
            told = {"raised": traceback.format_exc()}
        print(json.dumps({"layout": name, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

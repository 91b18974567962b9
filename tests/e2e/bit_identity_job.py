"""Runs the trainings of `tests.support.training`, each without and with a watch, and tells what came of both.

Run by `test_bit_identity`, one process a rank. Prints one line of JSON per training and mode; whatever a training
raises is told in its line, and the next one runs.
"""

import hashlib
import json
import logging
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

import overlapwatch
from overlapwatch.hooks import installed
from overlapwatch.hooks.c10d import OPERATIONS
from overlapwatch.log.reader import LogContents, read_log
from overlapwatch.vocabulary import NOT_KNOWN, NameKind, Phase, RecordFlag, RecordKind, StepFlag
from tests.support.training import CASES, NoWatch, Run, collectives_counted


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
        total.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def train(name: str, attach: Any) -> tuple[Run, set[str]]:
    """Train; return also the Python warnings that the training gave."""
    torch.manual_seed(0)
    run = Run(attach)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        CASES[name].train(run)
    return run, {f"{one.category.__name__}: {one.message}" for one in given}


class Watched:
    """The handle of a watched training: remembers whether the watch was still at work when it was closed."""

    def __init__(self, model: Any, mode: str, log_dir: Path) -> None:
        self.watch = overlapwatch.watch(
            model, log_dir=log_dir, mode=mode, sinks=("none",), shadow_every=0, drain_ms=5
        )
        self.log_path = self.watch.log_path
        self.active = False
        self.step = self.watch.step

    def close(self) -> None:
        self.active |= self.watch.active
        self.watch.close()


def surroundings() -> dict[str, Any]:
    """Return the state of the process that a watch changes and must put back."""
    dumps = {
        op.name: torch._C._dispatch_dump(f"c10d::{op.name}")
        for op in OPERATIONS
        if hasattr(torch.ops.c10d, op.name)
    }
    counts = {
        "optimizer pre hooks": len(optimizers._global_optimizer_pre_hooks),
        "optimizer post hooks": len(optimizers._global_optimizer_post_hooks),
    }
    return {**dumps, **counts}


def leftovers(before: dict[str, Any], run: Run, attributes: Iterable[str]) -> list[str]:
    """Return what is not as it was before the watch."""
    found = [what for what, state in surroundings().items() if state != before[what]]
    found += [f"installed: {name}" for name in installed()]
    for model in run.models:
        found += [f"attribute {name}" for name in set(vars(model)) ^ set(attributes)]
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            found += [f"{hooks}" for _ in getattr(model, hooks)]
        modules = [hook.__code__.co_filename for hook, _ in model._comm_hooks]
        found += [f"hook in {path}" for path in modules if "overlapwatch/hooks" in path]
    return found


def watched(name: str, mode: str, log_dir: Path) -> tuple[Run, set[str], dict[str, Any]]:
    """Train under a watch and close it."""
    handles: list[Watched] = []

    def attach(model: Any) -> Watched:
        handles.append(Watched(model, mode, log_dir))
        return handles[0]

    logged: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("overlapwatch")
    logger.addHandler(listener)
    try:
        run, given = train(name, attach)
    finally:
        for handle in handles:
            handle.close()
        logger.removeHandler(listener)
    told = {"active": handles[0].active, "logged": logged, "log": str(handles[0].log_path)}
    return run, given, told


def launched_by_ddp(run: Run) -> list[int]:
    """Return how many buckets DDP says each module has in the end."""
    said = [model._get_ddp_logging_data() for model in run.models]
    return [
        len([s for s in one.get("rebuilt_bucket_sizes", one["bucket_sizes"]).split(",") if s])
        for one in said
    ]


def seen(log: LogContents) -> dict[str, Any]:
    """Boil a log down to what the test compares."""
    records = np.concatenate([block.records for block in log.events])
    steps = records[records["kind"] == RecordKind.STEP]
    collectives = records[records["kind"] == RecordKind.COLLECTIVE]
    kinds = {number: name.kind for number, name in log.names.items()}
    is_bucket = np.array(
        [kinds.get(int(owner)) == NameKind.BUCKET for owner in collectives["owner"]], bool
    )
    return {
        "steps": steps["step"].tolist(),
        "summarised": log.summaries["step"].tolist(),
        "flags": [
            [flag.name for flag in StepFlag if flag & int(flags)]
            for flags in log.summaries["flags"]
        ],
        "collectives": _per_step(collectives, steps),
        "buckets": _per_step(collectives[is_bucket], steps),
        "owners": _owners(collectives[is_bucket], steps, log),
        "payload": _payloads(collectives[is_bucket], log),
        "phases": [
            sorted({Phase(int(p)).name for p in records["phase"][_spans_of(records, step)]})
            for step in steps["step"]
        ],
        "disorder": _disorder(records, collectives[is_bucket], steps),
        "open_sums": _open_sums(log.summaries),
        "counters": dict(log.counts),
        "end": log.end.reason if log.end else None,
        "damage": [str(one) for one in log.damage],
    }


def _spans_of(records: Any, step: int) -> Any:
    return (records["step"] == step) & (records["kind"] == RecordKind.PHASE)


def _per_step(collectives: Any, steps: Any) -> list[int]:
    return [int((collectives["step"] == step).sum()) for step in steps["step"]]


def _owners(buckets: Any, steps: Any, log: LogContents) -> list[dict[str, int]]:
    """Return, per step, how often each bucket was reduced, by its name."""
    return [
        dict(Counter(log.names[int(o)].text for o in buckets["owner"][buckets["step"] == step]))
        for step in steps["step"]
    ]


def _payloads(buckets: Any, log: LogContents) -> list[str]:
    """Return, in order, how the bytes of each bucket's collective compare with the parameters in it."""
    words = []
    for record in buckets:
        members = [log.names[number] for number in log.names[int(record["owner"])].members]
        size = sum(member.bytes for member in members)
        known = {size: "full", size // 2: "half"} if members else {}
        words.append(known.get(int(record["bytes"]), "other" if members else "unnamed"))
    return words


def _disorder(records: Any, buckets: Any, steps: Any) -> list[str]:
    """Return what is out of order, in words."""
    found = []
    for record in records:
        what = f"{RecordKind(int(record['kind'])).name} in step {record['step']}"
        start = steps["start"][steps["step"] == record["step"]]
        if record["kind"] == RecordKind.COLLECTIVE:
            times = [record[field] for field in ("ready", "launch", "finish") if record[field]]
            unseen = record["flags"] & RecordFlag.FINISH_UNOBSERVABLE
            if not record["launch"] or not (record["finish"] or unseen):
                found.append(f"{what}: no launch or no finish")
        else:
            times = [record["start"], record["finish"]]
        if times != sorted(times) or times[0] <= 0 or (start > max(times)).any():
            found.append(f"{what}: {times}")
    found += [
        f"bucket outside a backward in step {record['step']}"
        for record in buckets
        if record["phase"] != Phase.BACKWARD
        and (record["launch"] < steps["finish"][steps["step"] == record["step"]]).all()
    ]
    return found


def _open_sums(summaries: Any) -> list[str]:
    """Return the sums that do not close, in words."""
    found = []
    for row in summaries:
        if row["communication_ns"] == NOT_KNOWN:
            found.append(f"step {row['step']}: communication not known")
            continue
        took = row["end_ns"] - row["start_ns"]
        parts = row["compute_only_ns"] + row["communication_only_ns"] + row["overlap_ns"]
        for what, left, right in (
            ("step", took, parts + row["idle_ns"]),
            ("compute", row["compute_ns"], row["compute_only_ns"] + row["overlap_ns"]),
            (
                "communication",
                row["communication_ns"],
                row["communication_only_ns"] + row["overlap_ns"],
            ),
        ):
            if left != right or min(parts, row["idle_ns"]) < 0:
                found.append(f"step {row['step']}: {what} {left} != {right}")
    return found


def compare(name: str, mode: str, plain: Run, given: set[str], before: Any) -> dict[str, Any]:
    """Train under a watch in this mode, and put everything beside the plain training."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            run, also_given, told = watched(name, mode, Path(directory))
        except overlapwatch.ConfigurationError as refusal:
            return {
                "refused": str(refusal),
                "leftovers": leftovers(before, plain, vars(plain.models[0])),
            }
        told["identical"] = digest(run) == digest(plain)
        told["python_warnings"] = sorted(also_given - given)
        told["leftovers"] = leftovers(before, run, vars(plain.models[0]))
        if told["active"]:
            told["seen"] = seen(read_log(Path(told["log"])))
    return told


def plain_training(name: str) -> tuple[Run, set[str], dict[str, Any]]:
    """Train without a watch; return also what DDP and the process group say of it."""
    run, given = train(name, lambda _: NoWatch())
    counted = np.diff(run.counted).tolist()
    if not run.closed:  # what comes after the last step is counted to it
        counted[-1] += collectives_counted(run.models[0]) - run.counted[-1]
    return run, given, {"counted": counted, "ddp_buckets": launched_by_ddp(run)}


def modes(name: str) -> tuple[str, ...]:
    return ("passive",) if CASES[name].hook_mode == "not run" else ("passive", "hook")


def tell(name: str, mode: str, what: dict[str, Any]) -> None:
    print(json.dumps({"case": name, "mode": mode, **what}), flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    before = surroundings()
    for name in sys.argv[1:]:
        try:
            plain, given, truth = plain_training(name)
            tell(name, "none", truth)
            for mode in modes(name):
                tell(name, mode, compare(name, mode, plain, given, before))
        except Exception:
            tell(name, "none", {"raised": traceback.format_exc()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

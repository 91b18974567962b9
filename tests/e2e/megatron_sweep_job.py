"""Sweeps Megatron's settings in trainings of `tests.support.megatron_training`, and tells what came of each.

Run by `test_megatron_sweep`, one process a rank. Prints one line of JSON per case named in the arguments; whatever a
training raises is told in its line, and the next one runs.
"""

import contextlib
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import overlapwatch
from overlapwatch.hooks.megatron.regroup import Grouping
from overlapwatch.log.reader import read_log
from overlapwatch.vocabulary import CollectiveKind, RecordKind
from tests.support.megatron_training import LAYOUTS, Layout, digest, init, train

EVERYTHING = {
    "overlap_grad_reduce": [False],
    "overlap_param_gather": [False],
    "merge_bucket_groups": [2, 100],
}
SMALL: dict[str, Any] = {"layers": 1, "bucket_size": 3_000, "steps": 400}
DP = replace(LAYOUTS["dp-distopt"], **SMALL)


@dataclass(frozen=True)
class Case:
    """A training in which something is swept."""

    layout: Layout
    values: dict[str, list[Any]] = field(default_factory=lambda: EVERYTHING)
    aligned: bool = (
        False  # the schedule launches gradients and parameters, as Megatron's loop has it do
    )
    evaluates: bool = (
        False  # after each step the loop takes the hooks out and looks at the parameters
    )
    breaks: int = 0  # merging so many fails


CASES = {
    "everything": Case(DP),
    "evaluates": Case(
        replace(DP, microbatches=1), {"overlap_param_gather": [False]}, evaluates=True
    ),
    "aligned": Case(
        replace(LAYOUTS["vpp"], microbatches=2, steps=400),
        {"overlap_grad_reduce": [False], "overlap_param_gather": [False]},
        aligned=True,
    ),
    "breaks": Case(replace(DP, microbatches=1), {"merge_bucket_groups": [2, 3]}, breaks=3),
    "experts": Case(
        replace(LAYOUTS["ep"], **SMALL | {"microbatches": 1}),
        {"overlap_grad_reduce": [False], "merge_bucket_groups": [2]},
    ),
}

REFUSED = {
    "dp-no-overlap": [
        {"overlap_grad_reduce": [True]},
        {"overlap_param_gather": [True]},
        {"merge_bucket_groups": [2]},
    ],
    "dp": [
        {"overlap_param_gather": [False]},
        {"overlap_grad_reduce": ["off"]},
        {"merge_bucket_groups": [0]},
        {"bucket_cap_mb": [1]},
    ],
}


def state(chunks: list[Any]) -> dict[str, Any]:
    """Return what is in force."""
    groups = [chunk.bucket_groups + chunk.expert_parallel_bucket_groups for chunk in chunks]
    return {
        "gradients": [chunk.ddp_config.overlap_grad_reduce for chunk in chunks],
        "parameters": [chunk.ddp_config.overlap_param_gather for chunk in chunks],
        "hooks": [len(chunk.remove_forward_pre_hook_handles) > 0 for chunk in chunks],
        "buckets": [[len(group.buckets) for group in part] for part in groups],
        "schedule": [chunk.config.grad_sync_func is not None for chunk in chunks],
        "attributes": [
            sorted(set(vars(chunk)) & {"finish_grad_sync", *METHODS}) for chunk in chunks
        ],
    }


METHODS = ("disable_forward_pre_hook", "enable_forward_pre_hook")


class Job:
    """A training of a case, swept or not."""

    def __init__(self, case: Case, log_dir: Path | None, steps: int = 0) -> None:
        self.case = case
        self._log_dir = log_dir
        self._steps = steps
        self.states: list[dict[str, Any]] = []
        self.seen: list[str] = []  # a hash of the parameters that an evaluation would use
        self.heard: list[str] = []
        self._after = 0
        self.sweep: Any = None

    @contextlib.contextmanager
    def attach(self, chunks: list[Any]) -> Iterator[None]:
        self._chunks = chunks
        if self.case.aligned:
            config = chunks[0].config
            config.grad_sync_func = [chunk.start_grad_sync for chunk in chunks]
            config.param_sync_func = [chunk.start_param_sync for chunk in chunks]
            chunks[0].ddp_config.align_param_gather = True
        if self._log_dir is None:
            yield
            return
        listener = logging.Handler()
        listener.emit = lambda record: self.heard.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("overlapwatch").addHandler(listener)
        self.watch = overlapwatch.watch(
            chunks, log_dir=self._log_dir, sinks=("none",), shadow_every=0, drain_ms=5
        )
        yield
        self.active = self.watch.active
        self.watch.close()
        logging.getLogger("overlapwatch").removeHandler(listener)

    def each_step(self, step: int) -> bool:
        self.states.append(state(self._chunks))
        if self.case.evaluates:
            for chunk in self._chunks:
                chunk.disable_forward_pre_hook()
            self.seen.append(digest(self._chunks))
            for chunk in self._chunks:
                chunk.enable_forward_pre_hook()
        if self._log_dir is None:
            return step + 1 == self._steps
        if step == 2:
            self.sweep = overlapwatch.sweep(
                self.watch,
                **self.case.values,
                rounds=1,
                block=3,
                apply="original",
            )
        time.sleep(0.003)  # the drain thread judges meanwhile
        self._after += bool(self.sweep and self.sweep.done)
        return self._after == 4


def by_step(path: Path) -> list[dict[str, Any]]:
    """Return the collectives of each step in words."""
    log = read_log(path)
    records = np.concatenate([block.records for block in log.events])
    found: dict[int, dict[str, Any]] = {}
    for r in records[records["kind"] == RecordKind.COLLECTIVE]:
        kinds = found.setdefault(int(r["step"]), {})
        owner = log.names[int(r["owner"])].text if r["owner"] else ""
        key = f"{CollectiveKind(int(r['collective'])).name} {owner}"
        kinds[key] = kinds.get(key, 0) + 1
    return [{"step": step, "collectives": kinds} for step, kinds in sorted(found.items())]


def tell(case: Case) -> dict[str, Any]:
    """Train with a sweep and without one, for as many steps, and compare."""
    with tempfile.TemporaryDirectory() as directory:
        swept = Job(case, Path(directory))
        plain_set = Grouping.set
        if case.breaks:

            def broken(self: Grouping, together: int) -> None:
                if together == case.breaks:
                    raise RuntimeError("no such groups today")
                plain_set(self, together)

            Grouping.set = broken  # type: ignore[method-assign]
        try:
            with_sweep = train(case.layout, swept.attach, swept.each_step)
        finally:
            Grouping.set = plain_set  # type: ignore[method-assign]
        log = read_log(swept.watch.log_path)
        notes = list(log.notes)
        steps = by_step(swept.watch.log_path)
    plain = Job(case, None, len(swept.states))
    without = train(case.layout, plain.attach, plain.each_step)
    return {
        "equal": with_sweep.digest == without.digest and with_sweep.losses == without.losses,
        "evaluated alike": swept.seen == plain.seen,
        "evaluations": len(swept.seen),
        "steps": len(swept.states),
        "states": swept.states,
        "untouched": plain.states[-1],
        "active": swept.active,
        "heard": swept.heard,
        "because": swept.sweep.because,
        "names": swept.sweep.names,
        "table": swept.sweep.table(),
        "notes": notes,
        "by step": steps,
    }


def refusals(name: str) -> dict[str, Any]:
    """Ask a job for what cannot be changed in it; return what it says, and whether it trained on."""
    said: list[str] = []

    @contextlib.contextmanager
    def attach(chunks: list[Any]) -> Iterator[None]:
        with overlapwatch.watch(chunks, sinks=("none",)) as watch:
            for values in REFUSED[name]:
                try:
                    overlapwatch.sweep(watch, **values)
                except overlapwatch.ConfigurationError as error:
                    said.append(str(error))
            yield

    train(replace(LAYOUTS[name], steps=1), attach)
    return {"said": said}


def main() -> None:
    warnings.simplefilter("ignore")
    init()
    for name in sys.argv[1:]:
        try:
            told = refusals(name) if name in REFUSED else tell(CASES[name])
        except Exception:
            told = {"raised": traceback.format_exc()}
        print(json.dumps({"case": name, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

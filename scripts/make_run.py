#!/usr/bin/env python3
"""Logs of a simulated job of many ranks, written as a watch writes them: to try and to measure what reads a run.

    scripts/make_run.py runs/simulated --ranks 1024 --steps 100

Each step: forward, backward with its buckets, the wait for the last of them, optimizer. A collective ends on all
ranks when the last rank has come and its bytes have moved; buckets move one after another. In most steps the same rank
is last (--late, by --late-ms), in the others some rank that changes. Ranks of one host share a clock; hosts' clocks are
apart. Steps are kept as the defaults of the settings say. The same arguments give the same records.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from overlapwatch.log.frames import ClockPair, Counters, Events, Header, Names, Summaries
from overlapwatch.log.writer import LogWriter
from overlapwatch.settings import Settings
from overlapwatch.vocabulary import (
    RECORD,
    SUMMARY,
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)

MS = 1_000_000
RANKS_A_HOST = 8
FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS = 30.0, 60.0, 4.0
JITTER_MS = 1.5
"""No rank but the last is later than this."""
TRANSFER_MS = 5.0
BUCKET_BYTES = 26_214_400
BEGIN_NS = 10**12


@dataclass(frozen=True)
class Shape:
    """What is simulated."""

    ranks: int
    steps: int
    buckets: int
    late: int
    late_ms: float
    late_share: float
    seed: int


@dataclass(frozen=True)
class Plan:
    """What all ranks share: who is last in each step, when steps begin, when buckets end; true ns."""

    last: NDArray[np.int64]
    begin: NDArray[np.int64]  # steps + 1: where each step begins
    finish: NDArray[np.int64]  # steps × buckets


def delays(shape: Shape, rank: int, last: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return by how many ms the rank is later than the quickest possible, in each step."""
    rng = np.random.default_rng((shape.seed, rank))
    usual = np.minimum(rng.exponential(JITTER_MS / 4, shape.steps), JITTER_MS)
    own = JITTER_MS + shape.late_ms * rng.uniform(0.8, 1.2, shape.steps)
    return np.where(last == rank, own, usual)


def launches(shape: Shape, delay: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return when buckets are ready, ns after their step began: steps × buckets."""
    part = BACKWARD_MS * (1 + np.arange(shape.buckets)) / shape.buckets
    return ((FORWARD_MS + delay[:, None] + part[None, :]) * MS).astype(np.int64)


def plan(shape: Shape) -> Plan:
    """Return the plan. It costs one rank for each that is ever last, not one for each rank."""
    rng = np.random.default_rng((shape.seed, shape.ranks, 7))
    last = np.where(
        rng.uniform(size=shape.steps) < shape.late_share,
        shape.late % shape.ranks,
        rng.integers(0, shape.ranks, shape.steps),
    )
    ready = np.zeros((shape.steps, shape.buckets), np.int64)
    for rank in np.unique(last).tolist():
        mine = last == rank
        ready[mine] = launches(shape, delays(shape, rank, last))[mine]
    finish = ready.copy()
    transfer = int(TRANSFER_MS * MS)
    for bucket in range(shape.buckets):
        before = finish[:, bucket - 1] if bucket else np.zeros(shape.steps, np.int64)
        finish[:, bucket] = np.maximum(ready[:, bucket], before) + transfer
    length = finish[:, -1] + int(OPTIMIZER_MS * MS)
    begin = BEGIN_NS + np.concatenate(([0], np.cumsum(length)))
    return Plan(last, begin, finish + begin[:-1, None])


def records_of(shape: Shape, plan: Plan, rank: int, offset: int) -> NDArray[np.void]:
    """Return the RECORD rows of a rank, by step: step, forward, backward, optimizer, wait, buckets."""
    delay = delays(shape, rank, plan.last)
    begin = plan.begin[:-1]
    launch = launches(shape, delay) + begin[:, None]
    forward = begin + ((FORWARD_MS + delay) * MS).astype(np.int64)
    backward, ended = launch[:, -1], plan.finish[:, -1]
    rows = np.zeros((shape.steps, 5 + shape.buckets), RECORD)
    rows["step"] = np.arange(1, shape.steps + 1)[:, None]
    spans = (
        (RecordKind.STEP, Phase.OTHER, begin, plan.begin[1:]),
        (RecordKind.PHASE, Phase.FORWARD, begin, forward),
        (RecordKind.PHASE, Phase.BACKWARD, forward, ended),
        (RecordKind.PHASE, Phase.OPTIMIZER, ended, plan.begin[1:]),
        (RecordKind.WAIT, Phase.BACKWARD, backward, ended),
    )
    for place, (kind, phase, start, finish) in enumerate(spans):
        one = rows[:, place]
        one["kind"], one["phase"], one["start"], one["finish"] = kind, phase, start, finish
    many = rows[:, len(spans) :]
    many["kind"], many["collective"] = RecordKind.COLLECTIVE, CollectiveKind.ALL_REDUCE
    many["phase"], many["group"] = Phase.BACKWARD, 1
    many["owner"] = 1 + np.arange(shape.buckets)[None, :]
    many["flags"] = RecordFlag.READY_ESTIMATED
    many["sequence"] = 1 + np.arange(shape.steps * shape.buckets).reshape(shape.steps, -1)
    many["bytes"] = BUCKET_BYTES
    many["ready"], many["launch"], many["finish"] = launch - 20_000, launch, plan.finish
    for field in ("ready", "launch", "start", "finish"):
        column = rows[field]
        column[column != 0] += offset
    return rows


def summaries_of(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Return the SUMMARY rows of the steps, in closed form: `accounting.summarize` says the same, more slowly."""
    step, wait, many = rows[:, 0], rows[:, 4], rows[:, 5:]
    found = np.zeros(len(rows), SUMMARY)
    found["step"] = step["step"]
    found["start_ns"], found["end_ns"] = step["start"], step["finish"]
    before = np.concatenate((many["launch"][:, :1], many["finish"][:, :-1]), axis=1)
    found["communication_ns"] = (many["finish"] - np.maximum(many["launch"], before)).sum(axis=1)
    # The wait begins at the launch of the last bucket and ends with it: all of it is communication.
    exposed = wait["finish"] - wait["start"]
    for part in ("communication_only_ns", "tail_ns", "wait_ns"):
        found[part] = exposed
    found["compute_ns"] = found["end_ns"] - found["start_ns"] - exposed
    found["overlap_ns"] = found["communication_ns"] - exposed
    found["compute_only_ns"] = found["compute_ns"] - found["overlap_ns"]
    found["first_ready_ns"], found["first_reduce_start_ns"] = (
        many["ready"][:, 0],
        many["launch"][:, 0],
    )
    found["last_compute_end_ns"], found["last_reduce_end_ns"] = wait["start"], wait["finish"]
    found["bytes"] = many["bytes"].sum(axis=1)
    found["collectives"] = found["buckets"] = many.shape[1]
    return found


def write_rank(shape: Shape, plan: Plan, directory: Path, rank: int) -> int:
    """Write one rank's log; return its size."""
    host = rank // RANKS_A_HOST
    offset = int(np.random.default_rng((shape.seed, host, 3)).integers(0, 10**10))
    rows = records_of(shape, plan, rank, offset)
    settings = Settings()
    members = tuple(range(shape.ranks))
    names = [Name(1, NameKind.GROUP, "default", members)]
    names += [
        Name(n + 1, NameKind.BUCKET, f"bucket {n}", (), BUCKET_BYTES // 4, BUCKET_BYTES, "float32")
        for n in range(shape.buckets)
    ]
    flags = dict.fromkeys(range(1, shape.steps + 1), 0)
    for step in flags:
        if step <= settings.keep_first or step % settings.keep_every == 0:
            flags[step] |= StepFlag.EVENTS_KEPT
    summaries = summaries_of(rows)
    summaries["flags"] = list(flags.values())
    began = BEGIN_NS + offset
    header = Header(
        rank=rank,
        world=shape.ranks,
        local_rank=rank % RANKS_A_HOST,
        host=f"node-{host}",
        pid=1000 + rank,
        run_id=f"simulated-{shape.seed}",
        created=ClockPair(began, 1_800_000_000_000_000_000),
        mode="simulated",
        device="cpu",
        versions={"torch": "none: simulated"},
    )
    path = directory / f"rank{rank}-simulated-{shape.seed}.owlog"
    writer = LogWriter.to_file(path, header, settings.max_log_mb * 1_000_000)
    writer.write(Names(tuple(names)))
    for step, summary, mine in zip(flags, summaries, rows, strict=True):
        if flags[step] & StepFlag.EVENTS_KEPT:
            writer.write(Events(step, step, int(summary["flags"]), mine))
        if step % 10 == 0 or step == shape.steps:  # about once a second, as the drain does
            writer.write(Summaries(summaries[(step - 1) // 10 * 10 : step]))
    counts = {"steps": shape.steps, "records_lost": 0}
    writer.write(Counters(int(plan.begin[-1]) + offset, counts))
    writer.close("closed", counts)
    if writer.problem:
        raise OSError(writer.problem)
    return path.stat().st_size


def make_run(directory: Path, shape: Shape, workers: int | None = None) -> int:
    """Write the logs of all ranks; return their size in all."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty")
    write = partial(write_rank, shape, plan(shape), directory)
    workers = workers or os.cpu_count() or 1
    if workers == 1 or shape.ranks < 64:
        return sum(map(write, range(shape.ranks)))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(write, range(shape.ranks), chunksize=32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="a new or empty directory")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--late", type=int, default=4, help="the rank that is last in most steps")
    parser.add_argument("--late-ms", type=float, default=12.0)
    parser.add_argument("--late-share", type=float, default=0.86, help="of the steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, help="processes; default: one a core")
    options = parser.parse_args()
    shape = Shape(
        options.ranks,
        options.steps,
        options.buckets,
        options.late,
        options.late_ms,
        options.late_share,
        options.seed,
    )
    began = time.monotonic()
    size = make_run(options.directory, shape, options.workers)
    print(
        f"{shape.ranks:,} ranks × {shape.steps:,} steps in {options.directory}: "
        f"{size / 1e6:,.1f} MB, {time.monotonic() - began:.1f} s"
    )


if __name__ == "__main__":
    main()

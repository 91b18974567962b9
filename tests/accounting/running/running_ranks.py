"""Ranks of a run that goes on, as a source would tell them."""

from dataclasses import replace

import numpy as np

from overlapwatch.sources.owlog import in_flight
from overlapwatch.timeline.model import STEP, Origin, Recording, Timeline
from overlapwatch.timeline.running import RankNow, RunNow
from overlapwatch.vocabulary import RECORD, SUMMARY, CollectiveKind, Name, NameKind, RecordKind

MS = 1_000_000
S = 1_000_000_000
NAMES = {1: Name(1, NameKind.BUCKET, "bucket 0"), 2: Name(2, NameKind.BUCKET, "bucket 1")}


def summaries(
    *took_ms: float, first: int = 1, hidden=0.3, exposed=0.1, idle=0.1, tail_ms=2.0
) -> np.ndarray:
    """Steps that follow one another; the shares are of each step, the rest is compute alone."""
    rows = np.full(len(took_ms), 0, SUMMARY)
    took = np.array([round(ms * MS) for ms in took_ms], np.int64)
    rows["step"] = np.arange(first, first + len(took_ms))
    rows["end_ns"] = np.cumsum(took)
    rows["start_ns"] = rows["end_ns"] - took
    rows["overlap_ns"] = np.round(took * hidden)
    rows["communication_only_ns"] = np.round(took * exposed)
    rows["idle_ns"] = np.round(took * idle)
    rows["compute_only_ns"] = (
        took - rows["overlap_ns"] - rows["communication_only_ns"] - rows["idle_ns"]
    )
    rows["communication_ns"] = rows["overlap_ns"] + rows["communication_only_ns"]
    rows["compute_ns"] = rows["overlap_ns"] + rows["compute_only_ns"]
    rows["tail_ns"] = round(tail_ms * MS)
    rows["collectives"] = rows["buckets"] = 2
    return rows


def reductions(*sequences: int, step=9, finish=0, launch=0, kind=CollectiveKind.ALL_REDUCE, group=1) -> np.ndarray:  # fmt: skip
    """Collectives of bucket 0 in one group, launched at 0, 1, 2, ... ms; without a finish unless one is given."""
    rows = np.zeros(len(sequences), RECORD)
    rows["kind"], rows["collective"], rows["step"] = RecordKind.COLLECTIVE, kind, step
    rows["sequence"], rows["owner"], rows["group"], rows["bytes"] = sequences, 1, group, 64
    rows["launch"] = launch + np.arange(len(sequences)) * MS + 1
    rows["finish"] = finish
    return rows


def rank(
    number: int,
    *records: np.ndarray,
    now_s: float = 10.0,
    rows: np.ndarray | None = None,
    members: tuple[int, ...] = (0, 1, 2, 3),
    ring: bool = True,
    **fields,
) -> RankNow:
    """A rank whose ring holds these records, in the step after its `rows`, looked at `now_s` after the first launch."""
    rows = summaries(*[100] * 8) if rows is None else rows
    groups = {1: Name(1, NameKind.GROUP, "dp", members)}
    step = int(rows["step"].max()) + 1 if len(rows) else 1
    one = RankNow(
        rank=number, path=f"runs/a/rank{number}-r.owlog", host="node-0", pid=100 + number, mode="passive",
        process="running", rows=rows, steps=len(rows), ended_ago_ns=round(now_s * S), silent_ns=S,
        now_ns=round(now_s * S), names=NAMES, groups=groups,
    )  # fmt: skip
    if ring:
        held = np.concatenate([np.empty(0, RECORD), *records])
        steps = np.zeros(1, STEP)
        steps["step"] = step
        recent = Recording(
            timeline=Timeline(
                Origin("owlog", one.path, number), communication=held, steps=steps, names=NAMES, groups=groups
            ),
            summaries=rows[-1:], in_flight=in_flight(held), state="running",
        )  # fmt: skip
        one = replace(one, recent=recent, in_flight=in_flight(held), step_now=step)
    else:
        one = replace(one, in_flight_because="the ring was not read")
    return replace(one, **fields)


def run(*ranks: RankNow, world: int | None = None, **fields) -> RunNow:
    world = len(ranks) if world is None else world
    there = {one.rank for one in ranks}
    absent = tuple(number for number in range(world) if number not in there)
    told = RunNow("runs/a", "r", world, tuple(ranks), absent, None, 0)
    return replace(told, **fields)

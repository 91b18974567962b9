"""Jobs of several ranks whose lateness, clocks and losses are known: the truth beside the tables.

A step: data loading, forward, and a backward of some buckets; each bucket is launched when it is computed, starts when
the one before it has ended on its rank, and moves when the last rank has come. Every rank waits for its last bucket. All
ranks leave a collective together. Times are ms in the arguments and ns inside; clocks are distorted at the very end.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from overlapwatch.accounting.ranks.table import RankTable, rank_table
from overlapwatch.accounting.selection import Selection, choose
from overlapwatch.timeline.model import Origin, Recording
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import (
    RECORD,
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
)

MS = 1_000_000
BASE_NS = 1_000_000_000_000

Delay = Callable[[int, int], float]
"""(rank, step) -> ms."""


def never(_rank: int, _step: int) -> float:
    """No delay."""
    return 0.0


@dataclass(frozen=True)
class Clock:
    """A rank's clock: ahead by an offset, and gaining `drift` ns per ns."""

    host: str = "node-a"
    offset_ns: int = 0
    drift: float = 0.0

    def shows(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + round((true_ns - BASE_NS) * self.drift)


@dataclass(frozen=True)
class SimulatedJob:
    """A job.

    Args:
        loading, forward, block: ms of every rank; a backward has `buckets` blocks.
        slow_loading, slow_forward, slow_block: extra ms by rank and step (of each block).
        transfer: ms that moving a bucket takes.
        jitter: ms, the largest random extra of each block.
        end_jitter_us: how much later than the collective's end a rank may see it.
        host: starts are not seen (gloo): entries are launches.
        missing: (rank, sequence) of records that were lost.
        numbered: whether sequence numbers are recorded.
        attached_late: (rank, collectives it has not counted).
        blocking: every rank stands still in each bucket (as FSDP does).
    """

    ranks: int = 4
    steps: int = 20
    buckets: int = 3
    loading: float = 2
    forward: float = 10
    block: float = 5
    optimizer: float = 1
    transfer: float = 1
    slow_loading: Delay = never
    slow_forward: Delay = never
    slow_block: Delay = never
    jitter: float = 0
    end_jitter_us: float = 0
    host: bool = False
    missing: Collection[tuple[int, int]] = ()
    numbered: bool = True
    attached_late: Mapping[int, int] = field(default_factory=dict)
    blocking: bool = False
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    absent: Collection[int] = ()
    last_step: Mapping[int, int] = field(default_factory=dict)
    seed: int = 0
    bytes: int = 4_000_000

    def run(self) -> "Truth":
        """Run it."""
        random = np.random.default_rng(self.seed)
        rows: list[list[tuple]] = [[] for _ in range(self.ranks)]
        truth = Truth(self)
        now = [BASE_NS] * self.ranks
        sequence = 0
        for step in range(1, self.steps + 1):
            start = list(now)
            forward = [
                at + ns(self.loading + self.slow_loading(r, step)) for r, at in enumerate(now)
            ]
            backward = [
                at + ns(self.forward + self.slow_forward(r, step)) for r, at in enumerate(forward)
            ]
            ready, free = list(backward), list(backward)
            stood = [0] * self.ranks
            compute = [0] * self.ranks
            for bucket in range(self.buckets):
                sequence += 1
                for r in range(self.ranks):
                    extra = random.uniform(0, self.jitter) if self.jitter else 0
                    ready[r] += ns(self.block + self.slow_block(r, step) + extra)
                entry = [max(one, two) for one, two in zip(ready, free, strict=True)]
                end = max(entry) + ns(self.transfer)
                truth.note(step, sequence, entry, end)
                for r in range(self.ranks):
                    seen = end + round(random.uniform(0, self.end_jitter_us) * 1000)
                    times = (ready[r], ready[r], 0 if self.host else entry[r], seen)
                    flags = 0
                    if self.host:
                        times, flags = (*times[:2], entry[r], seen), RecordFlag.START_ESTIMATED
                    rows[r].append((sequence, step, 101 + bucket, times, int(flags)))
                    free[r] = seen
                    compute[r] = ready[r]
                    if self.blocking:
                        ready[r] = seen
                        stood[r] += seen - entry[r]
            for r in range(self.ranks):
                truth.compute_end[r, step] = compute[r]
                now[r] = max(free[r], ready[r]) + ns(self.optimizer)
                spans = [
                    (RecordKind.STEP, Phase.OTHER, start[r], now[r]),
                    (RecordKind.PHASE, Phase.FORWARD, forward[r], backward[r]),
                    (RecordKind.PHASE, Phase.BACKWARD, backward[r], now[r] - ns(self.optimizer)),
                    (RecordKind.PHASE, Phase.OPTIMIZER, now[r] - ns(self.optimizer), now[r]),
                ]
                if self.blocking:
                    mine = rows[r][-self.buckets :]
                    spans += [(RecordKind.WAIT, Phase.OTHER, row[3][1], row[3][3]) for row in mine]
                else:
                    spans.append(
                        (RecordKind.WAIT, Phase.OTHER, compute[r], now[r] - ns(self.optimizer))
                    )
                truth.spans[r] += [(step, *one) for one in spans]
        truth.rows = rows
        return truth


class Truth:
    """What really happened, and the tables that ranks with such clocks and losses would give."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.entry: dict[int, list[int]] = {}  # sequence -> entry of each rank
        self.end: dict[int, int] = {}
        self.step_of: dict[int, int] = {}
        self.compute_end: dict[tuple[int, int], int] = {}
        self.rows: list[list[tuple]] = []
        self.spans: list[list[tuple]] = [[] for _ in range(job.ranks)]

    def note(self, step: int, sequence: int, entry: list[int], end: int) -> None:
        self.entry[sequence] = list(entry)
        self.end[sequence] = end
        self.step_of[sequence] = step

    def recording(self, rank: int) -> Recording:
        """Return what that rank would have recorded."""
        job = self.job
        clock = job.clocks.get(rank, Clock())
        skipped = job.attached_late.get(rank, 0)
        last_step = job.last_step.get(rank, job.steps)
        records = []
        for sequence, step, owner, times, flags in self.rows[rank]:
            if (rank, sequence) in job.missing or sequence <= skipped or step > last_step:
                continue
            number = sequence - skipped if job.numbered else 0
            shown = [clock.shows(one) if one else 0 for one in times]
            stream = 0 if job.host else 7
            records.append((RecordKind.COLLECTIVE, Phase.BACKWARD, CollectiveKind.ALL_REDUCE, flags,
                            step, owner, 1, stream, number, 0, job.bytes, *shown))  # fmt: skip
        for step, kind, phase, start, end in self.spans[rank]:
            if step > last_step:
                continue
            records.append(
                (
                    kind,
                    phase,
                    0,
                    0,
                    step,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    clock.shows(start),
                    clock.shows(end),
                )
            )
        names = {
            101 + one: Name(101 + one, NameKind.BUCKET, f"bucket {one}")
            for one in range(job.buckets)
        }
        groups = {1: Name(1, NameKind.GROUP, "default", tuple(range(job.ranks)))}
        origin = Origin(
            "owlog", f"run/rank{rank}.owlog", rank, job.ranks, "cpu", f"pid {rank}", clock.host
        )
        timeline = from_records(
            np.array(records, RECORD), origin=origin, names=names, groups=groups
        )
        return Recording(timeline, state="closed", about={"run": "r1", "clock": "monotonic"})

    def tables(self) -> list[RankTable]:
        """Return the tables of all ranks that left one."""
        found = []
        for rank in range(self.job.ranks):
            if rank not in self.job.absent:
                recording = self.recording(rank)
                found.append(rank_table(recording, choose(recording, Selection())))
        return found

    def sequence_at(self, rank: int, launch_ns: int) -> int:
        """Return the number of the collective that the rank launched at a time of its own clock."""
        clock = self.job.clocks.get(rank, Clock())
        return next(row[0] for row in self.rows[rank] if clock.shows(row[3][1]) == launch_ns)


def ns(ms: float) -> int:
    return round(ms * MS)

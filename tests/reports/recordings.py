"""Recordings of DDP jobs with known answers, for reports and commands.

A job is described in ms: compute blocks of the backward, and how long each send lasts on one queue. With blocks of
2 ms and sends of 1 ms a step is the worked example of the definitions: 7 ms, of which 3 ms communication, 2 hidden,
1 exposed, tail 1.

    backward   block 0–2  block 2–4  block 4–6
    sends                 0: 2–3     1: 4–5     2: 6–7
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from overlapwatch.accounting.summarize import summarize
from overlapwatch.log.frames import ClockPair, Events, Header, Names, Summaries
from overlapwatch.log.writer import LogWriter
from overlapwatch.timeline.model import Lane, Origin, Recording, Skipped, Timeline, Unknown
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import (
    PAYLOAD,
    RECORD,
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)
from tests.support import units

MS = 1_000_000
BASE_NS = 1_000_000_000

PARAMETERS = ("head.weight", "layers.1.mlp.weight", "layers.1.attention.weight", "layers.0.mlp.weight",
              "layers.0.attention.weight", "embedding.weight")  # fmt: skip
ABOUT = {
    "run": "5f3a91c2",
    "mode": "passive",
    "clock": "perf_counter",
    "overlapwatch": "0.1.0",
    "python": "3.12.3",
    "torch": "2.13.0",
    "setting keep_first": "50",
    "setting keep_every": "2",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_ALGO": "Ring",
}


@dataclass
class Job:
    """A DDP job on one rank.

    Args:
        steps: how many.
        blocks: ms of each compute block of the backward; one bucket is sent after each.
        sends: ms of each send.
        forward, optimizer: ms.
        flags: StepFlag of special steps.
        longer: extra ms of the last send, by step.
        dropped: steps whose events are not in the input.
        start_seen: whether the start of a send is measured (a device) or not (the host).
        recording_cost: ms by which recorded steps are longer than shadow steps.
    """

    steps: int = 8
    blocks: Sequence[float] = (2, 2, 2)
    sends: Sequence[float] = (1, 1, 1)
    forward: float = 0
    optimizer: float = 0
    flags: Mapping[int, StepFlag] = field(default_factory=dict)
    longer: Mapping[int, float] = field(default_factory=dict)
    dropped: Collection[int] = ()
    start_seen: bool = True
    recording_cost: float = 0
    rank: int = 0
    world: int = 2
    state: str = "closed"
    names: Sequence[str] = PARAMETERS
    bucket_label: str = "bucket"

    def tables(self) -> dict[int, Name]:
        """Ids 1..: parameters, then 101..: buckets, 100: the whole model."""
        names = {
            i: Name(i, NameKind.PARAMETER, text, (), 1000 * i, 4000 * i, "float32")
            for i, text in enumerate(self.names, 1)
        }
        count = len(self.blocks)
        for place in range(count):
            members = tuple(range(1, len(self.names) + 1))[place::count]
            elements = (700_000, 2_100_000, 30)[place % 3]
            text = f"{self.bucket_label} {place}"
            names[101 + place] = Name(
                101 + place, NameKind.BUCKET, text, members, elements, 4 * elements, "float32"
            )
        everything = tuple(range(1, len(self.names) + 1))
        names[100] = Name(
            100, NameKind.BUCKET, "whole model", everything, 2_800_030, 11_200_120, "float32"
        )
        return names

    def records(self) -> np.ndarray:
        """All records of all steps."""
        self._rows: list[tuple] = []
        self._sequence = 0
        now = 0.0
        for step in range(self.steps):
            now = self._step(step, now)
        return np.array(self._rows, RECORD)

    def _step(self, step: int, begin: float) -> float:
        flags = self.flags.get(step, StepFlag(0))
        shadow, unbucketed = bool(flags & StepFlag.SHADOW), bool(flags & StepFlag.UNBUCKETED)
        begin_backward = begin + self.forward
        blocks = (sum(self.blocks),) if unbucketed else self.blocks
        sends = (sum(self.sends),) if unbucketed else self.sends
        ready = queue_free = begin_backward
        spans = []
        for place, (block, send) in enumerate(zip(blocks, sends, strict=True)):
            ready += block
            start = max(ready, queue_free)
            queue_free = (
                start + send + (self.longer.get(step, 0) if place == len(blocks) - 1 else 0)
            )
            spans.append((100 if unbucketed else 101 + place, ready, start, queue_free))
        end_backward = max(ready, queue_free)
        end = end_backward + self.optimizer + (0 if shadow else self.recording_cost)
        self._add(RecordKind.STEP, step, begin, end)
        if self.forward:
            self._add(RecordKind.PHASE, step, begin, begin_backward, Phase.FORWARD)
        self._add(RecordKind.PHASE, step, begin_backward, end_backward, Phase.BACKWARD)
        self._add(RecordKind.WAIT, step, ready, end_backward)
        if self.optimizer:
            self._add(
                RecordKind.PHASE, step, end_backward, end_backward + self.optimizer, Phase.OPTIMIZER
            )
        if not shadow:
            for owner, *times in spans:
                self._send(step, owner, *times)
        return end

    def _add(
        self, kind: RecordKind, step: int, start: float, finish: float, phase: Phase = Phase.OTHER
    ) -> None:
        self._rows.append((kind, phase, 0, 0, step, 0, 0, 0, 0, 0, 0, 0, 0, ns(start), ns(finish)))

    def _send(self, step: int, owner: int, ready: float, start: float, finish: float) -> None:
        self._sequence += 1
        bucket = self.tables()[owner]
        flags = RecordFlag(0) if self.start_seen else RecordFlag.FINISH_ESTIMATED
        times = (ns(ready), ns(ready), ns(start) if self.start_seen else 0, ns(finish))
        gate = bucket.members[-1] if bucket.members else 0
        self._rows.append((RecordKind.COLLECTIVE, Phase.BACKWARD, CollectiveKind.ALL_REDUCE, flags, step, owner, 1, 0,
                           self._sequence, gate, bucket.bytes, *times))  # fmt: skip

    def recording(self, in_flight: np.ndarray | None = None, **changes: object) -> Recording:
        """The job as a source gives it."""
        records = self.records()
        if in_flight is not None:
            records = np.concatenate([records, in_flight])
        tables = self.tables()
        groups = {1: Name(1, NameKind.GROUP, "default", tuple(range(self.world)))}
        origin = Origin(
            "owlog",
            f"runs/a/rank{self.rank}-5f3a91c2.owlog",
            self.rank,
            self.world,
            "cpu",
            "pid 4242",
            "node-a",
        )
        step_flags = {step: int(flag) for step, flag in self.flags.items()}
        whole = from_records(
            records, origin=origin, names=tables, groups=groups, step_flags=step_flags
        )
        kept = records[~np.isin(records["step"], list(self.dropped))]
        values: dict = {
            "timeline": from_records(
                kept, origin=origin, names=tables, groups=groups, step_flags=step_flags
            ),
            "summaries": summarize(whole),
            "in_flight": np.empty(0, RECORD) if in_flight is None else in_flight,
            "state": self.state,
            "about": ABOUT,
            "counters": {
                "steps": self.steps,
                "records_lost": 0,
                "log_bytes": 91_204,
                "drain_cpu_ns": 12_345_678,
            },
        }
        return Recording(**{**values, **changes})

    def write_log(
        self, directory: Path, *, end: bool = True, host: str = "node-a", pid: int = 4242
    ) -> Path:
        """Write the job as a log into `directory`, as the watch does."""
        recording = self.recording()
        header = Header(self.rank, self.world, self.rank, host, pid, "5f3a91c2", ClockPair(BASE_NS, BASE_NS), mode="passive",
                        device="cpu", versions={"torch": "2.13.0"}, environment={"NCCL_ALGO": "Ring"})  # fmt: skip
        path = directory / f"rank{self.rank}-5f3a91c2.owlog"
        writer = LogWriter.to_file(path, header, 1 << 30)
        group = Name(1, NameKind.GROUP, "default", tuple(range(self.world)))
        writer.write(Names((*self.tables().values(), group)))
        records = self.records()
        for step in range(self.steps):
            writer.write(Events(step, step, 0, records[records["step"] == step]))
        writer.write(Summaries(recording.summaries))
        if end:
            writer.close("closed", {"steps": self.steps})
        else:
            writer.flush()
        return path


def ns(ms: float) -> int:
    """Times lie after BASE_NS: a time of 0 means "not known"."""
    return BASE_NS + round(ms * MS)


def worked() -> Recording:
    """Eight steps of the worked example: per step 7 ms, communication 3, hidden 2, exposed 1, tail 1."""
    return Job().recording()


def queued() -> Recording:
    """The worked example with sends of 4 ms: per step 14 ms, tail 8, of which 4 in the queue."""
    return Job(sends=(4, 4, 4)).recording()


def typical(rank: int = 0) -> Recording:
    """Sixty steps of a job with everything in it: an unbucketed first step, shadow steps, sampled events, a slow step."""
    shadow = dict.fromkeys((15, 21, 27, 33, 39, 45, 51, 57), StepFlag.SHADOW)
    flags = {0: StepFlag.UNBUCKETED, 1: StepFlag.REBUILT, 30: StepFlag.SLOW, **shadow}
    return Job(
        steps=60,
        blocks=(30, 60, 40),
        sends=(25.5, 45, 18),
        forward=70,
        optimizer=8,
        flags=flags,
        longer={30: 180, 44: 9.25, **{step: 0.5 * (step % 7) for step in range(2, 30)}},
        dropped=[step for step in range(20, 60) if step % 2 and step not in shadow],
        recording_cost=0.75,
        rank=rank,
    ).recording()


def killed() -> Recording:
    """A job that was killed in step 8 with two sends in flight, the newest 12.3 s before the last event."""
    job = Job(state="killed")
    job.records()
    end = 8 * 7.0
    flying = np.zeros(2, RECORD)
    flying["kind"], flying["phase"] = RecordKind.COLLECTIVE, Phase.BACKWARD
    flying["collective"], flying["step"], flying["group"] = CollectiveKind.ALL_REDUCE, 8, 1
    flying["owner"], flying["sequence"], flying["bytes"] = (
        (101, 102),
        (25, 26),
        (2_800_000, 8_400_000),
    )
    flying["ready"] = flying["launch"] = ns(end + 2), ns(end + 4)
    recording = job.recording(flying)
    summaries = recording.summaries.copy()
    unended = np.zeros(1, summaries.dtype)
    unended["step"], unended["start_ns"], unended["end_ns"] = 8, ns(end), ns(end + 4 + 12_300)
    unended["flags"] = StepFlag.PARTIAL
    for name in (
        "compute_ns",
        "communication_ns",
        "compute_only_ns",
        "communication_only_ns",
        "overlap_ns",
        "idle_ns",
        "tail_ns",
    ):
        unended[name] = -1
    return job.recording(flying, summaries=np.concatenate([summaries, unended]))


def serial() -> Recording:
    """Nothing starts before the backward has ended: one block that readies one bucket."""
    return Job(blocks=(6,), sends=(4,)).recording()


def fsdp2() -> Recording:
    """Four steps of the FSDP2 job of `tests/support/units.py`: a wrong prefetch, stalls, queues between kinds."""
    return units.recording()


def silent() -> Recording:
    """No collective at all."""
    return Job(
        flags=dict.fromkeys(range(8), StepFlag(0)), blocks=(), sends=(), forward=5, optimizer=1
    ).recording()


def host_times() -> Recording:
    """The worked example as the host sees it: no start, an estimated finish."""
    return Job(start_seen=False).recording()


def hostile() -> Recording:
    """Names that look like markup, escape sequences or emoji codes, very long ones, and losses."""
    names = ("[red]<script>alert(1)</script>[/red]", ":smile: \x1b[31mred\x1b[0m", "line\nbreak",
             "[/]", "модель.слой.вес", "encoder." + "very_long_module_name." * 6 + "weight")  # fmt: skip
    job = Job(names=names, bucket_label="[bold]bucket")
    recording = job.recording(
        notes=("412 bytes of the log lost at offset 9120: [red]checksum does not match[/red]",),
        about={**ABOUT, "NCCL_ALGO": "[link=x]Ring"},
    )
    timeline = recording.timeline
    skipped = (Skipped("log bytes", 412, "damaged or cut short"),)
    unknown = (Unknown("[blink]the start of collectives[/blink]", "nobody can see it on gloo"),)
    return replace(recording, timeline=replace(timeline, skipped=skipped, unknown=unknown))


SITES = (
    "train_step > forward_backward > decoder.layers > all_gather",
    "train_step > forward_backward > finalize_grads > reduce_scatter",
    "train_step > clip_grad_norm",
)
KERNELS = ("flash_fwd_kernel<bf16>", "flash_bwd_kernel<bf16>", "sm90_xmma_gemm_bf16", "memcpy")
MIB = 1 << 20
_GATHERS = (256 * MIB, 256 * MIB, 240_451_584)


def profiled(device: int = 4, *, sized: bool = True) -> Recording:
    """One device of a profile of four ranks: three steps of 900 ms with a pause of 420 ms each.

    In each step, ms: forward anchors 0-100 and 110-200, backward anchors 200-380 and 390-480. AllGathers of 40 ms at
    20, 120 and 200, all under kernels, but for the first 20 ms on device 5, which begins late; ReduceScatters 400-440
    and 470-520; a gemm 521-529; one AllReduce of 4 bytes at 530-531; a fused kernel 490-500; a copy 540-545.
    """
    compute, rows, calls, fused, copies = [], [], [], [], []
    late = 40 if device == 5 else 0
    for step in range(3):
        begin = 900.0 * step
        for start, end, name in (
            (0, 100, 1),
            (110, 200, 1),
            (200, 380, 2),
            (390, 480, 2),
            (521, 529, 3),
        ):
            compute.append(
                (ns(begin + start + (late if start == 0 else 0)), ns(begin + end), name, 0)
            )
        sends = [
            (CollectiveKind.ALL_GATHER, size, 1, at, at + 40)
            for size, at in zip(_GATHERS, (20, 120, 200), strict=True)
        ]
        sends += [
            (CollectiveKind.REDUCE_SCATTER, 256 * MIB, 2, at, end)
            for at, end in ((400, 440), (470, 520))
        ]
        sends.append((CollectiveKind.ALL_REDUCE, 4, 3, 530, 531))
        for kind, size, site, start, end in sends:
            times = (0, ns(begin + start - 10), ns(begin + start), ns(begin + end))
            moved = size if kind is CollectiveKind.ALL_REDUCE else 4 * size
            rows.append(
                (
                    RecordKind.COLLECTIVE,
                    0,
                    kind,
                    0,
                    0,
                    10 + site,
                    1,
                    7,
                    0,
                    0,
                    moved if sized else 0,
                    *times,
                )
            )
            made = ns(begin + start - 12)
            calls.append((kind, 1, -1, size if sized else -1, made, made + 5000, len(rows) - 1))
        fused.append((ns(begin + 490), ns(begin + 500)))
        copies.append((ns(begin + 540), ns(begin + 545)))
    columns = zip(*compute, strict=True)
    types = (np.int64, np.int64, np.uint32, np.uint8)
    names = {
        number: Name(number, NameKind.OPERATION, text) for number, text in enumerate(KERNELS, 1)
    }
    names |= {
        10 + place: Name(10 + place, NameKind.OPERATION, text)
        for place, text in enumerate(SITES, 1)
    }
    timeline = Timeline(
        origin=Origin(
            "nsight", "profile.sqlite", device - 4, 4, f"cuda:{device}", f"pid {1000 + device}"
        ),
        compute=Lane(
            *(np.array(column, kind) for column, kind in zip(columns, types, strict=True))
        ),
        communication=np.array(rows, RECORD),
        copies=_spans(copies),
        fused=_spans(fused),
        payloads=np.array(calls, PAYLOAD),
        compute_rule="kernels",
        names=names,
        groups={1: Name(1, NameKind.GROUP, "communicator 5f3a", (0, 1, 2, 3), 4)},
    )
    return Recording(
        timeline, about={"Nsight Systems": "2026.2.1"}, counters={"NCCL calls": len(calls)}
    )


def _spans(pairs: Sequence[tuple[int, int]]) -> Lane:
    start, end = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    return Lane(start, end, np.full(len(pairs), 4, np.uint32), np.zeros(len(pairs), np.uint8))

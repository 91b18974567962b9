"""A small log with a frame of each type, and ways to look at what was read back."""

from pathlib import Path

import numpy as np

from overlapwatch.log.frames import (
    MAGIC,
    Clock,
    ClockPair,
    Counters,
    End,
    Events,
    Frame,
    Gradients,
    Header,
    Names,
    Note,
    Summaries,
    encode,
)
from overlapwatch.log.reader import LogContents
from overlapwatch.vocabulary import (
    GRADIENT_READY,
    RECORD,
    SUMMARY,
    Name,
    NameKind,
    RecordKind,
    StepFlag,
)

HEADER = Header(
    rank=1,
    world=4,
    local_rank=1,
    host="node-7",
    pid=4242,
    run_id="run-a",
    created=ClockPair(1_000, 1_700_000_000_000_000_000),
    mode="passive",
    device="cpu",
    ring="/somewhere/ring",
    versions={"torch": "2.13.0"},
    settings={"keep_every": "10"},
    environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
)
NAMES = Names(
    (
        Name(1, NameKind.BUCKET, "bucket 0", (7, 8, 9), 300, 1200, "float32"),
        Name(1, NameKind.GROUP, "default", (0, 1, 2, 3)),
        Name(7, NameKind.PARAMETER, "transformer.Ω.weight", (), 100, 400, "bfloat16"),
    )
)


def step_records(step: int, *, finish: int = 50) -> np.ndarray:
    """A STEP, a COLLECTIVE."""
    rows = np.zeros(2, RECORD)
    rows["kind"] = RecordKind.STEP, RecordKind.COLLECTIVE
    rows["step"] = step
    rows["start"] = step * 100, 0
    rows["launch"] = 0, step * 100 + 10
    rows["finish"] = step * 100 + 99, (step * 100 + finish if finish else 0)
    return rows


def step_summary(*steps: int, flags: int = 0) -> np.ndarray:
    """One SUMMARY row for each step."""
    rows = np.zeros(len(steps), SUMMARY)
    rows["step"], rows["flags"] = steps, flags
    rows["communication_ns"] = -1
    return rows


def gradients(step: int) -> np.ndarray:
    return np.array([(step, 7, step * 100 + 3)], GRADIENT_READY)


FRAMES: tuple[Frame, ...] = (
    HEADER,
    NAMES,
    Events(1, 1, StepFlag.UNBUCKETED, step_records(1)),
    Gradients(gradients(1)),
    Summaries(step_summary(1, 2)),
    Note(5, "a note"),
    Counters(6, {"records_lost": 3}),
    Clock(ClockPair(9_000, 1_700_000_000_000_009_000)),
    Events(10, 10, StepFlag.SLOW, step_records(10)),
    Summaries(step_summary(3, 10)),
    End("closed", 99, {"records_lost": 4}),
)


def log_bytes(frames: tuple[Frame, ...] = FRAMES) -> bytes:
    return MAGIC + b"".join(encode(frame) for frame in frames)


def frame_ends(frames: tuple[Frame, ...] = FRAMES) -> list[int]:
    """Where each frame ends in the file."""
    return [len(log_bytes(frames[: count + 1])) for count in range(len(frames))]


def write_log(path: Path, frames: tuple[Frame, ...] = FRAMES) -> Path:
    path.write_bytes(log_bytes(frames))
    return path


def plain(contents: LogContents) -> tuple:
    """Everything that was read, but for the damage, in a form that compares."""
    return (
        contents.header,
        contents.names,
        contents.groups,
        [(e.first_step, e.last_step, e.flags, e.records.tobytes()) for e in contents.events],
        contents.summaries.tobytes(),
        contents.gradients.tobytes(),
        contents.counts,
        contents.clocks,
        contents.notes,
        contents.end,
        contents.last_step,
    )

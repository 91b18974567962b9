"""An FSDP2 step with everything in it and known answers, times in ms after the step's beginning.

Four units on one communicator that runs one collective at a time; blocks.0 prefetches blocks.2 in forward, although
blocks.1 is used next; blocks.2 keeps its parameters for the backward.

| unit     | forward: gather, used    | computes | backward: gather, used   | computes | reduce-scatter      |
|----------|--------------------------|----------|--------------------------|----------|---------------------|
| GPT      | 0–2 on demand, 0–2.5     | 2.5–3    | held, 16                 |          | 28, 31–33           |
| blocks.0 | 3–5 on demand, 3–5       | 5–7      | 20.5, 23–25 by 1, 24–25  | 25–28    | 28–31               |
| blocks.1 | 7, 9–11 on demand, 7–11  | 11–14    | 16–18 by 2, 20           | 20–24    | 24, 25–28           |
| blocks.2 | 5–9 by blocks.0, 14      | 14–16    | held, 16                 | 16–20    | 20–23               |

A number before a comma is a launch that came before the turn. The end of the backward waits 28–33, the optimizer steps
33–34.
"""

import numpy as np

from overlapwatch.accounting.summarize import summarize
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
from tests.support.scenarios import at

GPT, BLOCK0, BLOCK1, BLOCK2 = 11, 12, 13, 14
LENGTH = 34
SIZES = {GPT: 4_000_000, BLOCK0: 8_000_000, BLOCK1: 8_000_000, BLOCK2: 8_000_000}
NAMES = {
    owner: Name(owner, NameKind.MODULE, text, (), SIZES[owner] // 4, SIZES[owner], "float32")
    for owner, text in zip(SIZES, ("GPT", "blocks.0", "blocks.1", "blocks.2"), strict=True)
}
GROUPS = {1: Name(1, NameKind.GROUP, "default", (0, 1))}
FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER

GATHERS = (  # phase, module, prefetched by, launch, start, finish
    (FORWARD, GPT, 0, 0, 0, 2),
    (FORWARD, BLOCK0, 0, 3, 3, 5),
    (FORWARD, BLOCK2, BLOCK0, 5, 5, 9),
    (FORWARD, BLOCK1, 0, 7, 9, 11),
    (BACKWARD, BLOCK1, BLOCK2, 16, 16, 18),
    (BACKWARD, BLOCK0, BLOCK1, 20.5, 23, 25),
)
SCATTERS = ((BLOCK2, 20, 20, 23), (BLOCK1, 24, 25, 28), (BLOCK0, 28, 28, 31), (GPT, 28, 31, 33))
USES = (
    (FORWARD, GPT, 0, 2.5), (FORWARD, BLOCK0, 3, 5), (FORWARD, BLOCK1, 7, 11), (FORWARD, BLOCK2, 14, 14),
    (BACKWARD, GPT, 16, 16), (BACKWARD, BLOCK2, 16, 16), (BACKWARD, BLOCK1, 20, 20), (BACKWARD, BLOCK0, 24, 25),
)  # fmt: skip
HOLDS = ((GPT, 0, 28), (BLOCK0, 3, 7), (BLOCK2, 5, 20), (BLOCK1, 7, 14), (BLOCK1, 16, 24), (BLOCK0, 20.5, 28))  # fmt: skip
PHASES = ((FORWARD, 0, 16), (BACKWARD, 16, 33), (Phase.OPTIMIZER, 33, 34))


def row(kind: RecordKind, step: int, **fields: float) -> np.ndarray:
    """One RECORD of rank 0; times in ms after the step's beginning, steps one after another."""
    one = np.zeros(1, RECORD)
    one["kind"], one["step"] = kind, step
    for name, value in fields.items():
        moment = name in {"ready", "launch", "start", "finish"}
        one[name] = at((step - 1) * LENGTH + value) if moment else value
    return one


def step_records(step: int) -> np.ndarray:
    """All records of one step, in no order."""
    kind = RecordKind
    rows = [row(kind.STEP, step, start=0, finish=LENGTH)]
    rows += [
        row(kind.PHASE, step, phase=phase, owner=GPT, start=start, finish=finish)
        for phase, start, finish in PHASES
    ]
    for sequence, (phase, owner, by, launch, start, finish) in enumerate(GATHERS, 1):
        flags = RecordFlag.PREFETCHED if by else 0
        times = {"launch": launch, "start": start, "finish": finish}
        told = {"phase": phase, "owner": owner, "cause": by, "flags": flags, "bytes": SIZES[owner]}
        rows.append(
            row(
                kind.COLLECTIVE,
                step,
                collective=GATHER,
                group=1,
                sequence=sequence,
                **told,
                **times,
            )
        )
    for sequence, (owner, launch, start, finish) in enumerate(SCATTERS, 1 + len(GATHERS)):
        times = {"ready": launch, "launch": launch, "start": start, "finish": finish}
        told = {"phase": BACKWARD, "owner": owner, "bytes": SIZES[owner]}
        rows.append(
            row(
                kind.COLLECTIVE,
                step,
                collective=SCATTER,
                group=1,
                sequence=sequence,
                **told,
                **times,
            )
        )
    for phase, owner, start, finish in USES:
        told = {"phase": phase, "owner": owner, "collective": GATHER}
        rows.append(row(kind.WAIT, step, start=start, finish=finish, **told))
    told = {"phase": BACKWARD, "owner": GPT, "collective": SCATTER}
    rows.append(row(kind.WAIT, step, start=28, finish=33, **told))
    told = {"phase": FORWARD, "owner": GPT, "collective": GATHER}
    rows.append(row(kind.COPY, step, start=2, finish=2.5, **told))
    rows += [
        row(kind.HELD, step, owner=owner, bytes=SIZES[owner], start=start, finish=finish)
        for owner, start, finish in HOLDS
    ]
    return np.concatenate(rows)


def recording(steps: int = 4, records: np.ndarray | None = None) -> Recording:
    """The job as a source gives it; `records` instead of those of `steps` equal steps."""
    if records is None:
        records = np.concatenate([step_records(step) for step in range(1, steps + 1)])
    timeline = from_records(
        records,
        origin=Origin("owlog", "runs/f/rank0-77aa.owlog", 0, 2, "cpu", "pid 4242", "node-a"),
        names=NAMES,
        groups=GROUPS,
    )
    return Recording(
        timeline,
        summaries=summarize(timeline),
        state="closed",
        about={"torch": "2.13.0", "mode": "fsdp2"},
    )

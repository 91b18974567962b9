"""Boils the log of a watched FSDP2 training down to what a test compares.

In: a log. Out: plain lists and words: what is out of order, what nobody owns, and one step told in words.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.log.reader import LogContents
from overlapwatch.vocabulary import (
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)

_GATHER, _SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER


def seen(log: LogContents) -> dict[str, Any]:
    """Return what the test compares."""
    records = np.concatenate([block.records for block in log.events])
    steps = records[records["kind"] == RecordKind.STEP]
    collectives = of_kind(records, RecordKind.COLLECTIVE)
    return {
        "steps": steps["step"].tolist(),
        "flags": [
            [flag.name for flag in StepFlag if flag & int(flags)]
            for flags in log.summaries["flags"]
        ],
        "collectives": [int((collectives["step"] == step).sum()) for step in steps["step"]],
        "unowned": int((collectives["owner"] == 0).sum()),
        "phases": [
            sorted({Phase(int(p)).name for p in records["phase"][_spans_of(records, step)]})
            for step in steps["step"]
        ],
        "disorder": list(disorder(records, steps, log.names)),
        "last step": words_of(records[records["step"] == steps["step"][-1]], log.names),
        "lost": log.counts["records_lost"],
        "unobservable": int(log.summaries["unobservable"].sum()),
        "unfinished": int(log.summaries["unfinished"].sum()),
        "end": log.end.reason if log.end else None,
        "damage": [str(one) for one in log.damage],
    }


def of_kind(records: NDArray[np.void], kind: RecordKind) -> NDArray[np.void]:
    """Return the records of one kind."""
    return np.asarray(records[records["kind"] == kind])


def _spans_of(records: NDArray[np.void], step: int) -> Any:
    return (records["step"] == step) & (records["kind"] == RecordKind.PHASE)


def disorder(
    records: NDArray[np.void], steps: NDArray[np.void], names: dict[int, Name]
) -> Iterable[str]:
    """Yield what contradicts itself, in words."""
    gathers = records[
        (records["kind"] == RecordKind.COLLECTIVE) & (records["collective"] == _GATHER)
    ]
    for record in records:
        kind = RecordKind(int(record["kind"]))
        name = names.get(int(record["owner"]))
        what = f"{kind.name} of {name.text if name else '?'} in step {record['step']}"
        if kind is RecordKind.COLLECTIVE:
            times = [record[field] for field in ("ready", "launch", "finish") if record[field]]
            prefetched = bool(record["flags"] & RecordFlag.PREFETCHED)
            ours = (
                name is None or name.kind is NameKind.MODULE
            )  # a bucket's cause is its gating parameter
            if ours and bool(record["cause"]) != prefetched:
                yield f"{what}: prefetched by nobody, or caused without being prefetched"
            unseen = record["flags"] & RecordFlag.FINISH_UNOBSERVABLE
            if not record["launch"] or not (record["finish"] or unseen):
                yield f"{what}: no launch or no finish"
            if name is not None and name.kind is not NameKind.BUCKET:
                whole = sum(names[member].bytes for member in name.members)
                if whole != name.bytes or (
                    not whole and record["collective"] in (_GATHER, _SCATTER)
                ):
                    yield f"{what}: its parameters have {whole} bytes, not {name.bytes}"
        elif kind is RecordKind.HELD:
            times = [record["start"], record["finish"] or np.iinfo(np.int64).max]
            launched = gathers["launch"][gathers["owner"] == record["owner"]]
            near = (launched >= times[0]) & (launched <= times[1])
            if not near.any() and record["bytes"] == names[int(record["owner"])].bytes:
                yield f"{what}: held without having been gathered"
        else:
            times = [record["start"], record["finish"]]
        if times != sorted(times) or times[0] <= 0:
            yield f"{what}: {times}"
    uses = records[(records["kind"] == RecordKind.WAIT) & (records["collective"] == _GATHER)]
    for use in uses:
        own = gathers[gathers["owner"] == use["owner"]]
        late = own[(own["launch"] < use["start"]) & (own["finish"] > use["finish"])]
        if len(late):
            yield f"used in step {use['step']} before its gather was over: {names[int(use['owner'])].text}"


def words_of(records: NDArray[np.void], names: dict[int, Name]) -> str:
    """Tell one step: `AllGather x by y`, `use x`, `wait x` (for its gradients), `ReduceScatter x`, in order, by phase."""
    told: dict[str, list[tuple[int, str]]] = {"forward": [], "backward": [], "other": []}
    for record in records:
        kind, collective = int(record["kind"]), CollectiveKind(int(record["collective"]))
        phase = Phase(int(record["phase"])).name.lower()
        if phase not in told or kind not in (RecordKind.COLLECTIVE, RecordKind.WAIT):
            continue
        owner = names[int(record["owner"])].text if record["owner"] else "?"
        if kind == RecordKind.COLLECTIVE:
            by = f" by {names[int(record['cause'])].text}" if record["cause"] else ""
            told[phase].append((record["launch"], f"{collective.title} {owner}{by}"))
        elif collective is _GATHER:
            told[phase].append((record["finish"], f"use {owner}"))
        else:
            told[phase].append((record["start"], f"wait {owner}"))
    return " / ".join(
        f"{phase}: " + "; ".join(words for _, words in sorted(lines, key=lambda line: line[0]))
        for phase, lines in told.items()
        if lines
    )

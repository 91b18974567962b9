"""Wrong prefetch order: a module was gathered ahead of one that was needed earlier.

In: a Timeline, its matched uses. Out: a `Misordered` for each combination of who prefetched, what,
and what was needed instead.

An all-gather that was issued as a prefetch is in order when, of all uses whose all-gather had not
been issued before it, its own is the earliest. Otherwise it stood in the way of the earliest:

| launched, in order       | used, in order        | out of order                        |
|--------------------------|-----------------------|-------------------------------------|
| 0, 1 (by 0), 2 (by 1)    | 0, 1, 2               | none                                |
| 0, 2 (by 0), 1           | 0, 1, 2               | 2, prefetched by 0: 1 was needed    |
| 0, 9 (by 0), 1           | 0, 1                  | 9, never used: 1 was needed         |

What it cost is the stall of the use that was needed, and the part of that stall in which the
all-gather that overtook it still ran. It does not know how long the stall would have been without.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.units.uses import stall_of
from overlapwatch.timeline.model import Timeline
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag


@dataclass(frozen=True, slots=True)
class Misordered:
    """One module that was prefetched out of order, over the steps.

    Args:
        module: what was prefetched.
        by: the module whose pre-forward or pre-backward issued it; "" when not known.
        phase: when it was issued.
        needed: the module whose parameters were needed first.
        count: how often.
        steps: in how many steps.
        never_used: of `count`, prefetches that no use consumed.
        bytes: logical bytes of the prefetches, added.
        stalls: of `count`, how often the needed module then stalled.
        stall_ns: by how much, added; None where that is known of none of its uses.
        behind_ns: the part of the stalls in which the prefetch still ran.

    """

    module: str
    by: str
    phase: Phase
    needed: str
    count: int
    steps: int
    never_used: int
    bytes: int
    stalls: int
    stall_ns: int | None
    behind_ns: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "module": self.module,
            "prefetched_by": self.by or None,
            "phase": self.phase.name.lower(),
            "needed": self.needed,
            "count": self.count,
            "steps": self.steps,
            "never_used": self.never_used,
            "bytes": self.bytes,
            "stalls": self.stalls,
            "stall_ns": self.stall_ns,
            "behind_ns": self.behind_ns,
        }


PAIR = np.dtype([("gather", "<i8"), ("needed", "<i8"), ("used", "?")])
"""A prefetch out of order: its position in the communication, the USE row that was needed before
its own, and whether it was used at all."""


def out_of_order(tl: Timeline, matched: NDArray[np.void]) -> NDArray[np.void]:
    """Return the prefetches out of order as PAIR rows. `matched` are USE rows of the timeline."""
    found = [pair for step in np.unique(matched["step"]) for pair in _of_step(tl, matched, step)]
    return np.array(found, PAIR)


def _of_step(
    tl: Timeline, matched: NDArray[np.void], step: np.uint32
) -> Iterator[tuple[int, int, bool]]:
    records = tl.communication
    rows = np.flatnonzero((matched["step"] == step) & (matched["gather"] >= 0))
    gathers = matched["gather"][rows]
    rows = rows[np.argsort(records["launch"][gathers], kind="stable")]
    issued = records["launch"][matched["gather"][rows]]
    # The earliest use among those whose all-gather was issued at each place or later.
    start = matched["start"][rows]
    earliest = np.empty(len(rows), np.int64)
    best = len(rows) - 1
    for place in range(len(rows) - 1, -1, -1):
        best = place if start[place] <= start[best] else best
        earliest[place] = best
    place_of = dict(zip(matched["gather"][rows].tolist(), range(len(rows)), strict=True))
    prefetched = np.flatnonzero(
        (records["step"] == step)
        & (records["collective"] == CollectiveKind.ALL_GATHER)
        & ((records["flags"] & int(RecordFlag.PREFETCHED) != 0) | (records["cause"] != 0))
        & (records["launch"] != 0)
    )
    for gather in prefetched.tolist():
        own = place_of.get(gather)
        place = int(np.searchsorted(issued, records["launch"][gather])) if own is None else own
        if place == len(rows):
            continue  # nothing was needed any more: never used, and in nobody's way
        first = int(earliest[place])
        if own is None or start[first] < start[own]:
            yield gather, int(rows[first]), own is not None


def misordered(tl: Timeline, matched: NDArray[np.void]) -> tuple[Misordered, ...]:
    """Return the prefetches out of order, those that cost the most first."""
    pairs = out_of_order(tl, matched)
    taken, needed = tl.communication[pairs["gather"]], matched[pairs["needed"]]
    stall = stall_of(needed)
    # A use is usable once its own all-gather has finished: only until then did it wait for that.
    until = np.where(needed["known"], needed["arrived"], needed["finish"])
    low = np.maximum(begin_of(taken), needed["start"])
    behind = np.maximum(np.minimum(taken["finish"], until) - low, 0)
    key = np.unique(
        np.stack([taken["cause"], taken["owner"], taken["phase"], needed["owner"]], axis=1),
        axis=0,
        return_inverse=True,
    )[1]
    rows = []
    for _, mine in parted(np.asarray(key, np.int64).reshape(-1)):
        known = mine[needed["known"][mine]]
        ended = known[taken["finish"][known] != 0]
        one = taken[mine[0]]
        rows.append(
            Misordered(
                module=_name(tl, int(one["owner"])),
                by=_name(tl, int(one["cause"])),
                phase=Phase(min(int(one["phase"]), max(Phase))),
                needed=_name(tl, int(needed["owner"][mine[0]])),
                count=len(mine),
                steps=len(np.unique(taken["step"][mine])),
                never_used=int((~pairs["used"][mine]).sum()),
                bytes=int(taken["bytes"][mine].sum()),
                stalls=int((stall[known] > 0).sum()),
                stall_ns=int(stall[known].sum()) if len(known) else None,
                behind_ns=int(behind[ended].sum()) if len(ended) else None,
            )
        )
    rows.sort(key=lambda row: (-(row.behind_ns or 0), -(row.stall_ns or 0), -row.count))
    return tuple(rows)


def _name(tl: Timeline, owner: int) -> str:
    if not owner:
        return ""
    name = tl.names.get(owner)
    return name.text if name else f"module {owner}"

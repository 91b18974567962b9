"""Copies that a collective made instead of a kernel -> collectives (NCCL 2.28, copy engines).

In: copies, their launches, the calls of collectives and which of them a kernel carries out. Out: one
RECORD for each call that only copies carry out, from its first start to its last end, and which
copies are in one. Evidence is asked for: a copy is launched inside the call, on its thread, and goes
to another device; or several copies are, in a group that is known to have more than one rank.
A lone copy within one device is none: a communicator of one rank makes it.

    call of AllGather 0-4 (no kernel)    launches PtoP 10-12, PtoP 11-15    one collective 10-15
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import Call
from overlapwatch.sources.kineto.lanes import Launches
from overlapwatch.sources.kineto.stacks import innermost
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import RECORD, CollectiveKind, RecordKind


@dataclass(frozen=True, slots=True, eq=False)
class CopyCollectives:
    """Collectives of copy engines.

    Args:
        records: RECORD rows.
        first: for each the index of its first copy.
        call: for each the index of its call.
        used: which copies are in one.
    """

    records: NDArray[np.void]
    first: I64
    call: I64
    used: NDArray[np.bool_]


def copy_collectives(
    copies: NDArray[np.void],
    between_devices: NDArray[np.bool_],
    launches: Launches,
    made: NDArray[np.void],
    carried_out: NDArray[np.bool_],
    calls: Sequence[Call],
    ranks_of: Callable[[int], int],
) -> CopyCollectives:
    """Return the collectives that copies carry out.

    Args:
        copies: DEVICE rows of one device.
        between_devices: which of them go to another device.
        launches: of the copies.
        made: HOST rows of the calls.
        carried_out: which of the calls a kernel carries out.
        calls: what their call numbers stand for.
        ranks_of: number of a process group -> its ranks, 0 = not known.
    """
    around = innermost(made, launches.thread, launches.moment)
    around[launches.moment == 0] = -1
    records, first, call = [], [], []
    used = np.zeros(len(copies), np.bool_)
    for index in np.unique(around[around >= 0]).tolist():
        told = calls[made["call"][index]]
        mine = np.flatnonzero(around == index)
        several = len(mine) > 1 and ranks_of(told.group) > 1
        if carried_out[index] or told.kind == CollectiveKind.UNKNOWN:
            continue
        if not (between_devices[mine].any() or several):
            continue
        record = np.zeros(1, RECORD)
        record["kind"], record["collective"] = RecordKind.COLLECTIVE, told.kind
        record["group"], record["sequence"] = told.group, told.sequence
        record["bytes"] = told.moved
        record["launch"] = launches.moment[mine].min()
        record["start"], record["finish"] = copies["start"][mine].min(), copies["end"][mine].max()
        records.append(record)
        first.append(int(mine[np.argmin(copies["start"][mine])]))
        call.append(index)
        used[mine] = True
    return CopyCollectives(
        np.concatenate([np.empty(0, RECORD), *records]),
        np.array(first, np.int64),
        np.array(call, np.int64),
        used,
    )

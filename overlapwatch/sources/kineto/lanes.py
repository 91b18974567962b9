"""Columns of one device -> the lanes of its Timeline.

In: DEVICE rows that are kept, the host's rows, the classes of the names. Out: compute, copies and
fused lanes, communication RECORDs, PAYLOAD rows. A kernel is joined to the runtime call that
launched it by its correlation id, and through that call's moment and thread to the collective that
was being called. Where no runtime call is left (it was launched before the capture) its launch is
not known; it is kept all the same.

A kind comes from the kernel's name; `_Generic` and SendRecv kernels, which several collectives run
as, take it from the arguments of the call, a generic one also from the call's annotation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.rules import KernelClass
from overlapwatch.sources.kineto.calls import Call
from overlapwatch.sources.kineto.columns import What
from overlapwatch.sources.kineto.stacks import by_thread, innermost
from overlapwatch.timeline.classify import Classes
from overlapwatch.timeline.model import I64, Lane
from overlapwatch.vocabulary import PAYLOAD, RECORD, CollectiveKind, Phase, RecordKind


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The runtime call that launched each device event.

    Args:
        moment: its start, ns; 0 = not known.
        thread: its thread; 0 = not known.
    """

    moment: I64
    thread: NDArray[np.uint32]

    def at(self, index: I64) -> "Launches":
        """Return the launches of these events."""
        return Launches(self.moment[index], self.thread[index])


def launches_of(device: NDArray[np.void], runtime: NDArray[np.void]) -> Launches:
    """Join by correlation id; of calls that share one, the last that began before the event did.

    An id that several processes of one file use joins nothing: an event does not say whose it is.

    Args:
        device: DEVICE rows.
        runtime: RUNTIME rows.
    """
    moment = np.zeros(len(device), np.int64)
    thread = np.zeros(len(device), np.uint32)
    calls = runtime[runtime["correlation"] != 0]
    calls = calls[np.lexsort((calls["start"], calls["correlation"]))]
    if len(np.unique(calls["process"])) > 1:
        same = calls["correlation"][1:] == calls["correlation"][:-1]
        mixed = same & (calls["process"][1:] != calls["process"][:-1])
        calls = calls[~np.isin(calls["correlation"], calls["correlation"][1:][mixed])]
    asked = np.flatnonzero(device["correlation"] != 0)
    if not len(calls) or not len(asked):
        return Launches(moment, thread)
    key = calls["correlation"]
    low = np.searchsorted(key, device["correlation"][asked], "left")
    high = np.searchsorted(key, device["correlation"][asked], "right")
    asked, low, high = asked[high > low], low[high > low], high[high > low]
    place = high - 1
    while True:  # ids that occur twice are rare: most stop at once
        late = (place > low) & (calls["start"][place] > device["start"][asked])
        if not late.any():
            break
        place[late] -= 1
    moment[asked], thread[asked] = calls["start"][place], calls["thread"][place]
    return Launches(moment, thread)


def lane(rows: NDArray[np.void], phase: NDArray[np.uint8] | None = None) -> Lane:
    """Return rows with start, end and name as a lane, by start."""
    order = np.argsort(rows["start"], kind="stable")
    if phase is None:
        phase = np.full(len(rows), Phase.OTHER, np.uint8)
    return Lane(
        np.ascontiguousarray(rows["start"][order]),
        np.ascontiguousarray(rows["end"][order]),
        np.ascontiguousarray(rows["name"][order]),
        phase[order],
        np.ascontiguousarray(rows["shape"][order]) if "shape" in (rows.dtype.names or ()) else None,
    )


def class_of(rows: NDArray[np.void], classes: Classes) -> NDArray[np.uint8]:
    """Return the KernelClass of each row by its name; copies and others have none and count as 0."""
    kernel = rows["what"] == What.KERNEL
    return np.where(kernel, classes.kernel[rows["name"] - 1], np.uint8(KernelClass.COMPUTE))


def calls_made(host: NDArray[np.void], calls: list[Call]) -> NDArray[np.void]:
    """Return the HOST rows that call a collective on a device, each collective once.

    `record_param_comms` with arguments comes first; an annotation `nccl:...` inside one is the same
    call, and stands for the call where there is none.
    """
    rows = host[host["call"] >= 0]
    if not len(rows):
        return rows
    told = np.array([call.told for call in calls])[rows["call"]]
    known = np.array([call.kind != CollectiveKind.UNKNOWN for call in calls])[rows["call"]]
    group = np.array([call.opens or call.closes for call in calls])[rows["call"]]
    explicit = rows[told & (known | group)]
    named = rows[~told]
    inside = innermost(rows[told], named["thread"], named["start"]) >= 0
    return np.concatenate((explicit, named[~inside]))


@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """The communication kernels of one device.

    Args:
        records: RECORD rows by start.
        order: for each the index of the row it was made of.
        record_of_call: for each call the index of the record that carries it out, -1 = none.
    """

    records: NDArray[np.void]
    order: I64
    record_of_call: I64


def communication_of(
    rows: NDArray[np.void],
    launches: Launches,
    classes: Classes,
    made: NDArray[np.void],
    calls: list[Call],
) -> Communication:
    """Return the communication of one device.

    Args:
        rows: DEVICE rows of communication kernels.
        launches: of these rows.
        classes: of all names.
        made: HOST rows of the calls (`calls_made`).
        calls: what their call numbers stand for.
    """
    order = np.argsort(rows["start"], kind="stable")
    rows = rows[order]
    moment, thread = launches.moment[order], launches.thread[order]
    around = innermost(made, thread, moment)
    around[moment == 0] = -1
    _by_external(rows, around, moment, made)
    records = np.zeros(len(rows), RECORD)
    records["kind"] = RecordKind.COLLECTIVE
    records["collective"] = classes.kind[rows["name"] - 1] if len(rows) else 0
    records["stream"] = np.where(
        (rows["stream"] > 0) & (rows["stream"] < 65536), rows["stream"], 0
    ).astype(np.uint16)
    records["launch"], records["start"], records["finish"] = moment, rows["start"], rows["end"]
    members = _members(made, calls)
    kernel = np.full(len(made), -1, np.int64)
    number_of = made["call"].tolist()
    told: list[Call | None] = []
    for index, (own, outer) in enumerate(zip(rows["call"].tolist(), around.tolist(), strict=True)):
        parts = members.get(outer, [outer] if outer >= 0 else [])
        for part in parts:
            if kernel[part] < 0:
                kernel[part] = index
        if own >= 0 and calls[own].kind != CollectiveKind.UNKNOWN:
            told.append(calls[own])
        else:
            told.append(_as_one([calls[number_of[part]] for part in parts]))
    _tell(records, told)
    return Communication(records, order, kernel)


def _by_external(rows: NDArray[np.void], around: I64, moment: I64, made: NDArray[np.void]) -> None:
    """Where the runtime call is missing, the operator's id that both carry links them."""
    lost = np.flatnonzero((moment == 0) & (rows["external"] != 0))
    if not len(lost) or not len(made):
        return
    place = {
        external: index for index, external in enumerate(made["external"].tolist()) if external
    }
    around[lost] = [place.get(external, -1) for external in rows["external"][lost].tolist()]


def _members(made: NDArray[np.void], calls: list[Call]) -> dict[int, list[int]]:
    """Return, for a call that ends a group, the calls of the group: they are launched as one."""
    members: dict[int, list[int]] = {}
    closes = [index for index, number in enumerate(made["call"].tolist()) if calls[number].closes]
    if not closes:
        return members
    for _, mine in by_thread(made["thread"]):
        waiting: list[int] = []
        for index in mine[np.argsort(made["start"][mine], kind="stable")].tolist():
            call = calls[made["call"][index]]
            if call.opens:
                waiting = []
            elif call.closes:
                members[index] = waiting
                waiting = []
            else:
                waiting.append(index)
    return members


def _as_one(calls: list[Call]) -> Call | None:
    """Return calls that one kernel carries out as one: what they agree on, and their bytes."""
    if len(calls) < 2:
        return calls[0] if calls else None
    kinds, groups = {call.kind for call in calls}, {call.group for call in calls}
    # Members without a size would make the sum a wrong one.
    moved = sum(call.moved for call in calls) if all(call.moved for call in calls) else 0
    return Call(
        kind=kinds.pop() if len(kinds) == 1 else CollectiveKind.UNKNOWN,
        told=calls[0].told,
        group=groups.pop() if len(groups) == 1 else 0,
        moved=moved if moved < 2**62 else 0,
    )


def _tell(records: NDArray[np.void], told: list[Call | None]) -> None:
    """Complete the records by the call that each carries out."""
    known = np.array([index for index, call in enumerate(told) if call is not None], np.int64)
    calls = [call for call in told if call is not None]
    kind = records["collective"][known]
    kind_told = np.array([call.kind for call in calls], np.uint8)
    vague = kind == CollectiveKind.UNKNOWN
    vague |= np.array([call.told for call in calls], np.bool_) & (kind == CollectiveKind.SEND_RECV)
    vague &= kind_told != CollectiveKind.UNKNOWN
    records["collective"][known] = np.where(vague, kind_told, kind)
    records["group"][known] = [call.group for call in calls]
    records["bytes"][known] = [call.moved for call in calls]
    records["sequence"][known] = [call.sequence for call in calls]


def payloads_of(made: NDArray[np.void], calls: list[Call], kernel: I64) -> NDArray[np.void]:
    """Return the PAYLOADs of the calls that do something, by start.

    Args:
        made: HOST rows of the calls.
        calls: what their call numbers stand for.
        kernel: for each the index of the record that carries it out, -1 = none.
    """
    numbers = made["call"].tolist()
    real = np.array([calls[one].kind != CollectiveKind.UNKNOWN for one in numbers], np.bool_)
    kept = np.flatnonzero(real)
    kept = kept[np.argsort(made["start"][kept], kind="stable")]
    payloads = np.zeros(len(kept), PAYLOAD)
    told = [calls[numbers[index]] for index in kept.tolist()]
    payloads["collective"] = [call.kind for call in told]
    payloads["group"] = [call.group for call in told]
    payloads["peer"] = [call.peer for call in told]
    payloads["bytes"] = [call.given for call in told]
    payloads["start"], payloads["end"] = made["start"][kept], made["end"][kept]
    payloads["kernel"] = kernel[kept]
    return payloads

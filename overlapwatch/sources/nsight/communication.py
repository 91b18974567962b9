"""Kernels, copies and NCCL calls -> the communication of the whole file, with sizes and call sites.

In: GPU rows and how their names are classified, launches, ranges, calls. Out: `Communication`: one row
for each collective on a device, and for each call the row that carries it out.

Kernels that the rules recognise are collectives. So are copies that an NCCL call launched instead of
a kernel (copy-engine collectives, NCCL 2.28): all copies of one call are one collective, from the
first start to the last end. A lone copy within one device is not: a communicator of one rank makes it.

Total bytes are filled in where they are certain: the calls that a row carries out are known, each has
a size, and the number of ranks is known where it is a factor.

| call          | S in bytes        |
|---------------|-------------------|
| AllReduce, Broadcast, Reduce          | as given               |
| AllGather, ReduceScatter, AllToAll, Gather, Scatter | as given × ranks |
| Send and Recv | all sends, or all receives where there is no send |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.rules import KernelClass
from overlapwatch.sources.nsight.calls import Calls, Communicator, Role, is_nccl
from overlapwatch.sources.nsight.gpu import Activity, Fault
from overlapwatch.sources.nsight.groups import attribute, unit_of_launch, units_of
from overlapwatch.sources.nsight.launches import Launches, read_launches
from overlapwatch.sources.nsight.names import NameTable
from overlapwatch.sources.nsight.nvtx import Ranges, enclosing
from overlapwatch.sources.nsight.tables import Tables
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import CollectiveKind as Kind

_DTOD, _PTOP = 8, 10
_TIMES_RANKS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)
STACK_SEPARATOR = " > "
_STEP = re.compile(r"(?i)^(.*\b(?:step|iteration|iter))[\s_#:=]*\d+$")
"""A range that is one step of many: its number would make a call site of each."""


@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """Collectives of all processes and devices, one array a column.

    Args:
        start, end: ns of the session.
        process, device, stream: where it ran.
        kind: CollectiveKind.
        launch: start of the host call that launched it; 0 = not known.
        communicator: NCCL's id; 0 = not known, or several.
        bytes: S as docs/definitions.md has it; 0 = not known.
        owner: id of the ranges around the launch; 0 = none.
        in_graph: launched as part of a CUDA graph.
        from_copies: it is made of copies.
        unclear: its calls could not be told apart from others of their group.
        work_of_call: for each call, the row that carries it out, -1 = none or not known.
        copies_used: which copies are collectives, and so no copies.
    """

    start: I64
    end: I64
    process: I64
    device: I64
    stream: I64
    kind: NDArray[np.uint8]
    launch: I64
    communicator: NDArray[np.uint64]
    bytes: I64
    owner: I64
    in_graph: NDArray[np.bool_]
    from_copies: NDArray[np.bool_]
    unclear: NDArray[np.bool_]
    work_of_call: I64
    copies_used: NDArray[np.bool_]
    short_of_ranks: int  # rows without bytes only because the number of ranks is not known

    def __len__(self) -> int:
        return len(self.start)


def communication_of(
    tables: Tables,
    kernels: Activity,
    classes: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    copies: Activity,
    ranges: Ranges,
    calls: Calls,
    communicators: Mapping[int, Communicator],
    names: NameTable,
) -> Communication:
    """Return the communication of the file.

    Args:
        tables: the export, for the launches.
        kernels: all kernels.
        classes: KernelClass and CollectiveKind of each kernel.
        copies: all copies.
        ranges: all NVTX ranges.
        calls: NCCL calls.
        communicators: what is known of each.
        names: where call sites are named.
    """
    units = units_of(calls)
    mine = np.flatnonzero((classes[0] == KernelClass.COMMUNICATION) & (kernels.fault == Fault.NONE))
    near = _candidates(copies, calls)
    launches = read_launches(
        tables,
        np.concatenate((kernels.process[mine], copies.process[near])),
        np.concatenate((kernels.correlation[mine], copies.correlation[near])),
    )
    unit = unit_of_launch(units, launches.start, launches.thread)
    pieces = _pieces(kernels, mine, classes[1][mine], launches, unit[: len(mine)])
    sets, used = _copy_sets(copies, near, calls, units.of_call, unit, len(mine))
    rest = np.array([one[0] + len(mine) for one in sets], np.int64)
    pieces = _joined(pieces, _copy_pieces(copies, near, sets, launches, rest, unit))
    found = attribute(calls, units, pieces.kind, pieces.unit)
    told = _told(calls, found.work, pieces.kind, communicators)
    return Communication(
        start=pieces.start,
        end=pieces.end,
        process=pieces.process,
        device=pieces.device,
        stream=pieces.stream,
        kind=told.kind,
        launch=pieces.launch,
        communicator=told.communicator,
        bytes=told.bytes,
        owner=_owners(ranges, pieces, names),
        in_graph=pieces.in_graph,
        from_copies=np.arange(len(pieces.start)) >= len(mine),
        unclear=(pieces.unit >= 0) & ~told.carried & _has_calls(pieces.unit, calls, units.of_call),
        work_of_call=found.work,
        copies_used=used,
        short_of_ranks=told.short_of_ranks,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Device work that communicates, before it is known for which calls."""

    start: I64
    end: I64
    process: I64
    device: I64
    stream: I64
    kind: NDArray[np.uint8]
    launch: I64
    thread: I64
    unit: I64
    in_graph: NDArray[np.bool_]


def _pieces(
    kernels: Activity, mine: I64, kind: NDArray[np.uint8], launches: Launches, unit: I64
) -> _Pieces:
    count = len(mine)
    return _Pieces(
        kernels.start[mine],
        kernels.end[mine],
        kernels.process[mine],
        kernels.device[mine],
        kernels.stream[mine],
        kind,
        launches.start[:count],
        launches.thread[:count],
        unit,
        kernels.in_graph[mine],
    )


def _joined(one: _Pieces, other: _Pieces) -> _Pieces:
    return _Pieces(
        *(
            np.concatenate((getattr(one, column), getattr(other, column)))
            for column in _Pieces.__slots__
        )
    )


# -- copy engines ------------------------------------------------------------------------------


def _candidates(copies: Activity, calls: Calls) -> I64:
    """Return the copies that a call could have made: within a device, or between devices."""
    if not (calls.role == Role.DATA).any():
        return np.empty(0, np.int64)
    fair = (copies.fault == Fault.NONE) & np.isin(copies.label, (_DTOD, _PTOP))
    return np.flatnonzero(fair & (copies.correlation > 0))


def _copy_sets(
    copies: Activity, near: I64, calls: Calls, of_call: I64, unit: I64, kernels: int
) -> tuple[list[I64], NDArray[np.bool_]]:
    """Return the copies of each collective made of them, as places in `near`, and which are used.

    A unit of calls that launched a kernel made its copies to prepare it.
    """
    used = np.zeros(len(copies), np.bool_)
    mine = unit[kernels:]
    possible = np.setdiff1d(of_call[calls.role == Role.DATA], unit[:kernels])
    places = np.flatnonzero(np.isin(mine, possible))
    sets = []
    rows = near[places]
    order = np.lexsort((copies.start[rows], copies.device[rows], mine[places]))
    places = places[order]
    key = np.stack((mine[places], copies.device[near[places]]))
    cuts = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)) + 1
    for together in np.split(places, cuts) if len(places) else ():
        rows = near[together]
        if (copies.label[rows] == _PTOP).any() or int(copies.batch[rows].sum()) > 1:
            sets.append(together)
            used[rows] = True
    return sets, used


def _copy_pieces(
    copies: Activity, near: I64, sets: list[I64], launches: Launches, first: I64, unit: I64
) -> _Pieces:
    rows = [near[one] for one in sets]
    lead = np.array([one[0] for one in rows], np.int64)
    return _Pieces(
        np.array([copies.start[one].min() for one in rows], np.int64),
        np.array([copies.end[one].max() for one in rows], np.int64),
        copies.process[lead],
        copies.device[lead],
        copies.stream[lead],
        np.full(len(sets), Kind.UNKNOWN, np.uint8),
        launches.start[first],
        launches.thread[first],
        unit[first],
        copies.in_graph[lead],
    )


# -- what the calls tell -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What its calls tell of each piece of work; `carried`: it has calls."""

    kind: NDArray[np.uint8]
    communicator: NDArray[np.uint64]
    bytes: I64
    carried: NDArray[np.bool_]
    short_of_ranks: int


def _told(
    calls: Calls,
    work: I64,
    kind: NDArray[np.uint8],
    communicators: Mapping[int, Communicator],
) -> _Told:
    count = len(kind)
    rows = np.flatnonzero(work >= 0)
    target = work[rows]
    carried = np.zeros(count, np.bool_)
    carried[target] = True
    called, same_kind = _uniform(target, calls.kind[rows], count)
    comm, same_comm = _uniform(target, calls.communicator[rows], count)
    ranks = np.array(
        [_ranks(one, communicators) for one in calls.communicator[rows].tolist()], np.int64
    )
    shared = np.isin(calls.kind[rows], _TIMES_RANKS)
    size = calls.bytes[rows]
    moved = np.where(shared, size * np.maximum(ranks, 1), size)
    moved = np.where(moved >= size, moved, -1)  # a damaged size times ranks may not fit
    known = (size >= 0) & ~(shared & (ranks == 0)) & (moved >= 0)
    certain = carried.copy()
    certain[target[~known]] = False
    # One way: what is sent, or what is received by a kernel that sends nothing.
    receives = calls.receives[rows]
    sends = np.zeros(count, np.bool_)
    sends[target[~receives]] = True
    counted = ~(receives & sends[target])
    total = np.zeros(count, np.int64)
    np.add.at(total, target[counted & known], moved[counted & known])
    without = np.unique(target[shared & (ranks == 0) & (size >= 0)])
    return _Told(
        kind=np.where(carried & same_kind & (called != Kind.UNKNOWN), called, kind).astype(
            np.uint8
        ),
        communicator=np.where(carried & same_comm, comm, 0).astype(np.uint64),
        bytes=np.where(certain & (total > 0), total, 0),
        carried=carried,
        short_of_ranks=len(without),
    )


def _uniform(
    target: I64, values: NDArray[np.generic], count: int
) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
    """Return one value for each target, and whether all of its values are that one."""
    value = np.zeros(count, values.dtype)
    value[target] = values
    same = np.ones(count, np.bool_)
    same[target[value[target] != values]] = False
    return value, same


def _ranks(communicator: int, communicators: Mapping[int, Communicator]) -> int:
    known = communicators.get(communicator)
    return known.ranks if known else 0


def _has_calls(unit: I64, calls: Calls, of_call: I64) -> NDArray[np.bool_]:
    return np.isin(unit, of_call[calls.role == Role.DATA])


def _owners(ranges: Ranges, pieces: _Pieces, names: NameTable) -> I64:
    """Return the id of the ranges around each launch, outermost first, NCCL's own left out."""
    owner = np.zeros(len(pieces.start), np.int64)
    asked = np.flatnonzero(pieces.launch > 0)
    if not len(asked) or not len(ranges):
        return owner
    stacks = enclosing(ranges, ~is_nccl(ranges), pieces.thread[asked], pieces.launch[asked])
    ids: dict[tuple[int, ...], int] = {}
    for at, stack in zip(asked.tolist(), stacks, strict=True):
        if stack not in ids:
            words = (_STEP.sub(r"\1", ranges.names[one]) for one in stack)
            ids[stack] = names.id_of(STACK_SEPARATOR.join(words))
        owner[at] = ids[stack]
    return owner

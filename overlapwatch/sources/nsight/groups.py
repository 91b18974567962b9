"""Calls of NCCL and device work -> which calls each piece of work carries out.

In: `Calls`, launches of the work (time, thread), the kind its name tells. Out: an `Attribution`.

A call outside a group launches its own kernel; all calls of a group are carried out when the group
ends, under `ncclGroupEnd`. So a *unit* is a lone call, or everything from the outermost group start
to its end on one thread, and a kernel belongs to the unit whose time on its thread holds its launch:

    unit     GroupStart  Send  Recv  Send  Recv  GroupEnd        one SendRecv kernel: four calls
                                                 ^ launch

One kernel in a unit carries out all its calls. Of several, each gets the calls of its kind where only
one is of that kind, or where kernels and calls are equally many and the calls are all alike; else
nobody can tell and they stay without bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.nsight.calls import Calls, Role
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import CollectiveKind as Kind

_AS_SEND_RECV = (Kind.SEND_RECV, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)
"""Calls that NCCL carries out with its SendRecv kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Which work carries out which calls.

    Args:
        work: for each call, the index of its work, -1 = none or not known.
        unit: for each piece of work, its unit, -1 = launched outside any call that was seen.
        unclear: pieces of work in a unit whose calls could not be told apart.
    """

    work: I64
    unit: I64
    unclear: int


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units of calls: `of_call` for each call, and start, end, thread of each unit."""

    of_call: I64
    start: I64
    end: I64
    thread: I64


def units_of(calls: Calls) -> Units:
    """Return the units; calls are in the order of threads, then time."""
    count = len(calls)
    of_call = np.zeros(count, np.int64)
    units = 0
    for thread in np.unique(calls.thread).tolist():
        rows = np.flatnonzero(calls.thread == thread)
        change = (calls.role[rows] == Role.GROUP_START).astype(np.int64)
        change -= calls.role[rows] == Role.GROUP_END
        depth = np.cumsum(change)
        depth -= np.minimum.accumulate(np.minimum(depth, 0))  # an end whose start was not seen
        before = np.concatenate(([0], depth[:-1]))
        of_call[rows] = units + np.cumsum(before == 0) - 1
        units += int(np.count_nonzero(before == 0))
    far = np.iinfo(np.int64)
    start, end = np.full(units, far.max), np.full(units, far.min)
    owner = np.zeros(units, np.int64)
    np.minimum.at(start, of_call, calls.start)
    np.maximum.at(end, of_call, calls.end)
    owner[of_call] = calls.thread
    return Units(of_call, start, end, owner)


def unit_of_launch(units: Units, launch: I64, thread: I64) -> I64:
    """Return the unit in whose time each launch lies on its thread, -1 where there is none."""
    found = np.full(len(launch), -1, np.int64)
    for one in np.unique(thread[launch > 0]).tolist():
        mine = np.flatnonzero(units.thread == one)
        asked = np.flatnonzero((thread == one) & (launch > 0))
        if not len(mine):
            continue
        mine = mine[np.argsort(units.start[mine], kind="stable")]
        place = np.searchsorted(units.start[mine], launch[asked], side="right") - 1
        inside = place >= 0
        inside[inside] = units.end[mine[place[inside]]] > launch[asked[inside]]
        found[asked[inside]] = mine[place[inside]]
    return found


def attribute(calls: Calls, units: Units, kind: NDArray[np.uint8], unit: I64) -> Attribution:
    """Return which work carries out which calls.

    Args:
        calls: all calls.
        units: their units.
        kind: CollectiveKind that the name of each piece of work tells.
        unit: of each piece of work, from `unit_of_launch`, in the order of launches.
    """
    work = np.full(len(calls), -1, np.int64)
    data = np.flatnonzero(calls.role == Role.DATA)
    placed = np.flatnonzero(unit >= 0)
    per_unit = np.bincount(unit[placed], minlength=len(units.start))
    only = np.full(len(units.start), -1, np.int64)
    only[unit[placed]] = placed
    only[per_unit != 1] = -1
    # Units with one piece of work, all at once.
    candidate = only[units.of_call[data]]
    alone = data[candidate >= 0]
    target = candidate[candidate >= 0]
    wrong = ~_fits(kind[target], calls.kind[alone])
    unfit = np.unique(target[wrong])
    fit = ~np.isin(target, unfit)
    work[alone[fit]] = target[fit]
    unclear = len(unfit)
    # The others, one by one: there are few.
    several = np.flatnonzero(per_unit > 1)
    if len(several):
        data_unit = units.of_call[data]
        order_calls = np.argsort(data_unit, kind="stable")
        order_work = placed[np.argsort(unit[placed], kind="stable")]
        for one in several.tolist():
            low, high = np.searchsorted(data_unit[order_calls], (one, one + 1))
            mine = data[order_calls[low:high]]
            low, high = np.searchsorted(unit[order_work], (one, one + 1))
            unclear += _share(calls, mine, kind, order_work[low:high], work)
    return Attribution(work, unit, unclear)


def _fits(of_work: NDArray[np.uint8], of_call: NDArray[np.uint8]) -> NDArray[np.bool_]:
    fits = (of_work == Kind.UNKNOWN) | (of_work == of_call)
    fits |= (of_work == Kind.SEND_RECV) & np.isin(of_call, _AS_SEND_RECV)
    return np.asarray(fits, np.bool_)


def _share(calls: Calls, mine: I64, kind: NDArray[np.uint8], pieces: I64, work: I64) -> int:
    """Share the calls of one unit among several pieces of work; return how many got none."""
    if not len(mine):
        return 0
    kinds = np.unique(kind[pieces]).tolist()
    if Kind.UNKNOWN in kinds:  # one that may have carried out any of the calls
        if len(pieces) != len(mine) or not _alike(calls, mine):
            return len(pieces)
        work[mine] = pieces
        return 0
    unclear = 0
    for one in kinds:
        rivals = pieces[kind[pieces] == one]
        wanted = mine[_fits(np.full(len(mine), one, np.uint8), calls.kind[mine])]
        if len(rivals) == 1 and len(wanted):
            work[wanted] = rivals[0]
        elif len(rivals) == len(wanted) and _alike(calls, wanted):
            work[wanted] = rivals
        else:
            unclear += len(rivals)
    return unclear


def _alike(calls: Calls, rows: I64) -> bool:
    columns = (calls.kind, calls.communicator, calls.bytes)
    return all(len(np.unique(column[rows])) == 1 for column in columns)

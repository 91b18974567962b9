"""Tables of GPU activity -> rows that can be accounted, and why the others cannot.

In: `Tables`. Out: `Activity` for kernels, copies and whole-graph rows: int64 columns of equal length,
with a `fault` for each row (0 = good). Nothing is left out silently: a row with a fault is counted
under its reason in the timeline it would have been in.

A row is damaged when its times are absent, reversed, longer than the capture or outside it, or when
it outruns its successor: the work of one stream runs in order, so a long row that is still running
when the next one of its stream has ended was never that long. (Rows of CUDA graphs run side by side
under one stream number and are not judged so.)

    stream 7    A 0-5 000 000 000    B 100-200    C 300-400        A is left out
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.nsight.tables import MISSING, Columns, Tables
from overlapwatch.timeline.model import I64

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

MEMSET_KIND = -1
"""Copy kind of a memset row."""
COPY_KINDS = {
    MEMSET_KIND: "memset",
    1: "memcpy HtoD",
    2: "memcpy DtoH",
    8: "memcpy DtoD",
    9: "memcpy HtoH",
    10: "memcpy PtoP",
}

_LONG_NS = 100_000_000  # shorter rows do little harm and are not compared with their successors
_LONGEST_NS = 7 * 86_400 * 10**9  # no capture is longer
_SLACK_NS = 10**9  # a device's clock may be this far off the capture's edges
_COMMON = ("start", "end", "globalPid", "deviceId", "contextId", "streamId", "correlationId")


class Fault(IntEnum):
    """Why a row cannot be used."""

    NONE = 0
    NO_TIME = 1
    REVERSED = 2
    TOO_LONG = 3
    OUTSIDE = 4
    OUTRUNS = 5


FAULTS = {
    Fault.NO_TIME: "their times were not collected",
    Fault.REVERSED: "they end before they start",
    Fault.TOO_LONG: "they last longer than the capture",
    Fault.OUTSIDE: "they lie outside the capture",
    Fault.OUTRUNS: "they outrun the next one of their stream",
}


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """Rows of GPU activity, one array a column.

    Args:
        start, end: ns of the session.
        process: `globalPid >> 24`, MISSING where the export does not say.
        device, context, stream: CUDA's numbers within the process.
        correlation: of the call that launched it; 0 = not known.
        label: string id of a kernel's name, kind of a copy, 0 for a graph.
        bytes: of a copy, else 0.
        in_graph: it is a node of a CUDA graph.
        fault: Fault.
    """

    start: I64
    end: I64
    process: I64
    device: I64
    context: I64
    stream: I64
    correlation: I64
    label: I64
    bytes: I64
    in_graph: NDArray[np.bool_]
    batch: I64  # copies that one row stands for; 1 for other rows
    fault: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Capture:
    """When the capture ran, ns of the session; None where the export does not say."""

    start_ns: int | None = None
    end_ns: int | None = None


def read_capture(tables: Tables) -> Capture:
    """Return when the capture ran."""
    found = tables.integers("ANALYSIS_DETAILS", ("startTime", "stopTime"))
    good = (found["startTime"] != MISSING) & (found["stopTime"] > found["startTime"])
    if not good.any():
        return Capture()
    return Capture(int(found["startTime"][good].min()), int(found["stopTime"][good].max()))


def read_kernels(tables: Tables, capture: Capture) -> Activity:
    """Return the kernels; `label` is the string id of the name, MISSING without one."""
    there = tables.columns(KERNELS)
    names = ("demangledName", "shortName", "mangledName", "name")
    name = next((one for one in names if one in there), names[0])
    found = tables.integers(KERNELS, (*_COMMON, name, "graphNodeId"))
    return _activity(found, found[name], None, capture)


def read_copies(tables: Tables, capture: Capture) -> Activity:
    """Return memcpy and memset rows; `label` is a copy kind, MEMSET_KIND for memsets."""
    copies = tables.integers(MEMCPY, (*_COMMON, "bytes", "copyKind", "graphNodeId", "copyCount"))
    sets = tables.integers(MEMSET, (*_COMMON, "bytes", "graphNodeId"))
    told = {**sets, "copyKind": np.full(len(sets["start"]), MEMSET_KIND, np.int64)}
    told["copyCount"] = np.ones(len(sets["start"]), np.int64)
    found = {name: np.concatenate([column, told[name]]) for name, column in copies.items()}
    return _activity(found, found["copyKind"], found["bytes"], capture)


def read_graphs(tables: Tables, capture: Capture) -> Activity:
    """Return the CUDA graphs that were traced as a whole: what ran inside was not recorded."""
    found = tables.integers(GRAPHS, _COMMON)
    return _activity(found, np.zeros(len(found["start"]), np.int64), None, capture)


def _activity(columns: Columns, label: I64, size: I64 | None, capture: Capture) -> Activity:
    rows = len(label)
    process = columns["globalPid"]
    node = columns.get("graphNodeId", np.full(rows, MISSING, np.int64))
    in_graph = (node != MISSING) & (node != 0)
    correlation = columns["correlationId"]
    known = (correlation > 0) & (correlation < 1 << 32)
    start, end = columns["start"], columns["end"]
    stream = columns["streamId"]
    fault = _faults(start, end, capture)
    _mark_outrunning(
        start, end, fault, in_graph, (process, columns["deviceId"], columns["contextId"], stream)
    )
    return Activity(
        start=start,
        end=end,
        process=np.where(process == MISSING, MISSING, process >> 24),
        device=columns["deviceId"],
        context=columns["contextId"],
        stream=stream,
        correlation=np.where(known, correlation, 0),
        label=label,
        bytes=np.zeros(rows, np.int64) if size is None else np.maximum(size, 0),
        in_graph=in_graph,
        batch=np.maximum(columns.get("copyCount", np.ones(rows, np.int64)), 1),
        fault=fault,
    )


def _faults(start: I64, end: I64, capture: Capture) -> NDArray[np.uint8]:
    fault = np.zeros(len(start), np.uint8)
    if not len(start):
        return fault
    low, high = capture.start_ns, capture.end_ns
    longest = _LONGEST_NS if low is None or high is None else high - low + _SLACK_NS
    there = (start != MISSING) & (end != MISSING) & (start != 0) & (end != 0)
    half = 1 << 62  # beyond it a difference would not fit
    near = (start > -half) & (start < half) & (end > -half) & (end < half)
    length = np.where(near, end, 0) - np.where(near, start, 0)
    fault[length < 0] = Fault.REVERSED
    fault[(length > longest) | ~near] = Fault.TOO_LONG
    fault[~there] = Fault.NO_TIME
    if low is not None and high is not None:
        outside = (start < low - _SLACK_NS) | (start > high + _SLACK_NS)
        # Where many lie outside, these are not the capture's edges on this clock.
        if np.count_nonzero(outside) * 100 <= len(start):
            fault[outside & (fault == Fault.NONE)] = Fault.OUTSIDE
    return fault


def _mark_outrunning(
    start: I64,
    end: I64,
    fault: NDArray[np.uint8],
    in_graph: NDArray[np.bool_],
    queue: tuple[I64, I64, I64, I64],
) -> None:
    """Mark long rows that are still running when the next row of their stream has ended."""
    fair = (fault == Fault.NONE) & ~in_graph
    long = np.flatnonzero(fair)
    long = long[end[long] - start[long] >= _LONG_NS]
    if not len(long):
        return
    suspect = fair.copy()
    for column in queue:  # only streams that have a long row need sorting
        suspect &= np.isin(column, np.unique(column[long]))
    rows = np.flatnonzero(suspect)
    order = rows[np.lexsort((end[rows], start[rows], *(column[rows] for column in queue)))]
    same = np.ones(len(order) - 1, np.bool_)
    for column in queue:
        same &= column[order[1:]] == column[order[:-1]]
    this, following = order[:-1], order[1:]
    outruns = same & (end[this] > end[following]) & (end[this] - start[this] >= _LONG_NS)
    fault[this[outruns]] = Fault.OUTRUNS

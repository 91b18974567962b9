"""Everything read from one export -> one Recording for each process and device.

In: `Tables`. Out: `recordings`. Times are ns of the session, as the export has them: `--trim` takes
the seconds that the Nsight Systems GUI shows. Two ranks that each call their only GPU device 0 stay apart,
since a timeline is keyed by process and device. A process that made NCCL calls and has no GPU rows gets
a timeline too: its calls are known, its device was not recorded, and they are not the calls of others.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.rules import KernelClass
from overlapwatch.sources.nsight.about import About
from overlapwatch.sources.nsight.calls import Role, is_nccl
from overlapwatch.sources.nsight.contents import Contents, read_contents
from overlapwatch.sources.nsight.gpu import FAULTS, Activity, Fault
from overlapwatch.sources.nsight.names import distinct
from overlapwatch.sources.nsight.tables import MISSING, Tables
from overlapwatch.sources.nsight.unknowns import Told, unknowns
from overlapwatch.timeline.model import I64, Lane, Origin, Recording, Skipped, Timeline
from overlapwatch.vocabulary import PAYLOAD, RECORD, RecordKind

COMPUTE_RULE = "kernels"
NO_DEVICE = -1
_STREAM_LIMIT = int(np.iinfo(np.uint16).max)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a file: kernel names that communicate beside the rules, CUDA devices."""

    patterns: Sequence[re.Pattern[str]] = ()
    devices: Collection[int] | None = None


def recordings(
    tables: Tables, wanted: Wanted, step: Callable[[int, int], object] | None = None
) -> list[Recording]:
    """Return a Recording for each process and device, by process, then device.

    Args:
        tables: the export.
        wanted: what of it.
        step: called with (parts done, parts in all).
    """
    file = read_contents(tables, wanted.patterns, step or (lambda _done, _total: None))
    keys = [key for key in _keys(file) if wanted.devices is None or key[1] in wanted.devices]
    first_of: dict[int, int] = {}
    for process, device in keys:
        first_of.setdefault(process, device)
    return [
        _recording(tables, file, process, device, adopts=first_of[process] == device)
        for process, device in keys
    ]


def _keys(file: Contents) -> list[tuple[int, int]]:
    """Return (process, device) of each timeline; NO_DEVICE where only calls were recorded."""
    found: set[tuple[int, int]] = set()
    for rows in (file.kernels.rows, file.copies, file.graphs):
        processes, place = distinct(rows.process)
        for number, process in enumerate(processes.tolist()):
            mine = distinct(rows.device[place == number])[0]
            found.update((process, device) for device in mine.tolist() if device != MISSING)
    owners = {process for process, _ in found}
    callers = np.unique(file.calls.thread[file.calls.role == Role.DATA] >> 24).tolist()
    found.update((process, NO_DEVICE) for process in callers if process not in owners)
    return sorted(found)


def _recording(
    tables: Tables, file: Contents, process: int, device: int, *, adopts: bool
) -> Recording:
    """Return the Recording of one process on one device.

    `adopts`: calls of the process that no device can be told of are this timeline's.
    """
    kernels, copies = file.kernels, file.copies
    mine = _of(kernels.rows, process, device)
    good = mine & (kernels.rows.fault == Fault.NONE)
    copied = _of(copies, process, device)
    rows = np.flatnonzero(
        (file.communication.process == process) & (file.communication.device == device)
    )
    rows = rows[np.argsort(file.communication.start[rows], kind="stable")]
    records = _records(file, rows)
    payloads = _payloads(file, process, rows, adopts=adopts)
    compute = _lane(
        kernels.rows, good & (kernels.kernel_class == KernelClass.COMPUTE), kernels.name
    )
    fused = _lane(kernels.rows, good & (kernels.kernel_class == KernelClass.FUSED), kernels.name)
    kept = copied & (copies.fault == Fault.NONE) & ~file.communication.copies_used
    graphs = _of(file.graphs, process, device)
    skipped = [
        *_skipped("kernels", kernels.rows.fault[mine]),
        *_skipped("copies", copies.fault[copied]),
        *(file.ranges.skipped if adopts else ()),
    ]
    told = Told(
        device=device,
        records=records,
        rows=rows,
        payloads=payloads,
        names=tuple(
            file.names.names[number].text
            for number in np.unique(kernels.name[good]).tolist()
            if number
        ),
        nameless=int((good & kernels.nameless).sum()),
        graphs=int(graphs.sum()),
        graph_calls=file.graph_calls.get(process, 0),
        graph_ns=int(
            (file.graphs.end - file.graphs.start)[graphs & (file.graphs.fault == Fault.NONE)].sum()
        ),
    )
    rank = file.ranks.rank(process)
    timeline = Timeline(
        origin=Origin(
            source="nsight",
            path=str(tables.path),
            rank=rank,
            world=file.ranks.world,
            device="" if device == NO_DEVICE else f"GPU {device}",
            process=_process(file.about, process),
        ),
        compute=compute,
        communication=records,
        copies=_lane(copies, kept, file.copy_name),
        fused=fused,
        ranges=_ranges(file, process),
        payloads=payloads,
        compute_rule=COMPUTE_RULE,
        names=file.names.names,
        groups=file.groups,
        skipped=tuple(skipped),
        unknown=tuple(unknowns(file.calls, file.about, file.communication, file.ranks, told)),
    )
    return Recording(
        timeline=timeline,
        about={**file.about.facts, **_card(file.about, process, device)},
        counters=_counters(file, records, rows, payloads),
    )


def _of(rows: Activity, process: int, device: int) -> NDArray[np.bool_]:
    return np.asarray((rows.process == process) & (rows.device == device), np.bool_)


def _skipped(what: str, fault: NDArray[np.uint8]) -> list[Skipped]:
    counts = Counter(fault[fault != Fault.NONE].tolist())
    return [Skipped(what, count, FAULTS[Fault(one)]) for one, count in sorted(counts.items())]


def _lane(rows: Activity, chosen: NDArray[np.bool_], name: NDArray[np.uint32]) -> Lane:
    """Return the chosen rows by start, so that nobody has to sort them again."""
    index = np.flatnonzero(chosen)
    start = rows.start[index]
    if len(start) and not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        index, start = index[order], start[order]
    return Lane(start, rows.end[index], name[index], np.zeros(len(index), np.uint8))


def _ranges(file: Contents, process: int) -> Lane:
    """Return the ranges of a process, shared by its devices; NCCL's own are calls, not ranges."""
    if process not in file.range_lanes:
        ranges = file.ranges
        ids = np.array([file.names.id_of(name) for name in ranges.names] or [0], np.uint32)
        chosen = np.flatnonzero((ranges.thread >> 24 == process) & ~is_nccl(ranges))
        chosen = chosen[np.argsort(ranges.start[chosen], kind="stable")]
        named = ranges.name[chosen]
        file.range_lanes[process] = Lane(
            ranges.start[chosen],
            ranges.end[chosen],
            np.where(named >= 0, ids[np.maximum(named, 0)], 0).astype(np.uint32),
            np.zeros(len(chosen), np.uint8),
        )
    return file.range_lanes[process]


def _records(file: Contents, rows: I64) -> NDArray[np.void]:
    told = file.communication
    records = np.zeros(len(rows), RECORD)
    records["kind"] = RecordKind.COLLECTIVE
    records["collective"] = told.kind[rows]
    records["owner"] = told.owner[rows]
    records["group"] = [file.group_ids.get(one, 0) for one in told.communicator[rows].tolist()]
    # Number 0 stands for the host: a stream that the export calls so is still on the device.
    records["stream"] = np.clip(told.stream[rows], 1, _STREAM_LIMIT)
    records["bytes"] = told.bytes[rows]
    records["launch"] = told.launch[rows]
    records["start"], records["finish"] = told.start[rows], told.end[rows]
    return records


def _payloads(file: Contents, process: int, rows: I64, *, adopts: bool) -> NDArray[np.void]:
    calls = file.calls
    mine = (calls.role == Role.DATA) & (calls.thread >> 24 == process)
    work = file.communication.work_of_call
    here = np.isin(work, rows) & (work >= 0)
    chosen = np.flatnonzero(mine & (here | ((work < 0) & adopts)))
    place = np.full(len(file.communication) + 1, -1, np.int64)  # the last entry answers for -1
    place[rows] = np.arange(len(rows))
    payloads = np.zeros(len(chosen), PAYLOAD)
    payloads["collective"] = calls.kind[chosen]
    payloads["group"] = [file.group_ids.get(one, 0) for one in calls.communicator[chosen].tolist()]
    payloads["peer"] = np.clip(calls.peer[chosen], -1, np.iinfo(np.int32).max)
    payloads["bytes"] = calls.bytes[chosen]
    payloads["start"], payloads["end"] = calls.start[chosen], calls.end[chosen]
    payloads["kernel"] = place[work[chosen]]
    return payloads[np.argsort(payloads["start"], kind="stable")]


def _process(about: About, process: int) -> str:
    if process == MISSING:
        return ""
    return f"pid {about.processes.get(process, process & 0xFFFFFF)}"


def _card(about: About, process: int, device: int) -> dict[str, str]:
    pid = about.processes.get(process, process & 0xFFFFFF)
    title = about.gpus.get((pid, device)) or about.gpus.get((0, device), "")
    return {"GPU model": title} if title else {}


def _counters(
    file: Contents, records: NDArray[np.void], rows: I64, payloads: NDArray[np.void]
) -> dict[str, int]:
    told = file.communication
    return {
        "communication launched before the capture": int((records["launch"] == 0).sum()),
        "communication made of copies": int(told.from_copies[rows].sum()),
        "communication in CUDA graphs": int(told.in_graph[rows].sum()),
        "NCCL calls": len(payloads),
        "NCCL calls with a size": int((payloads["bytes"] >= 0).sum()),
        "NCCL calls whose kernel is known": int((payloads["kernel"] >= 0).sum()),
    }

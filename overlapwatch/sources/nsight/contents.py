"""Everything that is read from one export, before it is parted into timelines.

In: `Tables`. Out: `Contents`: rows of all processes and devices, classified, named and attributed. What a
name is, is decided once a name, whatever the number of kernels that have it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.nsight.about import About, read_about
from overlapwatch.sources.nsight.calls import Calls, Communicator, Role, read_calls
from overlapwatch.sources.nsight.communication import Communication, communication_of
from overlapwatch.sources.nsight.gpu import (
    COPY_KINDS,
    Activity,
    read_capture,
    read_copies,
    read_graphs,
    read_kernels,
)
from overlapwatch.sources.nsight.launches import graph_launches
from overlapwatch.sources.nsight.names import NameTable, distinct, strings
from overlapwatch.sources.nsight.nvtx import Ranges, read_ranges
from overlapwatch.sources.nsight.ranks import Ranks, ranks_of
from overlapwatch.sources.nsight.tables import MISSING, Tables
from overlapwatch.timeline.classify import classify
from overlapwatch.timeline.model import Lane
from overlapwatch.vocabulary import Name, NameKind

_GROUP_LIMIT = int(np.iinfo(np.uint16).max)


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """Kernels and what their names say.

    Args:
        rows: the kernels.
        kernel_class, kind: KernelClass and CollectiveKind of each.
        name: Name id of each, 0 where the export has no name; those are `nameless`.
    """

    rows: Activity
    kernel_class: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    name: NDArray[np.uint32]
    nameless: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Everything read from the export.

    Args:
        about: facts of the file.
        kernels, copies, graphs: GPU rows; `copy_name` is the Name id of each copy.
        graph_calls: graph launches by process of which nothing ran that was recorded.
        ranges, calls, communicators: NVTX ranges, NCCL's calls, what is known of its communicators.
        communication: collectives, and which call each carries out.
        names, groups: what ids stand for; `group_ids` finds the id of a communicator.
        ranks: which rank a process is.
        range_lanes: the ranges of each process, made when first asked for.
    """

    about: About
    kernels: Kernels
    copies: Activity
    copy_name: NDArray[np.uint32]
    graphs: Activity
    graph_calls: Mapping[int, int]
    ranges: Ranges
    calls: Calls
    communicators: Mapping[int, Communicator]
    communication: Communication
    names: NameTable
    groups: Mapping[int, Name]
    group_ids: Mapping[int, int]
    ranks: Ranks
    range_lanes: dict[int, Lane] = field(default_factory=dict)


def read_contents(
    tables: Tables, patterns: Sequence[re.Pattern[str]], step: Callable[[int, int], object]
) -> Contents:
    """Return the contents of an export.

    Args:
        tables: the export.
        patterns: kernel names that communicate, beside the rules.
        step: called with (parts done, parts in all).
    """
    names = NameTable()
    about = read_about(tables)
    capture = read_capture(tables)
    step(0, 4)
    kernels = _classified(tables, read_kernels(tables, capture), patterns, names)
    step(1, 4)
    copies = read_copies(tables, capture)
    graphs = read_graphs(tables, capture)
    step(2, 4)
    ranges = read_ranges(tables)
    owner = _only_process(tables, ranges)
    kernels = replace(kernels, rows=_owned(kernels.rows, owner))
    copies, graphs = _owned(copies, owner), _owned(graphs, owner)
    calls, communicators = read_calls(tables, ranges)
    step(3, 4)
    communication = communication_of(
        tables,
        kernels.rows,
        (kernels.kernel_class, kernels.kind),
        copies,
        ranges,
        calls,
        communicators,
        names,
    )
    processes = np.unique(calls.thread >> 24).tolist()
    processes += np.unique(kernels.rows.process).tolist()
    ranks = ranks_of(tables.path.name, sorted(set(processes)), communicators)
    groups = _groups(calls, communicators, ranks)
    step(4, 4)
    return Contents(
        about=about,
        kernels=kernels,
        copies=copies,
        copy_name=_copy_names(copies, names),
        graphs=graphs,
        graph_calls=_graph_calls(tables, kernels.rows, graphs),
        ranges=ranges,
        calls=calls,
        communicators=communicators,
        communication=communication,
        names=names,
        groups=dict(groups.values()),
        group_ids={comm: number for comm, (number, _) in groups.items()},
        ranks=ranks,
    )


def _classified(
    tables: Tables, rows: Activity, patterns: Sequence[re.Pattern[str]], names: NameTable
) -> Kernels:
    """Return the kernels with class, kind and name, each decided once a name."""
    ids, place = distinct(rows.label)
    texts = strings(tables, ids)
    words = [texts.get(number, "") for number in ids.tolist()]
    classes = classify(words, patterns)
    name = np.array([names.id_of(one) for one in words], np.uint32)
    missing = np.array([not one for one in words], np.bool_)
    if not len(ids):
        none = np.empty(0, np.uint8)
        return Kernels(rows, none, none, np.empty(0, np.uint32), np.empty(0, np.bool_))
    return Kernels(rows, classes.kernel[place], classes.kind[place], name[place], missing[place])


def _only_process(tables: Tables, ranges: Ranges) -> int | None:
    """Return the process of an export that has one; None where there are several or none."""
    owners = {
        owner >> 24
        for (owner,) in tables.rows("PROCESSES", ("globalPid",))
        if isinstance(owner, int)
    }
    callers = set(np.unique(ranges.thread >> 24).tolist())
    return next((one.pop() for one in (callers, owners) if len(one) == 1), None)


def _owned(rows: Activity, owner: int | None) -> Activity:
    """Return the rows with their process, where the export has no column for it and only one process."""
    if owner is None or not len(rows) or (rows.process != MISSING).any():
        return rows
    return replace(rows, process=np.full(len(rows), owner, np.int64))


def _graph_calls(tables: Tables, kernels: Activity, graphs: Activity) -> dict[int, int]:
    """Return graph launches by process, of an export without a row of what ran in them."""
    if len(graphs) or kernels.in_graph.any():
        return {}
    owners, count = np.unique(graph_launches(tables)[0], return_counts=True)
    return dict(zip(owners.tolist(), count.tolist(), strict=True))


def _copy_names(copies: Activity, names: NameTable) -> NDArray[np.uint32]:
    kinds, place = distinct(copies.label)
    ids = [names.id_of(COPY_KINDS.get(kind, "memcpy")) for kind in kinds.tolist()]
    return np.array(ids, np.uint32)[place] if len(kinds) else np.empty(0, np.uint32)


def _groups(
    calls: Calls, communicators: Mapping[int, Communicator], ranks: Ranks
) -> dict[int, tuple[int, Name]]:
    """Return id and Name of each communicator that a call names."""
    used = np.unique(calls.communicator[calls.role == Role.DATA])
    groups = {}
    for number, comm in enumerate(used[used != 0].tolist()[:_GROUP_LIMIT], 1):
        known = communicators.get(comm, Communicator())
        name = Name(
            number,
            NameKind.GROUP,
            f"communicator {comm:016x}",
            members=ranks.of_members(known),
            elements=known.ranks,
        )
        groups[comm] = number, name
    return groups

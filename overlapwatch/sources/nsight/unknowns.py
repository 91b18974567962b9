"""What a timeline of an export cannot tell, each with the reason and what would bring it.

In: the parts of a timeline and what the export says of itself. Out: `Unknown` entries. Nothing here
changes a number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.nsight.about import About
from overlapwatch.sources.nsight.calls import Calls, Role
from overlapwatch.sources.nsight.communication import Communication
from overlapwatch.sources.nsight.ranks import Ranks
from overlapwatch.timeline.classify import none_recognised
from overlapwatch.timeline.model import I64, Unknown

GRAPH_FLAG = "--cuda-graph-trace=node"
BLOBS_FLAG = "--include-blobs=true"


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One timeline: its device (-1 = none recorded), records, their rows, calls, kernel names.

    `nameless` kernels have no name; `graphs` were traced as a whole, `graph_ns` long together; of
    `graph_calls` graph launches of the process nothing was recorded.
    """

    device: int
    records: NDArray[np.void]
    rows: I64
    payloads: NDArray[np.void]
    names: tuple[str, ...]
    nameless: int
    graphs: int
    graph_calls: int
    graph_ns: int


def unknowns(
    calls: Calls,
    about: About,
    communication: Communication,
    ranks: Ranks,
    told: Told,
) -> Iterator[Unknown]:
    """Yield what is not known."""
    if told.device < 0:
        yield Unknown(
            "everything on the device",
            "this process made NCCL calls, but no GPU work of it was recorded",
        )
    elif not len(told.records):
        yield none_recognised(told.names)
    if told.graphs:
        yield Unknown(
            f"compute, communication, overlap and idle time inside {told.graphs} CUDA graph launches, "
            f"{told.graph_ns / 1e6:.3f} ms together",
            f"not measurable: the graphs were traced as a whole, without their kernels; record with {GRAPH_FLAG}",
        )
    if told.graph_calls:
        yield Unknown(
            f"compute, communication, overlap and idle time inside {told.graph_calls} CUDA graph launches",
            f"not measurable: nothing that ran in them was recorded; record with {GRAPH_FLAG}",
        )
    if told.nameless:
        yield Unknown(
            f"what {told.nameless} kernels are, which count as compute",
            "the export has no name for them",
        )
    yield from _sizes(calls, about, communication, told)
    if not ranks.by_process:
        yield Unknown("rank", "neither NCCL's initialisation calls nor the file's name tell it")


def _sizes(
    calls: Calls, about: About, communication: Communication, told: Told
) -> Iterator[Unknown]:
    if not len(told.records) and not len(told.payloads):
        return
    sized = int((told.payloads["bytes"] >= 0).sum())
    if not (calls.role == Role.DATA).any():
        yield Unknown(
            "sizes and communicators",
            "the capture has no NCCL calls; record with --trace=cuda,nvtx",
        )
    elif not calls.blobs:
        yield Unknown("sizes and communicators", _no_blobs(calls, about))
    elif sized < len(told.payloads):
        yield Unknown(
            f"the size of {len(told.payloads) - sized} of {len(told.payloads)} NCCL calls",
            "their payload is absent, cut short, or of a schema that is not known",
        )
    mine = communication.unclear[told.rows]
    if calls.blobs and mine.any():
        yield Unknown(
            f"the bytes of {int(mine.sum())} collectives",
            "several kernels were launched in one group of calls, and nothing tells which carried out which",
        )
    graphed = communication.in_graph[told.rows]
    if graphed.any():
        yield Unknown(
            f"the bytes of {int(graphed.sum())} collectives in CUDA graphs",
            "NCCL was called when the graph was captured, not when it ran",
        )
    if communication.short_of_ranks:
        yield Unknown(
            "the total bytes of collectives whose size is told per rank",
            "the number of ranks of their communicator is not in the capture: ncclCommInitRank tells it",
        )


def _no_blobs(calls: Calls, about: About) -> str:
    if not calls.has_column:
        return (
            "this release of Nsight Systems exports no payloads to sqlite; export the report with a newer "
            f"one: nsys export --type sqlite {BLOBS_FLAG}"
        )
    if about.blobs:
        return "the calls carry no payload: NCCL before 2.16, or built without NVTX payloads"
    return f"the report was exported without payloads: nsys export --type sqlite {BLOBS_FLAG}"

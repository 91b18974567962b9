"""A trace's host rows -> lanes of the host: collectives that run there, and operators.

In: HOST rows and their names. Out: RECORDs and PAYLOADs of host-side collectives (gloo, MPI, UCC),
whose annotation spans them from launch to finish, and, for a trace without a device, a compute lane
of CPU operators. An operator counts by its name (`aten::mm`, `mylib::op`), on whatever thread, with
all that it calls; what calls operators (autograd, modules) is a frame and does not count, unless it
calls nothing that was recorded: a function written in Python. Calls of collectives are cut out of
what they lie in.

| event                          | calls        | counts                         |
|--------------------------------|--------------|--------------------------------|
| AddmmBackward0                 | aten::mm     | no: a frame                    |
| aten::mm                       | anything     | whole                          |
| NapBackward                    | nothing      | whole                          |
| c10d::allreduce_               | anything     | no, and it is cut out          |
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import HOST_BACKENDS, Call
from overlapwatch.sources.kineto.columns import What
from overlapwatch.sources.kineto.stacks import parents_of
from overlapwatch.timeline.intervals import Intervals, join, nothing, subtract, union
from overlapwatch.timeline.model import I64, Lane
from overlapwatch.vocabulary import PAYLOAD, RECORD, RecordKind

COMPUTE_RULE = "CPU operators, without the calls of collectives"

_OPERATOR = re.compile(r"(\w+)::\w")
_FRAMES = {"torch", "autograd"}
_CALLS = re.compile(
    r"(c10d|_?c10d_functional\w*|symm_mem|gloo|nccl|mpi|ucc)\b:|record_param_comms", re.IGNORECASE
)
_FRAME, _COMPUTES, _COMMUNICATES = range(3)


def collectives(rows: NDArray[np.void], names: Sequence[str]) -> NDArray[np.void]:
    """Return those of the HOST rows with a call that are collectives of the host, by start."""
    theirs = np.array([name.startswith(HOST_BACKENDS) for name in names], np.bool_)
    mine = theirs[rows["name"] - 1] if len(rows) else np.empty(0, np.bool_)
    found: NDArray[np.void] = rows[mine][np.argsort(rows["start"][mine], kind="stable")]
    return found


def records_of(rows: NDArray[np.void], calls: Sequence[Call]) -> NDArray[np.void]:
    """Return the RECORDs of collectives of the host; nobody sees when they were ready."""
    records = np.zeros(len(rows), RECORD)
    told = [calls[number] for number in rows["call"].tolist()]
    records["kind"] = RecordKind.COLLECTIVE
    records["collective"] = [call.kind for call in told]
    records["group"] = [call.group for call in told]
    records["bytes"] = [call.moved for call in told]
    records["sequence"] = [call.sequence for call in told]
    records["launch"] = records["start"] = rows["start"]
    records["finish"] = rows["end"]
    return records


def payloads_of(rows: NDArray[np.void], calls: Sequence[Call], first: int) -> NDArray[np.void]:
    """Return the PAYLOADs of collectives of the host, whose records begin at index `first`."""
    payloads = np.zeros(len(rows), PAYLOAD)
    told = [calls[number] for number in rows["call"].tolist()]
    payloads["collective"] = [call.kind for call in told]
    payloads["group"] = [call.group for call in told]
    payloads["peer"] = [call.peer for call in told]
    payloads["bytes"] = [call.given for call in told]
    payloads["start"], payloads["end"] = rows["start"], rows["end"]
    payloads["kernel"] = np.arange(first, first + len(rows))
    return payloads


def compute_lane(host: NDArray[np.void], names: Sequence[str]) -> Lane:
    """Return what the host computed: unions of each thread's operators, without names."""
    operators = host[host["what"] == What.OPERATOR]
    role = np.array([_role(name) for name in names], np.uint8)
    mine = role[operators["name"] - 1] if len(operators) else np.empty(0, np.uint8)
    parent = parents_of(operators)
    # A leaf is what nothing lies in; a frame that is one has computed itself.
    inner = np.zeros(len(operators), np.bool_)
    inner[parent[parent >= 0]] = True
    computes = (mine == _COMPUTES) | ((mine == _FRAME) & ~inner)
    found = nothing()
    for thread in np.unique(operators["thread"]).tolist():
        here = operators["thread"] == thread
        busy = _union(operators[here & computes])
        found = join(found, subtract(busy, _union(operators[here & (mine == _COMMUNICATES)])))
    none: I64 = np.zeros(len(found), np.int64)
    return Lane(found.start, found.end, none.astype(np.uint32), none.astype(np.uint8))


def _union(rows: NDArray[np.void]) -> Intervals:
    return union(np.ascontiguousarray(rows["start"]), np.ascontiguousarray(rows["end"]))


def _role(name: str) -> int:
    if _CALLS.match(name):
        return _COMMUNICATES
    match = _OPERATOR.match(name)
    return _COMPUTES if match and match[1] not in _FRAMES else _FRAME

"""NCCL's own NVTX ranges -> the calls that were made: what, by whom, when, with how many bytes.

In: `Ranges`, `Tables`. Out: `Calls`, one row for each range of NCCL's domain, payload decoded where the
export has it, and `Communicators`, what initialisation calls tell of each.

A payload is a blob: domain, schema, size, one field of unclear meaning, 8 bytes each, little-endian,
then the payload. Its bytes are the size the API was given (docs/definitions.md says what that is for
each kind). A blob that is cut short, or of a schema nobody knows, leaves its call without a size.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.nsight.nvtx import TABLE, Ranges
from overlapwatch.sources.nsight.schemas import Layout, Schemas, read_schemas
from overlapwatch.sources.nsight.tables import Tables
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import CollectiveKind as Kind

BLOB = "binaryData"
_HEADER = struct.Struct("<QQQQ")
_API = re.compile(r"^p?nccl[A-Z]\w*$")


class Role(IntEnum):
    """What an NCCL range is to us."""

    OTHER = 0
    DATA = 1
    GROUP_START = 2
    GROUP_END = 3
    INIT = 4


_DATA = {
    "AllGather": Kind.ALL_GATHER,
    "AllReduce": Kind.ALL_REDUCE,
    "Broadcast": Kind.BROADCAST,
    "Bcast": Kind.BROADCAST,
    "ReduceScatter": Kind.REDUCE_SCATTER,
    "Reduce": Kind.REDUCE,
    "Send": Kind.SEND_RECV,
    "Recv": Kind.SEND_RECV,
    "AlltoAll": Kind.ALL_TO_ALL,
    "AllToAll": Kind.ALL_TO_ALL,
    "Gather": Kind.GATHER,
    "Scatter": Kind.SCATTER,
    "PutSignal": Kind.SEND_RECV,
}


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """NCCL calls, one array a column, in the order of threads, then time.

    Args:
        start, end: host ns.
        thread: globalTid.
        role: Role.
        kind: CollectiveKind of DATA calls.
        receives: the call is a Recv.
        communicator: NCCL's id of it, the same number on every rank; 0 = not known.
        bytes: as given; -1 = not known.
        peer: peer or root; -1 = none or not known.
        cut: calls whose blob is cut short or of an unknown schema.
        blobs: calls that have a blob.
        has_column: the export has a column for blobs.
    """

    start: I64
    end: I64
    thread: I64
    role: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    receives: NDArray[np.bool_]
    communicator: NDArray[np.uint64]
    bytes: I64
    peer: I64
    cut: int
    blobs: int
    has_column: bool

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Member:
    """What one process said when it joined a communicator; -1 = not known."""

    rank: int
    device: int


@dataclass(slots=True)
class Communicator:
    """One communicator: how many ranks it has (0 = not known), and which process is which."""

    ranks: int = 0
    members: dict[int, Member] = field(default_factory=dict)


def is_nccl(ranges: Ranges) -> NDArray[np.bool_]:
    """Say which ranges are NCCL API calls: `nccl...` in a domain of its own."""
    named = np.array([bool(_API.match(name)) for name in ranges.plain], np.bool_)
    mine = np.zeros(len(ranges), np.bool_)
    has = ranges.name >= 0
    if len(named):
        mine[has] = named[ranges.name[has]]
    return np.asarray(mine & (ranges.domain != 0) & ranges.nested, np.bool_)


def read_calls(tables: Tables, ranges: Ranges) -> tuple[Calls, Mapping[int, Communicator]]:
    """Return the calls of every process of the file, and the communicators they name."""
    rows = np.flatnonzero(is_nccl(ranges))
    rows = rows[np.lexsort((ranges.start[rows], ranges.thread[rows]))]
    has_column = BLOB in tables.columns(TABLE)
    blobs = _blobs(tables, ranges, rows) if has_column and len(rows) else {}
    schemas = read_schemas(tables) if blobs else Schemas({})
    count = len(rows)
    role, kind = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    receives = np.zeros(count, np.bool_)
    communicator = np.zeros(count, np.uint64)
    size, peer = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    communicators: dict[int, Communicator] = {}
    meaning = [_meaning(name) for name in ranges.plain]
    cut = 0
    for at, row in enumerate(rows.tolist()):
        what = meaning[ranges.name[row]]
        role[at], kind[at], receives[at] = what
        blob = blobs.get(row)
        if blob is None:
            continue
        values = _decode(blob, int(ranges.domain[row]), schemas)
        if values is None:
            cut += 1
            continue
        comm = values.get("communicator", 0)
        communicator[at] = comm
        given = values.get("bytes", -1)
        size[at] = given if 0 <= given < 1 << 62 else -1
        peer[at] = values.get("peer", -1) if what[0] is Role.DATA else -1
        if what[0] is Role.INIT and comm and values.get("ranks", 0) > 0:
            one = communicators.setdefault(comm, Communicator())
            one.ranks = max(one.ranks, values["ranks"])
            process = int(ranges.thread[row]) >> 24
            one.members[process] = Member(values.get("rank", -1), values.get("device", -1))
    calls = Calls(
        start=ranges.start[rows],
        end=ranges.end[rows],
        thread=ranges.thread[rows],
        role=role,
        kind=kind,
        receives=receives,
        communicator=communicator,
        bytes=size,
        peer=peer,
        cut=cut,
        blobs=len(blobs),
        has_column=has_column,
    )
    return calls, communicators


def _meaning(name: str) -> tuple[Role, Kind, bool]:
    words = name.removeprefix("p").removeprefix("nccl")
    if words in _DATA:
        return Role.DATA, _DATA[words], words == "Recv"
    if words in {"GroupStart", "GroupEnd"}:
        return Role.GROUP_START if words == "GroupStart" else Role.GROUP_END, Kind.UNKNOWN, False
    if words.startswith(("CommInit", "CommSplit", "CommShrink", "CommGrow")):
        return Role.INIT, Kind.UNKNOWN, False
    return Role.OTHER, Kind.UNKNOWN, False


def _blobs(tables: Tables, ranges: Ranges, rows: I64) -> dict[int, bytes]:
    """Return the blob of each range that has one, by its place in `ranges`."""
    domains = np.unique(ranges.domain[rows])
    columns = ("start", "globalTid", BLOB)
    found = {}
    for start, thread, blob in tables.rows(TABLE, columns, only=("domainId", domains)):
        if blob is not None:  # the column is declared TEXT; what is not a blob cannot be decoded
            found[start, thread] = blob if isinstance(blob, bytes) else b""
    if not found:
        return {}
    keys = zip(ranges.start[rows].tolist(), ranges.thread[rows].tolist(), strict=True)
    return {row: found[key] for row, key in zip(rows.tolist(), keys, strict=True) if key in found}


def _decode(blob: bytes, domain: int, schemas: Schemas) -> dict[str, int] | None:
    """Return what the payload says, by role; None when it cannot be read."""
    if len(blob) < _HEADER.size:
        return None
    _, schema, size, _ = _HEADER.unpack_from(blob)
    payload = blob[_HEADER.size : _HEADER.size + size] if size < 1 << 20 else b""
    layout: Layout | None = schemas.layout(domain, schema, len(payload))
    if layout is None or len(payload) < size:
        return None
    return {
        one.role: int.from_bytes(
            payload[one.offset : one.offset + one.width], "little", signed=one.signed
        )
        for one in layout.fields
    }

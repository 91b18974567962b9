"""Layouts of NCCL's NVTX payloads: from the export's own schema tables, else those known by NCCL version.

In: `Tables`. Out: `Schemas`, which finds a `Layout` for (domain, schema id, length of the payload).

The export's tables come first: ids have moved between NCCL versions. Each process writes its own copy
of a schema, and the tables do not say whose is whose, so several layouts of one id are kept and the
payload's length chooses. The known ones (id = 16777216 + number of the call) differ by length too:

| NCCL      | AllGather        | AllReduce, Send, ...             | initialisation              |
|-----------|------------------|----------------------------------|-----------------------------|
| 2.16–2.24 | size             | size, i32                        | not known                   |
| from 2.25 | communicator, size | communicator, size, i32        | communicator, i32 ×3        |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from overlapwatch.sources.nsight.tables import Tables, text

FIRST_ID = 1 << 24
_SCHEMAS, _ENTRIES = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"

_WIDTHS = {
    1: (1, True), 2: (1, False), 3: (2, True), 4: (2, False), 5: (4, True), 6: (4, False),
    7: (8, True), 8: (8, False), 9: (8, True), 10: (8, False), 11: (1, True), 12: (1, False),
    13: (2, True), 14: (2, False), 15: (4, True), 16: (4, False), 17: (8, True), 18: (8, False),
    22: (8, False), 23: (8, False),
}  # fmt: skip
"""NVTX entry type -> (bytes, signed), for whole numbers."""

_ROLES = {
    "nccl communicator id": "communicator",
    "message size [bytes]": "bytes",
    "bytes": "bytes",
    "peer rank": "peer",
    "peer": "peer",
    "root": "peer",
    "no. of ranks": "ranks",
    "rank": "rank",
    "cuda device": "device",
}
"""What NCCL calls an entry -> what it is here; entries that are not here are not read."""


@dataclass(frozen=True, slots=True)
class Field:
    """One entry: what it is, and where."""

    role: str
    offset: int
    width: int
    signed: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """Entries of a payload; `size` is the least length that holds them, `declared` the schema's own."""

    fields: tuple[Field, ...]
    size: int
    declared: int


def _layout(fields: Iterable[Field], declared: int = 0) -> Layout:
    kept = tuple(fields)
    size = max((field.offset + field.width for field in kept), default=0)
    return Layout(kept, size, declared or -(-size // 8) * 8)


def _known() -> Mapping[int, tuple[Layout, ...]]:
    comm = Field("communicator", 0, 8, signed=False)
    sized = (comm, Field("bytes", 8, 8, signed=False))
    rooted = (*sized, Field("peer", 16, 4, signed=True))
    init = (
        comm,
        Field("ranks", 8, 4, signed=True),
        Field("rank", 12, 4, signed=True),
        Field("device", 16, 4, signed=True),
    )
    old = (Field("bytes", 0, 8, signed=False),)
    old_rooted = (*old, Field("peer", 8, 4, signed=True))
    known: dict[int, tuple[Layout, ...]] = {}
    for number in (0, 2, 3, 11):  # CommInitRank, CommDestroy, CommAbort, CommInitRankConfig
        known[number] = (_layout(init, 24),)
    known[4] = (_layout(sized, 16), _layout(old, 8))  # AllGather
    for number in (5, 7):  # AllReduce, ReduceScatter: the last entry is the reduction, not a rank
        known[number] = (_layout(sized, 24), _layout(old, 16))
    for number in (6, 8, 9, 10):  # Broadcast, Reduce, Send, Recv
        known[number] = (_layout(rooted, 24), _layout(old_rooted, 16))
    known[16] = (_layout(sized, 16),)  # AlltoAll
    for number in (17, 18):  # Gather, Scatter
        known[number] = (_layout(rooted, 24),)
    return {FIRST_ID + number: layouts for number, layouts in known.items()}


KNOWN = _known()


@dataclass(frozen=True, slots=True)
class Schemas:
    """Layouts by (domain, schema id), as the export has them."""

    told: Mapping[tuple[int, int], tuple[Layout, ...]]

    def layout(self, domain: int, schema: int, length: int) -> Layout | None:
        """Return how to read a payload of `length` bytes; None when nobody knows.

        A layout whose declared length is the payload's comes first, then the longest that fits.
        """
        for source in (self.told.get((domain, schema), ()), KNOWN.get(schema, ())):
            fitting = [one for one in source if one.size <= length]
            if fitting:
                return max(fitting, key=lambda one: (one.declared == length, one.size))
        return None


def read_schemas(tables: Tables) -> Schemas:
    """Return the schemas of the export; none in an export without schema tables."""
    sizes: dict[tuple[int, int], int] = {}
    for domain, schema, size in tables.rows(_SCHEMAS, ("domainId", "schemaId", "payloadSize")):
        if isinstance(domain, int) and isinstance(schema, int) and isinstance(size, int):
            sizes[domain, schema] = size
    columns = ("domainId", "schemaId", "idx", "type", "name", "offset")
    open_copies: dict[tuple[int, int], list[Field]] = {}
    layouts: dict[tuple[int, int], list[Layout]] = {}

    def close(key: tuple[int, int]) -> None:
        layout = _layout(open_copies.pop(key), sizes.get(key, 0))
        if layout.fields and layout not in layouts.setdefault(key, []):
            layouts[key].append(layout)

    for domain, schema, index, kind, name, offset in tables.rows(_ENTRIES, columns):
        if not (isinstance(domain, int) and isinstance(schema, int) and isinstance(kind, int)):
            continue
        key = domain, schema
        if index == 0 and key in open_copies:  # the next process's copy begins
            close(key)
        fields = open_copies.setdefault(key, [])
        role = _ROLES.get(text(name).strip().lower())
        width, signed = _WIDTHS.get(kind, (0, False))
        at = offset if isinstance(offset, int) else 0  # the first entry's offset is NULL
        if role is not None and width and 0 <= at < 1 << 16:
            fields.append(Field(role, at, width, signed))
    for key in list(open_copies):
        close(key)
    return Schemas({key: tuple(found) for key, found in layouts.items()})

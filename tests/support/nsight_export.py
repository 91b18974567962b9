"""Builds Nsight Systems exports row by row, with the tables and columns of the documented schema.

`Export` is a file: a table appears with its first row, as in real, lazy exports. `Process` adds
host calls, NVTX ranges, NCCL calls with payloads, and device rows whose ids fit together.
"""

import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FIRST_SCHEMA = 1 << 24
LEAD_NS = 2_000_000  # the host runs this far ahead of the device

KERNEL_COLUMNS = {
    "2022": "start end deviceId contextId streamId correlationId globalPid demangledName shortName mangledName "
    "launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
    "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId "
    "sharedMemoryLimitConfig",
    "2026": "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName "
    "mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
    "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX "
    "clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters "
    "sharedMemoryRequestedPercentage tensorSizeMinusOneElements",
}
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId greenContextId streamId correlationId globalPid bytes "
    "copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause "
    "graphNodeId virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId contextId greenContextId streamId correlationId globalPid value "
    "bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId contextId greenContextId streamId correlationId globalPid "
    "graphId graphExecId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value "
    "int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId name type flags numEntries payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx flags type name description arrayOrUnionDetail offset",
    "PROCESSES": "globalPid pid name",
    "TARGET_INFO_GPU": "vmId id name busLocation uuid",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "META_DATA_CAPTURE": "name value",
    "META_DATA_EXPORT": "name value",
    "EXPORT_META_DATA": "name value",
}
_TEXT = {
    "text",
    "name",
    "value",
    "description",
    "jsonText",
    "binaryData",
    "uuid",
    "busLocation",
    "utcTime",
    "localTime",
}
_ALWAYS = ("TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS", "PROCESSES")


class Export:
    """One export under construction: rows go to their table, tables appear with their first row."""

    def __init__(
        self, path: Path, era: str = "2026", *, blobs: bool = True, page_size: int = 4096
    ) -> None:
        self.path, self.era, self.blobs = path, era, blobs
        self.db = sqlite3.connect(path)
        self.db.execute(f"PRAGMA page_size = {page_size}")
        self.db.execute("PRAGMA journal_mode = OFF")
        self.db.execute("PRAGMA synchronous = OFF")
        self._tables: dict[str, tuple[str, ...]] = {}
        self._strings: dict[str, int] = {}
        self.db.execute(
            "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
        )
        meta = "EXPORT_META_DATA" if era == "2022" else "META_DATA_EXPORT"
        for name, value in (
            ("EXPORT_PRODUCT_VERSION", "2022.4.2.1" if era == "2022" else "2026.2.1.210"),
            ("EXPORT_SCHEMA_VERSION", "3.0.0" if era == "2022" else "3.25.0"),
            ("EXPORT_HOST", "secret-host"),
        ):
            self.add(meta, name=name, value=value)
        if era != "2022":
            self.add(meta, name="EXPORT_PARAM_INCLUDE_BLOBS", value="true" if blobs else "false")

    def string(self, text: str) -> int:
        """Return the id of a text."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.db.execute("INSERT INTO StringIds VALUES (?, ?)", (self._strings[text], text))
        return self._strings[text]

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table, which is made if it is not there yet."""
        if table not in self._tables:
            words = (
                KERNEL_COLUMNS[self.era]
                if table == "CUPTI_ACTIVITY_KIND_KERNEL"
                else COLUMNS[table]
            )
            names = tuple(words.split())
            if self.era == "2022" and table == "NVTX_EVENTS":
                names = names[:-1]  # no binaryData yet
            declared = ", ".join(
                f'"{name}" {"TEXT" if name in _TEXT else "INTEGER"}' for name in names
            )
            self.db.execute(f"CREATE TABLE {table} ({declared})")
            self._tables[table] = names
        return self._tables[table]

    def add(self, table: str, **values: object) -> None:
        """Add one row; columns that are not given are NULL, columns the era does not have are dropped."""
        self.add_many(table, tuple(values), [tuple(values.values())])

    def add_many(
        self,
        table: str,
        names: tuple[str, ...],
        rows: Iterator[tuple[object, ...]] | list[tuple[object, ...]],
    ) -> None:
        """Add rows of the named columns."""
        there = self.columns(table)
        kept = [at for at, name in enumerate(names) if name in there]
        quoted = ", ".join(f'"{names[at]}"' for at in kept)
        statement = f"INSERT INTO {table} ({quoted}) VALUES ({', '.join('?' * len(kept))})"
        if len(kept) == len(names):
            self.db.executemany(statement, rows)
        else:
            self.db.executemany(statement, ([row[at] for at in kept] for row in rows))

    def close(self) -> None:
        """Write the file."""
        self.db.commit()
        self.db.close()


# -- NCCL payloads --------------------------------------------------------------------------------

_U64, _INT, _SIZE = 18, 5, 22
_SCHEMAS: dict[int, tuple[int, tuple[tuple[str, int, int], ...]]] = {
    11: (
        24,
        (
            ("NCCL communicator ID", _U64, 0),
            ("No. of ranks", _INT, 8),
            ("Rank", _INT, 12),
            ("CUDA device", _INT, 16),
        ),
    ),
    4: (16, (("NCCL communicator ID", _U64, 0), ("Message size [bytes]", _SIZE, 8))),
    5: (
        24,
        (
            ("NCCL communicator ID", _U64, 0),
            ("Message size [bytes]", _SIZE, 8),
            ("Reduction operation", FIRST_SCHEMA + 16, 16),
        ),
    ),
    7: (
        24,
        (
            ("NCCL communicator ID", _U64, 0),
            ("Message size [bytes]", _SIZE, 8),
            ("Reduction operation", FIRST_SCHEMA + 16, 16),
        ),
    ),
    9: (
        24,
        (
            ("NCCL communicator ID", _U64, 0),
            ("Message size [bytes]", _SIZE, 8),
            ("Peer rank", _INT, 16),
        ),
    ),
    10: (
        24,
        (
            ("NCCL communicator ID", _U64, 0),
            ("Message size [bytes]", _SIZE, 8),
            ("Peer rank", _INT, 16),
        ),
    ),
}
NUMBERS = {
    "AllGather": 4,
    "AllReduce": 5,
    "ReduceScatter": 7,
    "Send": 9,
    "Recv": 10,
    "CommInitRankConfig": 11,
}


def blob(schema: int, payload: bytes, domain: int = 1) -> bytes:
    """Return a payload as the export holds it: header of 32 bytes, then the payload."""
    return struct.pack("<QQQQ", domain, FIRST_SCHEMA + schema, len(payload), 0xFFFF) + payload


def call_blob(what: str, comm: int, size: int, last: int = 0) -> bytes:
    """Return the payload of a call; what pads it is garbage on purpose."""
    number = NUMBERS[what]
    payload = struct.pack("<QQ", comm, size)
    if number != NUMBERS["AllGather"]:
        payload += struct.pack("<iI", last, 0xDEADBEEF)
    return blob(number, payload)


def init_blob(comm: int, ranks: int, rank: int, device: int) -> bytes:
    """Return the payload of ncclCommInitRankConfig."""
    return blob(11, struct.pack("<QiiiI", comm, ranks, rank, device, 0xDEADBEEF))


def write_schemas(export: Export, copies: int, domain: int = 1) -> None:
    """Write NCCL's schemas once for each process, as exports do."""
    for _ in range(copies):
        for number, (size, entries) in _SCHEMAS.items():
            export.add(
                "NVTX_PAYLOAD_SCHEMAS",
                domainId=domain,
                schemaId=FIRST_SCHEMA + number,
                type=1,
                numEntries=len(entries),
                payloadSize=size,
            )
    for _ in range(copies):
        for number, (_, entries) in _SCHEMAS.items():
            for index, (name, kind, offset) in enumerate(entries):
                export.add(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=domain,
                    schemaId=FIRST_SCHEMA + number,
                    idx=index,
                    type=kind,
                    name=name,
                    offset=offset or None,
                )


# -- one process ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Process:
    """One process of an export: adds host calls, ranges and device rows with ids that fit together."""

    export: Export
    pid: int
    device: int
    recorded: bool = True
    correlation: int = 0
    tid: int = 0

    def __post_init__(self) -> None:
        self.tid = self.tid or self.pid

    @property
    def global_pid(self) -> int:
        return (1 << 48) | (self.pid << 24)

    @property
    def global_tid(self) -> int:
        return self.global_pid | self.tid

    def launch(self, at: int, length: int = 4_000, name: str = "cudaLaunchKernel_v7000") -> int:
        """Add a runtime call; return its correlation id."""
        self.correlation += 1
        self.export.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=at,
            end=at + length,
            eventClass=0,
            globalTid=self.global_tid,
            correlationId=self.correlation,
            nameId=self.export.string(name),
            returnValue=0,
        )
        return self.correlation

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        stream: int = 7,
        correlation: int | None = None,
        **more: object,
    ) -> None:
        """Add a kernel, launched ahead of its start unless a correlation id is given."""
        if correlation is None:
            correlation = self.launch(start - LEAD_NS)
        if self.recorded:
            words = self.export.string(name)
            self.export.add(
                "CUPTI_ACTIVITY_KIND_KERNEL",
                start=start,
                end=end,
                deviceId=self.device,
                contextId=1,
                streamId=stream,
                correlationId=correlation,
                globalPid=self.global_pid,
                demangledName=words,
                shortName=words,
                **more,
            )

    def copy(
        self,
        start: int,
        end: int,
        *,
        kind: int = 8,
        stream: int = 7,
        correlation: int = 0,
        **more: object,
    ) -> None:
        """Add a memcpy."""
        self.export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            deviceId=self.device,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=self.global_pid,
            bytes=1024,
            copyKind=kind,
            **more,
        )

    def span(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        domain: int = 0,
        kind: int = 59,
        registered: bool = False,
        payload: bytes | None = None,
        tid: int | None = None,
    ) -> None:
        """Add an NVTX range."""
        thread = self.global_pid | tid if tid is not None else self.global_tid
        words = {"textId": self.export.string(name)} if registered else {"text": name}
        self.export.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=thread,
            domainId=domain,
            binaryData=payload if self.export.blobs else None,
            **words,
        )

    def call(
        self,
        what: str,
        start: int,
        end: int,
        comm: int = 0,
        size: int = 0,
        last: int = 0,
        payload: bytes | None = None,
    ) -> None:
        """Add an NCCL call in NCCL's domain, with its payload."""
        if payload is None and comm:
            payload = call_blob(what, comm, size, last)
        self.span(f"nccl{what}", start, end, domain=1, registered=True, payload=payload)

    def domain(self) -> None:
        """Add the creation of NCCL's domain."""
        self.export.add(
            "NVTX_EVENTS", start=1, eventType=75, text="NCCL", globalTid=self.global_tid, domainId=1
        )

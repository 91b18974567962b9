"""NCCL calls: layouts of payloads, and which kernel carries out which call."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.window import capture_window
from overlapwatch.sources.nsight import open_nsight
from overlapwatch.timeline.model import Timeline
from overlapwatch.vocabulary import CollectiveKind as Kind
from tests.support.nsight_export import Export, Process, blob, call_blob, init_blob, write_schemas

COMM = 0xFEDCBA9876543210
MS = 1_000_000
T = 10 * MS  # of the first launch
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def timeline(
    tmp_path: Path, build: Callable[[Process], None], *, ranks: int = 4, schemas: bool = True
) -> Timeline:
    """Return the only timeline of an export of one process; `ranks` 0 leaves initialisation out."""
    path = tmp_path / "one.sqlite"
    export = Export(path)
    process = Process(export, 100, 0)
    process.domain()
    if schemas:
        write_schemas(export, 2)
    if ranks:
        process.call("CommInitRankConfig", 100, 200, payload=init_blob(COMM, ranks, 1, 0))
    build(process)
    export.close()
    (recording,) = open_nsight(path)
    return recording.timeline


def launched(process: Process, name: str, host: int, start: int) -> None:
    process.kernel(name, start, start + MS, stream=20, correlation=process.launch(host))


def one_call(
    process: Process, what: str, size: int, name: str, payload: bytes | None = None
) -> None:
    process.call(what, T - 10, T + 10_000, COMM, size, payload=payload)
    launched(process, name, T, T + 5 * MS)


@pytest.mark.parametrize("schemas", [True, False], ids=["told by the export", "known by version"])
@pytest.mark.parametrize(
    ("what", "name", "kind", "total"),
    [
        ("AllReduce", REDUCE, Kind.ALL_REDUCE, 4096),
        ("AllGather", GATHER, Kind.ALL_GATHER, 4 * 4096),
        (
            "ReduceScatter",
            REDUCE.replace("AllReduce", "ReduceScatter"),
            Kind.REDUCE_SCATTER,
            4 * 4096,
        ),
    ],
)
def test_a_lone_call(
    what: str, name: str, kind: Kind, total: int, schemas: bool, tmp_path: Path
) -> None:
    tl = timeline(tmp_path, lambda process: one_call(process, what, 4096, name), schemas=schemas)
    (record,) = tl.communication
    assert (record["collective"], record["bytes"], record["launch"]) == (kind, total, T)
    assert tl.groups[int(record["group"])].text == "communicator fedcba9876543210"
    assert tl.groups[int(record["group"])].elements == 4
    (call,) = tl.payloads
    assert (call["bytes"], call["kernel"], call["peer"]) == (4096, 0, -1)
    assert (call["start"], call["end"]) == (T - 10, T + 10_000)


def test_sizes_before_communicators_were_told(tmp_path: Path) -> None:
    old = blob(7, struct.pack("<QiI", 1 << 20, 0, 0xDEADBEEF))
    name = REDUCE.replace("AllReduce", "ReduceScatter")
    tl = timeline(
        tmp_path, lambda process: one_call(process, "ReduceScatter", 0, name, old), schemas=False
    )
    assert tl.payloads["bytes"].tolist() == [1 << 20]
    assert tl.payloads["group"].tolist() == [0]
    assert tl.communication["bytes"].tolist() == [0]  # how many ranks share it is not known
    assert any("number of ranks" in one.because for one in tl.unknown)


def test_peer_is_read_and_padding_is_not(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.call("Send", T - 10, T + 10_000, COMM, 77, last=3)
        launched(process, SEND, T, T + 5 * MS)

    tl = timeline(tmp_path, build)
    assert tl.payloads["peer"].tolist() == [3]
    assert tl.communication["bytes"].tolist() == [77]


def test_a_group_is_one_kernel_and_moves_what_it_sends(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.call("GroupStart", T, T + 10)
        for at, (what, size) in enumerate(
            [("Send", 100), ("Recv", 70), ("Send", 10), ("Recv", 70)]
        ):
            process.call(what, T + 20 + 10 * at, T + 25 + 10 * at, COMM, size, last=at)
        process.call("GroupEnd", T + 100, T + 9_000)
        launched(process, SEND, T + 200, T + 5 * MS)

    tl = timeline(tmp_path, build)
    assert tl.payloads["kernel"].tolist() == [0] * 4
    assert tl.communication["bytes"].tolist() == [110]


def test_a_generic_kernel_is_what_its_call_says(tmp_path: Path) -> None:
    tl = timeline(tmp_path, lambda process: one_call(process, "AllReduce", 8, GENERIC))
    assert tl.communication["collective"].tolist() == [Kind.ALL_REDUCE]


def test_an_alltoall_that_runs_as_sendrecv_is_an_alltoall(tmp_path: Path) -> None:
    payload = blob(16, struct.pack("<QQ", COMM, 1000))
    tl = timeline(tmp_path, lambda process: one_call(process, "AlltoAll", 0, SEND, payload))
    assert tl.communication["collective"].tolist() == [Kind.ALL_TO_ALL]
    assert tl.communication["bytes"].tolist() == [4000]  # to every peer


def group_of(process: Process, calls: list[tuple[str, int]], names: list[str]) -> None:
    process.call("GroupStart", T, T + 10)
    for at, (what, size) in enumerate(calls):
        process.call(what, T + 20 + 10 * at, T + 25 + 10 * at, COMM, size)
    process.call("GroupEnd", T + 100, T + 9_000)
    for at, name in enumerate(names):
        launched(process, name, T + 200 + 10 * at, T + 5 * MS * (at + 1))


@pytest.mark.parametrize(
    ("calls", "names", "total"),
    [
        ([("AllReduce", 5), ("AllGather", 7)], [REDUCE, GATHER], [5, 28]),  # by kind
        ([("AllReduce", 5), ("AllReduce", 5)], [REDUCE, REDUCE], [5, 5]),  # all alike
        ([("AllReduce", 5), ("AllReduce", 6)], [REDUCE], [11]),  # one kernel for all
    ],
)
def test_several_in_a_group_where_it_is_clear(
    calls: list[tuple[str, int]], names: list[str], total: list[int], tmp_path: Path
) -> None:
    tl = timeline(tmp_path, lambda process: group_of(process, calls, names))
    assert tl.communication["bytes"].tolist() == total
    assert not any("group of calls" in one.because for one in tl.unknown)


@pytest.mark.parametrize(
    ("calls", "names"),
    [
        ([("AllReduce", 5), ("AllReduce", 6)], [REDUCE, REDUCE]),
        ([("AllReduce", 5), ("AllGather", 6)], [GENERIC, REDUCE]),
        ([("AllReduce", 5)], [REDUCE, REDUCE]),
        ([("AllReduce", 5)], [GATHER]),
    ],
)
def test_several_in_a_group_where_nobody_can_tell(
    calls: list[tuple[str, int]], names: list[str], tmp_path: Path
) -> None:
    tl = timeline(tmp_path, lambda process: group_of(process, calls, names))
    assert tl.communication["bytes"].tolist() == [0] * len(names)
    assert tl.payloads["kernel"].tolist() == [-1] * len(calls)
    assert tl.payloads["bytes"].tolist() == [size for _, size in calls]
    assert [one.what for one in tl.unknown if "group of calls" in one.because] == [
        f"the bytes of {len(names)} collectives"
    ]


def test_a_group_whose_start_was_not_captured(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.call("GroupEnd", T - 900, T - 500)
        launched(process, REDUCE, T - 600, T + MS)
        one_call(process, "AllReduce", 12, REDUCE)

    tl = timeline(tmp_path, build)
    assert tl.communication["bytes"].tolist() == [0, 12]
    assert tl.payloads["kernel"].tolist() == [1]


def test_a_launch_on_another_thread_is_not_taken_for_the_call(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.call("AllReduce", T - 10, T + 10_000, COMM, 12)
        other = Process(process.export, 100, 0, tid=555)
        other.correlation = 50
        launched(other, REDUCE, T, T + 5 * MS)

    tl = timeline(tmp_path, build)
    assert tl.communication["launch"].tolist() == [T]
    assert tl.payloads["kernel"].tolist() == [-1]


@pytest.mark.parametrize("cut", [0, 8, 31, 32, 40, 47])
def test_a_blob_cut_short_leaves_its_call_without_a_size(cut: int, tmp_path: Path) -> None:
    whole = call_blob("AllGather", COMM, 4096)
    tl = timeline(tmp_path, lambda process: one_call(process, "AllGather", 0, GATHER, whole[:cut]))
    assert tl.payloads["bytes"].tolist() == [-1]
    assert tl.payloads["kernel"].tolist() == [0]
    assert any(one.what == "the size of 1 of 1 NCCL calls" for one in tl.unknown)


def test_a_schema_nobody_knows(tmp_path: Path) -> None:
    strange = blob(4321, struct.pack("<QQ", COMM, 4096))
    tl = timeline(tmp_path, lambda process: one_call(process, "AllGather", 0, GATHER, strange))
    assert tl.payloads["bytes"].tolist() == [-1]


def test_a_size_that_no_message_has(tmp_path: Path) -> None:
    huge = blob(4, struct.pack("<QQ", COMM, (1 << 62) - 1))
    tl = timeline(tmp_path, lambda process: one_call(process, "AllGather", 0, GATHER, huge))
    assert tl.communication["bytes"].tolist() == [0]


def test_the_total_needs_the_number_of_ranks_only_where_it_is_a_factor(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        one_call(process, "AllGather", 4096, GATHER)
        process.call("AllReduce", T + 20_000, T + 30_000, COMM, 8)
        launched(process, REDUCE, T + 25_000, T + 9 * MS)

    tl = timeline(tmp_path, build, ranks=0)
    assert tl.communication["bytes"].tolist() == [0, 8]
    assert any("ncclCommInitRank" in one.because for one in tl.unknown)


def copied(process: Process, kind: int, copies: int, **more: object) -> None:
    process.call("AllGather", T - 10, T + 10_000, COMM, 4096)
    correlation = process.launch(T, name="cudaMemcpyBatchAsync_v12080")
    for at in range(copies):
        process.copy(
            T + 5 * MS + at * 10, T + 6 * MS + at * 10, kind=kind, correlation=correlation, **more
        )
    process.copy(T + 8 * MS, T + 9 * MS, kind=8)  # the job's own
    process.kernel("gemm", T + 5 * MS, T + 6 * MS)


@pytest.mark.parametrize(
    ("kind", "copies", "more"), [(10, 1, {}), (8, 3, {}), (8, 1, {"copyCount": 3})]
)
def test_copy_engine_collectives_are_communication(
    kind: int, copies: int, more: dict[str, object], tmp_path: Path
) -> None:
    tl = timeline(tmp_path, lambda process: copied(process, kind, copies, **more))
    (record,) = tl.communication
    end = T + 6 * MS + (copies - 1) * 10
    assert (record["collective"], record["start"], record["finish"]) == (
        Kind.ALL_GATHER,
        T + 5 * MS,
        end,
    )
    assert record["bytes"] == 4 * 4096
    assert len(tl.copies) == 1
    parts = partition(tl, capture_window(tl))
    assert parts.communication_ns == end - T - 5 * MS
    assert parts.overlap_ns == MS


def test_a_lone_copy_within_the_device_stays_a_copy(tmp_path: Path) -> None:
    tl = timeline(
        tmp_path, lambda process: copied(process, 8, 1)
    )  # what a communicator of one rank does
    assert len(tl.communication) == 0
    assert len(tl.copies) == 2


def test_copies_that_prepare_a_kernel_stay_copies(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        copied(process, 10, 2)
        launched(process, GATHER, T + 100, T + 5 * MS)

    tl = timeline(tmp_path, build)
    assert len(tl.communication) == 1
    assert len(tl.copies) == 3


def test_collectives_of_a_graph_have_a_launch_and_no_size(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        one_call(process, "AllReduce", 8, "gemm")  # the capture of the graph
        correlation = process.launch(T + 50_000, name="cudaGraphLaunch_v10000")
        for at in range(2):
            process.kernel(
                REDUCE,
                T + (7 + 2 * at) * MS,
                T + (8 + 2 * at) * MS,
                correlation=correlation,
                graphNodeId=at + 1,
            )

    tl = timeline(tmp_path, build)
    assert tl.communication["launch"].tolist() == [T + 50_000] * 2
    assert tl.communication["bytes"].tolist() == [0, 0]
    assert any(one.what == "the bytes of 2 collectives in CUDA graphs" for one in tl.unknown)


def test_no_nvtx_is_said(tmp_path: Path) -> None:
    path = tmp_path / "one.sqlite"
    export = Export(path)
    Process(export, 100, 0).kernel(REDUCE, T, T + MS)
    export.close()
    (recording,) = open_nsight(path)
    assert any("--trace=cuda,nvtx" in one.because for one in recording.timeline.unknown)
    assert np.array_equal(recording.timeline.communication["owner"], [0])

"""Rows of an export: which timeline each is in, what is left out and why, ranges and call sites."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.sources.nsight import open_nsight
from overlapwatch.sources.nsight.gpu import FAULTS, Fault
from overlapwatch.timeline.model import Recording, Timeline
from tests.support.nsight_export import Export, Process

MS = 1_000_000
T = 50 * MS
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def read(tmp_path: Path, build: Callable[[Export], None], era: str = "2026") -> list[Recording]:
    path = tmp_path / "one.sqlite"
    export = Export(path, era)
    build(export)
    export.close()
    return open_nsight(path)


def single(tmp_path: Path, build: Callable[[Process], None], era: str = "2026") -> Timeline:
    (recording,) = read(tmp_path, lambda export: build(Process(export, 100, 0)), era)
    return recording.timeline


# -- whose rows ------------------------------------------------------------------------------------


def test_two_ranks_that_each_call_their_gpu_device_0_stay_apart(tmp_path: Path) -> None:
    def build(export: Export) -> None:
        for pid, card in ((100, "GPU-a"), (200, "GPU-b")):
            process = Process(export, pid, 0)
            export.add("TARGET_INFO_CUDA_DEVICE", gpuId=pid, cudaId=0, pid=pid, uuid=card)
            process.kernel("gemm", T + pid * MS, T + (pid + 10) * MS)
            process.kernel(REDUCE, T + (pid + 5) * MS, T + (pid + 20) * MS)

    first, second = read(tmp_path, build)
    assert [one.timeline.origin.process for one in (first, second)] == ["pid 100", "pid 200"]
    assert [one.about["GPU model"] for one in (first, second)] == ["GPU-a", "GPU-b"]
    assert second.timeline.compute.start.tolist() == [T + 200 * MS]


def test_launches_are_joined_within_a_process(tmp_path: Path) -> None:
    def build(export: Export) -> None:
        for at, pid in enumerate((100, 200)):
            Process(export, pid, 0).kernel(REDUCE, T + at * MS, T + 9 * MS)  # both have id 1

    recordings = read(tmp_path, build)
    assert [one.timeline.communication["launch"].tolist() for one in recordings] == [
        [T - 2 * MS],
        [T - MS],
    ]


def test_one_process_with_two_devices(tmp_path: Path) -> None:
    def build(export: Export) -> None:
        for device in (3, 1):
            process = Process(export, 100, device)
            process.correlation = 10 * device
            process.kernel("gemm", T + device, T + MS)

    recordings = read(tmp_path, build)
    assert [one.timeline.origin.device for one in recordings] == ["GPU 1", "GPU 3"]
    assert [one.timeline.compute.start.tolist() for one in recordings] == [[T + 1], [T + 3]]


def test_an_export_without_process_columns(tmp_path: Path) -> None:
    def build(export: Export) -> None:
        process = Process(export, 100, 0)
        process.span("step", T - 9 * MS, T)
        process.kernel(REDUCE, T, T + MS)
        export.db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")

    (recording,) = read(tmp_path, build)
    tl = recording.timeline
    assert tl.communication["launch"].tolist() == [T - 2 * MS]
    assert tl.names[int(tl.communication["owner"][0])].text == "step"


# -- rows that cannot be used ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "fault"),
    [
        (T + 9 * MS, T + 8 * MS, Fault.REVERSED),
        (0, T, Fault.NO_TIME),
        (None, T, Fault.NO_TIME),
        (T, None, Fault.NO_TIME),
        ("soon", T, Fault.NO_TIME),
        (T, T + 236 * 365 * 86_400 * 10**9, Fault.TOO_LONG),
        (-(2**63) + 1, T, Fault.TOO_LONG),
    ],
)
@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"])
def test_damaged_times_are_left_out_and_counted(
    table: str, start: object, end: object, fault: Fault, tmp_path: Path
) -> None:
    def build(process: Process) -> None:
        process.kernel("gemm", T, T + MS)
        process.copy(T + 2 * MS, T + 3 * MS)
        words = process.export.string("gemm")
        more = {"demangledName": words} if "KERNEL" in table else {"copyKind": 1}
        process.export.add(
            table,
            start=start,
            end=end,
            deviceId=0,
            contextId=1,
            streamId=7,
            correlationId=77,
            globalPid=process.global_pid,
            **more,
        )

    tl = single(tmp_path, build)
    what = "kernels" if "KERNEL" in table else "copies"
    assert [(one.what, one.count, one.because) for one in tl.skipped] == [(what, 1, FAULTS[fault])]
    assert (len(tl.compute), len(tl.copies)) == (1, 1)


def test_a_row_outside_the_capture_is_left_out(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.export.add(
            "ANALYSIS_DETAILS", globalVid=1, duration=10**10, startTime=0, stopTime=10**10
        )
        for at in range(200):
            process.kernel("gemm", T + at * MS, T + at * MS + 10)
        process.kernel("gemm", 10**15, 10**15 + 5)

    tl = single(tmp_path, build)
    assert [(one.count, one.because) for one in tl.skipped] == [(1, FAULTS[Fault.OUTSIDE])]
    assert int(tl.compute.end.max()) < 10**10


def test_edges_on_another_clock_are_no_edges(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.export.add(
            "ANALYSIS_DETAILS",
            globalVid=1,
            duration=10**10,
            startTime=10**18,
            stopTime=10**18 + 10**10,
        )
        process.kernel("gemm", T, T + MS)

    assert len(single(tmp_path, build).compute) == 1


def test_a_row_that_outruns_its_successor_is_left_out(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.kernel("gemm", T, T + 900 * MS)  # its stream went on: it was never that long
        process.kernel("gemm", T + 2 * MS, T + 3 * MS)
        process.kernel(REDUCE, T, T + 800 * MS, stream=20)  # alone on its stream: a long wait
        process.kernel("gemm", T + 4 * MS, T + 500 * MS, graphNodeId=1)  # a graph runs side by side
        process.kernel("gemm", T + 5 * MS, T + 6 * MS, graphNodeId=2)

    tl = single(tmp_path, build)
    assert [(one.count, one.because) for one in tl.skipped] == [(1, FAULTS[Fault.OUTRUNS])]
    assert tl.compute.start.tolist() == [T + 2 * MS, T + 4 * MS, T + 5 * MS]
    assert tl.communication["finish"].tolist() == [T + 800 * MS]


def test_correlation_0_and_a_launch_before_the_capture(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.kernel(REDUCE, T, T + MS, correlation=0)
        process.kernel(REDUCE, T + 2 * MS, T + 3 * MS, correlation=999)
        process.launch(T)

    (recording,) = read(tmp_path, lambda export: build(Process(export, 100, 0)))
    assert recording.timeline.communication["launch"].tolist() == [0, 0]
    assert recording.counters["communication launched before the capture"] == 2


def test_a_name_that_the_export_lost_is_said(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.kernel("gemm", T, T + MS)
        process.kernel("lost", T + 2 * MS, T + 3 * MS)
        process.export.db.execute("DELETE FROM StringIds WHERE value = 'lost'")

    tl = single(tmp_path, build)
    assert len(tl.compute) == 2
    assert tl.compute.name.tolist()[1] == 0
    assert any(one.what.startswith("what 1 kernels are") for one in tl.unknown)


def test_a_pattern_of_the_user_adds_communication(tmp_path: Path) -> None:
    path = tmp_path / "one.sqlite"
    export = Export(path)
    Process(export, 100, 0).kernel("my_ring_kernel<float>", T, T + MS)
    export.close()
    assert len(open_nsight(path)[0].timeline.communication) == 0
    (recording,) = open_nsight(path, patterns=("^my_ring",))
    assert len(recording.timeline.communication) == 1


# -- CUDA graphs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [True, False])
def test_graphs_traced_as_a_whole_are_not_measurable(beside: bool, tmp_path: Path) -> None:
    def build(process: Process) -> None:
        if beside:
            process.kernel("gemm", T, T + MS)
        for at in range(3):
            process.export.add(
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                start=T + (2 + at) * MS,
                end=T + (2 + at) * MS + 500_000,
                deviceId=0,
                contextId=1,
                streamId=7,
                correlationId=50 + at,
                globalPid=process.global_pid,
                graphId=1,
            )

    said = [one for one in single(tmp_path, build).unknown if "CUDA graph" in one.what]
    assert len(said) == 1
    assert "3 CUDA graph launches, 1.500 ms together" in said[0].what
    assert said[0].because.startswith("not measurable")
    assert "--cuda-graph-trace=node" in said[0].because


def test_graph_launches_of_which_nothing_was_recorded(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.kernel("gemm", T, T + MS)
        for at in range(3):
            process.launch(T + at * MS, name="cudaGraphLaunch_v10000")

    said = [one for one in single(tmp_path, build).unknown if "CUDA graph" in one.what]
    assert [one.what.split("inside ")[1] for one in said] == ["3 CUDA graph launches"]
    assert "--cuda-graph-trace=node" in said[0].because


def test_nodes_of_graphs_are_kernels_like_others(tmp_path: Path) -> None:
    tl = single(tmp_path, lambda process: process.kernel("gemm", T, T + MS, graphNodeId=4))
    assert len(tl.compute) == 1
    assert not any("CUDA graph" in one.what for one in tl.unknown)


# -- copies ----------------------------------------------------------------------------------------


def test_copies_are_named_by_direction(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        for at, kind in enumerate((1, 2, 8, 10, 99)):
            process.copy(T + at * MS, T + at * MS + 10, kind=kind)
        process.export.add(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            start=T + 9 * MS,
            end=T + 10 * MS,
            deviceId=0,
            contextId=1,
            streamId=7,
            globalPid=process.global_pid,
            value=0,
            bytes=4,
        )

    tl = single(tmp_path, build)
    names = [tl.names[one].text for one in tl.copies.name.tolist()]
    assert names == ["memcpy HtoD", "memcpy DtoH", "memcpy DtoD", "memcpy PtoP", "memcpy", "memset"]


# -- ranges ----------------------------------------------------------------------------------------


def test_ranges_of_all_kinds(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.export.add(
            "NVTX_EVENTS",
            start=1,
            eventType=75,
            text="Lib",
            globalTid=process.global_tid,
            domainId=4,
        )
        process.span("a, seq = 5, op_id = 7", T, T + 9 * MS)
        process.span("b", T + MS, T + 2 * MS, registered=True)
        process.span("c", T + 3 * MS, T + 20 * MS, kind=60)  # start/end ranges need not nest
        process.span("d", T + 4 * MS, None, kind=34)
        process.span("e", T + 5 * MS, T + 6 * MS, domain=4)
        process.span("f", T + 5 * MS, T + 6 * MS, domain=5)
        process.span("open", T + 7 * MS, None)
        process.span("reversed", T + 8 * MS, T)
        process.span("", T + 8 * MS, T + 9 * MS)
        process.kernel("gemm", T, T + MS)

    tl = single(tmp_path, build)
    named = {tl.names[one].text if one else "" for one in tl.ranges.name.tolist()}
    assert named == {"a", "b", "c", "d", "Lib:e", "f", ""}
    spans = dict(
        zip(tl.ranges.name.tolist(), (tl.ranges.end - tl.ranges.start).tolist(), strict=True)
    )
    mark = next(number for number, name in tl.names.items() if name.text == "d")
    assert spans[mark] == 0
    told = {(one.what, one.because): one.count for one in tl.skipped}
    assert told == {
        ("NVTX ranges", "never closed"): 1,
        ("NVTX ranges", "they close before they open"): 1,
    }


def test_call_site_is_the_stack_of_the_launching_thread(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        host = T - 2 * MS
        process.span("step 7", host - 900, host + 900)
        process.span("layer", host - 800, host - 100)  # closed before the launch
        process.span("loss", host - 50, host + 50)
        process.span("loss", host - 5, host - 5)  # empty
        process.span("elsewhere", host - 20, host + 20, tid=4321)
        process.span("profile", host - 9000, host + 9000, kind=60)
        process.kernel(REDUCE, T, T + MS)

    tl = single(tmp_path, build)
    assert tl.names[int(tl.communication["owner"][0])].text == "step > loss"


def test_string_ids_of_ranges_that_are_lost(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.span("gone", T, T + MS, registered=True)
        process.kernel("gemm", T, T + MS)
        process.export.db.execute("DELETE FROM StringIds WHERE value = 'gone'")

    tl = single(tmp_path, build)
    assert tl.ranges.name.tolist() == [0]


def test_deep_and_wide_stacks(tmp_path: Path) -> None:
    """Stacks found by depth are those that a stack machine finds."""
    rng = np.random.default_rng(3)
    spans: list[tuple[int, int]] = []

    def nest(low: int, high: int, depth: int) -> None:
        edges = np.unique(rng.integers(low, high, 8)).tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=False):
            spans.append((start, end))
            if depth and end - start > 100:
                nest(start + 1, end - 1, depth - 1)

    nest(T, T + 100_000, 4)
    moments = np.sort(rng.integers(T, T + 100_000, 300))

    def build(process: Process) -> None:
        for number, (start, end) in enumerate(spans):
            process.span(f"r{number}", start, end)
        for at, moment in enumerate(moments.tolist()):
            process.kernel(
                REDUCE,
                T + (at + 1) * MS,
                T + (at + 1) * MS + 10,
                correlation=process.launch(moment),
            )

    tl = single(tmp_path, build)
    for record, moment in zip(tl.communication, moments.tolist(), strict=True):
        open_then = sorted(
            (start, -end, number)
            for number, (start, end) in enumerate(spans)
            if start <= moment < end
        )
        wanted = " > ".join(f"r{number}" for _, _, number in open_then)
        found = tl.names[int(record["owner"])].text if record["owner"] else ""
        assert found == wanted


def test_an_old_schema_has_fewer_columns(tmp_path: Path) -> None:
    def build(process: Process) -> None:
        process.kernel(REDUCE, T, T + MS)
        process.span("step", T - 3 * MS, T)

    tl = single(tmp_path, build, era="2022")
    assert tl.names[int(tl.communication["owner"][0])].text == "step"

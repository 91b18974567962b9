"""What a trace tells, on traces of a few events whose answers are seen at a glance."""

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.errors import ConfigurationError
from overlapwatch.sources import open_trace
from overlapwatch.sources.kineto import is_kineto, open_kineto
from overlapwatch.sources.kineto.calls import Calls
from overlapwatch.sources.kineto.events import Args
from overlapwatch.sources.kineto.steps import device_steps, host_steps
from overlapwatch.timeline.model import STEP
from overlapwatch.vocabulary import CollectiveKind as Kind
from overlapwatch.vocabulary import Phase
from tests.support.kineto_traces import call, copy, kernel, launch, span, write

GEMM = "ampere_sgemm_128x64_nn"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
P2P = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PTOP = "Memcpy PtoP (Device -> Device)"


@pytest.fixture
def read(tmp_path):
    def one(*events, **about):
        (recording,) = open_kineto(write(tmp_path / "trace.json", list(events), **about))
        return recording

    return one


def test_one_of_each(read):
    recording = read(
        kernel(GEMM, 10, 10), kernel(REDUCE, 15, 10, stream=9), copy(30, 5),
        kernel("MatmulAllReduce", 40, 5), span("cuda_sync", "Stream Sync", 50, 50, pid=0, tid=7),
    )  # fmt: skip
    tl = recording.timeline
    assert (len(tl.compute), len(tl.communication), len(tl.copies), len(tl.fused)) == (1, 1, 1, 1)
    assert tl.names[int(tl.fused.name[0])].text == "MatmulAllReduce"
    parts = analyse(recording).partition
    assert (parts.compute_ns, parts.communication_ns, parts.overlap_ns) == (10_000, 10_000, 5000)
    assert (tl.origin.rank, tl.origin.world, recording.state) == (3, 8, "profile")


def test_each_device_of_a_file_is_a_recording(tmp_path):
    events = [kernel(GEMM, 1, 1), kernel(GEMM, 2, 1, device=4), kernel(REDUCE, 3, 1, device=4)]
    path = write(tmp_path / "two.json.gz", events)
    assert is_kineto(path)
    both = open_trace(path)
    assert [one.timeline.origin.device for one in both] == ["GPU 0", "GPU 4"]
    assert [len(one.timeline.communication) for one in both] == [0, 1]
    (four,) = open_trace(path, devices=[4])
    assert four.timeline.origin.device == "GPU 4"


def test_a_users_pattern_makes_communication(tmp_path):
    path = write(tmp_path / "t.json", [kernel("acme_all_gather", 1, 1)])
    (plain,), (told,) = open_trace(path), open_trace(path, patterns=["^acme"])
    assert (len(plain.timeline.communication), len(told.timeline.communication)) == (0, 1)
    assert told.timeline.communication["collective"].tolist() == [Kind.ALL_GATHER]
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        open_trace(path, patterns=["("])


def test_no_communication_kernel_is_said(read):
    recording = read(kernel(GEMM, 1, 1))
    (unknown,) = (one for one in recording.timeline.unknown if one.what == "communication")
    assert "none of 1 kernel names" in unknown.because


# -- launches and calls ------------------------------------------------------------------------


def test_a_launch_is_joined_by_correlation_and_zero_joins_nothing(read):
    tl = read(
        launch(5, 11), launch(6, 0), kernel(REDUCE, 10, 2, correlation=11),
        kernel(REDUCE, 20, 2, correlation=0), kernel(REDUCE, 30, 2, correlation=99),
    ).timeline  # fmt: skip
    assert tl.communication["launch"].tolist() == [5000, 0, 0]


def test_of_calls_that_share_a_correlation_the_last_before_the_kernel_counts(read):
    tl = read(
        launch(5, 11), launch(50, 11), kernel(REDUCE, 10, 2, correlation=11),
        kernel(REDUCE, 60, 2, correlation=11),
    ).timeline  # fmt: skip
    assert tl.communication["launch"].tolist() == [5000, 50_000]


def test_a_correlation_that_two_processes_use_joins_nothing(read):
    other = {**launch(6, 11), "pid": 78}
    tl = read(
        launch(5, 11), other, launch(7, 12), kernel(REDUCE, 10, 2, correlation=11),
        kernel(REDUCE, 20, 2, correlation=12),
    ).timeline  # fmt: skip
    assert tl.communication["launch"].tolist() == [0, 7000]


def test_a_generic_kernel_is_what_was_called_around_its_launch(read):
    tl = read(
        call(1, 10, "_allgather_base", 100, 200), launch(5, 11),
        call(21, 10, "_reduce_scatter_base", 200, 100, Seq=8), launch(25, 12),
        kernel(GENERIC, 40, 2, correlation=11), kernel(GENERIC, 50, 2, correlation=12),
    ).timeline  # fmt: skip
    records = tl.communication
    assert records["collective"].tolist() == [Kind.ALL_GATHER, Kind.REDUCE_SCATTER]
    assert records["bytes"].tolist() == [800, 800]  # S: total output, total input
    assert records["sequence"].tolist() == [0, 8]
    assert tl.payloads["bytes"].tolist() == [400, 400]  # own part, what is received
    assert tl.payloads["kernel"].tolist() == [0, 1]
    assert tl.groups[1].members == (0, 1)


def test_a_kernels_own_arguments_tell_without_a_call(read):
    told = {
        "Collective name": "all_to_allv", "In msg nelems": 300, "Out msg nelems": 500,
        "dtype": "BFloat16", "Group size": 4, "Process Group Name": "7",
        "Process Group Description": "undefined", "Process Group Ranks": "[0, 1, ..., 3]",
        "Global rank start": 0, "Global rank stride": 2,
    }  # fmt: skip
    tl = read(kernel(P2P, 40, 2, **told)).timeline
    assert tl.communication["collective"].tolist() == [Kind.ALL_TO_ALL]
    assert tl.communication["bytes"].tolist() == [1000]  # the larger of what is sent and received
    (group,) = tl.groups.values()
    assert (group.text, group.members) == ("group 7", (0, 2, 4, 6))


def test_ranks_that_an_argument_abbreviates_are_taken_from_the_list_of_groups(read):
    told = {"Collective name": "allreduce", "Process Group Name": "7", "Group size": 3}
    config = [{"pg_name": "7", "pg_size": 3, "ranks": [1, 5, 6]}]
    tl = read(
        kernel(REDUCE, 40, 2, **told), distributedInfo={"rank": 1, "pg_config": config}
    ).timeline
    assert tl.groups[1].members == (1, 5, 6)


def test_the_name_of_a_specific_kernel_is_not_overruled(read):
    tl = read(
        call(1, 10, "_allgather_base", 100, 200), launch(5, 11),
        kernel(REDUCE, 40, 2, correlation=11),
    ).timeline  # fmt: skip
    assert tl.communication["collective"].tolist() == [Kind.ALL_REDUCE]


def test_calls_of_a_group_are_carried_out_by_the_kernel_that_its_end_launches(read):
    tl = read(
        call(1, 1, "startCoalesced", 0, 0), call(3, 2, "send", 10, 10), call(6, 2, "recv", 10, 10),
        call(9, 5, "endCoalesced", 0, 0), launch(11, 11), kernel(P2P, 40, 2, correlation=11),
    ).timeline  # fmt: skip
    assert tl.payloads["collective"].tolist() == [Kind.SEND_RECV, Kind.SEND_RECV]
    assert tl.payloads["kernel"].tolist() == [0, 0]
    assert tl.communication["collective"].tolist() == [Kind.SEND_RECV]


def test_without_arguments_the_annotation_around_the_launch_tells(read):
    tl = read(
        span("cpu_op", "record_param_comms", 1, 10),
        span("user_annotation", "nccl:all_reduce", 2, 8, **{"Input Dims": [[8]], "Input type": ["float"]}),
        launch(5, 11), kernel(GENERIC, 40, 2, correlation=11),
    ).timeline  # fmt: skip
    assert tl.communication["collective"].tolist() == [Kind.ALL_REDUCE]
    assert tl.communication["bytes"].tolist() == [32]
    assert len(tl.payloads) == 1


def test_an_annotation_inside_a_told_call_is_the_same_call(read):
    tl = read(
        call(1, 10, "allreduce", 8, 8), span("user_annotation", "nccl:all_reduce", 2, 8),
        launch(5, 11), kernel(REDUCE, 40, 2, correlation=11),
    ).timeline  # fmt: skip
    assert len(tl.payloads) == 1


@pytest.mark.parametrize(
    ("name", "sent", "received", "given", "moved"),
    [
        ("allreduce", 10, 10, 40, 40),
        ("_allgather_base", 10, 40, 40, 160),
        ("_reduce_scatter_base", 40, 10, 40, 160),
        ("all_to_all", 40, 40, 40, 160),
        ("all_to_allv", 41, 42, 42, 168),
        ("broadcast", 10, 10, 40, 40),
        ("gather", 10, 40, 40, 160),
        ("scatter", 40, 10, 40, 160),
        ("send", 10, 10, 40, 40),
        ("allreduce", None, None, -1, 0),
    ],
)
def test_sizes_of_a_call(name, sent, received, given, moved):
    calls = Calls()
    number = calls.read(
        Args(collective=name, in_elements=sent, out_elements=received, dtype="Float", group_size=4)
    )
    assert (calls.all[number].given, calls.all[number].moved) == (given, moved)


def test_an_uneven_exchange_has_no_size_for_each_peer():
    calls = Calls()
    number = calls.read(
        Args(collective="all_to_allv", in_elements=7, out_elements=5, dtype="Byte", group_size=3)
    )
    assert (calls.all[number].given, calls.all[number].moved) == (-1, 7)


def test_an_unknown_type_leaves_the_size_unknown():
    calls = Calls()
    number = calls.read(Args(collective="allreduce", in_elements=3, dtype="Mystery"))
    assert (calls.all[number].given, calls.all[number].moved) == (-1, 0)


# -- copy engines ------------------------------------------------------------------------------


def test_copies_to_other_devices_that_a_call_made_instead_of_a_kernel_are_a_collective(read):
    recording = read(
        call(1, 10, "_allgather_base", 100, 200), launch(5, 11), launch(6, 12),
        copy(40, 2, correlation=11, name=PTOP), copy(41, 4, correlation=12, name=PTOP),
        copy(60, 4), kernel(GEMM, 40, 3),
    )  # fmt: skip
    tl = recording.timeline
    assert tl.communication["collective"].tolist() == [Kind.ALL_GATHER]
    assert tl.communication[["start", "finish"]].tolist() == [(40_000, 45_000)]
    assert len(tl.copies) == 1
    assert tl.payloads["kernel"].tolist() == [0]
    assert recording.counters["collectives made of copies"] == 1


def test_copies_beside_a_kernel_of_the_call_stay_copies(read):
    tl = read(
        call(1, 10, "allgather", 100, 200), launch(5, 11), launch(6, 12), launch(7, 13),
        kernel(GENERIC, 30, 5, correlation=11),
        copy(40, 2, correlation=12), copy(42, 2, correlation=13),
    ).timeline  # fmt: skip
    assert (len(tl.communication), len(tl.copies)) == (1, 2)


def test_the_copy_that_a_group_of_one_makes_stays_a_copy(read):
    tl = read(
        call(1, 10, "allreduce", 100, 100, ranks=1), launch(5, 11), copy(40, 2, correlation=11),
    ).timeline  # fmt: skip
    assert (len(tl.communication), len(tl.copies)) == (0, 1)


# -- steps and phases --------------------------------------------------------------------------


def test_a_step_of_the_device_begins_with_what_was_launched_in_it(read):
    tl = read(
        span("user_annotation", "ProfilerStep#4", 0, 10), span("user_annotation", "ProfilerStep#5", 10, 10),
        launch(1, 1), launch(9, 2), launch(11, 3), launch(19, 4),
        kernel(GEMM, 20, 5, correlation=1), kernel(REDUCE, 25, 20, correlation=2, stream=9),
        kernel(GEMM, 30, 5, correlation=3), kernel(GEMM, 50, 5, correlation=4),
    ).timeline  # fmt: skip
    assert tl.steps.tolist() == [(4, 0, 20_000, 30_000), (5, 0, 30_000, 55_000)]
    assert tl.communication["step"].tolist() == [4]
    names = {tl.names[name].text for name in tl.ranges.name.tolist()}
    assert names == {"ProfilerStep#4", "ProfilerStep#5"}  # the host's steps are ranges


def test_steps_without_device_events_are_no_steps_of_the_device():
    steps = np.array([(1, 0, 0, 10), (2, 0, 10, 20), (3, 0, 20, 30)], STEP)
    start, end = np.array([5, 25]), np.array([9, 40])
    told = device_steps(steps, np.array([0, 2]), start, end)
    assert told.tolist() == [(1, 0, 5, 25), (3, 0, 25, 40)]
    assert len(device_steps(steps, np.array([-1, -1]), start, end)) == 0


def test_only_annotations_of_the_profiler_are_steps():
    rows = np.zeros(2, [("start", "<i8"), ("end", "<i8"), ("name", "<u4")])
    rows["name"] = 1, 2
    assert host_steps(rows, {1: "ProfilerStep#7", 2: "my ProfilerStep#8"})["step"].tolist() == [7]


def test_phases_follow_the_thread_of_the_launch(read):
    tl = read(
        span("user_annotation", "Model.forward", 0, 10), launch(1, 1),
        span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 10, tid=78),
        launch(2, 2, tid=78),
        span("user_annotation", "Optimizer.step#SGD.step", 20, 10), launch(21, 3), launch(40, 4),
        kernel(GEMM, 100, 1, correlation=1), kernel(REDUCE, 101, 1, correlation=2),
        kernel(GEMM, 102, 1, correlation=3), kernel(GEMM, 103, 1, correlation=4),
    ).timeline  # fmt: skip
    assert tl.compute.phase.tolist() == [Phase.FORWARD, Phase.OPTIMIZER, Phase.OTHER]
    assert tl.communication["phase"].tolist() == [Phase.BACKWARD]
    assert "launch" in tl.phase_rule


def test_forward_is_what_a_step_launches_before_its_first_backward(read):
    tl = read(
        span("user_annotation", "ProfilerStep#4", 0, 100), launch(1, 1),
        span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 50, 10, tid=78),
        launch(55, 2, tid=78), launch(90, 3),
        kernel(GEMM, 100, 1, correlation=1), kernel(GEMM, 101, 1, correlation=2),
        kernel(GEMM, 102, 1, correlation=3),
    ).timeline  # fmt: skip
    assert tl.compute.phase.tolist() == [Phase.FORWARD, Phase.BACKWARD, Phase.OTHER]
    assert "before its first backward launch" in tl.phase_rule


def test_a_call_site_is_the_annotations_around_the_launch(read):
    tl = read(
        span("user_annotation", "ProfilerStep#4", 0, 100), span("user_annotation", "outer", 1, 50),
        span("user_annotation", "inner", 2, 40), span("cpu_op", "c10d::allreduce_", 3, 10),
        span("user_annotation", "nccl:all_reduce", 4, 5), launch(5, 1),
        kernel(REDUCE, 100, 1, correlation=1),
    ).timeline  # fmt: skip
    assert tl.names[int(tl.communication["owner"][0])].text == "outer > inner"


def test_annotations_of_the_device_serve_where_the_host_has_none(read):
    ranges = span("gpu_user_annotation", "block", 1, 5, pid=0, tid=7)
    tl = read(kernel(GEMM, 1, 1), ranges).timeline
    assert [tl.names[name].text for name in tl.ranges.name.tolist()] == ["block"]
    both = read(kernel(GEMM, 1, 1), ranges, span("user_annotation", "mine", 0, 9)).timeline
    assert [both.names[name].text for name in both.ranges.name.tolist()] == ["mine"]


# -- the host ----------------------------------------------------------------------------------


def test_operators_count_whole_frames_do_not_and_calls_are_cut_out(read):
    recording = read(
        span("cpu_op", "AddmmBackward0", 0, 20), span("cpu_op", "aten::mm", 5, 10),
        span("cpu_op", "aten::resize_", 6, 2), span("cpu_op", "NapBackward", 30, 5),
        span("cpu_op", "mylib::exchange", 40, 20), span("cpu_op", "c10d::allreduce_", 45, 10),
        span("user_annotation", "gloo:all_reduce", 46, 30, tid=99),
    )  # fmt: skip
    tl = recording.timeline
    spans = list(zip(tl.compute.start.tolist(), tl.compute.end.tolist(), strict=True))
    assert spans == [(5000, 15_000), (30_000, 35_000), (40_000, 45_000), (55_000, 60_000)]
    assert tl.communication[["launch", "start", "finish"]].tolist() == [(46_000, 46_000, 76_000)]
    assert analyse(recording).partition.overlap_ns == 5000


def test_launch_shapes_tell_kernels_of_one_name_apart(tmp_path):
    shaped = [
        kernel("gemm", at, 1, grid=grid, block=[128, 1, 1])
        for at, grid in ((0, [4, 1, 1]), (2, [8, 1, 1]), (4, [4, 1, 1]))
    ]
    path = write(tmp_path / "trace.json", [*shaped, kernel("gemm", 6, 1)])
    (recording,) = open_kineto(path)
    shape = recording.timeline.compute.shape.tolist()
    assert shape[0] == shape[2] != shape[1]
    assert shape[3] == 0
    assert 0 not in shape[:3]

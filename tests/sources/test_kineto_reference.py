"""Public traces against partitions that a separate program computed, to the nanosecond."""

import json
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.window import capture_window
from overlapwatch.sources import open_trace
from overlapwatch.sources.kineto import open_kineto
from overlapwatch.vocabulary import CollectiveKind as Kind
from overlapwatch.vocabulary import Phase

DATA = Path(__file__).parents[1] / "data" / "kineto"
EXPECTED = json.loads((DATA / "expected_partition_ns.json").read_text())


@pytest.fixture(scope="module")
def read():
    """Read a file of the data once."""
    seen = {}

    def one(name):
        if name not in seen:
            (seen[name],) = open_kineto(DATA / name)
        return seen[name]

    return one


@pytest.mark.parametrize("name", EXPECTED)
def test_partition_equals_the_reference(name, read):
    tl, expected = read(name).timeline, EXPECTED[name]
    parts = partition(tl, capture_window(tl))
    assert {
        "window_ns": parts.window_ns,
        "compute_ns": parts.compute_ns,
        "comm_ns": parts.communication_ns,
        "overlap_ns": parts.overlap_ns,
        "compute_only_ns": parts.compute_only_ns,
        "comm_only_ns": parts.communication_only_ns,
        "idle4_ns": parts.idle_ns,
        "mem_other_only_ns": parts.copies_only_ns,
        "idle_ns": parts.idle_ns - parts.copies_only_ns,
    } == {key: value for key, value in expected.items() if key in KEYS}
    assert {
        "comp": len(tl.compute),
        "comm": len(tl.communication),
        "mem": len(tl.copies),
        "other": len(tl.fused),
    } == expected["n"]
    assert tl.skipped == ()


KEYS = {
    "window_ns", "compute_ns", "comm_ns", "overlap_ns", "compute_only_ns", "comm_only_ns",
    "idle4_ns", "mem_other_only_ns", "idle_ns",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_every_check_of_the_report_closes(name, read):
    told = analyse(read(name))
    assert [check for check in told.checks if not check.ok] == []


def test_kinds_of_the_reference(read):
    kinds = {
        "a100_dlrm_rank3of8.json.gz": {Kind.SEND_RECV: 42, Kind.ALL_REDUCE: 18},
        "a100_three_comm_streams_rank0of16.json.gz": {Kind.SEND_RECV: 80},
        "a100_ddp_resnet_rank0of2.json.gz": {Kind.ALL_REDUCE: 15, Kind.BROADCAST: 6},
        "b200_multimem_rank0of8.json.gz": {Kind.ALL_REDUCE: 73, Kind.ALL_GATHER: 1},
        "v100_2rank_allreduce_rank1_device_events.json.gz": {Kind.ALL_REDUCE: 2020},
    }
    for name, expected in kinds.items():
        found, count = np.unique(
            read(name).timeline.communication["collective"], return_counts=True
        )
        assert dict(zip(found.tolist(), count.tolist(), strict=True)) == expected


def test_events_launched_before_the_capture_are_kept_and_counted(read):
    recording = read("a100_three_comm_streams_rank0of16.json.gz")
    assert recording.counters["device events without a launch"] == 872
    assert any("launch of 872 device events" in one.what for one in recording.timeline.unknown)
    streams = np.unique(recording.timeline.communication["stream"]).tolist()
    assert len(streams) == 3


def test_what_a_trace_with_metadata_tells_of_its_collectives(read):
    tl = read("a100_ddp_resnet_rank0of2.json.gz").timeline
    assert (tl.origin.rank, tl.origin.world, tl.origin.device) == (0, 2, "GPU 0")
    ((number, group),) = tl.groups.items()
    assert (group.text, group.members) == ("default_pg (0)", (0, 1))
    records = tl.communication
    assert (records["group"] == number).all()
    reduces = records[records["collective"] == Kind.ALL_REDUCE]
    # 2,049,000 floats and four more buckets, in each of three steps
    sizes = [4 * 2049000, 4 * 7875584, 4 * 6563840, 4 * 6637568, 4 * 2431040]
    assert sorted(reduces["bytes"].tolist()) == sorted(3 * sizes)
    assert (records["launch"] > 0).all()
    assert (records["launch"] <= records["start"]).all()
    assert len(tl.payloads) == 21
    assert sorted(tl.payloads["kernel"].tolist()) == list(range(21))
    assert (reduces["phase"] == Phase.BACKWARD).all()
    assert {tl.names[owner].text for owner in reduces["owner"].tolist()} == {
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    }


def test_steps_of_the_device_tile_and_are_not_those_of_the_host(read):
    tl = read("a100_ddp_resnet_rank0of2.json.gz").timeline
    steps = tl.steps
    assert steps["step"].tolist() == [4, 5, 6]
    assert (steps["start"][1:] == steps["end"][:-1]).all()
    host = {
        tl.names[name].text: (start, end)
        for name, start, end in zip(
            tl.ranges.name.tolist(), tl.ranges.start.tolist(), tl.ranges.end.tolist(), strict=True
        )
        if tl.names[name].text.startswith("ProfilerStep")
    }
    assert len(host) == 3
    for step in steps:
        assert step["start"] > host[f"ProfilerStep#{step['step']}"][0]
    assert sorted(set(tl.communication["step"].tolist())) == [4, 5, 6]


def test_times_beyond_float64_keep_their_nanoseconds(read):
    tl = read("a100_ddp_resnet_rank0of2.json.gz").timeline
    # baseTimeNanoseconds + 4458676423385.774 µs, 30.975 µs
    first = tl.communication[0]
    assert first["start"] == 1711964646000000000 + 4458676423385774
    assert first["finish"] - first["start"] == 30975


# -- traces of the host ------------------------------------------------------------------------


def test_collectives_of_gloo_are_communication_and_operators_compute(read):
    recording = read("gloo_ddp_rank0of2.json.gz")
    tl = recording.timeline
    assert (tl.origin.rank, tl.origin.world, tl.origin.device) == (0, 2, "cpu")
    assert tl.communication["collective"].tolist() == [Kind.ALL_REDUCE] * 4
    assert tl.communication["bytes"].tolist() == [131584 * 4] * 4
    assert tl.communication["step"].tolist() == [3, 3, 4, 4]
    assert tl.steps["step"].tolist() == [3, 4]
    assert "operators" in tl.compute_rule
    parts = analyse(recording).partition
    assert parts.communication_ns > 0
    assert parts.compute_ns > 0
    assert 0 < parts.overlap_ns < parts.communication_ns


def test_a_directory_of_ranks_is_read_as_one_input(tmp_path):
    for rank in (1, 0):
        name = f"gloo_ddp_rank{rank}of2.json.gz"
        (tmp_path / name).symlink_to(DATA / name)
    assert [one.timeline.origin.rank for one in open_trace(tmp_path)] == [0, 1]


def test_the_tiny_traces_of_kineto_itself(read):
    gloo = analyse(read("edge/test_distributed_gloo_cpu_worker0.json")).partition
    # gloo spans: 16-54, 25-61, 66-84, 110-128, 120-156 µs
    assert gloo.communication_ns == (61 - 16 + 84 - 66 + 156 - 110) * 1000
    with_kernel = analyse(read("edge/test_distributed_gloo_gpu_worker0.json")).partition
    assert with_kernel.communication_ns == gloo.communication_ns
    assert with_kernel.compute_ns == 101_000  # the kernel at 30-131, not the host's operator
    nccl = read("edge/test_distributed_nccl_worker0.json")
    assert analyse(nccl).partition.communication_ns == (16 + 1556) * 1000
    # No runtime calls are in it: the id of the operator links kernels to their calls.
    assert nccl.timeline.communication["bytes"].tolist() == [53120 * 4, 2049000 * 4]


def test_an_annotation_alone_is_no_communication(read):
    name = "edge/test_distributed_nccl_user_annotation_has_communication_worker0.json"
    recording = read(name)
    assert len(recording.timeline.communication) == 0
    assert recording.timeline.payloads["collective"].tolist() == [Kind.ALL_REDUCE]
    assert any("communication" in one.what for one in recording.timeline.unknown)


def test_sync_events_are_in_no_lane(read):
    tl = read("edge/cuda_event_sync_multi_stream.json.gz").timeline
    assert (len(tl.compute), len(tl.copies), len(tl.communication)) == (3, 3, 0)


def test_rocm(read):
    recording = read("edge/mi250_minitoy_train_ROCm6_2_kineto.json.gz")
    tl = recording.timeline
    assert (len(tl.compute), len(tl.copies)) == (14, 2)
    assert tl.skipped == ()
    assert tl.origin.device == "GPU 2"
    assert recording.about["device"] == "AMD Radeon Graphics"
    assert recording.counters["device events without a launch"] == 0


def test_without_distributed_info_the_rank_is_not_known(read):
    tl = read("edge/distributed_info_not_found.json.gz").timeline
    assert tl.origin.rank is None
    assert tl.origin.world is None
    assert {"rank", "world size"} <= {one.what for one in tl.unknown}


def test_annotations_of_the_device_do_not_count_as_kernels(read):
    tl = read("edge/with_gpu_user_annotation.json.gz").timeline
    assert (len(tl.compute), len(tl.copies), len(tl.ranges)) == (130, 10, 10)

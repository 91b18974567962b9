"""Real exports: partitions that a separate program computed, and what three old releases hold."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.window import capture_window, trim_window
from overlapwatch.sources import open_trace
from overlapwatch.sources.nsight import open_nsight
from overlapwatch.timeline.model import Recording, Timeline
from overlapwatch.vocabulary import CollectiveKind

DATA = Path(__file__).parent.parent / "data" / "nsight"
EXPECTED = json.loads((DATA / "expected_partition_ns.json").read_text())
PROFILES = ("train_2gpu_sendrecv", "h100_2gpu_no_nccl")


def unpacked(name: str, directory: Path) -> Path:
    path = directory / f"{name}.sqlite"
    path.write_bytes(gzip.decompress((DATA / f"{name}.sqlite.gz").read_bytes()))
    return path


@pytest.fixture(scope="module", params=PROFILES)
def profile(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[Recording]]:
    return request.param, open_nsight(unpacked(request.param, tmp_path_factory.mktemp("real")))


def kernel_window(tl: Timeline) -> tuple[int, int]:
    start = min([tl.compute.start.min(), *tl.communication["start"]])
    end = max([tl.compute.end.max(), *tl.communication["finish"]])
    return int(start), int(end)


def test_partition_equals_the_independent_one_to_the_nanosecond(
    profile: tuple[str, list[Recording]],
) -> None:
    name, recordings = profile
    assert [one.timeline.origin.device for one in recordings] == ["GPU 0", "GPU 1"]
    for number, recording in enumerate(recordings):
        tl = recording.timeline
        wanted = EXPECTED[f"{name}.sqlite.gz#device{number}"]
        assert len(tl.compute) + len(tl.communication) == wanted["n_kernel"]
        assert len(tl.communication) == wanted["n_comm"]
        assert len(tl.copies) == wanted["n_mem"]
        whole = partition(tl, capture_window(tl))
        assert whole.window_ns == wanted["all_window_ns"]
        assert whole.compute_ns == wanted["compute_ns"]
        assert whole.communication_ns == wanted["comm_ns"]
        assert whole.overlap_ns == wanted["overlap_ns"]
        assert whole.compute_only_ns == wanted["compute_only_ns"]
        assert whole.communication_only_ns == wanted["comm_only_ns"]
        assert whole.copies_only_ns == wanted["mem_only_ns"]
        assert whole.idle_ns - whole.copies_only_ns == wanted["idle5_ns"]
        kernels = partition(tl, trim_window(*kernel_window(tl)))
        assert kernels.window_ns == wanted["kernel_window_ns"]
        assert kernels.idle_ns == wanted["idle4_ns"]


def test_no_communication_is_said_not_told_as_zero(tmp_path: Path) -> None:
    for recording in open_nsight(unpacked("h100_2gpu_no_nccl", tmp_path)):
        said = [one.because for one in recording.timeline.unknown if one.what == "communication"]
        assert len(said) == 1
        assert "known to communicate" in said[0]


def test_groups_of_sends_and_receives_are_attributed_through_the_launch(tmp_path: Path) -> None:
    first, second = open_nsight(unpacked("train_2gpu_sendrecv", tmp_path))
    for recording, calls in ((first, 128), (second, 136)):
        tl = recording.timeline
        assert len(tl.payloads) == calls
        # Each kernel launched in the capture carries out two sends and two receives; the last
        # two groups of the second process ran after the capture.
        kernels, count = np.unique(
            tl.payloads["kernel"][tl.payloads["kernel"] >= 0], return_counts=True
        )
        assert len(kernels) == 32
        assert set(count.tolist()) == {4}
        launched = tl.communication["launch"] != 0
        assert launched.sum() == 32
        assert sorted(kernels.tolist()) == np.flatnonzero(launched).tolist()
        assert (tl.payloads["bytes"] == -1).all()
        assert any("--include-blobs=true" in one.because for one in tl.unknown)
        sites = {tl.names[one].text for one in tl.communication["owner"][launched].tolist()}
        assert sites == {"AllToAll4D > c10d::alltoall_base_ > record_param_comms > nccl:all_to_all"}


def test_processes_do_not_share_correlation_ids(tmp_path: Path) -> None:
    first, second = open_nsight(unpacked("train_2gpu_sendrecv", tmp_path))
    both = np.concatenate([one.timeline.communication["launch"] for one in (first, second)])
    assert len(np.unique(both[both != 0])) == 64  # joined by id alone, some would be told twice


def test_ranges_are_named_without_running_numbers(tmp_path: Path) -> None:
    tl = open_nsight(unpacked("train_2gpu_sendrecv", tmp_path))[0].timeline
    names = {tl.names[one].text for one in np.unique(tl.ranges.name).tolist()}
    assert "aten::empty_strided" in names
    assert not any(
        "op_id" in name or name.startswith("nccl") for name in names - {"nccl:all_to_all"}
    )
    assert len(tl.ranges) == 9219


@pytest.mark.parametrize(
    ("name", "first_ns", "release"),
    [
        ("emu2022", 83_087_597, "2022.4.2.1"),
        ("emu2023", 57_066_382, "2023.4.4.54"),
        ("emu2024", 57_481_286, "2024.2.3.38"),
    ],
)
def test_old_releases_give_the_calls_and_say_what_would_bring_their_sizes(
    name: str, first_ns: int, release: str, tmp_path: Path
) -> None:
    (recording,) = open_trace(unpacked(name, tmp_path))
    tl = recording.timeline
    assert recording.about["Nsight Systems"] == release
    kinds = [CollectiveKind(one) for one in tl.payloads["collective"].tolist()]
    each = [
        CollectiveKind.ALL_GATHER,
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.SEND_RECV,
        CollectiveKind.SEND_RECV,
    ]
    assert kinds == each * 3
    assert tl.payloads["start"][0] == first_ns
    assert (tl.payloads["bytes"] == -1).all()
    told = {one.what: one.because for one in tl.unknown}
    assert "no GPU work" in told["everything on the device"]
    assert "this release" in told["sizes and communicators"]
    assert "--include-blobs=true" in told["sizes and communicators"]

"""The published case, synthesised: every answer is known by construction."""

from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.analyse import Analysis, analyse
from overlapwatch.errors import InputError
from overlapwatch.sources import open_trace
from overlapwatch.sources.nsight import open_nsight
from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import CollectiveKind, Phase
from tests.support.nsight_case import (
    LARGE,
    LAST,
    Answer,
    Shape,
    write_megatron,
    write_megatron_files,
)

PHASES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}


@pytest.fixture(scope="module")
def case(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[int, Answer], list[Recording]]:
    path = tmp_path_factory.mktemp("case") / "megatron.sqlite"
    answers = write_megatron(path)
    return path, answers, open_nsight(path)


def check(analysis: Analysis, answer: Answer) -> None:
    parts = analysis.partition
    assert (analysis.window.start_ns, analysis.window.end_ns) == (answer.first_ns, answer.last_ns)
    assert parts.compute_ns == answer.compute_ns
    assert parts.communication_ns == answer.communication_ns
    assert parts.overlap_ns == answer.overlap_ns
    assert analysis.exposed.count == answer.segments == 273
    cells: dict[str, list[int]] = {}
    for cell in analysis.phases.cells:
        assert cell.phase is not None
        told = cells.setdefault(PHASES[cell.phase], [0, 0])
        told[0] += cell.union_ns
        told[1] += cell.overlap_ns
    assert {phase: tuple(told) for phase, told in cells.items()} == answer.phases


def test_each_device_tells_what_was_built(
    case: tuple[Path, dict[int, Answer], list[Recording]],
) -> None:
    _, answers, recordings = case
    found = {one.timeline.origin.rank: one for one in recordings if one.timeline.origin.device}
    assert sorted(found) == sorted(answers) == list(range(1, 8))
    for rank, recording in found.items():
        assert recording.timeline.origin.device == f"GPU {rank}"
        assert recording.timeline.origin.world == 8
        check(analyse(recording), answers[rank])


def test_phase_split_is_the_published_one(
    case: tuple[Path, dict[int, Answer], list[Recording]],
) -> None:
    for answer in case[1].values():
        total, hidden = answer.phases["forward"]
        assert 100 * hidden == 16 * total
        total, hidden = answer.phases["backward"]
        assert 100 * hidden == pytest.approx(77 * total, rel=1e-6)


def test_payloads_are_those_of_the_calls(
    case: tuple[Path, dict[int, Answer], list[Recording]],
) -> None:
    for recording in case[2]:
        tl = recording.timeline
        if not tl.origin.device:
            continue
        sizes = {}
        for kind in (
            CollectiveKind.ALL_GATHER,
            CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.ALL_REDUCE,
        ):
            mine = tl.payloads[tl.payloads["collective"] == kind]
            values, count = np.unique(mine["bytes"], return_counts=True)
            sizes[kind] = dict(zip(values.tolist(), count.tolist(), strict=True))
        assert sizes[CollectiveKind.ALL_GATHER] == {LARGE: 27 * 5, LAST: 5}
        assert sizes[CollectiveKind.REDUCE_SCATTER] == {LARGE: 18 * 5}
        assert sizes[CollectiveKind.ALL_REDUCE] == {4: 10}
        # One kernel a call, and the total of what eight ranks move.
        assert sorted(tl.payloads["kernel"].tolist()) == list(range(240))
        given = tl.payloads["bytes"][np.argsort(tl.payloads["kernel"])]
        factor = np.where(tl.communication["collective"] == CollectiveKind.ALL_REDUCE, 1, 8)
        assert (tl.communication["bytes"] == given * factor).all()
        group = tl.groups[int(tl.communication["group"][0])]
        assert (group.elements, group.members) == (8, tuple(range(8)))


def test_calls_of_a_rank_that_was_not_recorded_stay_apart(
    case: tuple[Path, dict[int, Answer], list[Recording]],
) -> None:
    alone = [one.timeline for one in case[2] if not one.timeline.origin.device]
    assert [one.origin.rank for one in alone] == [0]
    assert len(alone[0].payloads) == 240
    assert (alone[0].payloads["kernel"] == -1).all()
    assert len(alone[0].communication) == len(alone[0].compute) == 0
    assert any("no GPU work" in one.because for one in alone[0].unknown)


def test_call_sites_are_the_ranges_around_the_launch(
    case: tuple[Path, dict[int, Answer], list[Recording]],
) -> None:
    tl = case[2][1].timeline
    names = {tl.names[one].text for one in np.unique(tl.communication["owner"]).tolist()}
    assert len(names) == 48  # of five steps: the step's number makes no call site of its own
    assert "step > forward > layers.0" in names
    assert "step > optimizer > layers.47" in names


def test_one_file_a_rank_gives_the_same(tmp_path: Path) -> None:
    answers = write_megatron_files(tmp_path, Shape(steps=5, devices=(1, 2), ranks=3))
    recordings = open_trace(tmp_path)
    assert [one.timeline.origin.rank for one in recordings] == [
        0,
        1,
        2,
    ]  # by the names of the files
    for recording in recordings[1:]:
        rank = recording.timeline.origin.rank
        assert rank is not None
        check(analyse(recording), answers[rank])
    assert [one.timeline.origin.rank for one in open_trace(tmp_path, ranks={2})] == [2]
    with pytest.raises(InputError, match="rank 7"):
        open_trace(tmp_path, ranks={7})


@pytest.mark.parametrize(
    ("era", "blobs", "words"), [("2026", False, "without payloads"), ("2022", True, "this release")]
)
def test_without_blobs_the_flag_is_named(era: str, blobs: bool, words: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    answers = write_megatron(path, Shape(ranks=2, devices=(1,), era=era, blobs=blobs))
    recording = next(one for one in open_nsight(path) if one.timeline.origin.device)
    check(analyse(recording), answers[1])
    tl = recording.timeline
    assert (tl.payloads["bytes"] == -1).all()
    assert (tl.communication["bytes"] == 0).all()
    assert sorted(tl.payloads["kernel"].tolist()) == list(range(240))
    told = {one.what: one.because for one in tl.unknown}
    assert words in told["sizes and communicators"]
    assert "--include-blobs=true" in told["sizes and communicators"]
    assert "rank" in told


def test_cutting_compute_into_more_kernels_changes_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "large.sqlite"
    answers = write_megatron(path, Shape(ranks=2, devices=(1,), split=7))
    recording = next(one for one in open_nsight(path) if one.timeline.origin.device)
    assert len(recording.timeline.compute) + 240 == answers[1].kernels
    check(analyse(recording), answers[1])


def test_only_the_devices_asked_for(case: tuple[Path, dict[int, Answer], list[Recording]]) -> None:
    found = open_nsight(case[0], devices={4, 6})
    assert [one.timeline.origin.device for one in found] == ["GPU 4", "GPU 6"]
    with pytest.raises(InputError, match="no GPU work of device 0, 9"):
        open_nsight(case[0], devices={0, 9})


def test_no_secret_leaves_the_file(case: tuple[Path, dict[int, Answer], list[Recording]]) -> None:
    recordings = case[2]
    assert b"secret" in case[0].read_bytes()
    assert "secret" not in repr(recordings)
    assert "secret" not in repr([dict(one.timeline.names) for one in recordings])
    assert recordings[1].about["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert recordings[1].about["GPU model"] == "NVIDIA H100 80GB HBM3 GPU-0001"


def test_progress_reaches_the_size_of_the_file(
    case: tuple[Path, dict[int, Answer], list[Recording]],
) -> None:
    seen: list[tuple[int, int]] = []
    open_nsight(case[0], progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (case[0].stat().st_size,) * 2

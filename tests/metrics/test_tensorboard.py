"""Event files, read back by TensorBoard itself."""

import numpy as np
import pytest

from overlapwatch.metrics import RunOfRank
from overlapwatch.metrics.tensorboard import TensorBoard
from overlapwatch.metrics.tracker import Tracker
from overlapwatch.vocabulary import StepFlag
from tests.metrics.rows import full, row

RUN = RunOfRank(rank=0, local_rank=0, world=2, run_id="abc")


def scalars(directory) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(one.step, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.e2e
def test_the_curves_of_a_job_are_the_rows_of_its_log(watched):
    (directory,) = (watched.directory / "tb").iterdir()  # rank 0 alone, unless asked
    assert directory.name == f"rank0-{watched.run_id}"
    curves = scalars(directory)
    rows = watched.counted(0)
    took = (rows["end_ns"] - rows["start_ns"]).tolist()
    for tag, values in {
        "step_seconds": [ns / 1e9 for ns in took],
        "exposed_communication_seconds": [
            ns / 1e9 for ns in rows["communication_only_ns"].tolist()
        ],
        "tail_seconds": [ns / 1e9 for ns in rows["tail_ns"].tolist()],
        "overlap_ratio": (rows["overlap_ns"] / rows["communication_ns"]).tolist(),
    }.items():
        expected = [
            (step, float(np.float32(value)))
            for step, value in zip(rows["step"].tolist(), values, strict=True)
        ]
        assert curves[f"overlapwatch/{tag}"] == expected
    assert all(tag.startswith("overlapwatch/") for tag in curves)


def test_what_is_not_known_has_no_point_and_a_step_left_out_has_none(tmp_path):
    sink = Tracker(TensorBoard(tmp_path, RUN))
    sink.open()
    shadow = full(2)
    shadow["flags"] = StepFlag.SHADOW
    for one in (full(1), shadow, row(3), full(4)):
        sink.step(one, None)
    sink.close()
    curves = scalars(tmp_path / "rank0-abc")
    assert [step for step, _ in curves["overlapwatch/step_seconds"]] == [1, 3, 4]
    assert [step for step, _ in curves["overlapwatch/tail_seconds"]] == [1, 4]
    assert curves["overlapwatch/steps_left_out_total"][-1] == (4, 1)


def test_steps_are_there_while_the_run_goes_on(tmp_path, monkeypatch):
    sink = Tracker(TensorBoard(tmp_path, RUN), every_s=0)
    sink.open()
    sink.step(full(1), None)
    while not scalars(tmp_path / "rank0-abc"):
        pass
    sink.close()


def test_a_directory_that_cannot_be_made_stops_the_sink_alone(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Tracker(TensorBoard(tmp_path / "file", RUN)).open()

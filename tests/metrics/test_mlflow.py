"""A real MLflow store in files, and a server that is not there."""

import threading

import pytest

from overlapwatch.metrics import mlflow as backend
from overlapwatch.metrics.mlflow import MLflow
from overlapwatch.metrics.tracker import Tracker
from overlapwatch.vocabulary import StepFlag
from tests.metrics.rows import full, row


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    module = pytest.importorskip("mlflow")
    store = (tmp_path / "mlruns").as_uri()
    module.set_tracking_uri(store)
    yield module
    module.set_tracking_uri(store)
    while module.active_run() is not None:
        module.end_run()
    module.set_tracking_uri(None)


def sink(warnings: list[str]) -> Tracker:
    made = Tracker(MLflow(), every_s=0, warn=warnings.append)
    made.open()
    return made


def points(mlflow, run_id, name) -> list[tuple[int, float]]:
    history = mlflow.MlflowClient().get_metric_history(run_id, f"overlapwatch/{name}")
    return [(one.step, one.value) for one in history]


def test_values_are_metrics_of_the_scripts_run(mlflow):
    warnings: list[str] = []
    tracker = sink(warnings)  # watch() comes before start_run()
    run = mlflow.start_run()
    shadow = full(3)
    shadow["flags"] = StepFlag.SHADOW
    for one in (full(1, hidden_ms=10), full(2, hidden_ms=20), shadow, row(4)):
        tracker.step(one, None)
    tracker.close()
    run_id = run.info.run_id
    assert points(mlflow, run_id, "hidden_communication_seconds") == [(1, 0.01), (2, 0.02)]
    assert points(mlflow, run_id, "step_seconds") == [(1, 0.1), (2, 0.1), (4, 0.1)]
    assert mlflow.active_run().info.run_id == run_id
    assert warnings == []


def test_a_run_begun_on_another_thread_is_found_and_kept_after_its_end(mlflow):
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    found = []

    def trains() -> None:
        found.append(mlflow.start_run().info.run_id)
        begun.set()
        may_end.wait()
        mlflow.end_run()
        ended.set()

    threading.Thread(target=trains).start()
    begun.wait()
    tracker = sink([])
    tracker.step(full(1), None)
    while not tracker._outbox._delivered:
        pass
    may_end.set()
    ended.wait()
    tracker.step(full(2), None)
    tracker.close()
    assert points(mlflow, found[0], "tail_seconds") == [(1, 0.004), (2, 0.004)]


@pytest.mark.e2e
def test_the_steps_of_a_job_are_those_of_its_log(mlflow, watched):
    run = mlflow.start_run()
    tracker = Tracker(MLflow())
    for one in watched.rows[1]:
        tracker.step(one, None)
    tracker.open()
    tracker.close()
    rows = watched.counted(1)
    assert points(mlflow, run.info.run_id, "tail_seconds") == [
        (int(one["step"]), int(one["tail_ns"]) / 1e9) for one in rows
    ]


def test_more_than_a_request_may_hold_is_sent_in_several(mlflow, monkeypatch):
    monkeypatch.setattr(backend, "MOST_IN_A_BATCH", 10)
    run = mlflow.start_run()
    tracker = Tracker(MLflow(), every_s=0)
    for step in range(1, 6):
        tracker.step(full(step), None)
    tracker.open()
    tracker.close()
    assert len(points(mlflow, run.info.run_id, "step_seconds")) == 5


def test_a_run_that_a_variable_names(mlflow, monkeypatch):
    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    monkeypatch.setattr(
        backend.sys, "modules", {**backend.sys.modules, "mlflow.tracking.fluent": None}
    )
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    tracker = sink([])
    tracker.step(full(1), None)
    tracker.close()
    assert points(mlflow, run_id, "tail_seconds") == [(1, 0.004)]


def test_without_a_run_none_is_begun_and_it_is_said_once(mlflow):
    warnings: list[str] = []
    tracker = sink(warnings)
    tracker.step(full(1), None)
    tracker.close()
    assert warnings == [
        "metrics to MLflow: no run is active on this rank; mlflow.start_run() begins one, and steps wait for it",
        "metrics to MLflow: 1 of 1 steps were not delivered",
    ]


def test_a_server_that_is_not_there_is_warned_of_and_the_end_comes(mlflow, monkeypatch):
    warnings: list[str] = []
    mlflow.start_run()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    tracker = sink(warnings)
    tracker.step(full(1), None)
    tracker.close()
    assert "Connection refused" in warnings[0] or "max retries" in warnings[0].lower()
    assert warnings[1] == "metrics to MLflow: 1 of 1 steps were not delivered"

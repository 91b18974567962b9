"""What the adapters share, in one process: settings, warnings, numbers, the end. No trainer is needed for that."""

import logging
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks import installed
from overlapwatch.integrations.attached import Attached, LatestStep, library
from overlapwatch.integrations.torchtitan import WatchHandler, model_parts
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag
from tests.support.training import alone


def summary(step: int, flags: int = 0, **fields: int) -> np.void:
    row = np.zeros(1, SUMMARY)[0]
    for name in SUMMARY.names:
        row[name] = fields.get(name, 0)
    row["step"], row["flags"], row["end_ns"] = step, flags, 2_000_000_000
    return row


def train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_misspelled_setting_is_refused_before_there_is_a_model():
    with pytest.raises(ConfigurationError, match="no setting 'log_dri'"):
        Attached({"log_dri": "runs/a"}, "")


def test_a_variable_is_checked_then_too_and_one_that_is_none_of_ours_is_left_to_watch(
    monkeypatch, caplog
):
    monkeypatch.setenv("OVERLAPWATCH_TYPO", "1")
    Attached({}, "")
    assert caplog.text == ""
    monkeypatch.setenv("OVERLAPWATCH_LINE_EVERY", "often")
    with pytest.raises(ConfigurationError, match="OVERLAPWATCH_LINE_EVERY must be a whole number"):
        Attached({}, "")


def test_an_unwrapped_model_in_one_process_is_one_warning(caplog):
    attached = Attached({}, "")
    attached.attach(nn.Linear(4, 4))
    attached.close()
    assert [record.getMessage() for record in caplog.records] == [
        "overlapwatch does not watch this training: it runs in one process, which shares no gradients"
    ]
    assert attached.metrics() == {}


def test_a_second_training_ends_the_first_watch_and_is_a_run_of_its_own(tmp_path):
    lines: list[dict] = []
    with alone():
        attached = Attached({"log_dir": tmp_path, "sinks": lines.append}, "")
        for _ in range(3):
            model = DistributedDataParallel(nn.Linear(4, 4))
            attached.attach(model)
            assert installed() == ["watch"]
            train(model)
        attached.close()
        attached.close()
        assert installed() == []
    assert [line["step"] for line in lines] == [1, 2, 3] * 3  # the user's sink is kept
    assert len(list(tmp_path.glob("rank0-*.owlog"))) == 3
    assert not list(tmp_path.glob("*.old"))


def test_disabled_it_does_nothing(tmp_path):
    with alone():
        attached = Attached({"disable": True, "log_dir": tmp_path}, "a log")
        attached.attach(DistributedDataParallel(nn.Linear(4, 4)))
        assert installed() == []
        attached.close()
    assert list(tmp_path.iterdir()) == []


def test_the_latest_step_in_statistics_is_taken_once_and_what_is_not_known_is_absent():
    latest = LatestStep("a log")
    assert latest.take() == {}
    latest.step(summary(1, tail_ns=5_000_000), "")
    latest.step(summary(2, tail_ns=7_000_000, wait_ns=NOT_KNOWN), "")
    latest.step(summary(3, flags=StepFlag.SHADOW), "")
    values = latest.take()
    assert values["overlapwatch/step_seconds"] == 2.0
    assert values["overlapwatch/tail_seconds"] == 0.007
    assert values["overlapwatch/steps_left_out_total"] == 1 - 1  # the shadow step came later
    assert "overlapwatch/wait_seconds" not in values
    assert latest.take() == {}


def test_the_library_that_is_in_use_is_taken_and_a_missing_one_is_named(monkeypatch):
    used = types.ModuleType("trainers_of_ours")
    monkeypatch.setitem(sys.modules, "trainers_of_ours", used)
    assert library(("json", "trainers_of_ours"), "json") is sys.modules["json"]
    assert library(("no_such_trainer", "trainers_of_ours"), "json") is used
    with pytest.raises(ConfigurationError, match="pip install no-such-trainer"):
        library(("no_such_trainer.callbacks",), "no-such-trainer")


def test_torchtitans_model_is_the_innermost_callers():
    class Trainer:
        def __init__(self, parts: list[nn.Module]) -> None:
            self.model_parts = parts

        def announce(self) -> object:
            return model_parts(sys._getframe())

    parts = [nn.Linear(1, 1)]
    assert Trainer(parts).announce() is parts
    assert model_parts(None) == []


def test_a_step_that_no_trainer_announces_is_one_warning(caplog):
    handler = WatchHandler(lambda values: None)
    for _ in range(2):
        record = logging.makeLogRecord({"log_type_name": "step_start"})
        handler.handle(record)
    assert caplog.text.count("no torchtitan trainer runs") == 1

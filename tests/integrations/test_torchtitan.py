"""A watch in torchtitan's own training, through the variables that docs/trainers.md shows."""

import json
import re

import pytest

from overlapwatch.vocabulary import StepFlag
from tests.integrations.logs import NAMES, needs, steps, told
from tests.support import jobs

pytestmark = [pytest.mark.e2e, needs("torchtitan")]

JOB = jobs.ROOT / "tests" / "integrations" / "torchtitan_job.py"
PAGE = (jobs.ROOT / "docs" / "trainers.md").read_text()
HANDLERS = dict(re.findall(r"^export (TITAN\w+)=(\S+)$", PAGE, re.MULTILINE))


def run(directory, **env):
    return jobs.run_ranks(
        JOB,
        2,
        args=[str(directory)],
        env={**env, "OVERLAPWATCH_LOG_DIR": str(directory / "log"), "OVERLAPWATCH_DRAIN_MS": "5"},
        preload=(
            "tests.integrations.torchtitan_cpu",
            "torchtitan.trainer",
            "torchtitan.models.llama3",
        ),
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("torchtitan")


@pytest.fixture(scope="module")
def watched(work):
    return told(run(work / "watched", **HANDLERS))


def test_training_gives_the_same_parameters_and_nothing_is_left(watched, work):
    plain = told(run(work / "plain"))
    assert not (work / "plain" / "log").exists()
    for ours, theirs in zip(watched, plain, strict=True):
        assert ours["parameters"] == theirs["parameters"]
        assert ours["steps"] == 3
        assert ours["left"] == []


def test_the_steps_are_torchtitans(watched, work):
    logs = steps(work / "watched" / "log")
    assert len(logs) == 2
    for rows in logs.values():
        assert rows == [(StepFlag.ACCUMULATING, 3)] * 3  # embedding, layer, head


def test_the_structured_log_has_the_numbers_beside_torchtitans_own(watched, work):
    (path,) = (work / "watched/titan/structured_logs").glob("*rank_0.*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    ours = [one for one in events if (one["event_name"] or "").startswith("overlapwatch/")]
    assert {one["event_name"] for one in ours} >= NAMES
    assert {one["step"] for one in ours} <= {1, 2, 3}
    assert sum(one["log_type_name"] == "step_end" for one in events) == 3


def test_a_step_that_fails_ends_the_watch(tmp_path):
    for rank in told(run(tmp_path, FAILS_AT="5", **HANDLERS)):
        assert rank["fails"] == "the data ends here"
        assert rank["left"] == []
    assert {len(rows) for rows in steps(tmp_path / "log").values()} == {2}

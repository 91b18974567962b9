"""A watch in a loop of one's own with Accelerate."""

import pytest

from overlapwatch.vocabulary import StepFlag
from tests.integrations.logs import NAMES, TRAINERS, needs, steps, told
from tests.support import jobs

pytestmark = [pytest.mark.e2e, needs("accelerate")]

JOB = jobs.ROOT / "tests" / "integrations" / "accelerate_job.py"


def run(directory, world):
    alone = ["alone"] if world == 1 else []
    return jobs.run_ranks(JOB, world, args=[str(directory), *alone], preload=TRAINERS)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def ranks(work):
    return told(run(work, 2))


def test_training_gives_the_same_parameters_and_nothing_is_left(ranks):
    for rank in ranks:
        assert rank["much watched"] == rank["much unwatched"]
        assert rank["much watched left"] == []


def test_the_steps_are_the_optimizers(ranks, work):
    logs = steps(work / "much" / "log")
    assert len(logs) == 2
    flags = [StepFlag.UNBUCKETED, StepFlag.REBUILT, StepFlag(0), StepFlag(0)]
    for rows in logs.values():
        assert [flag for flag, _ in rows] == [one | StepFlag.ACCUMULATING for one in flags]


def test_the_watch_ends_with_the_block_whatever_ended_it(ranks, work):
    for rank in ranks:
        assert rank["fails"] == "the data ends here"
        assert rank["fails left"] == []
    assert {len(rows) for rows in steps(work / "fails" / "log").values()} == {3}


def test_the_accelerators_trackers_get_the_numbers_on_rank_0(ranks):
    zero, one = ranks
    assert zero["logged"]
    for step, names in zero["logged"]:
        assert step in range(8)
        assert set(names) >= NAMES
    assert one["logged"] == []


def test_one_process_trains_on_with_one_warning(tmp_path):
    job = run(tmp_path, 1).check()
    assert job.stderr.count("overlapwatch") == 1
    assert "runs in one process" in job.stderr
    assert not (tmp_path / "alone" / "log").exists()

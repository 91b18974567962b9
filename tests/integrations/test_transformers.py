"""A watch in the Trainer of Hugging Face."""

import pytest

from overlapwatch.vocabulary import StepFlag
from tests.integrations.logs import NAMES, TRAINERS, needs, steps, told
from tests.support import jobs

pytestmark = [pytest.mark.e2e, needs("transformers")]

JOB = jobs.ROOT / "tests" / "integrations" / "transformers_job.py"


def run(directory, world):
    alone = ["alone"] if world == 1 else []
    return jobs.run_ranks(JOB, world, args=[str(directory), *alone], preload=TRAINERS)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def ranks(work):
    return told(run(work, 2))


@pytest.mark.parametrize("name", ["plain", "much"])
def test_training_gives_the_same_parameters_and_nothing_is_left(ranks, name):
    for rank in ranks:
        assert rank[f"{name} watched"] == rank[f"{name} unwatched"]
        assert rank[f"{name} watched left"] == []


def test_the_steps_are_the_optimizers(ranks, work):
    # Without gradient checkpointing this trainer asks DDP to find unused parameters, which then keeps its buckets.
    for name, flags in {
        "plain": [StepFlag(0)] * 3,
        "much": [StepFlag.ACCUMULATING] * 4,
    }.items():
        logs = steps(work / name / "log")
        assert len(logs) == 2
        for rows in logs.values():
            assert [flag for flag, _ in rows] == flags
            assert len({buckets for _, buckets in rows}) == 1
            assert rows[0][1] > 1


def test_each_training_is_a_run_and_one_that_fails_is_closed_by_the_next(ranks, work):
    for rank in ranks:
        assert rank["fails"] == "the data ends here"
        assert rank["fails left"] == ["watch"]
        assert rank["again left"] == []
    lengths = [len(rows) for rows in steps(work / "again" / "log").values()]
    assert sorted(lengths) == [2, 2, 3, 3, 3, 3]


def test_the_trainers_log_has_the_numbers_and_loses_nothing_of_its_own(ranks):
    zero, one = ranks

    def split(logs):
        ours = [row for row in logs if NAMES & row.keys()]
        losses = [row["loss"] for row in logs if "loss" in row]
        return ours, losses

    ours, losses = split(zero["much watched logs"])
    assert losses == split(zero["much unwatched logs"])[1]
    assert len(losses) == 4
    assert ours
    assert all(row.keys() >= NAMES for row in ours)
    assert split(one["much watched logs"])[0] == []
    assert split(zero["again logs"])[0] == []


def test_one_process_trains_on_with_one_warning(tmp_path):
    job = run(tmp_path, 1).check()
    assert job.stderr.count("overlapwatch") == 1
    assert "runs in one process" in job.stderr
    assert "train_runtime" in job.stdout
    assert not (tmp_path / "alone" / "log").exists()

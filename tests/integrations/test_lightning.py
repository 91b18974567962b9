"""A watch in Lightning's own training loop."""

import csv

import pytest

from overlapwatch.vocabulary import StepFlag
from tests.integrations.logs import NAMES, TRAINERS, needs, steps, told
from tests.support import jobs

pytestmark = [pytest.mark.e2e, needs("pytorch_lightning")]

JOB = jobs.ROOT / "tests" / "integrations" / "lightning_job.py"
FIRST = [StepFlag.UNBUCKETED, StepFlag.REBUILT]
"""What DDP's first two steps are marked with."""


def run(directory, world):
    return jobs.run_ranks(
        JOB,
        world,
        args=[str(directory)],
        env={"TORCHELASTIC_RUN_ID": "test"},  # as torchrun sets it
        preload=TRAINERS,
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def ranks(work):
    return told(run(work, 2))


@pytest.mark.parametrize("name", ["plain", "much", "sharded"])
def test_training_gives_the_same_parameters_and_nothing_is_left(ranks, name):
    for rank in ranks:
        assert rank[f"{name} watched"] == rank[f"{name} unwatched"]
        assert rank[f"{name} watched left"] == []


def test_the_steps_are_the_optimizers(ranks, work):
    for name, flags in {
        "plain": [*FIRST, StepFlag(0)],
        "much": [one | StepFlag.ACCUMULATING for one in (*FIRST, StepFlag(0), StepFlag(0))],
        "sharded": [StepFlag(0)] * 3,
    }.items():
        logs = steps(work / name / "log")
        assert len(logs) == 2
        for rows in logs.values():
            assert [flag for flag, _ in rows] == flags
            assert all(buckets for _, buckets in rows)


def test_each_fit_is_a_run_and_one_that_fails_is_closed(ranks, work):
    for rank in ranks:
        assert rank["fails"] == "the data ends here"
        assert rank["fails left"] == []
    lengths = [len(rows) for rows in steps(work / "again" / "log").values()]
    assert len(lengths) == 3 * 2
    assert lengths.count(3) == 3 * 2  # the last fit fails in its third
    partial = [rows[-1][0] & StepFlag.PARTIAL for rows in steps(work / "again" / "log").values()]
    assert sum(map(bool, partial)) == 2


def test_the_trainers_logger_gets_the_numbers_and_only_where_they_are_wanted(ranks, work):
    with (work / "much/watched/version_0/metrics.csv").open() as file:
        columns = {name for name in csv.DictReader(file).fieldnames if name.startswith("overlap")}
    assert columns >= NAMES
    assert not list((work / "again").glob("again/version_0/metrics.csv"))


def test_a_misspelled_setting_is_refused_at_once(ranks):
    assert "no setting 'log_dri'" in ranks[0]["misspelled"]


def test_one_process_trains_on_with_one_warning(tmp_path):
    job = run(tmp_path, 1).check()
    assert job.stderr.count("overlapwatch") == 1
    assert "runs in one process" in job.stderr
    assert "max_steps=3` reached" in job.stderr
    assert not (tmp_path / "alone" / "log").exists()

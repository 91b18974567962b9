"""What `sinks` takes beside lines, on which ranks, and what it says when a library is missing."""

import re
from pathlib import Path

import pytest

from overlapwatch.errors import ConfigurationError
from overlapwatch.log.sinks import MetricsSink, StepSinks, open_sinks
from overlapwatch.metrics import RunOfRank, makers, run_of_rank
from tests.metrics.rows import full

SPECS = (
    "tensorboard:{out}/tb",
    "prometheus:9450",
    "prometheus-file:{out}/{rank}.prom",
    "otel",
    "wandb",
    "mlflow",
)
NAMES = [spec.partition(":")[0] for spec in SPECS]
EVERY_RANK = {"prometheus", "prometheus-file", "otel"}


def sinks(spec: object, rank: int, ranks: tuple[int, ...] | str | None = "auto") -> StepSinks:
    run = RunOfRank(rank, rank, world=2, run_id="x")
    return open_sinks((spec,), rank, ranks=ranks, more=makers(run, ranks))


def test_every_name_is_tried_here():
    assert list(makers(RunOfRank(0, 0, 1, "x"), "auto")) == NAMES


@pytest.mark.parametrize("spec", SPECS)
def test_which_ranks_have_a_sink(spec, tmp_path):
    spec = spec.replace("{out}", str(tmp_path))
    name = spec.partition(":")[0]
    assert [len(sinks(spec, rank)) for rank in (0, 1)] == [1, name in EVERY_RANK]
    assert [len(sinks(spec, rank, ranks=(1,))) for rank in (0, 1)] == [0, 1]
    assert [len(sinks(spec, rank, ranks=None)) for rank in (0, 1)] == [1, 1]
    (sink,) = sinks(spec, 0).metrics
    assert isinstance(sink, MetricsSink)
    assert list(tmp_path.iterdir()) == []  # nothing is made before it is opened


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_library_is_one_sentence_with_the_command_on_all_ranks_alike(
    spec, rank, monkeypatch
):
    monkeypatch.setattr(run_of_rank, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError) as told:
        sinks(spec, rank)
    assert re.fullmatch(
        r"the sink \S+ needs [\w -]+, which is not installed: pip install \"overlapwatch\[\w+\]\"",
        str(told.value),
    )


def test_every_extra_that_is_named_exists(monkeypatch):
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    monkeypatch.setattr(run_of_rank, "find_spec", lambda _: None)
    for spec in SPECS:
        with pytest.raises(ConfigurationError) as told:
            sinks(spec, 0)
        (extra,) = re.findall(r"overlapwatch\[(\w+)\]", str(told.value))
        assert f"\n{extra} = [" in declared


@pytest.mark.parametrize("spec", ["prometheus", "tensorboard:", "wandb:project", "grafana"])
def test_a_name_that_is_written_wrong_lists_how_they_are_written(spec):
    for rank in (0, 1):
        with pytest.raises(ConfigurationError) as told:
            sinks(spec, rank)
        assert (
            "jsonl:PATH, tensorboard:DIR, prometheus:PORT, prometheus-file:PATH, otel, wandb, mlflow"
            in str(told.value)
        )


class Mine:
    """A metrics sink of the user's."""

    def __init__(self) -> None:
        self.got: list[object] = []

    def open(self) -> None:
        self.got.append("open")

    def step(self, summary, line) -> None:
        self.got.append((int(summary["step"]), line))

    def standing(self, standing) -> None:
        self.got.append(standing)

    def close(self) -> None:
        self.got.append("close")


def test_an_object_of_the_users_that_is_a_metrics_sink_gets_every_step():
    mine, lines = Mine(), []
    made = open_sinks((mine, lambda row: lines.append(row["step"])), 0)
    made.open()
    made.step(full(1), None)
    made.step(full(2), "step 2")
    made.standing("as it stands")
    assert (len(made.metrics), made.lines) == (1, True)
    made.close()
    assert mine.got == ["open", (1, None), (2, "step 2"), "as it stands", "close"]
    assert lines == [2]


def test_a_metrics_sink_that_fails_is_dropped_with_one_warning():
    class Failing(Mine):
        def step(self, summary, line):
            raise KeyError("x")

    warnings: list[str] = []
    made = open_sinks((Failing(),), 0, warnings.append)
    made.open()
    made.step(full(1), None)
    made.step(full(2), None)
    assert warnings == ["metrics to Failing stopped: KeyError: 'x'"]
    assert len(made) == 0

"""Real Megatron-Core trainings are the same to the last bit with and without a watch, and the watch saw all of it.

One job runs every layout of `tests.support.megatron_training` in turn (see `megatron_job`); the tests look at what it
told. What was seen is held against what gloo itself counted, so a watch that had turned itself off would not pass.
Other releases are fetched by scripts/fetch_megatron; without them their tests are skipped.
"""

import functools
import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.megatron_releases import RELEASES, where
from tests.support.megatron_training import LAYOUTS
from tests.support.told_by_ranks import Ranks, Told

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
    ),
]

JOB = Path(__file__).with_name("megatron_job.py")
OTHERS = ("dp-distopt", "dp-no-overlap", "tp-sp")
"""Layouts that every release can run without a GPU, and that use most of what differs between them."""


@functools.cache
def told(release: str = "") -> "Ranks":
    """Run the layouts on two ranks; return, by layout, what each rank told."""
    names = OTHERS if release else tuple(LAYOUTS)
    env = {"PYTHONPATH": str(where(release))} if release else {}
    result = jobs.run_ranks(JOB, 2, args=names, timeout_s=280, env=env)
    found: dict[str, list[Told]] = {}
    for rank in result.ranks:
        for line in rank.stdout.splitlines():
            one = json.loads(line)
            found.setdefault(one["layout"], []).append(one)
    return Ranks(found, result.ranks)


def collectives(rank: Told, **wanted: Any) -> list[Told]:
    """Return the collectives of the second step on (the first is Megatron's first batch) with these values."""
    return [
        row
        for row in rank["rows"]
        if row["kind"] == "COLLECTIVE"
        and 1 < row["step"] < 4
        and all(row[name] == value for name, value in wanted.items())
    ]


def waits(rank: Told, **wanted: Any) -> list[Told]:
    """Return the waits of the same steps with these values."""
    return [
        row
        for row in rank["rows"]
        if row["kind"] == "WAIT"
        and 1 < row["step"] < 4
        and all(row[name] == value for name, value in wanted.items())
    ]


def check_undisturbed(rank: Told) -> None:
    assert rank["equal"]
    assert rank["active"]
    assert rank["heard"] == []
    assert rank["left"] == []
    assert rank["counts"].get("records_lost", 0) == 0
    per_step = [
        sum(row["kind"] == "COLLECTIVE" and row["step"] == step for row in rank["rows"])
        for step in range(1, len(rank["counted"]) + 1)
    ]
    # After the last step a layout may gather its parameters once more.
    assert per_step[:-1] == rank["counted"][:-1]
    assert per_step[-1] >= rank["counted"][-1]
    steps = [row for row in rank["rows"] if row["kind"] == "STEP"]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    for row in rank["rows"]:
        times = [at for at in row["times"] if at]
        assert times == sorted(times), row
        if row["kind"] != "COLLECTIVE":
            assert row["times"][2] > 0, row
            assert row["times"][3] > 0, row


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_bit_is_left_and_everything_is_seen(layout: str) -> None:
    for rank in told()[layout]:
        check_undisturbed(rank)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("layout", OTHERS)
def test_other_releases(release: str, layout: str) -> None:
    if where(release) is None:
        pytest.skip(f"megatron-core {release} has not been fetched (scripts/fetch_megatron)")
    for rank in told(release)[layout]:
        assert rank["facts"]["megatron version"] == release
        check_undisturbed(rank)
        check_owners(rank)


def check_owners(rank: Told) -> None:
    """What is sent in forward or backward has an owner."""
    assert {row["phase"] for row in collectives(rank, owner="")} <= {"OTHER"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_owners(layout: str) -> None:
    for rank in told()[layout]:
        check_owners(rank)


@pytest.mark.parametrize("layout", ["dp", "dp-distopt", "pp", "vpp", "ep", "tp-sp"])
def test_gradient_buckets_are_ready_then_launched_then_waited_for(layout: str) -> None:
    for rank in told()[layout]:
        assert [("FIRST_BATCH" in flags) for flags in rank["flags"]] == [True, False, False, False]
        found = collectives(rank, what="BUCKET")
        groups = {row["owner"] for row in found}
        assert Counter(row["owner"] for row in found) == dict.fromkeys(groups, 2)
        if layout != "vpp":  # the virtual stages have one bucket each
            assert len(groups) == int(rank["facts"]["megatron bucket groups"])
        for row in found:
            ready, launch, *_ = row["times"]
            assert 0 < ready <= launch
            assert row["cause"]  # the parameter that came last
            assert row["phase"] == "BACKWARD"
            elements, size, dtype = rank["names"][row["owner"]]
            assert row["bytes"] == size == elements * 4
            assert dtype == "float32"
            mine = waits(rank, owner=row["owner"], step=row["step"])
            assert len(mine) == 1
            assert mine[0]["times"][2] > launch
            assert mine[0]["collective"] == row["collective"]


def test_the_finish_of_an_asynchronous_reduce_scatter_is_not_guessed() -> None:
    for rank in told()["dp-distopt"]:
        for row in collectives(rank, collective="REDUCE_SCATTER"):
            assert row["times"][3] == 0
            assert row["flags"] == ["FINISH_UNOBSERVABLE"]


def test_parameters_come_back_in_order() -> None:
    for rank in told()["dp-distopt"]:
        for step in (2, 3):
            found = collectives(rank, collective="ALL_GATHER", step=step)
            assert [row["owner"] for row in found] == [
                f"bucket group {number}, parameters" for number in range(len(found) - 1, -1, -1)
            ]
            causes = ["", *(row["owner"] for row in found[:-1])]
            assert [row["cause"] for row in found] == causes
            assert ["PREFETCHED" in row["flags"] for row in found] == [bool(c) for c in causes]
            assert {row["phase"] for row in found} == {"FORWARD"}
            assert [row["owner"] for row in waits(rank, collective="ALL_GATHER", step=step)] == [
                row["owner"] for row in found
            ]


def test_without_overlap_the_calls_wait() -> None:
    for rank in told()["dp-no-overlap"]:
        assert not any("FIRST_BATCH" in flags for flags in rank["flags"])
        (gradients,) = collectives(rank, what="BUCKET", step=2)
        (wait,) = waits(rank, owner=gradients["owner"], step=2)
        assert (
            gradients["times"][3] > gradients["times"][1]
        )  # a synchronous call returns when it is over
        assert "FINISH_UNOBSERVABLE" not in gradients["flags"]
        assert wait["times"][2] >= gradients["times"][1]
        assert wait["phase"] == gradients["phase"] == "BACKWARD"
        (parameters,) = collectives(rank, collective="ALL_GATHER", step=2)
        assert parameters["phase"] == "OPTIMIZER"
        end = next(row for row in rank["rows"] if row["kind"] == "STEP" and row["step"] == 2)
        assert parameters["times"][3] <= end["times"][3]


COLUMN = {
    f"decoder.layers.{n}.{part}"
    for n in range(2)
    for part in ("self_attention.linear_qkv", "mlp.linear_fc1")
}
ROW = {
    f"decoder.layers.{n}.{part}"
    for n in range(2)
    for part in ("self_attention.linear_proj", "mlp.linear_fc2")
}


def test_sequence_parallel_layers() -> None:
    micro = 2
    for rank in told()["tp-sp"]:
        for layer in COLUMN | {"output_layer"}:
            mine = Counter(
                (r["phase"], r["collective"]) for r in collectives(rank, owner=layer, step=2)
            )
            assert mine == {
                ("FORWARD", "ALL_GATHER"): micro,
                ("BACKWARD", "ALL_GATHER"): micro,
                ("BACKWARD", "REDUCE_SCATTER"): micro,
            }
            for kind in ("ALL_GATHER", "REDUCE_SCATTER"):
                assert (
                    len(waits(rank, owner=layer, collective=kind, phase="BACKWARD", step=2))
                    == micro
                )
        for layer in ROW:
            mine = Counter(
                (r["phase"], r["collective"]) for r in collectives(rank, owner=layer, step=2)
            )
            assert mine == {("FORWARD", "REDUCE_SCATTER"): micro, ("BACKWARD", "ALL_GATHER"): micro}
            for row in collectives(rank, owner=layer, phase="FORWARD"):
                assert "SYNCHRONOUS" in row["flags"]
                assert row["times"][3] > row["times"][1]  # stamped on return


def test_tensor_parallel_layers_without_sequence_parallelism() -> None:
    for rank in told()["tp"]:
        for layer in COLUMN | {"output_layer"}:
            (first, second) = collectives(rank, owner=layer, step=2, phase="BACKWARD")
            assert {first["collective"], second["collective"]} == {"ALL_REDUCE"}
            pairs = zip((first, second), waits(rank, owner=layer, step=2), strict=True)
            for row, wait in pairs:
                assert row["times"][1] <= wait["times"][2]
                assert wait["collective"] == "ALL_REDUCE"


def test_a_recomputed_forward_belongs_to_its_layers_and_to_backward() -> None:
    for rank in told()["recompute"]:
        for layer in COLUMN:
            mine = Counter(
                (r["phase"], r["collective"]) for r in collectives(rank, owner=layer, step=2)
            )
            assert mine[("FORWARD", "ALL_GATHER")] == 2
            assert mine[("BACKWARD", "ALL_GATHER")] == 4
        phases = [row for row in rank["rows"] if row["kind"] == "PHASE" and row["step"] == 2]
        assert Counter(row["phase"] for row in phases) == {
            "FORWARD": 2,
            "BACKWARD": 2,
            "OPTIMIZER": 1,
        }


def test_pipeline_exchanges_have_a_direction_and_a_wait() -> None:
    micro = 4
    for number, rank in enumerate(told()["pp"]):
        found = collectives(rank, owner="pipeline", step=2)
        assert Counter(row["phase"] for row in found) == {"FORWARD": micro, "BACKWARD": micro}
        assert waits(rank, owner="pipeline", step=2)
        if number == 1:  # the last stage begins by waiting for the first
            step = next(row for row in rank["rows"] if row["kind"] == "STEP" and row["step"] == 2)
            first = waits(rank, owner="pipeline", step=2)[0]
            forward = next(
                row for row in rank["rows"] if row["kind"] == "PHASE" and row["step"] == 2
            )
            assert step["times"][2] <= first["times"][2] < forward["times"][2]
            assert rank["facts"]["megatron pipeline rank"] == "1"
            assert rank["facts"]["megatron bucket groups"] == "1"
    for rank in told()["vpp"]:
        assert {row["phase"] for row in waits(rank, owner="pipeline")} == {"FORWARD", "BACKWARD"}


def test_experts_exchange_by_layer() -> None:
    micro = 2
    for rank in told()["ep"]:
        for layer in range(2):
            for what, calls in (("dispatch", 2), ("combine", 1)):
                name = f"decoder.layers.{layer}.mlp: {what}"
                mine = Counter(
                    (r["phase"], r["collective"]) for r in collectives(rank, owner=name, step=2)
                )
                assert mine == {
                    ("FORWARD", "ALL_TO_ALL"): calls * micro,
                    ("BACKWARD", "ALL_TO_ALL"): calls * micro,
                }
        assert any(
            row["owner"].startswith("expert bucket group")
            for row in collectives(rank, what="BUCKET")
        )


def test_context_parallel_exchanges_by_layer() -> None:
    """Each mixer sends five parts of its input across the ranks of a sequence and takes one back, and so in backward."""
    micro = 2
    for rank in told()["cp"]:
        assert rank["facts"]["megatron context_parallel_size"] == "2"
        for layer in range(2):
            found = collectives(rank, owner=f"decoder.layers.{layer}.mixer", step=2)
            assert Counter((r["phase"], r["collective"]) for r in found) == {
                ("FORWARD", "ALL_TO_ALL"): 6 * micro,
                ("BACKWARD", "ALL_TO_ALL"): 6 * micro,
            }
            assert {row["ranks"] for row in found} == {2}
            for row in found:
                assert "SYNCHRONOUS" in row["flags"]
                assert row["times"][3] > row["times"][1]


def test_megatron_fsdp_is_told_by_kind_and_phase() -> None:
    for rank in told()["fsdp"]:
        assert rank["facts"]["megatron wrapper"] == "megatron-fsdp"
        for step in (2, 3):
            found = collectives(rank, step=step, ranks=2)
            mine = Counter((row["phase"], row["collective"]) for row in found)
            assert mine["FORWARD", "ALL_GATHER"] > 0
            assert mine["BACKWARD", "REDUCE_SCATTER"] > 0
            assert {row["phase"] for row in found} == {"FORWARD", "BACKWARD"}
            for row in found:
                if row["phase"] == "BACKWARD":
                    assert row["owner"] == "GPTModel"


def test_the_example_runs(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "megatron" / "pretrain_gpt_watch.py"
    options = ["--steps", "4", "--width", "32", "--layers", "2", "--log-dir", str(tmp_path)]
    # Its decorators would import a compiler that it does not use here.
    env = {"TORCHDYNAMO_DISABLE": "1"}
    result = jobs.run_ranks(path, 2, args=["--tensor", "2", *options], env=env).check()
    assert "final loss" in result.ranks[0].stdout
    assert len(list(tmp_path.glob("*.owlog"))) == 2

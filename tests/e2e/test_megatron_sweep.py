"""Megatron's settings tried in real running jobs: results keep their bits, and what was set comes back.

One job runs every case of `megatron_sweep_job` in turn, other releases the largest of them; the tests look at what it
told: what Megatron had in force in each step, and which collectives each step sent.
"""

import functools
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.megatron_releases import where
from tests.support.told_by_ranks import Ranks, Told

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
    ),
]

JOB = Path(__file__).with_name("megatron_sweep_job.py")
CASES = ("everything", "evaluates", "aligned", "breaks", "experts")
REFUSED = ("dp", "dp-no-overlap")


@functools.cache
def told(release: str = "") -> "Ranks":
    """Run the cases on two ranks; return, by case, what each rank told."""
    names = ("everything",) if release else (*CASES, *REFUSED)
    env = {"PYTHONPATH": str(where(release))} if release else {}
    result = jobs.run_ranks(JOB, 2, args=names, timeout_s=280, env=env)
    found: dict[str, list[Told]] = {}
    for rank in result.ranks:
        for line in rank.stdout.splitlines():
            one = json.loads(line)
            found.setdefault(one["case"], []).append(one)
    return Ranks(found, result.ranks)


def check_sound(rank: Told) -> None:
    assert rank["equal"]
    assert rank["active"]
    assert rank["states"][-1] == rank["states"][0] == rank["untouched"]


def settled(rank: Told, **wanted: Any) -> list[Mapping[str, int]]:
    """Return what was sent in each step in which, as in the step before it, these values were in force."""
    states = rank["states"]
    return [
        one["collectives"]
        for one in rank["by step"]
        if 1 < one["step"] <= len(states)
        and all(
            states[place][name] == value
            for place in (one["step"] - 1, one["step"] - 2)
            for name, value in wanted.items()
        )
    ]


def sent(collectives: Mapping[str, int], kind: str) -> dict[str, int]:
    """Return the collectives of a kind that have an owner, by owner."""
    words = {name: count for name, count in collectives.items() if name.startswith(f"{kind} ")}
    return {
        name.removeprefix(f"{kind} "): count for name, count in words.items() if "group" in name
    }


@pytest.mark.parametrize("case", CASES)
def test_results_keep_their_bits_and_the_setting_comes_back(case: str) -> None:
    for rank in told()[case]:
        check_sound(rank)
        if case != "breaks":
            assert rank["because"] == ""
            assert rank["heard"] == []


def check_everything(rank: Told) -> None:
    check_sound(rank)
    assert rank["names"] == [
        "as it was",
        "overlap_grad_reduce off",
        "overlap_param_gather off",
        "merge_bucket_groups 2 as one",
        "merge_bucket_groups 100 as one",
    ]
    states = rank["states"]
    count = len(states[0]["buckets"][0])
    assert count == 4
    alone = {f"bucket group {number}": 1 for number in range(count)}
    gathered = {f"{name}, parameters": 1 for name in alone}
    merged = {"bucket groups 0 to 1": 1, "bucket groups 2 to 3": 1}
    # Each setting was in force on its own, in whole blocks.
    for off, on in (("gradients", "parameters"), ("parameters", "gradients")):
        steps = settled(rank, **{off: [False], on: [True], "buckets": [[1, 1, 1, 1]]})
        assert len(steps) >= 3
        for step in steps:
            assert sent(step, "REDUCE_SCATTER") == alone
            assert sent(step, "ALL_GATHER") == gathered
    for parameters in (True, False):
        assert all(
            state["hooks"] == [parameters]
            for state in states
            if state["parameters"] == [parameters]
        )
    steps = settled(rank, buckets=[[2, 2]])
    assert len(steps) >= 3
    for step in steps:
        assert sent(step, "REDUCE_SCATTER") == merged
        assert sent(step, "ALL_GATHER") == {f"{name}, parameters": 1 for name in merged}
    steps = settled(rank, buckets=[[4]])
    assert len(steps) >= 3
    for step in steps:
        assert sent(step, "REDUCE_SCATTER") == {"bucket groups 0 to 3": 1}
    # No change sends a collective of its own.
    for one in rank["by step"]:
        assert sum(sent(one["collectives"], "REDUCE_SCATTER").values()) <= count
        assert sum(sent(one["collectives"], "ALL_GATHER").values()) <= 2 * count


def test_each_setting_takes_effect() -> None:
    for rank in told()["everything"]:
        check_everything(rank)
        assert "keep their bits" in rank["table"]
        assert "sweep: merge_bucket_groups 2 as one from step" in " ".join(rank["notes"])


@pytest.mark.parametrize("release", ["0.10.0", "0.17.1"])
def test_other_releases(release: str) -> None:
    if where(release) is None:
        pytest.skip(f"megatron-core {release} has not been fetched (scripts/fetch_megatron)")
    for rank in told(release)["everything"]:
        check_everything(rank)


def test_a_loop_that_evaluates_sees_the_parameters_it_would_have_seen() -> None:
    for rank in told()["evaluates"]:
        assert rank["evaluated alike"]
        assert rank["evaluations"] == rank["steps"]
        off = [state for state in rank["states"] if state["parameters"] == [False]]
        assert off
        for state in off:
            assert state["attributes"] == [["disable_forward_pre_hook", "enable_forward_pre_hook"]]


def test_a_schedule_that_launches_does_not_reduce_twice() -> None:
    for rank in told()["aligned"]:
        states = rank["states"]
        assert [False, False] in [state["gradients"] for state in states]
        for state in states:
            assert state["schedule"] == state["gradients"]
        for step in settled(rank, gradients=[False, False]):
            assert set(sent(step, "REDUCE_SCATTER").values()) == {1}


def test_bucket_groups_of_experts_are_merged_among_themselves() -> None:
    for rank in told()["experts"]:
        steps = settled(rank, buckets=[[2, 2, 2]])
        assert len(steps) >= 3
        for step in steps:
            assert sent(step, "ALL_REDUCE") == {
                "bucket groups 0 to 1": 1,
                "expert bucket groups 0 to 1": 1,
                "expert bucket groups 2 to 3": 1,
            }


def test_what_fails_is_told_and_the_setting_is_back() -> None:
    for rank in told()["breaks"]:
        assert rank["because"] == "RuntimeError: no such groups today"
        assert [[2, 2]] in [state["buckets"] for state in rank["states"]]
    assert told()["breaks"][0]["heard"] == [
        "the sweep ended early: RuntimeError: no such groups today"
    ]


def test_what_cannot_be_changed_says_why() -> None:
    for rank in told()["dp-no-overlap"]:
        gradients, parameters, merging = rank["said"]
        assert gradients.startswith(
            "overlap_grad_reduce cannot be switched on in a job that was started without it: Megatron then makes one"
        )
        assert parameters.startswith(
            "overlap_param_gather cannot be switched on in a job that was started without it"
        )
        assert merging == (
            "merge_bucket_groups cannot be changed in this running job: there is one bucket group, so there is nothing "
            "to merge; a smaller bucket_size makes more"
        )
    for rank in told()["dp"]:
        parameters, gradients, merging, other = rank["said"]
        assert "the distributed optimizer only" in parameters
        assert gradients == "overlap_grad_reduce='off': it is True or False"
        assert merging.startswith("merge_bucket_groups=0: it is how many")
        assert other.endswith(
            "it has: overlap_grad_reduce, overlap_param_gather, merge_bucket_groups"
        )

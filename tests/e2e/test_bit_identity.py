"""Training is the same to the last bit with and without a watch, and the watch saw all of it.

One job for each number of ranks runs every training of `tests.support.training` in turn (see `bit_identity_job`); the
tests look at what it told. A watch that had silently turned itself off would leave the bits alone too, so each test
that finds them equal also compares what was seen with what the process group counted and what DDP says of itself.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from overlapwatch.vocabulary import StepFlag
from tests.support import jobs
from tests.support.training import CASES, WORLDS, Case

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("bit_identity_job.py")
PAIRS = [
    pytest.param(world, name, id=f"{name}-{world}")
    for name, case in CASES.items()
    for world in case.worlds
]


@functools.cache
def outcomes(world: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Run everything on `world` ranks; return, by case and mode, what each rank told."""
    names = [name for name, case in CASES.items() if world in case.worlds]
    result = jobs.run_ranks(JOB, world, args=names, timeout_s=280)
    told: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rank in result.ranks:
        for line in rank.stdout.splitlines():
            one = json.loads(line)
            told.setdefault((one["case"], one["mode"]), []).append(one)
    if not told:
        result.check()
    told["", "stderr"] = [{"text": rank.stderr} for rank in result.ranks]
    return told


def outcome(world: int, name: str, mode: str) -> list[dict[str, Any]]:
    """Return what each rank told of one training, which must not have raised."""
    told = outcomes(world)
    for rank in told.get((name, "none"), ()):
        assert "raised" not in rank, rank["raised"]
    ranks = told.get((name, mode), [])
    missing = "".join(rank["text"][-3000:] for rank in told["", "stderr"])
    assert len(ranks) == world, f"not told by every rank:\n{missing}"
    return ranks


@pytest.mark.parametrize(("world", "name"), PAIRS)
def test_passive_mode_leaves_every_bit_and_sees_everything(world: int, name: str) -> None:
    truths = outcome(world, name, "none")
    for truth, told in zip(truths, outcome(world, name, "passive"), strict=True):
        check_undisturbed(told)
        seen = told["seen"]
        assert seen["collectives"] == truth["counted"]
        check_seen(CASES[name], truth, seen)
        if CASES[name].payload != "other":
            check_buckets(CASES[name], truth, seen, CASES[name].payload)


@pytest.mark.parametrize(
    ("world", "name"), [p for p in PAIRS if CASES[str(p.values[1])].hook_mode != "not run"]
)
def test_hook_mode_leaves_every_bit_or_says_why_not(world: int, name: str) -> None:
    case = CASES[name]
    truths = outcome(world, name, "none")
    for truth, told in zip(truths, outcome(world, name, "hook"), strict=True):
        if case.hook_mode == "refuses" or (case.hook_mode == "refuses or watches" and world == 3):
            assert "mode='passive'" in told["refused"]
            assert "\n" not in told["refused"]
            assert told["leftovers"] == []
            continue
        check_undisturbed(told, gives_way=case.hook_mode == "gives way")
        if case.hook_mode != "gives way":
            check_seen(case, truth, told["seen"])
            # The hook is handed the bucket before a user's hook makes it smaller.
            check_buckets(case, truth, told["seen"], "full")


def check_undisturbed(told: dict[str, Any], *, gives_way: bool = False) -> None:
    """The bits are equal, nobody complained, and nothing is left of us."""
    assert told["identical"]
    assert told["leftovers"] == []
    assert told["python_warnings"] == []
    assert told["active"] is not gives_way
    assert len(told["logged"]) == (1 if gives_way else 0), told["logged"]
    if gives_way:
        assert "training is not affected" in told["logged"][0]


def check_seen(case: Case, truth: dict[str, Any], seen: dict[str, Any]) -> None:
    """Every step was seen, in order, whole, and its sums close."""
    steps = len(truth["counted"])
    assert seen["steps"] == seen["summarised"] == list(range(1, steps + 1))
    assert seen["disorder"] == []
    assert seen["open_sums"] == []
    assert seen["damage"] == []
    assert seen["end"] == "closed"
    assert seen["counters"]["records_lost"] == 0
    kept = StepFlag.EVENTS_KEPT.name
    for step, flags in zip(range(steps), seen["flags"], strict=True):
        said = {"u": ["UNBUCKETED"], "r": ["REBUILT"], "-": []}
        expected = said.get(letter_of(case.flags, step))
        if expected is not None:
            accumulating = [StepFlag.ACCUMULATING.name] if case.accumulating else []
            assert flags == sorted([*expected, *accumulating, kept], key=position), step
    phases = ["BACKWARD", "FORWARD"] if case.fused else ["BACKWARD", "FORWARD", "OPTIMIZER"]
    assert seen["phases"] == [phases] * steps


def check_buckets(case: Case, truth: dict[str, Any], seen: dict[str, Any], payload: str) -> None:
    """Each bucket of a step was reduced once, by its name, with all its parameters in it."""
    final = sum(truth["ddp_buckets"])
    last = 0
    for step, found in enumerate(seen["buckets"]):
        letter = letter_of(case.buckets, step)
        if letter != ".":
            count = final if letter == "n" else int(letter)
            joined_early = step == len(seen["buckets"]) - 1 and case.uneven
            assert found == count or (joined_early and found > count), step
            assert set(seen["owners"][step].values()) <= {1} or joined_early, step
        last = max(last, found)
    assert last >= final
    assert seen["payload"]
    assert set(seen["payload"]) == {payload}


def letter_of(text: str, step: int) -> str:
    """Return the letter for a step (from 0); the last one stands for all that follow."""
    return text[min(step, len(text) - 1)]


def position(name: str) -> int:
    return StepFlag[name].value


@pytest.mark.parametrize("world", WORLDS)
def test_the_jobs_print_nothing_of_ours(world: int) -> None:
    told = outcomes(world)
    for rank in told["", "stderr"]:
        lines = [line for line in rank["text"].splitlines() if "overlapwatch" in line]
        gave_way = [line for line in lines if line.startswith("overlapwatch turned itself off")]
        assert lines == gave_way

"""FSDP2 trains the same to the last bit with and without a watch, and the watch saw all of it.

One job for each number of ranks runs every training of `tests.support.fsdp2_training` in turn (see `fsdp2_job`). A watch
that had silently turned itself off would leave the bits alone too, so each test also compares what was seen with what
the process groups counted, and some with the whole story of a step.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from overlapwatch.vocabulary import StepFlag
from tests.support import jobs
from tests.support.fsdp2_training import CASES

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("fsdp2_job.py")
PAIRS = [
    pytest.param(world, name, id=f"{name}-{world}")
    for name, case in CASES.items()
    for world in case.worlds
]


@functools.cache
def outcomes(world: int) -> dict[str, list[dict[str, Any]]]:
    """Run everything on `world` ranks; return, by case, what each rank told."""
    names = [name for name, case in CASES.items() if world in case.worlds]
    result = jobs.run_ranks(JOB, world, args=names, timeout_s=200)
    told: dict[str, list[dict[str, Any]]] = {}
    for rank in result.ranks:
        for line in rank.stdout.splitlines():
            one = json.loads(line)
            told.setdefault(one["case"], []).append(one)
    if not told:
        result.check()
    told[""] = [{"text": rank.stderr} for rank in result.ranks]
    return told


@pytest.mark.parametrize(("world", "name"), PAIRS)
def test_every_bit_is_left_and_everything_is_seen(world: int, name: str) -> None:
    case = CASES[name]
    ranks = outcomes(world).get(name, [])
    missing = "".join(rank["text"][-3000:] for rank in outcomes(world)[""])
    assert len(ranks) == world, f"not told by every rank:\n{missing}"
    for told in ranks:
        assert "raised" not in told, told["raised"]
        assert told["identical"]
        assert told["leftovers"] == []
        assert told["same shape"]
        assert told["active"]
        assert len(told["logged"]) == bool(case.says), told["logged"]
        assert case.says in "".join(told["logged"])
        if not case.compiled:
            assert told["python_warnings"] == []
        check_seen(name, told["counted"], told["seen"])


def check_seen(name: str, counted: list[int], seen: dict[str, Any]) -> None:
    """Every step was seen, in order, whole, with every collective in it and whose it is."""
    case = CASES[name]
    assert seen["steps"] == list(range(1, len(counted) + 1))
    assert seen["collectives"] == counted
    assert bool(seen["unowned"]) == case.unowned, seen["last step"]
    assert seen["phases"] == [["BACKWARD", "FORWARD", "OPTIMIZER"]] * len(counted)
    assert seen["disorder"] == []
    assert (seen["lost"], seen["unobservable"], seen["unfinished"]) == (0, 0, 0)
    assert (seen["end"], seen["damage"]) == ("closed", [])
    accumulating = [StepFlag.ACCUMULATING.name] if case.accumulating else []
    said = {"u": [StepFlag.UNBUCKETED.name], "r": [StepFlag.REBUILT.name], "-": []}
    for step, flags in enumerate(seen["flags"]):
        of_ddp = said[case.flags[min(step, len(case.flags) - 1)]]
        assert flags == [*of_ddp, *accumulating, StepFlag.EVENTS_KEPT.name]
    if case.trace is not None:
        assert seen["last step"] == in_one_line(case.trace)


def in_one_line(trace: str) -> str:
    """Bring a trace from the table of cases into the form in which the job tells it."""
    lines = [line.strip() for line in trace.strip().splitlines()]
    told: list[str] = []
    for line in lines:
        first, _, rest = line.partition(" ")
        if first in ("forward", "backward", "other"):
            told.append(f"{first}: {rest.strip()}")
        else:
            told[-1] += f"; {line}"
    return " / ".join(told)


@pytest.mark.parametrize(
    "world", sorted({world for case in CASES.values() for world in case.worlds})
)
def test_the_jobs_print_nothing_of_ours(world: int) -> None:
    for rank in outcomes(world)[""]:
        lines = [line for line in rank["text"].splitlines() if "overlapwatch" in line]
        assert all(
            any(case.says and case.says in line for case in CASES.values()) for line in lines
        )

"""`overlapwatch compare` as typed, on profiles, and on what makes no sense."""

import json
from pathlib import Path

import pytest

from overlapwatch.commands import main

DATA = Path(__file__).parents[1] / "data" / "kineto"
FIRST, SECOND = (str(DATA / f"gloo_ddp_rank{rank}of2.json.gz") for rank in (0, 1))


def test_two_profiles_side_by_side(capsys):
    assert main(["compare", FIRST, SECOND, "--width", "60"]) == 0
    text = capsys.readouterr().out
    assert "too few steps" in text
    assert max(map(len, text.splitlines())) <= 60
    assert main(["compare", FIRST, SECOND, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    (one,) = told["comparisons"]
    assert one["step"]["verdict"] == "not distinguishable"
    assert one["base"] == FIRST


def test_profiles_of_different_jobs_are_told_apart(capsys):
    other = str(DATA / "a100_dlrm_rank3of8.json.gz")
    assert main(["compare", FIRST, other, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert any("ranks against" in why for why in one["different_jobs_because"])
    assert one["numbers"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([FIRST], "name two runs"),
        ([FIRST, "no/such/run"], "no such file or directory"),
        ([FIRST, SECOND, "--step", "9:2"], "the first step lies after the last"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments, says, capsys):
    assert main(["compare", *arguments]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1

"""`overlapwatch whatif` as typed: the worked example, JSON, and one sentence for what makes no sense."""

import json

import pytest

from overlapwatch.commands import main


def test_the_worked_example_as_text_and_json(capsys):
    command = ["whatif", "--compute-ms", "2,2,2", "--communication-ms", "4,4,4"]
    assert main([*command, "--width", "60"]) == 0
    text = capsys.readouterr().out
    assert "overlapped  14.0 ms" in text
    assert "serial      18.0 ms" in text
    assert max(map(len, text.splitlines())) <= 60
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["two_engines"]["tail_ns"] == 8_000_000
    assert [block["start_ns"] for block in told["two_engines"]["blocks"]] == [
        2_000_000,
        6_000_000,
        10_000_000,
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a run, or give both"),
        (["run", "--compute-ms", "1"], "not both"),
        (["--compute-ms", "1"], "need both"),
        (["--compute-ms", "1,x", "--communication-ms", "1,1"], "'x' is not a time in ms"),
        (["--compute-ms", "1,1", "--communication-ms", "1"], "there are 1 and 2"),
        (["run", "--bucket-cap-mb", "5,0"], "0 is not positive"),
        (["run", "--bucket-cap-mb", "five"], "'five' is not a number of MiB"),
        (["run", "--latency-us", "5"], "both --latency-us and --gb-per-s"),
        (["run", "--latency-us", "5", "--gb-per-s", "0"], "must be positive"),
        (["run", "--rank", "1,2"], "one rank is told at a time"),
        (["no/such/run"], "no such file or directory"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments, says, capsys):
    assert main(["whatif", *arguments]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1

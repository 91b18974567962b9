"""`overlapwatch ranks` as a user meets it: logs in a directory, filters, JSON, and inputs that do not fit together."""

import json

import pytest

from overlapwatch.commands import main
from tests.reports.recordings import Job

DOES_NOT_KNOW = "one rank alone cannot tell"


def words(text):
    return " ".join(text.split())


@pytest.fixture
def run(tmp_path):
    for rank in (0, 1):
        Job(rank=rank, steps=12).write_log(tmp_path)
    return tmp_path


def test_a_run_directory(run, capsys):
    assert main(["ranks", str(run)]) == 0
    printed = words(capsys.readouterr().out)
    assert "compared 2 ranks matched 36 collectives" in printed
    assert "no rank is late: in 12 of 12 steps" in printed
    assert "books close" in printed


def test_steps_and_ranks_can_be_chosen(run, capsys):
    assert main(["ranks", str(run), "--step", "3:5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["across_ranks"]["matched"]["collectives"] == 9
    assert main(["ranks", str(run), "--rank", "1"]) == 0
    assert DOES_NOT_KNOW in words(capsys.readouterr().out)
    assert main(["ranks", str(run), "--rank", "7"]) == 2
    assert "no rank 7" in capsys.readouterr().err


def test_logs_named_one_by_one_are_the_same(run, capsys):
    main(["ranks", str(run), "--json"])
    directory = json.loads(capsys.readouterr().out)
    main(["ranks", *map(str, sorted(run.glob("*.owlog"))), "--json"])
    named = json.loads(capsys.readouterr().out)
    assert named == directory


def test_a_log_that_cannot_be_read_does_not_stop_the_others(run, capsys):
    broken = run / "broken.txt"
    broken.write_text("nothing")
    logs = sorted(map(str, run.glob("*.owlog")))
    assert main(["ranks", *logs, str(broken)]) == 0
    assert "left out: " in capsys.readouterr().out


def test_what_is_not_there_is_one_sentence(tmp_path, capsys):
    assert main(["ranks", str(tmp_path / "nowhere")]) == 2
    assert "there is no such file or directory" in capsys.readouterr().err


def test_it_can_be_written_to_a_file(run, tmp_path, capsys):
    target = tmp_path / "ranks.txt"
    assert main(["ranks", str(run), "--output", str(target), "--width", "60"]) == 0
    assert capsys.readouterr().out == ""
    assert max(map(len, target.read_text(encoding="utf-8").splitlines())) <= 60


def test_the_report_has_the_section(run, capsys):
    assert main(["report", str(run)]) == 0
    assert "Across ranks ─" in capsys.readouterr().out
    assert main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["across_ranks"]["matched"]["collectives"] == 36

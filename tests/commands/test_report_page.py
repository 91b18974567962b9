import json
import os
import re

import pytest

from overlapwatch.commands import main
from tests.reports.recordings import Job


@pytest.fixture
def run_dir(tmp_path):
    """Two ranks of eight steps."""
    directory = tmp_path / "run"
    directory.mkdir()
    for rank in (0, 1):
        Job(rank=rank).write_log(directory)
    return directory


def data_in(path) -> dict:
    (inside,) = re.findall(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    return json.loads(inside)


def test_a_page_of_a_run(run_dir, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert main(["report", str(run_dir), "--html", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"written to {out}\n"
    data = data_in(out)
    assert [one["label"] for one in data["ranks"]] == ["rank 0", "rank 1"]
    assert len(data["lanes"]["steps"]) == 8
    assert data["title"] == f"{run_dir}: 2 files, 2 timelines"


def test_the_same_numbers_as_json(run_dir, tmp_path, capsys):
    out = tmp_path / "out.html"
    main(["report", str(run_dir), "--html", str(out)])
    capsys.readouterr()
    assert main(["report", str(run_dir), "--json"]) == 0
    report, data = json.loads(capsys.readouterr().out), data_in(out)
    for rank, timeline in zip(data["ranks"], report["timelines"], strict=True):
        assert rank["parts"] == timeline["partition"]
        assert rank["exposed"] == timeline["exposed"]
    assert data["across"]["waits"] == report["across_ranks"]["waits"]
    assert data["checks"] == report["closure"]


def test_several_inputs_and_a_selection(run_dir, tmp_path):
    logs = sorted(str(path) for path in run_dir.glob("*.owlog"))
    out = tmp_path / "out.html"
    assert main(["report", *logs, "--step", "3:4", "--html", str(out)]) == 0
    data = data_in(out)
    assert sorted(one["step"] for one in data["lanes"]["steps"]) == [3, 4]
    assert data["lanes"]["together"]
    assert main(["report", *logs, "--rank", "1", "--html", str(out)]) == 0
    data = data_in(out)
    assert [one["label"] for one in data["ranks"]] == ["rank 1"]
    assert len(data["lanes"]["steps"]) == 8


def test_a_run_that_is_still_written(tmp_path):
    Job().write_log(tmp_path, end=False)
    out = tmp_path / "out.html"
    assert main(["report", str(tmp_path), "--html", str(out)]) == 0
    assert data_in(out)["alerts"]


def test_steps_without_communication(tmp_path):
    Job(blocks=(), sends=(), forward=5, optimizer=1).write_log(tmp_path)
    out = tmp_path / "out.html"
    assert main(["report", str(tmp_path), "--html", str(out)]) == 0
    data = data_in(out)
    assert len(data["lanes"]["steps"]) == 8
    assert all(
        not rank["sent"]["begin"] for step in data["lanes"]["steps"] for rank in step["ranks"]
    )


def test_one_event_of_a_profile(tmp_path):
    trace = tmp_path / "trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1000.0, "dur": 5.0, "pid": 0, "tid": 7,
              "args": {"device": 0, "stream": 7}}  # fmt: skip
    trace.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": [kernel]})
    )
    out = tmp_path / "out.html"
    assert main(["report", str(trace), "--html", str(out)]) == 0
    (step,) = data_in(out)["lanes"]["steps"]
    assert step["ranks"][0]["compute"]["length"] == [5000]


# -- what cannot be done is one sentence, before anything is read --------------------------------


def sentence(capsys, *arguments: str) -> str:
    assert main(["report", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


@pytest.mark.parametrize("other", [["--json"], ["--output", "x.txt"]])
def test_one_answer_at_a_time(run_dir, tmp_path, capsys, other):
    line = sentence(capsys, str(run_dir), "--html", str(tmp_path / "out.html"), *other)
    assert "choose one: --html FILE writes a page, --json and --output a report" in line
    assert not (tmp_path / "out.html").exists()


def test_no_such_directory(run_dir, tmp_path, capsys):
    out = tmp_path / "none" / "out.html"
    assert f"--html {out}: there is no directory {out.parent}" in sentence(
        capsys, str(run_dir), "--html", str(out)
    )


def test_a_directory_is_no_file(run_dir, tmp_path, capsys):
    assert "this is a directory; name a file in it" in sentence(
        capsys, str(run_dir), "--html", str(tmp_path)
    )


def test_a_file_that_may_not_be_written(run_dir, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.html"
    out.write_text("kept")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
    assert "cannot be written" in sentence(capsys, str(run_dir), "--html", str(out))
    assert out.read_text() == "kept"


def test_a_disk_that_is_full(run_dir, capsys):
    assert sentence(capsys, str(run_dir), "--html", "/dev/full").endswith(
        "--html /dev/full: No space left on device"
    )


def test_an_empty_directory(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    assert "holds nothing that can be read" in sentence(
        capsys, str(tmp_path / "run"), "--html", str(tmp_path / "out.html")
    )
    assert not (tmp_path / "out.html").exists()

"""`overlapwatch export`, as a user types it."""

import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.commands import inputs, main, subjects
from overlapwatch.commands.options import make_request
from overlapwatch.exports.tables import TABLES
from overlapwatch.log.frames import ClockPair, Events, Header, Names
from overlapwatch.log.writer import LogWriter
from overlapwatch.vocabulary import StepFlag
from tests.reports.recordings import BASE_NS, Job
from tests.support.trace_events import read_trace

ROOT = Path(__file__).parents[2]
KINETO = ROOT / "tests" / "data" / "kineto"
PARTS = (
    "window_ns",
    "compute_ns",
    "communication_ns",
    "overlap_ns",
    "communication_only_ns",
    "idle_ns",
)


@pytest.fixture
def run_dir(tmp_path):
    """Two ranks of eight steps."""
    directory = tmp_path / "run"
    directory.mkdir()
    for rank in (0, 1):
        Job(rank=rank).write_log(directory)
    return directory


def reported(capsys, *arguments: str) -> dict:
    assert main(["report", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def exported(capsys, *arguments: str) -> str:
    """What an export says on stderr."""
    assert main(["export", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def fails(capsys, *arguments: str) -> str:
    """The one sentence on stderr of a command that must end in code 2."""
    assert main(["export", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("overlapwatch: ")
    assert printed.err.count("\n") == 1
    return printed.err


# -- a trace -------------------------------------------------------------------------------------


def closes(trace: Path, report: dict) -> None:
    """The partition of each process of a trace is that of the report."""
    whole, processes = read_trace(trace)
    assert len(processes) == len(report["timelines"]) == len(whole["overlapwatch"])
    for process, told in zip(processes, report["timelines"], strict=True):
        back = partition(process.timeline(), process.window()).to_dict()
        assert {part: back[part] for part in PARTS} == {
            part: told["partition"][part] for part in PARTS
        }


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_run_as_a_trace(run_dir, tmp_path, capsys, name):
    target = tmp_path / name
    said = exported(capsys, str(run_dir), "--to", "perfetto", "--output", str(target))
    assert (
        said
        == f"written to {target}: 146 spans of 2 ranks; open it in ui.perfetto.dev or chrome://tracing\n"
    )
    assert target.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    closes(target, reported(capsys, str(run_dir)))
    whole, processes = read_trace(target)
    assert [one.name for one in processes] == ["rank 0, cpu, node-a", "rank 1, cpu, node-a"]
    assert whole["otherData"]["zero_ns"] == "1000000000"
    assert (whole["otherData"]["clocks"], whole["otherData"]["not aligned"]) == (
        "one clock",
        "none",
    )
    assert min(event["start"] for event in processes[0].spans) == 0


@pytest.mark.parametrize(
    "selection", [["--step", "2:4"], ["--rank", "1"], ["--trim", "0.01", "0.03"], ["--boundary", "contained"],
                  ["--phase", "backward"]],
)  # fmt: skip
def test_the_selection_is_that_of_the_report(run_dir, tmp_path, capsys, selection):
    target = tmp_path / "trace.json"
    exported(capsys, str(run_dir), "--to", "perfetto", "--output", str(target), *selection)
    closes(target, reported(capsys, str(run_dir), *selection))


def test_profiles(tmp_path, capsys):
    target = tmp_path / "trace.json"
    both = [str(KINETO / f"gloo_ddp_rank{rank}of2.json.gz") for rank in (0, 1)]
    exported(capsys, *both, "--to", "perfetto", "--output", str(target))
    closes(target, reported(capsys, *both))
    device = str(KINETO / "b200_multimem_rank0of8.json.gz")
    exported(capsys, device, "--to", "perfetto", "--output", str(target))
    closes(target, reported(capsys, device))
    _, (process,) = read_trace(target)
    assert any("nvjet" in one["name"] or "gemm" in one["name"] for one in process.of("compute"))
    assert process.of("annotations")


def test_ranks_of_two_hosts_are_aligned_by_the_ends_of_their_collectives(tmp_path, capsys):
    import tests.reports.recordings as module

    run = tmp_path / "run"
    run.mkdir()
    Job(rank=0).write_log(run)
    ahead = module.BASE_NS + 11_560_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BASE_NS", ahead)
        Job(rank=1).write_log(run, host="node-b")
    target = tmp_path / "trace.json"
    exported(capsys, str(run), "--to", "perfetto", "--output", str(target))
    whole, processes = read_trace(target)
    assert whole["otherData"]["clocks"] == "aligned by the ends of matched collectives"
    sends = [[one["start"] for one in process.of("communication")] for process in processes]
    assert sends[0] == sends[1]
    labels = [
        one["args"]["labels"] for one in processes[1].events if one["name"] == "process_labels"
    ]
    assert labels == ["clock aligned: +11,560,000,000 ns, ±0 ns (p95)"]
    directory = tmp_path / "tables"
    exported(capsys, str(run), "--to", "csv", "--output", str(directory))
    rows = list(csv.DictReader((directory / "timelines.csv").read_text().splitlines()))
    assert [row["clock_offset_ns"] for row in rows] == ["0", "11560000000"]


def test_clocks_that_cannot_be_aligned_are_said_and_begin_at_zero(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    Job(rank=0, steps=8).write_log(run)
    Job(rank=1, steps=1, blocks=(2,), sends=(1,)).write_log(run, host="node-b")
    target = tmp_path / "trace.json"
    exported(capsys, str(run), "--to", "perfetto", "--output", str(target))
    whole, processes = read_trace(target)
    assert whole["otherData"]["not aligned"] == "rank 1"
    assert min(one["start"] for one in processes[1].spans) == 0
    labels = [
        one["args"]["labels"] for one in processes[1].events if one["name"] == "process_labels"
    ]
    assert labels == ["its clock cannot be aligned: it begins at 0"]


def test_steps_without_events_are_said(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    job = Job(flags={3: StepFlag.SHADOW})
    job.write_log(run)
    target = tmp_path / "trace.json"
    said = exported(capsys, str(run), "--to", "perfetto", "--output", str(target))
    assert "no log of rank 1" not in said  # the report says that; here nothing is compared
    _, (process,) = read_trace(target)
    assert len(process.of("steps")) == 8


# -- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables(run_dir, tmp_path, capsys, form):
    directory = tmp_path / "tables"
    said = exported(capsys, str(run_dir), "--to", form, "--output", str(directory))
    assert said.startswith(
        f"written to {directory}: rows of timelines 2, steps 16, collectives 48, "
    )
    assert said.endswith("waits 48\n")
    assert {path.name for path in directory.iterdir()} == {f"{name}.{form}" for name in TABLES}


def test_one_table_to_stdout_or_to_a_file(run_dir, tmp_path, capsys):
    assert main(["export", str(run_dir), "--to", "csv", "--table", "collectives"]) == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 48
    assert {row["timeline"] for row in rows} == {"rank 0", "rank 1"}
    report = reported(capsys, str(run_dir))
    exposed = report["timelines"][0]["partition"]["communication_only_ns"]
    assert sum(int(row["exposed_ns"]) for row in rows if row["rank"] == "0") == exposed
    target = tmp_path / "one.csv.gz"
    exported(capsys, str(run_dir), "--to", "csv", "--table", "collectives", "--output", str(target))
    import gzip

    assert gzip.decompress(target.read_bytes()).decode() == text


def test_one_rank_alone_has_no_waits(run_dir, capsys):
    single = str(run_dir / "rank1-5f3a91c2.owlog")
    assert main(["export", single, "--to", "csv", "--table", "waits"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_json_is_that_of_the_report(run_dir, tmp_path, capsys):
    report = reported(capsys, str(run_dir))
    assert main(["export", str(run_dir), "--to", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    target = tmp_path / "report.json"
    assert (
        exported(capsys, str(run_dir), "--to", "json", "--output", str(target))
        == f"written to {target}\n"
    )
    assert json.loads(target.read_text()) == report


def test_numbers_that_do_not_add_up_are_exit_code_1(run_dir, tmp_path, monkeypatch):
    from overlapwatch.accounting import analyse as module

    real = module.partition
    monkeypatch.setattr(
        module, "partition", lambda *given: replace(real(*given), idle_ns=real(*given).idle_ns + 1)
    )
    assert main(["export", str(run_dir), "--to", "csv", "--output", str(tmp_path / "tables")]) == 1


# -- several files, many ranks -------------------------------------------------------------------


def test_files_are_read_one_after_the_other(run_dir, tmp_path, capsys, monkeypatch):
    opened = []
    real = inputs.open_trace
    monkeypatch.setattr(
        inputs,
        "open_trace",
        lambda path, **how: (opened.append(path.name[:5]), real(path, **how))[1],
    )
    exported(capsys, str(run_dir), "--to", "perfetto", "--output", str(tmp_path / "trace.json"))
    assert opened == ["rank0", "rank1", "rank0", "rank1"]
    opened.clear()
    one = str(run_dir / "rank0-5f3a91c2.owlog")
    exported(capsys, one, "--to", "perfetto", "--output", str(tmp_path / "trace.json"))
    assert opened == ["rank0"]


def test_what_cannot_be_read_is_left_out_and_said(run_dir, tmp_path, capsys):
    bad = tmp_path / "notes.owlog"
    bad.write_text("not a log at all")
    target = tmp_path / "trace.json"
    said = exported(capsys, str(run_dir), str(bad), "--to", "perfetto", "--output", str(target))
    assert f"note: left out: {bad}: " in said
    assert len(read_trace(target)[1]) == 2


def test_a_file_that_changes_in_between_is_one_sentence(run_dir, tmp_path, capsys, monkeypatch):
    real, calls = subjects.chosen_in, []

    def chosen_in(path, request):
        calls.append(path)
        return real(path, request) if len(calls) <= 2 else []

    monkeypatch.setattr(subjects, "chosen_in", chosen_in)
    target = tmp_path / "trace.json"
    assert "it is not what it was" in fails(
        capsys, str(run_dir), "--to", "perfetto", "--output", str(target)
    )
    assert list(tmp_path.iterdir()) == [run_dir]


def test_a_rank_that_is_partly_there(run_dir, tmp_path, capsys):
    target = tmp_path / "trace.json"
    said = exported(
        capsys, str(run_dir), "--rank", "1,5", "--to", "perfetto", "--output", str(target)
    )
    assert "note: these inputs hold no rank 5\n" in said


# -- what goes wrong -----------------------------------------------------------------------------


def test_what_is_asked_for_makes_no_sense(run_dir, tmp_path, capsys):
    run = str(run_dir)
    assert "--to perfetto needs --output: a file" in fails(capsys, run, "--to", "perfetto")
    assert "--to parquet needs --output: a directory" in fails(capsys, run, "--to", "parquet")
    assert "or a --table for stdout" in fails(capsys, run, "--to", "csv")
    assert "json has no tables" in fails(capsys, run, "--to", "json", "--table", "steps")
    sentence = fails(capsys, run, "--to", "csv", "--table", "stepps")
    assert "--table stepps: there is none; there are timelines, steps, collectives" in sentence
    target = str(tmp_path / "x.json")
    assert "--step takes" in fails(
        capsys, run, "--to", "perfetto", "--output", target, "--step", "x"
    )
    assert "no rank 7" in fails(capsys, run, "--to", "perfetto", "--output", target, "--rank", "7")
    assert "steps from 900" in fails(
        capsys, run, "--to", "perfetto", "--output", target, "--step", "900:"
    )
    assert not Path(target).exists()


def test_outputs_that_cannot_be_written(run_dir, tmp_path, capsys):
    run = str(run_dir)
    absent = str(tmp_path / "absent" / "x")
    for form in ("perfetto", "csv", "json"):
        assert f"--output {absent}: No such file or directory" in fails(
            capsys, run, "--to", form, "--output", absent
        )
    assert "it is a directory" in fails(capsys, run, "--to", "perfetto", "--output", str(tmp_path))
    file = tmp_path / "file"
    file.write_text("here")
    assert f"--output {file}: File exists" in fails(
        capsys, run, "--to", "csv", "--output", str(file)
    )
    assert file.read_text() == "here"


def test_an_input_is_not_written_over(run_dir, capsys):
    log = run_dir / "rank0-5f3a91c2.owlog"
    before = log.read_bytes()
    for given in (str(log), str(run_dir)):
        sentence = fails(capsys, given, "--to", "perfetto", "--output", str(log))
        assert "it is an input and would be overwritten" in sentence
    assert "it is an input" in fails(capsys, str(run_dir), "--to", "csv", "--output", str(run_dir))
    assert log.read_bytes() == before


def test_what_was_there_is_replaced_and_a_pipe_is_written_to(run_dir, tmp_path, capsys):
    target = tmp_path / "trace.json"
    target.write_text("old")
    exported(capsys, str(run_dir), "--to", "perfetto", "--output", str(target))
    read_trace(target)
    exported(capsys, str(run_dir), "--to", "perfetto", "--output", os.devnull)
    assert Path(os.devnull).is_char_device()


def test_a_run_in_which_nothing_happened_yet(tmp_path, capsys):
    path = tmp_path / "rank0-5f3a91c2.owlog"
    header = Header(
        0, 1, 0, "node-a", 4242, "5f3a91c2", ClockPair(1, 1), mode="passive", device="cpu"
    )
    LogWriter.to_file(path, header, 1 << 30).close("closed", {"steps": 0})
    target = tmp_path / "trace.json"
    sentence = fails(capsys, str(tmp_path), "--to", "perfetto", "--output", str(target))
    assert f"{path}: nothing was recorded" in sentence
    assert not target.exists()


def test_a_run_that_goes_on(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    job = Job(steps=3)
    clocks = ClockPair(BASE_NS, time.time_ns())  # older than this process it would be another's
    header = Header(
        0, 2, 0, os.uname().nodename, os.getpid(), "5f3a91c2", clocks, mode="passive", device="cpu"
    )
    writer = LogWriter.to_file(run / "rank0-5f3a91c2.owlog", header, 1 << 30)
    writer.write(Names(tuple(job.tables().values())))
    writer.write(Events(0, 2, 0, job.records()))
    writer.flush()
    target = tmp_path / "trace.json"
    said = exported(capsys, str(run), "--to", "perfetto", "--output", str(target))
    assert "note: rank 0 still runs: what it has recorded so far is exported\n" in said
    whole, _ = read_trace(target)
    assert whole["overlapwatch"]["rank 0"]["state"] == "running"


def test_the_flags_are_read_as_those_of_the_report():
    from overlapwatch.commands import make_parser

    flags = [
        "--step",
        "3:5",
        "--rank",
        "1",
        "--phase",
        "forward",
        "--comm-pattern",
        "ring",
        "--step-gap-ms",
        "9",
    ]
    asked = [
        make_request(make_parser().parse_args([verb, "x", *flags, *more]))
        for verb, more in (("report", []), ("export", ["--to", "json"]))
    ]
    assert asked[0] == asked[1]


def test_help_needs_neither_torch_nor_numpy_nor_rich():
    code = (
        "import sys; from overlapwatch.commands import main\n"
        "try: main(['export', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'rich', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "in full" not in done.stdout


def test_an_export_needs_no_torch(run_dir, tmp_path):
    code = (
        "import sys; from overlapwatch.commands import main\n"
        f"assert main(['export', {str(run_dir)!r}, '--to', 'perfetto', '--output', {str(tmp_path / 'x')!r}]) == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"

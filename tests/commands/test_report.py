import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from overlapwatch import commands
from overlapwatch.accounting.closure import Check
from overlapwatch.commands import main, report
from overlapwatch.commands.options import parse_numbers, parse_steps, parse_width
from overlapwatch.errors import ConfigurationError
from overlapwatch.vocabulary import StepFlag
from tests.reports.recordings import Job

ROOT = Path(__file__).parents[2]


def launch(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "overlapwatch", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **options,
    )  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    """Two ranks of eight steps."""
    for rank in (0, 1):
        Job(rank=rank).write_log(tmp_path)
    return tmp_path


# -- what was asked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (None, (None, None)),
        ("120", (120, 120)),
        ("100:200", (100, 200)),
        (":50", (None, 50)),
        ("50:", (50, None)),
        ("7:7", (7, 7)),
        (" 3 : 4 ", (3, 4)),
    ],
)
def test_steps(text, steps):
    assert parse_steps(text) == steps


@pytest.mark.parametrize(
    "text", ["", ":", "x", "1:x", "-1", "1:2:3", "1.5", "1e3", "٣", "99999999999"]
)
def test_steps_that_are_none(text):
    with pytest.raises(
        ConfigurationError, match=r"--step takes step numbers such as 120, 100:200, :50 or 50:"
    ):
        parse_steps(text)


def test_steps_in_the_wrong_order():
    with pytest.raises(ConfigurationError, match="the first step lies after the last"):
        parse_steps("9:3")


@pytest.mark.parametrize(
    ("text", "ranks"), [(None, None), ("3", (3,)), ("0,3", (0, 3)), (" 3, 3 ,1", (3, 1))]
)
def test_ranks(text, ranks):
    assert parse_numbers(text, "rank") == ranks


@pytest.mark.parametrize("text", ["", "a", "-1", "1,", "1;2", "all"])
def test_ranks_that_are_none(text):
    with pytest.raises(ConfigurationError, match="--rank takes ranks such as 3 or 0,3"):
        parse_numbers(text, "rank")


@pytest.mark.parametrize("text", ["", "0", "wide", "-5", "1001"])
def test_widths_that_are_none(text):
    with pytest.raises(ConfigurationError, match="--width takes a number of characters"):
        parse_width(text)


# -- what is printed -----------------------------------------------------------------------------


def test_a_run(run_dir, capsys):
    assert main(["report", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "2 ranks" in text
    assert "hidden: 66.7 % of communication (16.0 / 24.0 ms)" in text
    assert "books close" in text
    assert "\x1b" not in text


def test_one_log(run_dir, capsys):
    assert main(["report", str(run_dir / "rank1-5f3a91c2.owlog")]) == 0
    text = capsys.readouterr().out
    assert "2 ranks" not in text
    assert "1 of 2, node-a, pid 4242, cpu" in text


def test_a_step_and_a_rank(run_dir, capsys):
    assert main(["report", str(run_dir), "--rank", "1", "--step", "2:4"]) == 0
    text = capsys.readouterr().out
    assert "3 steps, 2 to 4: 3 in statistics" in text
    assert "rank1-5f3a91c2.owlog" in text
    assert "rank0-5f3a91c2.owlog" not in text


def test_ranks_that_are_partly_there(run_dir, capsys):
    assert main(["report", str(run_dir), "--rank", "1,5"]) == 0
    assert f"no rank 5 in {run_dir}" in " ".join(capsys.readouterr().out.split())


def test_the_boundary_rule(run_dir, capsys):
    assert main(["report", str(run_dir), "--boundary", "contained", "--width", "200"]) == 0
    assert "boundary: contained" in capsys.readouterr().out


def test_json(run_dir, capsys):
    assert main(["report", str(run_dir), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [one["rank"] for one in made["timelines"]] == [0, 1]
    first = made["inputs"][0]
    path = run_dir / "rank0-5f3a91c2.owlog"
    assert first["path"] == str(path)
    assert first["size_bytes"] == path.stat().st_size
    assert len(first["sha256_head"]) == 64
    assert made["timelines"][0]["partition"]["overlap_ns"] == 16_000_000


def test_output(run_dir, tmp_path, capsys):
    target = tmp_path / "report.txt"
    assert main(["report", str(run_dir), "--output", str(target), "--width", "70"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"written to {target}\n"
    lines = target.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "overlapwatch report"
    assert max(map(len, lines)) == 70


def test_a_job_that_was_killed(tmp_path, capsys):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    job = Job(flags={7: StepFlag.PARTIAL})
    job.write_log(tmp_path, end=False, host=os.uname().nodename, pid=process.pid)
    assert main(["report", str(tmp_path)]) == 0
    assert "rank 0 was killed" in capsys.readouterr().out.split("input")[0]


def test_a_damaged_log_is_read_as_far_as_it_can_be(run_dir, capsys):
    path = run_dir / "rank0-5f3a91c2.owlog"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert main(["report", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "left out:" in text
    assert "damaged or cut short" in text


def test_numbers_that_do_not_add_up_are_exit_code_1(run_dir, capsys, monkeypatch):
    from overlapwatch.commands import inputs as module

    real = module.analyse
    bad = (Check("four parts = window", 1, 2),)
    monkeypatch.setattr(
        module, "analyse", lambda *given, **how: replace(real(*given, **how), checks=bad)
    )
    assert main(["report", str(run_dir)]) == 1
    assert "DOES NOT ADD UP" in capsys.readouterr().out


# -- what goes wrong -----------------------------------------------------------------------------


def fails(capsys, *arguments: str) -> str:
    """The one sentence on stderr of a command that must end in code 2."""
    assert main(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("overlapwatch: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_nothing_there(tmp_path, capsys):
    assert "there is no such file or directory" in fails(capsys, "report", str(tmp_path / "absent"))


def test_an_empty_directory(tmp_path, capsys):
    assert "the directory holds nothing that can be read" in fails(capsys, "report", str(tmp_path))


def test_another_type_of_file(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("not a log at all")
    assert "notes.txt" in fails(capsys, "report", str(path))


def test_a_rank_that_is_not_there(run_dir, capsys):
    assert "no log of rank 7" in fails(capsys, "report", str(run_dir), "--rank", "7")
    single = str(run_dir / "rank1-5f3a91c2.owlog")
    assert "no rank 0 in it; it holds rank 1" in fails(capsys, "report", single, "--rank", "0")


def test_steps_that_are_not_there(run_dir, capsys):
    assert "steps from 900" in fails(capsys, "report", str(run_dir), "--step", "900:")


def test_an_output_that_cannot_be_written(run_dir, tmp_path, capsys):
    sentence = fails(capsys, "report", str(run_dir), "--output", str(tmp_path / "absent" / "x"))
    assert "No such file or directory" in sentence


def test_nonsense_is_refused_before_anything_is_read(capsys):
    assert "--step takes" in fails(capsys, "report", "absent", "--step", "soon")
    assert "--rank takes" in fails(capsys, "report", "absent", "--rank", "all")
    assert "--width takes" in fails(capsys, "report", "absent", "--width", "wide")


def test_an_unknown_verb_or_flag_is_exit_code_2(capsys):
    for arguments in (["reprot"], ["report"], ["report", "x", "--boundary", "soft"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_ctrl_c(run_dir, capsys, monkeypatch):
    def interrupted(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "run", interrupted)
    assert main(["report", str(run_dir)]) == 130
    assert capsys.readouterr().err == "overlapwatch: interrupted\n"


# -- the process ---------------------------------------------------------------------------------


def test_without_arguments_it_explains_itself(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "overlapwatch report runs/a --json" in text
    assert "overlapwatch.watch(model" in text


def test_every_verb_is_a_module_with_both_functions():
    verbs = [command.__name__.rpartition(".")[2] for command in commands.COMMANDS]
    assert verbs == ["report", "top", "ranks", "order", "compare", "whatif", "export"]
    for command in commands.COMMANDS:
        assert callable(command.run)
        assert callable(command.add_parser)


def test_version():
    done = launch("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("overlapwatch 0.")


def test_help_needs_neither_torch_nor_numpy_nor_rich():
    code = (
        "import sys; from overlapwatch.commands import main\n"
        "try: main(['report', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'rich', 'msgpack'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_report_needs_no_torch(run_dir):
    code = f"import sys; from overlapwatch.commands import main\nassert main(['report', {str(run_dir)!r}]) == 0\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_error(run_dir, form):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "overlapwatch", "report", str(run_dir), *form],
        cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_ascii_terminal_gets_question_marks(run_dir):
    done = launch("report", str(run_dir), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "books close" in done.stdout


@pytest.mark.parametrize("no_color", [True, False])
def test_a_terminal(run_dir, no_color):
    """On a terminal the report has its width and colours, unless NO_COLOR says otherwise."""
    import pty
    import select

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "72"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "overlapwatch", "report", str(run_dir)], cwd=ROOT, env=environment, stdout=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how a terminal says that the other end has left
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(30) == 0
    text = seen.decode()
    assert "Where the time went" in text
    assert ("\x1b[2m" in text) or no_color
    assert "\x1b[31m" not in text
    if no_color:
        import re

        plain = re.sub(r"\x1b\[[\d;]*m", "", text)
        assert max(len(line) for line in plain.splitlines()) <= 72

"""`overlapwatch top` as people and scripts call it: on a terminal, in a pipe, with bad input."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from overlapwatch.commands import main
from overlapwatch.log.frames import End, Summaries, encode
from tests.accounting.running.running_ranks import summaries
from tests.sources.test_owlog import header, make_ring, write_rank

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    for rank in range(2):
        rows = Summaries(summaries(*[100] * 8))
        write_rank(directory, header(rank), rows, end=rank == 1)
    return directory


def refused(capsys, *arguments: object) -> str:
    assert main(["top", *map(str, arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    return line.removeprefix("overlapwatch: ")


# -- in a pipe -------------------------------------------------------------------------------------


def test_once_as_text(run, capsys):
    assert main(["top", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("overlapwatch top  ..")
    assert "/run  run run-a  2 ranks  passive  " in lines[0]
    assert any(one.split()[:3] == ["0", "8", "100.0"] for one in lines)
    assert not any("\x1b" in one or len(one) > 100 for one in lines)


def test_as_json(run, capsys):
    assert main(["top", str(run), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["schema"] == 1
    first, second = told["top"]["ranks"]
    assert (first["process"], second["process"]) == ("running", "closed")
    assert first["latest"]["parts"]["hidden_ns"] == 30_000_000
    assert first["latest"]["overlap"]["steps"] == 8
    assert all(check["ok"] for check in told["top"]["closure"])


def test_width_rows_and_ranks(run, capsys):
    assert main(["top", str(run), "--width", "60", "--rows", "1", "--sort", "rank"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 60
    assert "by rank; 1 more rank: 1 ended" in text
    assert main(["top", str(run), "--rank", "1", "--json"]) == 0
    assert [one["rank"] for one in json.loads(capsys.readouterr().out)["top"]["ranks"]] == [1]


def test_again_and_again_until_all_ranks_have_ended(run, capsys, monkeypatch):
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            with (run / "rank0-run-a.owlog").open("ab") as file:
                file.write(
                    encode(Summaries(summaries(100, first=9))) + encode(End("closed", 9, {}))
                )

    monkeypatch.setattr(time, "sleep", nap)
    assert main(["top", str(run), "--every", "7", "--json"]) == 0
    looks = [json.loads(line)["top"]["ranks"][0] for line in capsys.readouterr().out.splitlines()]
    assert [one["process"] for one in looks] == ["running", "running", "closed"]
    assert [one["steps"] for one in looks] == [8, 8, 9]
    assert all(5 < one <= 7 for one in naps)


def test_ctrl_c_is_the_way_to_end_it(run, capsys, monkeypatch):
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert main(["top", str(run), "--every", "1"]) == 0
    assert capsys.readouterr().out.count("overlapwatch top  ") == 1


def test_a_stream_without_utf8(run):
    done = subprocess.run(
        [sys.executable, "-m", "overlapwatch", "top", str(run)],
        cwd=ROOT, capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.stdout.isascii()
    assert b"####" in done.stdout
    assert b"?" not in done.stdout


# -- bad input -------------------------------------------------------------------------------------


def test_nothing_there(tmp_path, capsys):
    assert refused(capsys, tmp_path / "no") == f"{tmp_path}/no: there is no such directory"
    assert refused(capsys, tmp_path, "--once") == f"{tmp_path}: there is no log (*.owlog) in it yet"


def test_an_empty_log(tmp_path, capsys):
    path = tmp_path / "rank0-r.owlog"
    path.write_bytes(b"")
    assert refused(capsys, tmp_path, "--once") == f"{path}: the file is empty"
    assert refused(capsys, path, "--once") == f"{path}: the file is empty"


def test_a_rank_that_has_no_log(run, capsys):
    assert refused(capsys, run, "--rank", "7") == f"{run}: no log of rank 7"


@pytest.mark.parametrize("whole_directory", [True, False])
def test_a_profile_is_for_the_report(tmp_path, capsys, whole_directory):
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}))  # fmt: skip
    path = tmp_path if whole_directory else trace
    told = refused(capsys, path)
    assert told.startswith(f"{path}: a profile, not the logs of a job (PyTorch profiler (Kineto)")
    assert told.endswith("overlapwatch report reads it")


def test_something_else(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello, hello")
    path = tmp_path / "notes.txt"
    assert refused(capsys, path) == f"{path}: not an overlapwatch log"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--every", "0"), "--every takes seconds between 0.1 and 3600, not '0'"),
        (("--every", "nan"), "--every takes seconds between 0.1 and 3600, not 'nan'"),
        (("--every", "1", "--once"), "choose --once or --every, not both"),
        (("--rows", "0"), "--rows takes a number of ranks, not '0'"),
        (("--rank", "x"), "--rank takes ranks such as 3 or 0,3, not 'x'"),
        (("--width", "-1"), "--width takes a number of characters up to 1000, not '-1'"),
    ],
)
def test_arguments_that_make_no_sense(run, capsys, arguments, says):
    assert refused(capsys, run, *arguments) == says


def test_two_runs_in_one_directory(run, capsys):
    write_rank(run, header(0, run="run-b", created=10**9, world=1), end=False)
    assert main(["top", str(run)]) == 0
    text = capsys.readouterr().out
    assert "run run-b  1 rank " in text
    assert "run run-b is shown" in text


# -- on a terminal ---------------------------------------------------------------------------------


class Terminal:
    """`overlapwatch top` on a terminal of our own making."""

    def __init__(self, *arguments: object, columns: int = 100, lines: int = 30, **env: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "overlapwatch", "top", *map(str, arguments)],
            cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", **env},
        )  # fmt: skip
        self._theirs = theirs
        self.seen = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, text: str) -> str:
        """Read until `text` is drawn; return what was drawn since the last call."""
        deadline, new = time.monotonic() + 60, ""
        while text not in new:
            assert time.monotonic() < deadline, f"{text!r} was not drawn:\n{new}"
            assert self.process.poll() is None or select.select([self.ours], [], [], 0)[0], new
            if select.select([self.ours], [], [], 0.1)[0]:
                new += os.read(self.ours, 1 << 16).decode(errors="replace")
        self.seen += new
        return new

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def ended(self) -> int:
        """Return how it ended; the terminal must be as it was."""
        code = self.process.wait(60)
        assert termios.tcgetattr(self._theirs) == self.before
        while select.select([self.ours], [], [], 0)[0]:
            self.seen += os.read(self.ours, 1 << 16).decode(errors="replace")
        assert self.seen.count("\x1b[?1049h") == self.seen.count("\x1b[?1049l") == 1
        assert "Traceback" not in self.seen
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


def test_the_screen_keys_and_another_size(run):
    with Terminal(run, "--every", "600", columns=100) as terminal:
        assert "step time, last" in terminal.wait_for("e by exposed share")
        terminal.type("s")  # drawn again at once, not after ten minutes
        terminal.wait_for("e by exposed share")
        terminal.resize(60, 30)
        assert "step time, last" not in terminal.wait_for("e b…")
        terminal.type("q")
        assert terminal.ended() == 0


def test_what_is_appended_is_drawn_and_ctrl_c_ends_it(run):
    with Terminal(run, "--every", "0.2", "--rank", "0") as terminal:
        terminal.wait_for("rank 0, last")
        with (run / "rank0-run-a.owlog").open("ab") as file:
            file.write(encode(Summaries(summaries(123.4, first=4321))))
        terminal.wait_for("4321")
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.ended() == 0


def test_a_directory_without_logs_is_waited_for_and_sigterm_puts_the_terminal_back(tmp_path):
    ring = make_ring(tmp_path)
    directory = tmp_path / "run"
    directory.mkdir()
    with Terminal(directory, "--every", "0.2", NO_COLOR="1") as terminal:
        terminal.wait_for("no log in")
        write_rank(directory, header(0, ring=ring), end=False)
        terminal.wait_for("no log here of rank 1")
        terminal.process.terminate()
        assert terminal.ended() == 128 + signal.SIGTERM
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.seen)


def test_a_terminal_that_can_do_nothing_gets_text(run):
    with Terminal(run, TERM="dumb") as terminal:
        terminal.wait_for("slowest")
        assert terminal.process.wait(60) == 0
    assert "\x1b" not in terminal.seen

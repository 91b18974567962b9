"""What the live view shows; the words of a run that hangs are compared as a whole."""

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from overlapwatch.accounting.running import look
from overlapwatch.reports.top import Look, plain, screen
from overlapwatch.reports.unfinished import age
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind, Name, NameKind, StepFlag
from tests.accounting.running.running_ranks import S, rank, reductions, run, summaries
from tests.reports import golden


def hanging():
    """Rank 2 has not launched what ranks 0 and 1 wait for, rank 3 is on another host, rank 4 has no log yet."""
    rows = summaries(*[100 + step % 7 for step in range(1, 40)])
    done, waits = reductions(6, finish=5), reductions(7, 8, step=40)
    return look(
        run(
            rank(0, done, waits, rows=rows),
            rank(1, done, waits, rows=rows),
            rank(2, done, rows=rows, process="stopped"),
            rank(3, rows=rows, ring=False, process="elsewhere", host="node-1", now_ns=None, ended_ago_ns=0),
            world=5,
        )
    )  # fmt: skip


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_run_that_hangs(width):
    text = plain(hanging(), Look(width=width))
    text = text.replace(text.splitlines()[0].split()[-1], "HH:MM:SS")
    golden.check(f"top_hang_{width}.txt", text)
    assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [20, 60, 77, 79, 80, 100, 139, 140, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_longer_than_the_width(width, unicode):
    lines = plain(hanging(), Look(width=width), unicode=unicode).splitlines()
    assert max(map(cell_len, lines)) <= max(width, 60)
    assert unicode or all(one.isascii() for one in lines)


def terminal(width=100, height=40, encoding="utf-8", **options) -> Console:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    return Console(
        file=stream, width=width, height=height, force_terminal=True, legacy_windows=False, **options
    )  # fmt: skip


def drawn(view, console: Console, **how) -> list[str]:
    console.print(screen(view, Look(width=console.width, **how), console))
    console.file.flush()
    return console.file.buffer.getvalue().decode(console.encoding).splitlines()


@pytest.mark.parametrize("height", [16, 24, 60])
@pytest.mark.parametrize("width", [60, 100])
def test_the_screen_fits_the_terminal(width, height):
    many = [rank(at, reductions(*range(7, 12)) if at else reductions(6), members=tuple(range(50))) for at in range(50)]  # fmt: skip
    view = look(run(*many))
    assert len(view.old) == 6
    lines = drawn(view, terminal(width, height, color_system=None), keys=True)
    assert len(lines) <= max(height, 24 if width == 60 else 18)
    assert any("unfinished: 6 collectives" in one for one in lines)
    assert any("more rank" in one for one in lines)


def test_all_ranks_are_shown_where_they_fit():
    view = look(run(*(rank(at, ended_ago_ns=0) for at in range(12))))
    lines = drawn(view, terminal(100, 40, color_system=None))
    assert sum(one.endswith("running") for one in lines) == 13  # and how many there are
    assert len(lines) <= 40


def test_a_terminal_without_utf8_gets_ascii():
    lines = drawn(hanging(), terminal(encoding="iso-8859-1", color_system=None))
    assert all(one.isascii() for one in lines)
    assert any("#" in one and "=" in one for one in lines)


def test_no_color(monkeypatch):
    def colours(console) -> int:
        return sum(one.count("\x1b[3") + one.count(";3") for one in drawn(hanging(), console))

    assert colours(terminal(color_system="standard")) > 0
    monkeypatch.setenv("NO_COLOR", "1")
    assert colours(terminal(color_system="standard")) == 0


def test_many_ranks():
    view = look(run(*(rank(at, ended_ago_ns=0, process="stopped" if at == 70 else "running") for at in range(100))))  # fmt: skip
    text = plain(view, Look(rows=3))
    assert "99 running, 1 stopped" in text
    assert " 70 " in text
    assert "trouble first; 97 more ranks: 97 running" in text


@pytest.mark.parametrize(
    ("path", "width", "title"),
    [
        ("runs/a", 100, "overlapwatch top  runs/a  run r  1 rank  passive"),
        ("/data/" + 50 * "x" + "/runs/a", 80, "overlapwatch top  ..x/runs/a  run r  1 rank  passive"),
        ("/data/" + 50 * "x" + "/runs/a", 60, "overlapwatch top  ..x/runs/a  run r  1 rank"),
    ],
)  # fmt: skip
def test_the_title_says_whose_run_it_is(path, width, title):
    first = plain(look(run(rank(0), path=path)), Look(width=width)).splitlines()[0]
    assert re.sub("x+", "x", first[:-8].rstrip()) == title
    assert len(first) == width


def test_no_log_yet():
    text = plain(look(run(world=None)), Look())
    assert "no log in runs/a yet; it is looked for again and again" in text


def test_a_rank_without_a_step_and_one_without_parts():
    unknown = summaries(100, 100)
    for field in ("overlap_ns", "communication_only_ns", "compute_only_ns", "idle_ns", "tail_ns"):
        unknown[field] = NOT_KNOWN
    text = plain(
        look(run(rank(0, rows=summaries()), rank(1, rows=unknown, ended_ago_ns=0))), Look()
    )
    assert "no step has ended" in text
    assert "parts not known" in text


def test_a_shadow_step_is_a_gap_in_the_lines():
    rows = summaries(*[100] * 5)
    rows["overlap_ns"][2] = NOT_KNOWN
    rows["flags"][2] = StepFlag.SHADOW
    text = plain(look(run(rank(0, rows=rows, ended_ago_ns=0))), Look())
    (hidden,) = [one for one in text.splitlines() if one.startswith("  hidden  ")]
    assert hidden.split()[1] == "██·██"


def test_names_are_text():
    evil = {1: Name(1, NameKind.BUCKET, "[red]\x1b[2J")}
    hung = rank(0, reductions(7), names=evil, groups={1: Name(1, NameKind.GROUP, "d\np", (0,))}, mode="[b]")  # fmt: skip
    text = plain(look(run(hung, run_id="\x1b]0;x")), Look(width=200))
    assert "\x1b" not in text
    assert r"AllReduce [red]\x1b[2J" in text
    assert r"d\np" in text
    lines = drawn(look(run(hung)), terminal(200, color_system=None))
    assert any(r"[red]\x1b[2J" in one for one in lines)


def test_what_must_be_known_beside_the_numbers():
    odd = rank(0, only_begun=True, ended_ago_ns=9 * S, damaged=2, damaged_bytes=77, full=True, notes=("the watch turned itself off: x",))  # fmt: skip
    text = " ".join(plain(look(run(odd)), Look()).split())
    assert (
        "rank 0: of step 9 nothing but its beginning is recorded: nothing has run yet, or it is a shadow step"
        in text
    )
    assert "rank 0: 2 places of its log damaged, 77 bytes left out" in text
    assert "rank 0 wrote: the watch turned itself off: x" in text
    assert "max_log_mb" in text


def test_a_step_that_does_not_add_up_is_said():
    rows = summaries(100, 100)
    rows["idle_ns"][1] += 1
    text = plain(look(run(rank(0, rows=rows, ended_ago_ns=0))), Look())
    assert "does not add up: rank 0, step 2: the parts add up to the step: 100,000,001 and" in text


def test_ranks_that_differ_are_sent_to_the_order():
    gather = reductions(7, kind=CollectiveKind.ALL_GATHER)
    view = look(run(rank(0, reductions(7)), rank(1, gather), rank(2, reductions(7))))
    assert "dp: collective 7 is not the same on all ranks: overlapwatch order runs/a tells" in plain(view, Look(width=140))  # fmt: skip


def test_a_killed_rank_is_told_apart_from_those_that_wait():
    view = look(run(rank(0, reductions(7), process="killed"), rank(1, reductions(7))))
    (line,) = [one for one in plain(view, Look(width=140)).splitlines() if "AllReduce" in one]
    assert "rank 1; rank 0 (killed)" in line


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.25, "250.0 ms"), (14.94, "14.9 s"), (59.9, "59.9 s"), (60, "1 min 00 s"), (425, "7 min 05 s"), (7500, "2 h 05 min")],
)  # fmt: skip
def test_an_age_is_seen_to_grow(seconds, written):
    assert age(round(seconds * S)) == written


def test_a_step_of_many_minutes_keeps_the_columns():
    view = look(run(rank(0, rows=summaries(431_683, 100)), rank(1, rows=summaries(100, 431_683))))
    one, other = (
        line for line in plain(view, Look()).splitlines() if line[:4].strip() in {"0", "1"}
    )
    assert one.index("█") == other.index("█")
    assert replace(view) == view

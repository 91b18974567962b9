"""Every command and every piece of Python in README, docs and examples works as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from overlapwatch.commands import main
from tests.docs.blocks import ROOT, blocks, commands

LANGUAGES = {"sh", "python", "text", "json", "yaml", "html", "promql"}
LOOKS_RUNNABLE = re.compile(
    r"^(overlapwatch \w+ \S|python |pip |torchrun |scripts/|import |from \w+ import )", re.MULTILINE
)
STORIES = sorted({block.page for block in blocks() if block.said and block.said[0] == "file"})
SHELL = [block for block in blocks() if block.language == "sh" and block.page not in STORIES]
RUN_HERE = [
    pytest.param(block.page, command, id=f"{block.place}:{' '.join(command.split())[:60]}")
    for block in SHELL
    if block.said is None
    for command in commands(block.text)
]


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.place)
def test_a_block_says_what_it_is(block):
    assert block.language in LANGUAGES, f"{block.place}: give the fence a language"
    if block.language not in ("sh", "python"):
        assert not LOOKS_RUNNABLE.search(block.text) or "$ " in block.text, (
            f"{block.place}: a command or Python in a block that no test runs"
        )


@pytest.mark.parametrize(
    "block",
    [block for block in blocks() if block.said is not None],
    ids=lambda block: block.place,
)
def test_what_is_said_of_a_block_is_true(block):
    what, value = block.said
    assert value, f"{block.place}: say why, or where"
    if what == "run by":
        test = (ROOT / value).read_text(encoding="utf-8")
        for word in re.findall(r"(?:examples|scripts)/[\w./]+", block.text):
            name = word.rsplit("/", 1)[-1]
            assert name in test, f"{block.place}: {value} does not run {word}"


@pytest.mark.e2e
@pytest.mark.parametrize(("page", "command"), RUN_HERE)
def test_a_command_does_what_the_page_says(page, command, desk, monkeypatch, capfd):
    monkeypatch.chdir(desk)
    code = run(command, desk, monkeypatch)
    out, err = capfd.readouterr()
    assert code == 0, f"{page}: {command}\n{out}{err}"
    assert out.strip() or err.strip()
    assert "Traceback" not in err


@pytest.mark.e2e
@pytest.mark.parametrize("page", STORIES)
def test_a_page_is_followed_from_top_to_bottom(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for block in (block for block in blocks() if block.page == page):
        what, value = block.said or ("", "")
        if what == "file":
            (tmp_path / value).write_text(block.text, encoding="utf-8")
        elif block.language == "sh" and not what:
            for command in commands(block.text):
                code = run(command, tmp_path, monkeypatch)
                out, err = capfd.readouterr()
                assert code == 0, f"{block.place}: {command}\n{out}{err}"
                assert out.strip() or err.strip()


def run(command, desk, monkeypatch):
    """Run it in this process where it is plain, else in bash, where starting Python again costs a second."""
    if command.startswith("overlapwatch ") and not re.search(r"[|>$&;<]", command):
        words = shlex.split(command)[1:]
        words = [path for word in words for path in expanded(word, desk)]
        return main(words)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    place = ROOT if re.match(r"bash examples/|scripts/", command) else desk
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=place, timeout=120, check=False
    ).returncode


def expanded(word, desk):
    """Return the files that a pattern names, as a shell would."""
    return (
        sorted(str(path.relative_to(desk)) for path in desk.glob(word)) if "*" in word else [word]
    )


@pytest.mark.e2e
def test_python_runs_as_written(snippets):
    told = snippets
    assert sorted(told) == sorted(
        block.place
        for block in blocks()
        if block.language == "python" and (block.said is None or block.said[0] == "given")
    )
    wrong = {place: why for place, why in told.items() if why != "ok"}
    assert not wrong, "\n\n".join(f"{place}\n{why}" for place, why in wrong.items())

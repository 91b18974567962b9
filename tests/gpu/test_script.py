"""`scripts/gpu_check` itself, as far as it can be checked anywhere."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check"

JUNIT = """<testsuites><testsuite>
<testcase name="test_a_poll_never_waits"><properties><property name="poll" value="8 us"/></properties></testcase>
<testcase name="test_streams"><failure message="x">y</failure></testcase>
<testcase name="test_bits"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


def test_the_table_tells_outcomes_and_numbers(script, tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    found = script.checks(junit)
    assert found == [
        ("a poll never waits", "passed", "poll: 8 us"),
        ("streams", "failed", ""),
        ("bits", "skipped", ""),
    ]
    text = script.table({"GPU": "1 x T"}, found)
    assert text.startswith("* GPU: 1 x T\n\n| check | result | numbers |\n")
    assert "| streams | failed |  |" in text


def test_without_a_gpu_it_says_one_sentence_and_writes_nothing(script):
    if script.machine() is not None:
        pytest.skip("this machine has a GPU")
    existed = script.RESULTS.exists()
    done = subprocess.run(
        [sys.executable, SCRIPT], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == "gpu_check: torch sees no CUDA device on this machine, so nothing was checked.\n"
    )
    assert script.RESULTS.exists() == existed

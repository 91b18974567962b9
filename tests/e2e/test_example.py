"""What `scripts/demo` runs, as a user runs it: torchrun, the example, then the report."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import jobs

TRAIN = jobs.ROOT / "examples" / "ddp" / "train.py"
SMALL = ["--steps", "20", "--layers", "2", "--width", "64", "--bucket-cap-mb", "0.1"]

pytestmark = pytest.mark.e2e


def train(log_dir: Path, *args: str, **env: str) -> jobs.JobResult:
    return jobs.run_job(TRAIN, 2, args=[*SMALL, "--log-dir", str(log_dir), *args], env=env).check()


def losses(stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^(?:final )?loss ([\d.]+)", stdout, re.MULTILINE)]


@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_the_loss_falls_and_is_the_same_without_the_watch(tmp_path, accumulate):
    watched = train(tmp_path / "watched", "--accumulate", accumulate)
    plain = train(tmp_path / "plain", "--accumulate", accumulate, OVERLAPWATCH_DISABLE="1")
    fell = losses(watched.stdout)
    assert fell == losses(plain.stdout)
    assert len(fell) == 4  # at steps 1, 10 and 20, and the final one
    assert fell[-1] < fell[0] - 0.5
    assert not (tmp_path / "plain").exists()
    # A user sees step lines, losses and where to go on; no warning of ours or of torchrun.
    assert len(re.findall(r"^step +\d+ ", watched.stdout, re.MULTILINE)) == 20
    assert "overlapwatch report" in watched.stdout
    assert "warning" not in watched.stderr.lower()


def test_the_report_of_the_run_is_printed(tmp_path):
    train(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "overlapwatch", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=jobs.ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "blocks.1.query_key_value.weight" in done.stdout
    assert done.stderr == ""

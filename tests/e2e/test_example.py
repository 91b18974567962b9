"""What `scripts/demo` runs, as a user runs it: torchrun, the example, then the report."""

import re
import subprocess
import sys

import pytest

from tests.support import jobs

TRAIN = jobs.ROOT / "examples" / "ddp" / "train.py"
SMALL = ["--steps", "20", "--layers", "2", "--width", "64", "--bucket-cap-mb", "0.1"]

pytestmark = pytest.mark.e2e


def losses(stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^(?:final )?loss ([\d.]+)", stdout, re.MULTILINE)]


@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_the_loss_falls_and_is_the_same_without_the_watch(tmp_path, accumulate):
    args = [*SMALL, "--accumulate", accumulate, "--log-dir"]
    plain = jobs.run_ranks(
        TRAIN, 2, args=[*args, str(tmp_path / "plain")], env={"OVERLAPWATCH_DISABLE": "1"}
    ).check()
    watched = jobs.run_ranks(TRAIN, 2, args=[*args, str(tmp_path / "watched")]).check()
    fell = losses(watched.stdout)
    assert fell == losses(plain.stdout)
    assert len(fell) == 4  # at steps 1, 10 and 20, and the final one
    assert fell[-1] < fell[0] - 0.5
    assert not (tmp_path / "plain").exists()


def test_a_user_sees_steps_and_a_report_and_no_warning(tmp_path):
    run = jobs.run_job(TRAIN, 2, args=[*SMALL, "--log-dir", str(tmp_path)]).check()
    assert len(re.findall(r"^step +\d+ ", run.stdout, re.MULTILINE)) == 20
    assert "overlapwatch report" in run.stdout
    assert "warning" not in run.stderr.lower()

    report = subprocess.run(
        [sys.executable, "-m", "overlapwatch", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=jobs.ROOT,
        timeout=60,
    )
    assert report.returncode == 0, report.stderr
    assert "blocks.1.query_key_value.weight" in report.stdout
    assert report.stderr == ""

"""examples/fsdp2, as a user runs it: torchrun, the example, then the report."""

import re
import subprocess
import sys

import pytest

from tests.support import jobs

TRAIN = jobs.ROOT / "examples" / "fsdp2" / "train.py"
SMALL = ["--steps", "20", "--layers", "2", "--width", "64"]

pytestmark = pytest.mark.e2e


def losses(stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^(?:final )?loss ([\d.]+)", stdout, re.MULTILINE)]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(2, ["--accumulate", "2", "--prefetch", "2"]), (4, ["--replicas", "2"])],
    ids=["2 ranks", "2 x 2"],
)
def test_the_loss_falls_and_is_the_same_without_the_watch(tmp_path, ranks, options):
    args = [*SMALL, *options, "--log-dir"]
    plain = jobs.run_ranks(
        TRAIN, ranks, args=[*args, str(tmp_path / "plain")], env={"OVERLAPWATCH_DISABLE": "1"}
    ).check()
    watched = jobs.run_ranks(TRAIN, ranks, args=[*args, str(tmp_path / "watched")]).check()
    fell = losses(watched.stdout)
    assert fell == losses(plain.stdout)
    assert len(fell) == 4  # at steps 1, 10 and 20, and the final one
    assert fell[-1] < fell[0] - 0.5
    assert not (tmp_path / "plain").exists()
    assert len(list((tmp_path / "watched").glob("*.owlog"))) == ranks


def test_a_user_sees_steps_and_a_report_and_no_warning(tmp_path):
    options = ["--prefetch", "2", "--wrong-order", "--layers", "4"]
    run = jobs.run_job(TRAIN, 2, args=[*SMALL, *options, "--log-dir", str(tmp_path)]).check()
    lines = re.findall(r"^step +\d+ .*", run.stdout, re.MULTILINE)
    assert len(lines) == 20
    assert sum(line.endswith("5 modules") for line in lines) >= 15  # some are shadow steps
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
    assert report.returncode == 0, report.stdout
    assert report.stderr == ""
    told = " ".join(report.stdout.split())
    assert (
        "blocks.2 was prefetched by blocks.0 in forward, but blocks.1 was needed before it" in told
    )
    assert (
        "blocks.1 was prefetched by blocks.3 in backward, but blocks.2 was needed before it" in told
    )
    assert "Memory of unsharded parameters" in told
    assert "books close" in told

"""What the tests of trainers share: whether a trainer is installed, and what its logs say of the steps."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from overlapwatch.log.reader import read_log
from overlapwatch.metrics.catalogue import OF_A_STEP
from overlapwatch.vocabulary import StepFlag
from tests.support.jobs import JobResult

TRAINERS = tuple(
    name
    for name in ("pytorch_lightning", "transformers.trainer", "accelerate")
    if find_spec(name.partition(".")[0]) is not None
)
"""What the ranks are forked with: all of them together take little more time than the first."""

NAMES = {f"overlapwatch/{one.name}" for one in OF_A_STEP}


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where it is not installed. It is not imported here: that takes seconds, and is done where ranks are forked."""
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed (scripts/test installs it)"
    )


def steps(directory: Path) -> dict[str, list[tuple[StepFlag, int]]]:
    """Return, by run and rank, the flags and the number of reduced buckets of each step."""
    found = {}
    for path in sorted(directory.glob("rank*.owlog")):
        rows = read_log(path).summaries
        found[path.stem] = [
            (
                StepFlag(int(row["flags"])) & ~StepFlag.EVENTS_KEPT & ~StepFlag.SLOW,
                int(row["buckets"]),
            )
            for row in rows
        ]
    return found


def told(job: JobResult) -> list[dict]:
    """Return what each rank printed last."""
    return [json.loads(rank.stdout.strip().splitlines()[-1]) for rank in job.check().ranks]

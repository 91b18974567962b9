"""The worked example of docs/definitions.md on a real job: two ranks, sleeping compute, a link of known rate.

| case       | compute | one all-reduce | a step | tail | why                                             |
|------------|---------|----------------|--------|------|-------------------------------------------------|
| serial     | 3 × 2   | 3 (one bucket) | 9      | 3    | nothing is sent before the last block is done   |
| overlapped | 3 × 2   | 1              | 7      | 1    | only the last block's all-reduce is left over   |
| queued     | 3 × 2   | 4              | 14     | 8    | the link is busy from 2 to 14: the queue decides |

The unit is about 100 ms and comes from the job's own measurement of its link, so the test does not depend on the speed
of the machine. Everything is read from the log by the analyzer, as a user would have it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from overlapwatch import open_trace
from overlapwatch.accounting.summarize import summarize
from overlapwatch.accounting.tail import step_tails
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, SUMMARY, StepFlag
from tests.support.slowlink import requires_slow_link, slow_link

JOB = Path(__file__).with_name("worked_example_job.py")
STEPS = 8
UNIT_BYTES = 1_200_000  # an all-reduce of this size takes about 100 ms at the rate below
RATE_MBIT = 100
STEP_TOLERANCE = 0.05
TAIL_TOLERANCE = 0.15
PARTS = ("compute_only_ns", "communication_only_ns", "overlap_ns", "idle_ns")

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table above, in units. `hidden` is what of the communication ran during compute."""

    name: str
    communication: int
    one_bucket: bool
    step: int
    tail: int
    hidden: int
    step_tolerance: float = STEP_TOLERANCE

    @property
    def arguments(self) -> list[str]:
        words = ["--steps", str(STEPS), "--communication-units", str(self.communication)]
        words += ["--block-bytes", str(UNIT_BYTES * self.communication)]
        return [*words, "--one-bucket"] if self.one_bucket else words


CASES = (
    Case("serial", communication=1, one_bucket=True, step=9, tail=3, hidden=0),
    Case("overlapped", communication=1, one_bucket=False, step=7, tail=1, hidden=2),
    # Here gloo's two workers share the link, which the example's one queue does not: up to 7 % more was seen.
    Case(
        "queued",
        communication=4,
        one_bucket=False,
        step=14,
        tail=8,
        hidden=4,
        step_tolerance=0.1,
    ),
)


ATTEMPTS = 3
"""The machine may be taken away in the middle of a job. What must hold exactly holds in every attempt."""


@requires_slow_link
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_real_job_gives_the_numbers_of_the_example(case, tmp_path):
    missed = []
    for attempt in range(ATTEMPTS):
        missed = times_missed(case, tmp_path / str(attempt))
        if not missed:
            return
    assert not missed


def times_missed(case, directory) -> list[str]:
    """Run the job; assert what is exact, return which times are off."""
    with slow_link(2, RATE_MBIT) as link:
        # Every step is wanted, so none is left unrecorded to measure our own cost.
        result = link.run_ranks(
            JOB,
            args=["--log-dir", str(directory), *case.arguments],
            env={"OVERLAPWATCH_SHADOW_EVERY": "0", "OVERLAPWATCH_SINKS": ""},
        ).check()
    unit_ns = json.loads(result.ranks[0].stdout.splitlines()[-1])["unit_ns"]
    recordings = open_trace(directory)
    assert [recording.timeline.origin.rank for recording in recordings] == [0, 1]
    return [text for recording in recordings for text in rank_missed(case, recording, unit_ns)]


def rank_missed(case, recording, unit_ns) -> list[str]:
    rows = recording.summaries
    counted = rows[(rows["flags"] & OUT_OF_STATISTICS) == 0]
    # DDP's first two iterations, before and while it lays out the buckets, are told apart by their flags.
    first = rows[rows["step"] <= 2]
    assert ((first["flags"] & (StepFlag.UNBUCKETED | StepFlag.REBUILT)) != 0).all()
    assert len(counted) == STEPS - 2
    assert (counted["buckets"] == (1 if case.one_bucket else 3)).all()
    assert (counted["unfinished"] == 0).all()

    # The report explains the rest: nothing of a step is unaccounted for.
    duration = counted["end_ns"] - counted["start_ns"]
    assert (sum(counted[part] for part in PARTS) == duration).all()
    for tail in step_tails(recording.timeline):
        assert sum(piece.duration_ns for piece in tail.pieces) == tail.tail_ns

    # The report's accounting of the kept records is the live line's: the same rows, to the nanosecond.
    again = summarize(recording.timeline)
    assert len(again) == STEPS
    for field in SUMMARY.names:
        assert again[field].tolist() == rows[field].tolist(), field

    def median(field: str) -> float:
        assert (counted[field] != NOT_KNOWN).all()
        return float(np.median(counted[field])) / unit_ns

    tail_slack = TAIL_TOLERANCE * case.tail
    expected = {  # what of the communication was not the tail was hidden, and compute is the blocks' six units
        "step": (float(np.median(duration)) / unit_ns, case.step, case.step_tolerance * case.step),
        "tail": (median("tail_ns"), case.tail, tail_slack),
        "hidden": (median("overlap_ns"), case.hidden, tail_slack),
        "exposed": (median("communication_only_ns"), case.tail, tail_slack),
        "compute": (median("compute_ns"), 6, STEP_TOLERANCE * 6),
        "idle": (median("idle_ns"), 0, case.step_tolerance * case.step),
    }
    return [
        f"rank {recording.timeline.origin.rank}: {name} {found:.2f} units, not {right} within {slack:.2f}"
        for name, (found, right, slack) in expected.items()
        if abs(found - right) > slack
    ]

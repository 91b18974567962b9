from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from overlapwatch.accounting.shadow import shadow_cost
from overlapwatch.accounting.summarize import summarize
from overlapwatch.reports.live import closing_lines, step_line
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag
from tests.reports import recordings

TIMES = (
    "compute_ns",
    "communication_ns",
    "compute_only_ns",
    "communication_only_ns",
    "overlap_ns",
    "idle_ns",
    "tail_ns",
    "wait_ns",
)
TYPICAL = {"step": 120, "took": 412.3, "communication_ns": 150.2, "overlap_ns": 92.1, "communication_only_ns": 58.1, "tail_ns": 12.3, "buckets": 4, "collectives": 4}  # fmt: skip
UNKNOWN = dict.fromkeys(TIMES, NOT_KNOWN)


def summary(**fields) -> np.void:
    """A row; times in ms, NOT_KNOWN as it is."""
    row = np.zeros(1, SUMMARY)[0]
    values = {**TYPICAL, **fields}
    row["start_ns"], row["end_ns"] = 10**9, 10**9 + round(values.pop("took") * 1e6)
    for name, value in values.items():
        row[name] = round(value * 1e6) if name.endswith("_ns") and value != NOT_KNOWN else value
    return row


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "step 120  412.3 ms  comm 150.2  hidden 92.1 (61.3 %)  exposed 58.1 (14.1 % of step)  tail 12.3 ms  4 buckets"),
        ({**UNKNOWN, "step": 40, "took": 410.2, "flags": StepFlag.SHADOW, "collectives": 0, "buckets": 0}, "step  40  410.2 ms  recording off (shadow step)"),
        (
            {"step": 0, "flags": StepFlag.UNBUCKETED, "buckets": 1, "collectives": 1},
            "step   0  412.3 ms  comm 150.2  hidden 92.1 (61.3 %)  exposed 58.1 (14.1 % of step)  tail 12.3 ms  1 bucket  first iteration: one bucket, not in statistics",
        ),
        (
            {"flags": StepFlag.SLOW | StepFlag.REBUILT, "took": 1412.3},
            "step 120  1412.3 ms  comm 150.2  hidden 92.1 (61.3 %)  exposed 58.1 ( 4.1 % of step)  tail 12.3 ms  4 buckets  buckets rebuilt, not in statistics  slow step",
        ),
        ({**UNKNOWN, "unfinished": 1}, "step 120  412.3 ms  hidden not known (1 collective without a finish)  tail not known  4 buckets"),
        (
            {**UNKNOWN, "unfinished": 2, "unobservable": 1, "buckets": 0},
            "step 120  412.3 ms  hidden not known (2 collectives without a finish and 1 collective whose finish cannot be seen)  tail not known  4 collectives",
        ),
        (
            {**UNKNOWN, "collectives": 0, "buckets": 0, "flags": StepFlag.PARTIAL},
            "step 120  412.3 ms  hidden not known (records of this step are missing)  tail not known  incomplete, not in statistics",
        ),
        (
            {**dict.fromkeys(TIMES, 0), "tail_ns": NOT_KNOWN, "collectives": 0, "buckets": 0},
            "step 120  412.3 ms  no communication seen",
        ),
        (
            {"unobservable": 1},
            "step 120  412.3 ms  comm 150.2  hidden 92.1 (61.3 %)  exposed 58.1 (14.1 % of step)  at least: 1 collective whose finish cannot be seen  tail 12.3 ms  4 buckets",
        ),
        (
            {"took": 7, "communication_ns": 3, "overlap_ns": 3, "communication_only_ns": 0.001, "tail_ns": 0},
            "step 120   7.00 ms  comm  3.00  hidden 3.00 ( 100 %)  exposed <0.01 (<0.1 % of step)  tail 0.00 ms  4 buckets",
        ),
        (
            {**dict.fromkeys(TIMES, 0)},
            "step 120  412.3 ms  comm  0.00  hidden 0.00 (  -- %)  exposed 0.00 ( 0.0 % of step)  tail 0.00 ms  4 buckets",
        ),
    ],
)  # fmt: skip
def test_step_line(fields, line):
    assert step_line(summary(**fields)) == line


def test_typical_lines_stand_under_one_another():
    lines = [
        step_line(
            summary(
                step=step,
                took=took,
                communication_ns=sent,
                overlap_ns=hidden,
                communication_only_ns=sent - hidden,
            )
        )
        for step, took, sent, hidden in [
            (7, 999.9, 100.1, 90.2),
            (58, 101.2, 55.5, 9.1),
            (120, 412.3, 9.99, 9.99),
        ]
    ]
    words = ("comm", "hidden", "exposed", "tail", "4 buckets")
    assert len({tuple(line.index(word) for word in words) for line in lines}) == 1


def test_the_line_is_what_the_accounting_says():
    rows = summarize(recordings.worked().timeline)
    assert step_line(rows[3]) == (
        "step   3   7.00 ms  comm  3.00  hidden 2.00 (66.7 %)  exposed 1.00 (14.3 % of step)  tail 1.00 ms  3 buckets"
    )


def test_the_line_is_ascii():
    """A job's stdout may be anything; the drain must not meet a character that it cannot write."""
    assert all(step_line(row).isascii() for row in recordings.typical().summaries)


def test_closing_lines_say_what_it_cost_and_what_to_run_next():
    cost = shadow_cost(recordings.typical().summaries)
    lines = closing_lines(Path("runs/my run/rank0-x.owlog"), cost)
    assert lines[0] == f"overlapwatch: recording cost {cost.verdict}"
    assert "without: not distinguishable" in lines[1]
    assert lines[2] == "overlapwatch: log in runs/my run/rank0-x.owlog"
    assert lines[3].split("  ")[1] == "overlapwatch report 'runs/my run'"
    assert "--json" in lines[4]


def test_closing_lines_without_a_log_or_shadow_steps():
    cost = shadow_cost(recordings.worked().summaries)
    lines = closing_lines(None, cost)
    assert lines[0].startswith("overlapwatch: recording cost not known")
    assert lines[1] == 'overlapwatch: no log was written; watch(model, log_dir="runs/a") writes one'
    assert len(lines) == 2


def test_a_wait_that_is_not_known_is_not_printed():
    cost = SimpleNamespace(
        verdict="x", wait_verdict="not distinguishable", wait_with_ns=None, wait_without_ns=3
    )
    assert len(closing_lines(None, cost)) == 2

"""Two settings side by side: what is judged, what only stands beside it, and what is refused."""

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.compare.runs import Setting, compare
from overlapwatch.reports.compare import report, sentence_of
from overlapwatch.reports.layout import to_text
from overlapwatch.timeline.model import Origin, Recording, Timeline
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag
from tests.support.scenarios import BASE_NS, MS


def analyses(step_ms, hidden_ms, *, steps=60, world=2, size=1000, rank=0, seed=0, tail=True):
    """One rank whose steps last `step_ms` (and a little noise), with 20 ms of communication of which some is hidden."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(steps, SUMMARY)
    lengths = (step_ms * MS * (1 + rng.normal(0, 0.002, steps))).astype(np.int64)
    rows["step"] = np.arange(1, steps + 1)
    rows["end_ns"] = BASE_NS + np.cumsum(lengths)
    rows["start_ns"] = rows["end_ns"] - lengths
    rows["communication_ns"] = 20 * MS
    rows["overlap_ns"] = round(hidden_ms * MS)
    rows["communication_only_ns"] = 20 * MS - rows["overlap_ns"]
    rows["tail_ns"] = rows["communication_only_ns"] if tail else NOT_KNOWN
    rows["bytes"], rows["collectives"], rows["buckets"] = size, 4, 4
    rows["flags"][0] = StepFlag.UNBUCKETED
    origin = Origin("owlog", "run", rank, world)
    return (analyse(Recording(Timeline(origin), summaries=rows, state="closed")),)


def told(name, *args, **kwargs):
    return Setting(name, (analyses(*args, **kwargs),))


def pairs(comparison):
    return {pair.name: pair for pair in comparison.numbers}


def test_the_step_is_judged_and_the_rest_stands_beside_it():
    one = compare(told("a", 100, 10), told("b", 90, 15, seed=1))
    assert one.step.word == "faster"
    assert sentence_of(one).startswith("b is faster by 10.0 %")
    numbers = pairs(one)
    assert (numbers["hidden share"].base, numbers["hidden share"].other) == (0.5, 0.75)
    assert (numbers["exposed"].base, numbers["exposed"].other) == (10 * MS, 5 * MS)
    assert not one.misleading
    assert not one.different


def test_more_overlap_with_a_slower_step_is_said_so():
    one = compare(told("a", 100, 10), told("b", 110, 19, seed=1))
    assert one.step.word == "slower"
    assert one.misleading
    assert "opposite directions" in to_text(report([one]))


@pytest.mark.parametrize(
    ("other", "why"),
    [({"world": 4}, "2 ranks against 4"), ({"size": 2000}, "1,000 bytes in a step")],
)
def test_overlap_of_different_jobs_is_not_compared(other, why):
    one = compare(told("a", 100, 10), told("b", 90, 15, **other))
    assert why in one.different[0]
    assert one.numbers == one.phases == one.buckets == one.ranks == ()
    text = to_text(report([one]))
    assert "different jobs" in text
    assert "hidden share" not in text


def test_what_is_not_known_is_no_zero():
    one = compare(told("a", 100, 10), told("b", 100, 10, tail=False, seed=1))
    assert pairs(one)["tail"].other is None
    assert pairs(one)["tail"].change is None
    assert "not known" in to_text(report([one]))


def test_a_run_without_steps_has_no_verdict():
    one = compare(told("a", 100, 10), told("b", 100, 10, steps=1))
    assert one.step.word == "not distinguishable"
    assert one.step.because == "no steps to compare"
    assert one.unknown[0].because.startswith("b has no steps")


def test_repeats_are_the_unit_where_there_are_three():
    base = Setting("a", tuple(analyses(100 + i / 10, 10, seed=i) for i in range(3)))
    other = Setting("b", tuple(analyses(101 + i / 10, 10, seed=9 + i) for i in range(3)))
    one = compare(base, other)
    assert one.step.runs == (3, 3)
    assert one.step.low <= 0.01 <= one.step.high


def test_json_has_what_the_text_has():
    one = compare(told("a", 100, 10), told("b", 90, 15, seed=1)).to_dict()
    assert one["step"]["verdict"] == "faster"
    assert one["step"]["level"] == 0.95
    assert {pair["name"] for pair in one["numbers"]} >= {"step", "hidden share", "exposed", "tail"}
    assert one["different_jobs_because"] == []

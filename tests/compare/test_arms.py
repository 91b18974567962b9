"""Settings tried in turn: drift is taken out, a planted difference is found, and the best is the shortest step."""

import numpy as np
import pytest

from overlapwatch.compare.arms import Block, clearly_worse, judge, order_of_round
from overlapwatch.vocabulary import SUMMARY, StepFlag

MS = 1_000_000


def run(factors, *, rounds=8, block=10, noise=0.003, drift=0.0, neighbour=0.0, seed=0, hidden=None):
    """A job whose setting i takes `factors[i]` times 100 ms, while the machine drifts and neighbours come and go."""
    rng = np.random.default_rng(seed)
    rows, blocks, step, now = [], [], 1, 10**9
    for turn in range(rounds):
        busy = 1 + neighbour * rng.random()
        for arm in order_of_round(turn, range(len(factors))):
            blocks.append(Block(arm, turn, step, step + block - 1))
            for _ in range(block):
                row = np.zeros(1, SUMMARY)
                length = (
                    100 * MS * factors[arm] * busy * (1 + drift * step) * (1 + rng.normal(0, noise))
                )
                row["step"], row["start_ns"], row["end_ns"] = step, now, now + int(length)
                row["communication_ns"] = 20 * MS
                row["overlap_ns"] = int((hidden[arm] if hidden else 0.5) * 20 * MS)
                row["communication_only_ns"] = 20 * MS - row["overlap_ns"]
                rows.append(row)
                step, now = step + 1, now + int(length)
    return np.concatenate(rows), blocks


def test_a_planted_difference_is_found_although_the_machine_drifts_more():
    rows, blocks = run([1.0, 0.97, 1.0], drift=0.0005, neighbour=0.3)
    result = judge(rows, blocks, ["a", "b", "c"])
    base, faster, same = result.arms
    assert base.verdict == ""
    assert faster.verdict == "faster"
    assert faster.low <= -0.03 <= faster.high
    assert result.best == 1
    assert same.rounds == 8


def test_equal_settings_are_hardly_ever_told_apart():
    told = 0
    for seed in range(30):
        rows, blocks = run([1.0] * 4, neighbour=0.2, seed=seed)
        result = judge(rows, blocks, list("abcd"))
        told += any(arm.verdict in {"faster", "slower"} for arm in result.arms)
        assert result.best == 0 or result.arms[result.best].verdict == "faster"
    assert told <= 5


def test_more_overlap_does_not_win():
    rows, blocks = run([1.0, 1.05], hidden=[0.2, 0.9])
    result = judge(rows, blocks, ["a", "b"])
    assert result.arms[1].hidden_share == pytest.approx(0.9)
    assert result.arms[1].verdict == "slower"
    assert result.best == 0


def test_a_clearly_worse_one_can_be_dropped():
    rows, blocks = run([1.0, 1.2, 1.001])
    result = judge(rows, blocks, ["a", "b", "c"], dropped={1: 4})
    assert clearly_worse(result) == [1]
    assert result.arms[1].dropped_after == 4


def test_two_that_cannot_be_told_from_each_other_are_named():
    rows, blocks = run([1.0, 0.9, 0.9])
    result = judge(rows, blocks, ["a", "b", "c"])
    assert {result.best, *result.like_best} == {1, 2}


def test_few_rounds_have_an_estimate_and_no_interval():
    rows, blocks = run([1.0, 0.9], rounds=3)
    arm = judge(rows, blocks, ["a", "b"]).arms[1]
    assert arm.change == pytest.approx(-0.1, abs=0.01)
    assert arm.low is None
    assert arm.verdict == "not distinguishable"


def test_steps_out_of_statistics_and_unmeasured_settings_take_no_part():
    rows, blocks = run([1.0, 0.9])
    rows["flags"][:10] = StepFlag.SHADOW
    result = judge(rows, [block for block in blocks if block.arm == 0], ["a", "b"])
    assert result.arms[0].steps == 70
    assert result.arms[1].step_ns is None
    assert result.arms[1].change is None
    assert result.best == 0
    assert result.to_dict()["arms"][1]["step_ns"] is None

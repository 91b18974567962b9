"""A planted difference is found with its size in the interval; none is not; and one run of each is not believed too much."""

import numpy as np
import pytest

from overlapwatch.compare.statistics import ONE_RUN_FLOOR, block_medians, verdict


def steps(seed, middle=100e6, count=200, noise=0.01, drift=0.0):
    rng = np.random.default_rng(seed)
    # Neighbours resemble each other: an autoregressive noise, as steps of a real job have.
    wander = np.zeros(count)
    for i in range(1, count):
        wander[i] = 0.5 * wander[i - 1] + rng.normal(0, noise)
    return middle * (1 + wander + drift * np.arange(count) / count)


def test_a_slower_setting_is_found_with_its_size():
    told = verdict([steps(1)], [steps(2, middle=105e6)])
    assert told.word == "slower"
    assert told.low <= 0.05 <= told.high
    assert told.change == pytest.approx(0.05, abs=0.01)
    back = verdict([steps(2, middle=105e6)], [steps(1)])
    assert back.word == "faster"


def test_the_same_setting_twice_is_hardly_ever_told_apart():
    words = [verdict([steps(2 * i)], [steps(2 * i + 1)]).word for i in range(40)]
    assert words.count("not distinguishable") >= 37


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    held = 0
    for i in range(40):
        told = verdict([steps(2 * i, noise=0.02)], [steps(2 * i + 1, 103e6, noise=0.02)])
        held += told.low <= 0.03 <= told.high
    assert held >= 32


def test_a_small_difference_from_one_run_each_is_not_believed():
    told = verdict([steps(1, noise=1e-4)], [steps(2, 100.35e6, noise=1e-4)])
    assert told.low > 0  # the interval alone would say so
    assert abs(told.change) < ONE_RUN_FLOOR
    assert told.word == "not distinguishable"
    assert "run each 3 times" in told.because


def test_with_repeats_a_small_difference_can_be_told():
    base = [steps(i, noise=1e-4) for i in range(4)]
    other = [steps(10 + i, 100.35e6, noise=1e-4) for i in range(4)]
    told = verdict(base, other)
    assert told.word == "slower"
    assert told.low <= 0.0035 <= told.high
    assert told.runs == (4, 4)


def test_repeats_that_differ_among_themselves_tell_nothing():
    base = [steps(i, middle) for i, middle in enumerate((100e6, 104e6, 98e6))]
    other = [steps(i + 5, middle) for i, middle in enumerate((101e6, 105e6, 99e6))]
    assert verdict(base, other).word == "not distinguishable"


def test_a_run_that_drifts_as_much_tells_nothing():
    told = verdict([steps(1, noise=1e-3)], [steps(2, noise=1e-3, drift=0.06)])
    assert told.word == "not distinguishable"
    assert "drifts" in told.because


def test_few_steps_are_a_reason():
    told = verdict([steps(1, count=20)], [steps(2, count=20)])
    assert told.word == "not distinguishable"
    assert told.because.startswith("too few steps: 30")
    assert told.change is not None
    assert verdict([], [steps(1)]).because == "no steps to compare"


def test_equal_steps_have_an_exact_difference():
    told = verdict([np.full(60, 100.0)], [np.full(60, 110.0)])
    assert (told.low, told.high) == (told.change, told.change) == pytest.approx((0.1, 0.1))
    assert told.word == "slower"


def test_blocks_are_consecutive():
    assert block_medians(np.arange(10.0)).tolist() == [2.0, 7.0]
    assert len(block_medians(np.arange(4.0))) == 0
    assert len(block_medians(np.arange(1000.0))) == 40

from itertools import count
from math import comb

import numpy as np
import pytest

from overlapwatch.accounting.shadow import MINIMUM_PAIRS, interval_of_median, shadow_cost
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag

MS = 1_000_000


def steps(*durations_ms, waits_ms=None):
    """Summaries of steps in a row; a negative duration is a shadow step's."""
    rows = np.zeros(len(durations_ms), SUMMARY)
    begin = 1_000_000_000
    for number, took, row in zip(count(1), durations_ms, rows, strict=False):
        row["step"] = number
        row["flags"] = StepFlag.SHADOW if took < 0 else 0
        row["start_ns"] = begin
        begin += round(abs(took) * MS)
        row["end_ns"] = begin
        row["wait_ns"] = NOT_KNOWN
    if waits_ms is not None:
        rows["wait_ns"] = [NOT_KNOWN if wait is None else wait * MS for wait in waits_ms]
    return rows


def cycles(differences_ms):
    """Shadow steps of 100 ms between recorded ones that are longer by the given differences."""
    durations = [100.0]
    for difference in differences_ms:
        durations += [100 + difference, -100, 100 + difference]
    return steps(*durations, 100)


def test_a_steady_cost_is_found():
    found = shadow_cost(cycles([2.0] * 8))
    assert (found.shadows, found.pairs) == (8, 8)
    assert (found.difference_ns, found.low_ns, found.high_ns) == (2 * MS, 2 * MS, 2 * MS)
    assert found.share == 0.02
    assert found.distinguishable is True
    assert found.verdict == "adds 2.000 ms a step (between 2.000 and 2.000)"
    assert found.level == 1 - 2 / 2**8
    assert found.unknown == ()


def test_noise_around_zero_is_not_a_cost():
    found = shadow_cost(cycles([-3, 4, -1, 2, -5, 6, -2, 1, 3, -4]))
    assert found.distinguishable is False
    assert found.low_ns < 0 < found.high_ns
    assert found.verdict.startswith("not distinguishable from zero")


def test_one_wild_step_does_not_decide():
    found = shadow_cost(cycles([1.0] * 11 + [500.0]))
    assert (found.difference_ns, found.high_ns) == (MS, MS)


def test_a_negative_cost_is_said_as_it_is():
    found = shadow_cost(cycles([-2.0] * 7))
    assert (
        found.verdict == "recorded steps are shorter by 2.000 ms a step (between 2.000 and 2.000)"
    )


def test_drift_cancels():
    """Steps grow by 1 ms each; recording adds nothing."""
    durations = [100.0 + number for number in range(40)]
    marked = [-took if number % 4 == 2 else took for number, took in enumerate(durations)]
    found = shadow_cost(steps(*marked))
    assert found.pairs == 10
    assert (found.low_ns, found.high_ns) == (0, 0)
    assert found.distinguishable is False


@pytest.mark.parametrize("pairs", range(MINIMUM_PAIRS))
def test_few_pairs_are_no_answer(pairs):
    found = shadow_cost(cycles([2.0] * pairs))
    assert (found.pairs, found.difference_ns, found.level, found.share) == (pairs, None, None, None)
    assert found.distinguishable is None
    assert found.verdict == f"not known ({pairs} pairs of shadow steps, 6 needed)"
    (unknown,) = found.unknown
    assert (f"{pairs} pairs" if pairs else "no shadow steps") in unknown.because


def test_a_shadow_step_without_a_neighbour_has_no_pair():
    found = shadow_cost(steps(-100, 101, -100, 101, -100))
    assert (found.shadows, found.pairs) == (3, 1)


def test_neighbours_are_in_statistics():
    rows = steps(101, 999, -100, 999, 103)
    rows["flags"][[1, 3]] = StepFlag.DISTURBED, StepFlag.REBUILT
    found = shadow_cost(np.concatenate([rows] * 1))
    assert found.pairs == 1
    assert found.shadow_step_ns == 100 * MS
    six = cycles([2.0] * 6)
    six["flags"][1] = StepFlag.DISTURBED  # the first pair now leans on the very first step
    assert shadow_cost(six).difference_ns == 2 * MS


def test_a_disturbed_shadow_step_is_no_measurement():
    rows = steps(101, -100, 101)
    rows["flags"][1] |= StepFlag.DISTURBED
    assert (shadow_cost(rows).shadows, shadow_cost(rows).pairs) == (1, 0)


def test_waits_with_and_without_recording():
    found = shadow_cost(steps(101, -100, 101, 101, -100, 101, waits_ms=[10, 7, 12, 20, 9, None]))
    assert (found.pairs, found.waits) == (2, 1)
    assert (found.wait_with_ns, found.wait_without_ns) == (11 * MS, 7 * MS)
    nothing = shadow_cost(steps(101, -100, 101))
    assert (nothing.wait_with_ns, nothing.wait_without_ns, nothing.waits) == (None, None, 0)


def test_no_steps():
    found = shadow_cost(np.empty(0, SUMMARY))
    assert (found.shadows, found.pairs, found.shadow_step_ns) == (0, 0, None)
    assert found.to_dict()["difference_ns"] is None


@pytest.mark.parametrize("size", [6, 7, 9, 10, 20, 37, 100, 1500])
def test_interval_is_the_narrowest_that_holds_the_level(size):
    """Against the binomial distribution, summed in full."""
    low, high, level = interval_of_median(np.arange(1, size + 1))
    assert low + high == size + 1  # symmetric ranks

    def missed(rank):
        return 2 * sum(comb(size, below) for below in range(rank)) / 2**size

    assert missed(low) <= 0.05 < missed(low + 1)
    assert level == pytest.approx(1 - missed(low))


def test_interval_of_six_is_their_range():
    low, high, level = interval_of_median(np.array([1, 2, 3, 5, 8, 13]))
    assert (low, high, level) == (1, 13, 1 - 2 / 64)
    assert interval_of_median(np.arange(5)) == (None, None, None)


def rows_with_waits(shadow_waits_ms):
    """Recorded steps that wait 10 ms each, around shadow steps that wait as given."""
    durations, waits = [100.0], [10]
    for wait in shadow_waits_ms:
        durations += [-100, 100]
        waits += [wait, 10]
    return steps(*durations, waits_ms=waits)


def test_two_medians_of_waits_are_not_a_difference_without_an_interval():
    cost = shadow_cost(rows_with_waits([9, 30, 2, 25, 8, 14, 3, 21]))
    assert cost.wait_with_ns != cost.wait_without_ns
    assert cost.wait_verdict.startswith("not distinguishable")
    few = shadow_cost(rows_with_waits([9, 30, 2]))
    assert few.wait_verdict == ""

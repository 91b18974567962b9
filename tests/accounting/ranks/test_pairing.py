import numpy as np
import pytest

from overlapwatch.accounting.ranks.pairing import Ends, pair_by_ends


def ends(moments, sign=None, step=None):
    moments = np.array(moments, np.int64)
    count = len(moments)
    return Ends(
        moments,
        np.zeros(count, np.int64) if sign is None else np.array(sign, np.int64),
        np.zeros(count, np.int64) if step is None else np.array(step, np.int64),
    )


def irregular(count, seed=0):
    """Ends with gaps from 1 to 9 ms, as no two are alike in a real job."""
    return np.cumsum(np.random.default_rng(seed).integers(1_000_000, 9_000_000, count))


@pytest.mark.parametrize("offset", [0, 11_560_000_000, -3_000_000])
@pytest.mark.parametrize("lost", [[0], [49], [20], [3, 4, 5, 30], [0, 1, 2]])
def test_a_lost_record_is_a_gap_and_never_a_shift(offset, lost):
    here = irregular(50)
    there = np.delete(here, lost) + offset
    found = pair_by_ends(ends(here), ends(there), same_clock=offset == 0)
    assert found.because == ""
    assert found.here.tolist() == [one for one in range(50) if one not in lost]
    assert found.there.tolist() == list(range(50 - len(lost)))
    assert found.fit.offset_ns == offset


def test_both_sides_may_lack_records():
    here = irregular(60)
    found = pair_by_ends(
        ends(np.delete(here, [7, 8])), ends(np.delete(here, [30]) + 5000), same_clock=False
    )
    assert len(found) == 57


def test_rows_of_another_kind_are_never_paired():
    here = irregular(10)
    sign = np.arange(10)
    other = sign.copy()
    other[4] = 99
    found = pair_by_ends(ends(here, sign), ends(here, other), same_clock=True)
    assert 4 not in found.here.tolist()
    assert len(found) == 9


def test_ends_that_have_nothing_to_do_with_each_other_are_refused():
    for same in (True, False):
        found = pair_by_ends(ends(irregular(50, 1)), ends(irregular(50, 2)), same_clock=same)
        assert len(found) == 0
        assert found.because


def test_a_clock_like_job_with_a_lost_record_is_ambiguous_and_refused_unless_steps_tell():
    here = np.arange(1, 41, dtype=np.int64) * 1_000_000
    step = np.arange(40) // 4
    refused = pair_by_ends(ends(here), ends(here[1:] + 77_000_000_000), same_clock=False)
    assert "several alignments" in refused.because
    told = pair_by_ends(
        ends(here, step=step), ends(here[1:] + 77_000_000_000, step=step[1:]), same_clock=False
    )
    assert told.because == ""
    assert told.here.tolist() == list(range(1, 40))


def test_too_few_ends_on_different_clocks_say_nothing():
    found = pair_by_ends(ends([5, 9]), ends([1005, 1009]), same_clock=False)
    assert "too few" in found.because or "do not fall together" in found.because
    assert pair_by_ends(ends([]), ends([5]), same_clock=True).because

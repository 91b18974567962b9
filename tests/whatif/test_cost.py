"""A straight line is found again, and what cannot be told from the data is not made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.whatif.cost import InFlight, fit
from overlapwatch.whatif.engines import queue


def one_by_one(sizes, latency, per_byte, gap):
    """Collectives on one engine, each launched `gap` after the one before."""
    sizes = np.array(sizes, np.int64)
    launch = np.arange(len(sizes), dtype=np.int64) * gap
    _, finish = queue(launch, np.rint(latency + per_byte * sizes).astype(np.int64))
    return InFlight(sizes, launch, finish)


@given(
    st.integers(10_000, 1_000_000),
    st.floats(0.01, 10),
    st.lists(st.integers(1_000, 10_000_000), min_size=3, max_size=8, unique=True),
    st.integers(0, 100_000_000),
)
def test_times_are_found_again_queued_or_not(latency, per_byte, sizes, gap):
    step = one_by_one(sizes, latency, per_byte, gap)
    cost = fit([step] * 3)
    alone = np.rint(latency + per_byte * step.sizes).astype(np.int64)
    if cost.latency_ns is not None:
        assert np.abs(cost.of(step.sizes) - alone).max() <= 0.001 * alone.max() + 3
        assert cost.error < 0.001
    else:  # one busy period, or one kind of it: its whole is kept
        assert cost.of(step.sizes).sum() == pytest.approx(
            (step.finish[-1] - step.launch[0]) if gap == 0 else alone.sum(), rel=0.5
        )


def test_latency_and_rate_are_told_apart_by_periods_of_different_kinds():
    step = one_by_one([1_000_000, 5_000_000, 100_000, 12_000_000], 40_000, 1.5, 50_000_000)
    cost = fit([step] * 5)
    assert cost.latency_ns == pytest.approx(40_000, abs=2)
    assert cost.ns_per_byte == pytest.approx(1.5)
    assert (cost.count, cost.sizes) == (20, 4)


def test_one_size_cannot_tell_latency():
    sizes = np.array([1000])
    cost = fit(
        [
            InFlight(sizes, np.array([0]), np.array([ns]))
            for ns in (90, 95, 100, 100, 105, 110, 5000)
        ]
    )
    assert cost.latency_ns is None
    assert cost.of(np.array([1000, 2000])).tolist() == [100, 200]  # one straggler does not count


def test_two_that_share_the_link_cost_what_they_cost_together():
    # Alone each takes 100; at once the first seems to take 190 and the second, launched at 10, 190 too.
    step = InFlight(np.array([1000, 1000]), np.array([0, 10]), np.array([190, 200]))
    cost = fit([step] * 3)
    assert cost.of(np.array([1000])).tolist() == [100]
    assert cost.error == 0


def test_a_few_periods_with_noise_do_not_make_a_latency_up():
    # Bytes alone cost time here; sizes that differ little and noise would let a line through single collectives say
    # that a collective costs 100 ms before the first byte.
    rng = np.random.default_rng(0)
    sizes = np.array([5_000_000, 5_100_000, 5_050_000])
    steps = []
    for _ in range(10):
        launch = np.array([0, 300_000_000, 600_000_000])
        noise = rng.integers(-20_000_000, 20_000_000, 3)
        steps.append(InFlight(sizes, launch, launch + 28 * sizes + noise))
    cost = fit(steps)
    assert cost.latency_ns is None
    assert cost.ns_per_byte == pytest.approx(28, rel=0.05)


def test_less_time_for_more_bytes_is_noise():
    step = InFlight(np.array([1000, 2000]), np.array([0, 10_000]), np.array([2000, 11_000]))
    cost = fit([step] * 3)
    assert cost.latency_ns is None
    assert cost.ns_per_byte == 1


def test_nothing_to_fit_is_one_sentence():
    with pytest.raises(InputError, match="cannot be fitted"):
        fit([InFlight(np.array([0, 10]), np.array([0, 20]), np.array([10, 20]))])
    with pytest.raises(InputError, match="cannot be fitted"):
        fit([])

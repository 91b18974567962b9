"""A straight line is found again, and what cannot be told from the data is not made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.whatif.cost import fit


@given(
    st.integers(1_000, 1_000_000),
    st.floats(0.01, 10),
    st.lists(st.integers(1_000, 10_000_000), min_size=2, max_size=8, unique=True),
)
def test_latency_and_rate_are_found_again(latency, per_byte, sizes):
    sizes = np.array(sizes, np.int64)
    service = np.rint(latency + per_byte * sizes).astype(np.int64)
    cost = fit(sizes, np.stack([service] * 3))
    assert np.abs(cost.of(sizes) - service).max() <= 0.001 * service.max() + 2
    assert cost.error < 0.01


def test_one_size_cannot_tell_latency():
    cost = fit(np.array([1000]), np.array([[90], [100], [100], [110], [5000]]))
    assert cost.latency_ns is None
    assert cost.of(np.array([1000, 2000])).tolist() == [100, 200]  # one straggler does not count


def test_two_that_share_the_link_cost_what_they_cost_together():
    # Alone each takes 100; at once the first seems to take 180 and the second 20.
    cost = fit(np.array([1000, 1000]), np.array([[180, 20]] * 3))
    assert cost.of(np.array([1000])).tolist() == [100]
    assert cost.error == 0


def test_less_time_for_more_bytes_is_noise():
    cost = fit(np.array([1000, 2000]), np.array([[2000, 1000]]))
    assert cost.latency_ns == 0
    assert cost.ns_per_byte == 1


def test_nothing_to_fit_is_one_sentence():
    with pytest.raises(InputError, match="cannot be fitted"):
        fit(np.array([0, 10]), np.array([[10, 0]]))

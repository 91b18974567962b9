"""DDP's bucketing rule against PyTorch's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.whatif.bucketing import MIB, assign, limits

torch = pytest.importorskip("torch")

TYPES = (torch.float32, torch.bfloat16)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(TYPES)), min_size=1, max_size=30),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
)
def test_the_layout_is_that_of_pytorch(parameters, limits_bytes):
    tensors = [torch.empty(elements, dtype=dtype) for elements, dtype in parameters]
    # With indices, PyTorch takes the order as that in which gradients became ready, as it does when it lays out anew.
    theirs, _ = torch.distributed._compute_bucket_assignment_by_size(
        tensors, limits_bytes, [False] * len(tensors), list(range(len(tensors)))
    )
    ours = assign(
        [tensor.numel() * tensor.element_size() for tensor in tensors],
        limits_bytes,
        [tensor.dtype for tensor in tensors],
    )
    open_ = len({dtype for _, dtype in parameters})  # at most one unfilled bucket of each type
    left = next(
        n
        for n in range(open_ + 1)
        if sorted(ours[-n:] if n else []) == sorted(theirs[len(theirs) - n :])
        and ours[: len(ours) - n] == theirs[: len(theirs) - n]
    )
    # The order of the unfilled ones is that of a hash table.
    assert len(ours) == len(theirs)
    assert left <= 1 or open_ > 1


def test_a_cap_that_the_user_gave_is_the_only_limit():
    assert limits(25) == (25 * MIB,)
    assert limits(0.5) == (MIB // 2,)
    assert limits(None) == (MIB, 25 * MIB)


def test_a_bucket_closes_behind_the_parameter_that_fills_it():
    assert assign([3, 3, 4, 4, 4, 1], (4, 10), ["f"] * 6) == [[0, 1], [2, 3, 4], [5]]

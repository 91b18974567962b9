"""Interval arithmetic against a bitmap of 1 ns: a set of the integers that each span covers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.timeline import intervals as iv

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(-2, 12)), max_size=12)


@pytest.fixture(autouse=True, params=[0, 64], ids=["arrays", "plain integers"])
def twin(request):
    """Both ways of counting: few spans are counted in plain integers."""
    before, iv.SMALL = iv.SMALL, request.param
    yield
    iv.SMALL = before


def arrays(pairs):
    start = np.array([start for start, _ in pairs], np.int64)
    return start, start + np.array([length for _, length in pairs], np.int64)


def cells(start, end):
    return [set(range(a, b)) for a, b in zip(start.tolist(), end.tolist(), strict=True)]


def covered(one):
    """The bitmap of a union, after making sure that it is one."""
    assert (one.end > one.start).all()
    assert (one.start[1:] > one.end[:-1]).all()
    assert one.start.dtype == one.end.dtype == np.int64
    return set().union(*cells(one.start, one.end))


def bits(pairs):
    return set().union(*cells(*arrays(pairs)))


@settings(deadline=None)
@given(PAIRS, PAIRS)
def test_unions(left, right):
    a, b = iv.union(*arrays(left)), iv.union(*arrays(right))
    assert covered(a) == bits(left)
    assert iv.total(a) == len(bits(left))
    assert covered(iv.intersect(a, b)) == bits(left) & bits(right)
    assert covered(iv.subtract(a, b)) == bits(left) - bits(right)
    assert covered(iv.join(a, b)) == bits(left) | bits(right)


@settings(deadline=None)
@given(PAIRS, PAIRS)
def test_each_span_against_a_union(left, right):
    start, end = arrays(left)
    other, there = iv.union(*arrays(right)), bits(right)
    for function, expected in (
        (iv.intersect_spans, [cell & there for cell in cells(start, end)]),
        (iv.subtract_spans, [cell - there for cell in cells(start, end)]),
    ):
        piece_start, piece_end, index = function(start, end, other)
        found = [set() for _ in left]
        for cell, owner in zip(cells(piece_start, piece_end), index.tolist(), strict=True):
            assert not found[owner] & cell  # pieces of one span do not overlap
            found[owner] |= cell
        assert found == expected
    sizes = [len(cell & there) for cell in cells(start, end)]
    assert iv.cover(start, end, other).tolist() == sizes


@settings(deadline=None)
@given(PAIRS, st.integers(0, 40), st.integers(-2, 20))
def test_clip_and_contained(pairs, low, length):
    start, end = arrays(pairs)
    window = set(range(low, low + length))
    cut_start, cut_end, index = iv.clip(start, end, low, low + length)
    assert set().union(*cells(cut_start, cut_end)) == bits(pairs) & window
    assert len(set(index.tolist())) == len(index)
    _, _, kept = iv.contained(start, end, low, low + length)
    for at, cell in enumerate(cells(start, end)):
        if cell:
            assert (at in kept) == (cell <= window)


@settings(deadline=None)
@given(st.lists(PAIRS, max_size=4))
def test_counted_again(groups):
    unions = [iv.union(*arrays(group)) for group in groups]
    every = set().union(*(bits(group) for group in groups))
    assert iv.counted_again(unions) == sum(len(bits(group)) for group in groups) - len(every)

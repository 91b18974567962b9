import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.exports.tracks import apart, nested

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=30)


def columns(spans, *, inside=False):
    ordered = sorted(spans, key=lambda one: (one[0], -one[1] if inside else 0))
    start = np.array([start for start, _ in ordered], np.int64)
    return start, start + np.array([length for _, length in ordered], np.int64)


def test_the_table_of_the_module():
    start, end = np.array([0, 1, 3, 4]), np.array([4, 3, 6, 5])
    assert apart(start, end).tolist() == [0, 1, 1, 0]
    assert [one.tolist() for one in nested(start, end)] == [[0, 0, 1, 0], [0, 1, 0, 0]]


@given(SPANS)
def test_no_two_of_a_row_overlap_and_there_are_no_more_rows_than_needed(spans):
    start, end = columns(spans)
    rows = apart(start, end)
    for row in np.unique(rows):
        mine = rows == row
        assert (start[mine][1:] >= end[mine][:-1]).all()
    # A span of no length needs a row only where another runs at its moment.
    deepest = max(
        (
            sum(low <= moment < max(high, low + 1) for low, high in zip(start, end, strict=True))
            for moment in range(45)
        ),
        default=0,
    )
    assert len(np.unique(rows)) <= deepest
    assert set(rows.tolist()) == set(range(len(np.unique(rows))))


@given(SPANS)
def test_of_a_row_each_two_lie_apart_or_in_one_another(spans):
    start, end = columns(spans, inside=True)
    rows, depth = nested(start, end)
    for row in np.unique(rows):
        mine = [(low, high) for low, high, one in zip(start, end, rows, strict=True) if one == row]
        for place, (low, high) in enumerate(mine):
            for other, last in mine[place + 1 :]:
                assert other >= high or last <= high, (low, high, other, last)
    assert (depth == 0).any() == (len(start) > 0)


def test_spans_that_do_not_overlap_take_one_row_however_many():
    start = np.arange(100_000, dtype=np.int64) * 10
    assert not apart(start, start + 10).any()

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.accounting.ranks.fit import ClockFit
from overlapwatch.exports.clocks import Clock, us
from overlapwatch.sources.kineto.times import ns_array


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_the_table_of_the_module():
    assert us(column(1_234, 0, -1, 2_129_499_999)) == ["1.234", "0.000", "-0.001", "2129499.9991"]


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=40))
def test_every_text_gives_the_ns_back_by_whatever_reads_it(ns):
    texts = us(column(*ns))
    for text, value in zip(texts, ns, strict=True):
        exact = Decimal(text) * 1000
        assert int(exact.to_integral_value(ROUND_HALF_UP)) == value
        assert int(float(text) * 1000) == value
        assert round(float(text) * 1000) == value
    back, known = ns_array([text.encode() for text in texts])
    assert known.all()
    assert back.tolist() == ns


def test_lengths_are_those_of_the_axis():
    clock = Clock(1_000, ClockFit(1_000, 500, 0.5))
    begin, length = clock.texts(column(1_500, 4_500), column(4_500, 7_500))
    assert begin == ["0.000", "2.000"]  # with a drift of a half, 3 ns of the rank are 2 of the axis
    assert length == ["2.000", "2.000"]
    assert clock.text(4_500) == "2.000"


@given(st.integers(0, 10**14), st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_floats_of_spans_that_touch_do_not_overlap(first, lengths):
    edges = first + np.cumsum([0, *lengths])
    begin, length = Clock(0).texts(edges[:-1], edges[1:])
    ends = [float(one) + float(two) for one, two in zip(begin, length, strict=True)]
    after = [*(float(one) for one in begin[1:]), float(us(edges[-1:])[0])]
    assert all(end <= then for end, then in zip(ends, after, strict=True))
    assert [round(Decimal(one) * 1000) for one in length] == lengths


@given(st.integers(0, 10**14), st.lists(st.integers(1, 10**9), min_size=1, max_size=3))
def test_floats_of_spans_in_one_another_do_not_outlive_it(end, lengths):
    lengths = sorted(lengths, reverse=True)
    finish = np.full(len(lengths), end + 10**9, np.int64)
    begin, length = Clock(0).texts(finish - lengths, finish, np.arange(len(lengths)))
    ends = [float(one) + float(two) for one, two in zip(begin, length, strict=True)]
    assert ends == sorted(ends, reverse=True)
    assert [round(Decimal(one) * 1000) for one in length] == lengths


def test_zero_is_where_the_clock_says():
    assert Clock(7).on_axis(column(7, 8, 6)).tolist() == [0, 1, -1]

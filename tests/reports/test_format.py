import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.reports.format import bar, counted, duration, ms, percent, ranges, scale, size


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "not known"),
        (0, "0"),
        (900, "<0.01"),
        (-900, "-<0.01"),
        (1_234_000, "1.23"),
        (9_994_000, "9.99"),
        (9_996_000, "10.0"),
        (92_100_000, "92.1"),
        (1_412_300_000, "1,412.3"),
    ],
)
def test_ms(ns, text):
    assert ms(ns) == text


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ((5_000_000, 231_800_000), ["5.0", "231.8"]),
        ((40_000, 231_800_000), ["0.04", "231.80"]),
        ((1_000_000, 7_000_000), ["1.00", "7.00"]),
        ((10_500, 800_000), ["0.011", "0.800"]),
        ((0, None, 400, -400, 800_000), ["0", "–", "<0.001", "-<0.001", "0.800"]),
        ((4_000, 231_800_000), ["<0.01", "231.80"]),
        ((), []),
        ((0, 0), ["0", "0"]),
    ],
)
def test_numbers_of_one_table_share_their_decimals(values, written):
    write = scale(values)
    assert [write(ns) for ns in values] == written


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1))
def test_only_zero_is_written_as_zero(values):
    write = scale(values)
    for ns in values:
        assert (write(ns).strip("-0.,") == "") == (ns == 0)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "not known"),
        (850, "850 ns"),
        (12_300, "12.3 µs"),
        (58_100_000, "58.1 ms"),
        (12_300_000_000, "12.3 s"),
        (600_000_000_000, "10 min"),
        (7_500_000_000_000, "2 h 05 min"),
    ],
)
def test_duration(ns, text):
    assert duration(ns) == text


@pytest.mark.parametrize(
    ("numerator", "denominator", "text"),
    [
        (613, 1000, "61.3 %"),
        (0, 5, "0.0 %"),
        (1, 100_000, "<0.1 %"),
        (5, 0, "–"),
        (None, 5, "not known"),
        (5, None, "not known"),
    ],
)
def test_percent(numerator, denominator, text):
    assert percent(numerator, denominator) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "not known"),
        (0, "0 B"),
        (12, "12 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (8_400_000, "8.4 MB"),
        (5_300_000_000, "5.3 GB"),
        (10**19, "10000.0 PB"),
    ],
)
def test_size_is_decimal_and_never_zero_for_something(count, text):
    assert size(count) == text


def test_counted():
    assert [counted(n, "step") for n in (0, 1, 2, 1200)] == [
        "0 steps",
        "1 step",
        "2 steps",
        "1,200 steps",
    ]
    assert counted(2, "match", "matches") == "2 matches"


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0, ""),
        (1e-9, "▏"),
        (0.5, "████"),
        (0.55, "████▍"),
        (1, "████████"),
        (1.7, "████████"),
        (-1, ""),
    ],
)
def test_bar_shows_whatever_is_there(share, drawn):
    assert bar(share, 8) == drawn


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([4], "4"), ([1, 2], "1, 2"), ([1, 2, 3, 7, 9, 10, 11, 12], "1–3, 7, 9–12")],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text

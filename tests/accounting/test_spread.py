import numpy as np
import pytest

from overlapwatch.accounting.spread import median, spread


def ns(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (range(1, 101), (50, 95, 99, 100)),
        ((7,), (7, 7, 7, 7)),
        ((4, 1, 3, 2), (2, 4, 4, 4)),
        ((5, 1, 3), (3, 5, 5, 5)),
        (range(1, 201), (100, 190, 198, 200)),
    ],
)
def test_percentiles_are_values_that_occurred(values, expected):
    found = spread(ns(*values))
    assert (found.p50_ns, found.p95_ns, found.p99_ns, found.max_ns) == expected
    assert found.count == len(values)
    assert found.total_ns == sum(values)
    assert found.mean_ns == sum(values) // len(values)


def test_nothing_has_no_spread():
    assert spread(ns()) is None
    assert median(ns()) is None


def test_large_times_stay_exact():
    big = 1 << 62
    assert median(ns(big, big - 1, big + 1)) == big

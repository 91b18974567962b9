from math import comb

import pytest

from overlapwatch.accounting.ranks.chance import at_least, wilson


@pytest.mark.parametrize(
    ("k", "n", "chance"), [(5, 5, 0.25), (10, 40, 0.25), (1, 3, 0.5), (0, 4, 0.1)]
)
def test_the_tail_is_the_sum_of_the_binomial_terms(k, n, chance):
    terms = sum(comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in range(k, n + 1))
    assert at_least(k, n, chance) == pytest.approx(terms)


def test_the_edges_of_chance():
    assert at_least(3, 2, 0.5) == 0.0
    assert at_least(1, 5, 0.0) == 0.0
    assert at_least(5, 5, 1.0) == 1.0
    assert 0 < at_least(90_000, 100_000, 0.5) < 1e-6 or at_least(90_000, 100_000, 0.5) == 0.0


def test_wilson_holds_what_the_literature_gives():
    # Wilson (1927) as in Newcombe (1998), table I: 81 of 263.
    low, high = wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)

"""The factors of nccl-tests, as properties: what each algorithm must move, at the least."""

from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.accounting.rates import bus_factor, moved_bytes
from overlapwatch.vocabulary import CollectiveKind as Kind

RANKS = st.integers(1, 100_000)
BYTES = st.integers(0, 1 << 40)
SHARED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)
RATED = tuple(kind for kind in Kind if bus_factor(kind, 2) is not None)


def bus_bytes(kind, size, ranks):
    return moved_bytes(kind, size, ranks) * bus_factor(kind, ranks)


@given(BYTES, RANKS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, ranks):
    """Of a buffer of ranks × size: scattered parts of `size`, gathered again."""
    both = bus_bytes(Kind.REDUCE_SCATTER, size, ranks) + bus_bytes(Kind.ALL_GATHER, size, ranks)
    assert bus_bytes(Kind.ALL_REDUCE, size * ranks, ranks) == both


@given(st.sampled_from(SHARED), BYTES, RANKS)
def test_all_parts_but_ones_own_cross_the_bus(kind, size, ranks):
    assert bus_bytes(kind, size, ranks) == size * (ranks - 1)


@given(st.sampled_from((*SHARED, Kind.ALL_REDUCE)), BYTES)
def test_one_rank_alone_moves_nothing(kind, size):
    assert bus_bytes(kind, size, 1) == 0


@given(st.sampled_from(RATED), RANKS)
def test_factors_grow_with_the_ranks_and_stay_below_their_limit(kind, ranks):
    factor = bus_factor(kind, ranks)
    limit = 2 if kind is Kind.ALL_REDUCE else 1
    assert 0 <= factor <= limit
    assert factor <= bus_factor(kind, ranks + 1)


@given(st.sampled_from(RATED), BYTES, RANKS)
def test_what_is_moved_is_never_less_than_what_is_given(kind, size, ranks):
    assert moved_bytes(kind, size, ranks) >= size


def test_every_kind_but_two_has_a_factor():
    assert set(Kind) - set(RATED) == {Kind.UNKNOWN, Kind.BARRIER}

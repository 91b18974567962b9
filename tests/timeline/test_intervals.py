import numpy as np
import pytest

from overlapwatch.timeline import intervals as iv


def spans(*pairs):
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def u(*pairs):
    return iv.union(*spans(*pairs))


def pairs(one):
    return list(zip(one.start.tolist(), one.end.tolist(), strict=True))


def pieces(found):
    return list(zip(*(column.tolist() for column in found), strict=True))


def test_union_merges_touching_drops_empty_and_reversed():
    assert pairs(u((6, 7), (0, 4), (9, 9), (2, 6), (12, 11))) == [(0, 7)]
    assert pairs(u((8, 11), (0, 1), (3, 4))) == [(0, 1), (3, 4), (8, 11)]
    assert pairs(u((0, 10), (1, 2), (3, 4))) == [(0, 10)]  # nested ones do not end the outer one
    assert pairs(u()) == pairs(u((5, 5))) == []


def test_the_mini_tables_of_the_module():
    a, b = u((0, 7), (9, 12)), u((3, 5), (6, 10))
    assert pairs(iv.intersect(a, b)) == [(3, 5), (6, 7), (9, 10)]
    assert pairs(iv.subtract(a, b)) == [(0, 3), (5, 6), (10, 12)]
    two = spans((0, 7), (4, 9))
    assert pieces(iv.intersect_spans(*two, b)) == [(3, 5, 0), (6, 7, 0), (4, 5, 1), (6, 9, 1)]
    assert pieces(iv.subtract_spans(*two, b)) == [(0, 3, 0), (5, 6, 0), (5, 6, 1)]
    assert iv.counted_again([u((0, 4)), u((2, 6)), u((3, 5))]) == 4


def test_edges_clip_and_contained():
    crossing = spans((0, 4), (2, 8), (5, 6), (7, 12), (20, 30))
    assert pieces(iv.clip(*crossing, 3, 10)) == [(3, 4, 0), (3, 8, 1), (5, 6, 2), (7, 10, 3)]
    assert pieces(iv.contained(*crossing, 2, 8)) == [(2, 8, 1), (5, 6, 2)]
    assert pieces(iv.clip(*crossing, 10, 10)) == pieces(iv.contained(*crossing, 8, 2)) == []


def test_an_empty_span_stays_where_it_happened():
    moments = spans((3, 3), (5, 5), (2, 2))
    assert pieces(iv.clip(*moments, 3, 5)) == [(3, 3, 0)]  # 5 is no longer in [3, 5)


@pytest.mark.parametrize("base", [0, 2**62, -(2**62)])
def test_nanoseconds_are_exact_far_from_zero(base):
    """A float64 cannot tell 2**62 from 2**62 + 1."""
    a, b = u((base, base + 3), (base + 5, base + 8)), u((base + 1, base + 6))
    assert pairs(iv.intersect(a, b)) == [(base + 1, base + 3), (base + 5, base + 6)]
    assert pairs(iv.subtract(a, b)) == [(base, base + 1), (base + 6, base + 8)]
    assert iv.cover(*spans((base, base + 8)), b).tolist() == [5]
    assert iv.total(a) == 6
    assert iv.total(a) == iv.total(iv.intersect(a, b)) + iv.total(iv.subtract(a, b))

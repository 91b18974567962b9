from dataclasses import replace

import pytest

from overlapwatch.accounting.exposed import Band, exposed
from overlapwatch.accounting.window import capture_window
from overlapwatch.errors import ConfigurationError
from tests.support.scenarios import MS, profile


def segments(*lengths, edges=None):
    """Return the exposed segments of transfers of these lengths in ms, 1 ms of compute between them."""
    compute, sends, now = [], [], 0.0
    for length in lengths:
        compute.append((now, now + 1))
        sends.append((now + 1, now + 1 + length))
        now += 1 + length
    tl = profile(compute, sends)
    options = {} if edges is None else {"edges_ns": edges}
    found = exposed(tl, capture_window(tl), **options)
    assert [check.name for check in found.checks() if not check.ok] == []
    return found


def test_segments_are_maximal_and_without_compute():
    """Two transfers that touch are one segment; compute inside a transfer cuts it in two."""
    tl = profile([(0, 4), (6, 8)], [(2, 5), (5, 7), (8, 9)])
    found = exposed(tl, capture_window(tl))
    assert (found.count, found.total_ns) == (2, 3 * MS)
    assert (found.median_ns, found.longest_ns) == (1_500_000, 2 * MS)


def test_bands_hold_their_lower_edge():
    found = segments(1, 2, 3, 4, 6, 8, 20)
    assert found.bands == (
        Band(0, 2 * MS, 1, 1 * MS, 1 / 44),
        Band(2 * MS, 4 * MS, 2, 5 * MS, 5 / 44),
        Band(4 * MS, 6 * MS, 1, 4 * MS, 4 / 44),
        Band(6 * MS, 8 * MS, 1, 6 * MS, 6 / 44),
        Band(8 * MS, None, 2, 28 * MS, 28 / 44),
    )
    assert found.carrying_band == found.bands[-1]
    assert found.median_ns == 4 * MS


@pytest.mark.parametrize(
    ("lengths", "verdict"),
    [
        ((), "none"),
        ((1, 1, 20, 2), "one long"),
        ((3, 3, 3.5, 5, 3), "many middling"),
        ((1, 1, 1, 3, 3), "many middling"),  # by time, not by number
        ((1, 1, 1, 0.5), "many short"),
        ((9, 10, 12, 1), "several long"),
    ],
)
def test_verdict(lengths, verdict):
    assert segments(*lengths).verdict == verdict


def test_other_bands():
    found = segments(1, 5, edges=[3 * MS])
    assert [(band.count, band.total_ns) for band in found.bands] == [(1, MS), (1, 5 * MS)]
    for wrong in ([0, 5], [5, 5], [7, 5], [-1]):
        with pytest.raises(ConfigurationError, match="must ascend"):
            segments(1, edges=wrong)


def test_nothing_exposed():
    found = segments()
    assert found.carrying_band is None
    assert found.to_dict() == {
        "count": 0,
        "total_ns": 0,
        "median_ns": None,
        "longest_ns": None,
        "bands": [band.to_dict() for band in found.bands],
        "verdict": "none",
    }
    assert {band.share for band in found.bands} == {None}


def test_a_check_fails_when_a_band_is_lost():
    found = segments(1, 3)
    short = replace(found, bands=found.bands[1:])
    assert [check.ok for check in short.checks()] == [True, False, False]
    assert not replace(found, total_ns=1).checks()[0].ok

from dataclasses import replace

import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.window import Window, capture_window
from overlapwatch.vocabulary import RecordFlag, RecordKind
from tests.support.scenarios import MS, SCENARIOS, at, profile, record


def whole(tl):
    return partition(tl, capture_window(tl))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name):
    case = SCENARIOS[name]()
    found = whole(case.timeline)
    parts = (case.compute_only, case.communication_only, case.overlap, case.idle)
    assert found.window_ns == case.window * MS
    assert (
        found.compute_only_ns,
        found.communication_only_ns,
        found.overlap_ns,
        found.idle_ns,
    ) == tuple(part * MS for part in parts)
    assert found.compute_ns == (case.compute_only + case.overlap) * MS
    assert found.communication_ns == (case.communication_only + case.overlap) * MS
    assert found.overlap_ratio == case.ratio
    assert [check.name for check in found.checks() if not check.ok] == []


def test_unions_not_sums():
    """Four concurrent transfers of 1 s inside 1.02 s are 1.02 s of communication, not 4."""
    spans = [(0, 1000), (5, 1005), (10, 1010), (20, 1020)]
    found = whole(profile([(0, 500), (100, 510)], spans))
    assert found.communication_ns == 1020 * MS
    assert found.compute_ns == found.overlap_ns == 510 * MS


@pytest.mark.parametrize(
    ("boundary", "compute", "communication", "overlap"),
    [("clip", 4, 4, 2), ("contained", 0, 3, 0)],
)
def test_boundary_rule(boundary, compute, communication, overlap):
    tl = profile([(0, 6)], [(1, 3), (5, 8)])
    found = partition(tl, Window(at(2), at(9), "test", boundary))
    assert found.compute_ns == compute * MS
    assert found.communication_ns == communication * MS
    assert found.overlap_ns == overlap * MS
    assert found.window_ns == 7 * MS
    assert all(check.ok for check in found.checks())


def test_copies_are_beside_the_lanes():
    """NVIDIA's exposed also takes away copies; idle with copies is not idle for certain."""
    found = whole(profile([(0, 4)], [(3, 8)], copies=[(2, 6), (7, 10), (12, 13)]))
    assert found.communication_only_ns == 4 * MS
    assert found.exposed_beyond_copies_ns == 1 * MS  # 6-7
    assert found.idle_ns == 5 * MS
    assert found.copies_only_ns == 3 * MS  # 8-10, 12-13


def test_a_check_fails_when_the_parts_do_not_add_up():
    case = SCENARIOS["half_exposed"]()
    found = replace(whole(case.timeline), overlap_ns=3 * MS)
    assert [check.ok for check in found.checks()] == [False, False, False]
    assert found.checks()[0].to_dict() == {
        "name": "four parts = window",
        "left": 9 * MS,
        "right": 8 * MS,
        "unit": "ns",
        "ok": False,
    }


@pytest.mark.parametrize(
    ("flags", "unfinished", "unobservable", "because"),
    [
        (0, 1, 0, "1 collectives had not finished"),
        (
            RecordFlag.FINISH_UNOBSERVABLE,
            0,
            1,
            "the span of 1 collectives cannot be observed",
        ),
    ],
)
def test_communication_nobody_saw_is_unknown_not_zero(flags, unfinished, unobservable, because):
    unseen = record(kind=RecordKind.COLLECTIVE, launch=at(1), flags=flags)
    found = whole(profile([(0, 6)], [unseen]))
    assert (found.unfinished, found.unobservable) == (unfinished, unobservable)
    assert found.overlap_ratio is None
    assert found.exposed_fraction is None
    told = found.to_dict()
    assert told["compute_ns"] == 6 * MS
    for part in ("communication", "compute_only", "communication_only", "overlap", "idle"):
        assert told[f"{part}_ns"] is None
    assert [one.because for one in found.not_known()] == [because]
    # Beside one that was seen, the numbers are told, as what they are.
    found = whole(profile([(0, 6)], [unseen, (5, 8)]))
    assert found.to_dict()["communication_ns"] == 3 * MS
    assert "lower bounds" in found.not_known()[0].what


def test_without_communication_that_is_said():
    found = whole(profile([(0, 6)]))
    assert found.to_dict()["overlap_ratio"] is None
    assert found.exposed_fraction == 0.0
    reasons = [one.because for one in found.not_known()]
    assert reasons == ["no communication was recognised in the window"]


def test_an_ordinary_partition_leaves_nothing_unknown():
    case = SCENARIOS["half_exposed"]()
    found = whole(case.timeline)
    assert found.not_known() == ()
    assert found.exposed_fraction == 0.25
    assert None not in found.to_dict().values()

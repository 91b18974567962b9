import numpy as np

from overlapwatch.accounting.messages import in_flight, messages
from overlapwatch.vocabulary import RECORD, CollectiveKind, Name, NameKind
from tests.support.scenarios import MS, at, collective, records

NAMES = {1: Name(1, NameKind.BUCKET, "bucket 0")}
GROUPS = {
    1: Name(1, NameKind.GROUP, "dp", members=(0, 1, 2, 3)),
    2: Name(2, NameKind.GROUP, "tp", members=(0, 1)),
}


def told(rows):
    found = messages(records(rows), GROUPS)
    assert [check for check in found.checks() if not check.ok] == []
    return found


def test_by_group():
    found = told(
        [
            collective(0, 4, group=1, size=8),
            collective(4, 6, group=2, size=2),
            collective(6, 7, group=1, size=8),
        ]
    )
    assert [
        (row.name, row.ranks, row.traffic.count, row.traffic.bytes) for row in found.groups
    ] == [
        ("dp", (0, 1, 2, 3), 2, 16),
        ("tp", (0, 1), 1, 2),
    ]
    assert found.total.bytes == 18
    assert found.groups[0].traffic.launch_to_finish.max_ns == 4 * MS


def test_by_exact_size_largest_first():
    """512 KB reductions: typically 0.7 ms, outliers of 42 and 210 ms."""
    took = [0.7] * 98 + [42, 210]
    rows = [collective(1000 * i, 1000 * i + ms, size=512_000) for i, ms in enumerate(took)]
    rows.append(collective(0, 1, size=512_004))
    rows.append(collective(0, 1, size=512_004, kind=CollectiveKind.ALL_GATHER))
    found = told(rows)
    assert [(row.size_bytes, row.kind, row.traffic.count) for row in found.sizes] == [
        (512_004, CollectiveKind.ALL_REDUCE, 1),
        (512_004, CollectiveKind.ALL_GATHER, 1),
        (512_000, CollectiveKind.ALL_REDUCE, 100),
    ]
    spread = found.sizes[-1].traffic.launch_to_finish
    assert (spread.p50_ns, spread.p99_ns, spread.max_ns) == (0.7 * MS, 42 * MS, 210 * MS)


def test_what_has_not_finished_counts_but_has_no_time():
    hung = collective(0, 1, group=1)
    hung["finish"] = 0
    found = told([hung, collective(2, 3, group=1)])
    assert (found.total.count, found.total.finished, found.total.launch_to_finish.count) == (
        2,
        1,
        1,
    )
    assert told([hung]).total.launch_to_finish is None


def test_sizes_and_groups_that_are_not_known():
    (size,) = told([collective(0, 1, size=0, group=7)]).sizes
    (group,) = told([collective(0, 1, size=0, group=7)]).groups
    assert (size.size_bytes, size.traffic.bytes) == (None, None)
    assert size.to_dict()["bytes"] is None
    assert (group.name, group.ranks, group.to_dict()["name"]) == ("", (), None)


def test_a_kind_of_a_newer_version_is_unknown():
    assert told([collective(0, 1, kind=200)]).sizes[0].kind is CollectiveKind.UNKNOWN


def test_nothing():
    found = told([])
    assert (found.total.count, found.groups, found.sizes) == (0, (), ())
    assert in_flight(np.empty(0, RECORD), NAMES, GROUPS, 0) == ()


def test_in_flight():
    hung = collective(5, 6, ready=4, owner=1, group=1, step=12, sequence=48, size=400)
    other = collective(5, 6, owner=99, group=9, sequence=3, size=0)
    hung["finish"] = other["finish"] = other["launch"] = 0
    first, second = in_flight(records([hung, other]), NAMES, GROUPS, at(9))
    assert (first.name, first.group, first.step, first.sequence, first.bytes) == (
        "bucket 0",
        "dp",
        12,
        48,
        400,
    )
    assert (first.launch_ns, first.age_ns) == (at(4), 5 * MS)
    assert (second.name, second.group, second.bytes, second.age_ns) == (
        "AllReduce 3",
        "",
        None,
        None,
    )
    assert second.to_dict()["group"] is None

from overlapwatch.accounting.call_sites import call_sites
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.window import capture_window, trim_window
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind
from tests.support.scenarios import MS, at, collective, profile

NAMES = {
    1: Name(1, NameKind.OPERATION, "backward > TELinear"),
    2: Name(2, NameKind.OPERATION, "forward > all_gather"),
    3: Name(3, NameKind.BUCKET, "bucket 0"),
}


def told(tl, window=None):
    lanes = lanes_of(tl, window or capture_window(tl))
    found = call_sites(tl.communication, lanes, NAMES)
    assert [check for check in found.checks() if not check.ok] == []
    return found


def test_the_table_of_the_module():
    tl = profile(
        [(0, 4)],
        [
            collective(2, 6, owner=1),
            collective(3, 5, owner=2, kind=CollectiveKind.ALL_GATHER),
            collective(8, 9, owner=2),
        ],
    )
    first, second = told(tl).sites
    assert (first.name, first.what) == ("backward > TELinear", "operation")
    assert (first.traffic.count, first.union_ns, first.overlap_ns, first.exposed_ns) == (
        1, 4 * MS, 2 * MS, 2 * MS,
    )  # fmt: skip
    assert (second.traffic.count, second.union_ns, second.overlap_ns, second.exposed_ns) == (
        2, 3 * MS, 1 * MS, 2 * MS,
    )  # fmt: skip
    assert second.kinds == (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER)
    assert second.to_dict()["kinds"] == ["AllReduce", "AllGather"]


def test_two_at_once_of_one_site_count_once_in_time():
    (site,) = told(profile([], [collective(0, 4, owner=1), collective(2, 6, owner=1)])).sites
    assert (site.traffic.count, site.union_ns) == (2, 6 * MS)


def test_an_owner_without_a_name_is_counted_not_told():
    found = told(
        profile([], [collective(0, 1, owner=3), collective(1, 2), collective(2, 3, owner=9)])
    )
    assert [(site.name, site.what) for site in found.sites] == [("bucket 0", "bucket")]
    assert (found.elsewhere, found.collectives) == (2, 3)


def test_the_window_cuts_the_time():
    tl = profile([], [collective(0, 4, owner=1)])
    (site,) = told(tl, trim_window(at(1), at(3))).sites
    assert site.exposed_ns == 2 * MS


def test_one_without_a_span_counts_without_time():
    hung = collective(0, 1, owner=1)
    hung["finish"] = 0
    (site,) = told(profile([(0, 1)], [hung])).sites
    assert (site.traffic.count, site.traffic.finished, site.union_ns) == (1, 0, 0)

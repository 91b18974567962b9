from overlapwatch.accounting.fused import fused
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.window import capture_window, trim_window
from tests.support.scenarios import MS, at, lane, profile


def test_the_table_of_the_module():
    tl = profile([(0, 4)], [(6, 7)], copies=[(0, 9)], fused=lane([(3, 8)]))
    found = fused(tl, lanes_of(tl, capture_window(tl)))
    assert (found.count, found.union_ns, found.in_idle_ns) == (1, 5 * MS, 3 * MS)


def test_only_what_lies_in_the_window():
    tl = profile([(0, 20)], fused=lane([(1, 3), (2, 5), (15, 19)]))
    found = fused(tl, lanes_of(tl, trim_window(at(2), at(10))))
    assert (found.count, found.union_ns, found.in_idle_ns) == (2, 3 * MS, 0)
    none = profile([(0, 20)])
    assert fused(none, lanes_of(none, capture_window(none))).to_dict() == {
        "count": 0, "union_ns": 0, "in_idle_ns": 0,
    }  # fmt: skip

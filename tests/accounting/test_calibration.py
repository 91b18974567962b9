from dataclasses import replace

import pytest

from overlapwatch.accounting.calibration import calibrate
from overlapwatch.accounting.partition import partition
from overlapwatch.vocabulary import RecordFlag
from tests.support.scenarios import MS, at, collective, lane, profile, step_rows

RULE = "operators"


def marked(compute, communication=(), step=(7, 0, 12)):
    tl = profile(compute, communication, steps=step_rows([step]))
    return replace(tl, compute_rule="marks")


def test_the_example_of_the_module():
    found = calibrate(marked([(0, 10)], [(4, 12)]), lane([(0, 3), (5, 9)]), (at(0), at(12)), RULE)
    assert (found.step, found.marks_rule, found.kernels_rule) == (7, "marks", RULE)
    assert (found.marks.compute_ns, found.kernels.compute_ns) == (10 * MS, 7 * MS)
    assert found.difference_ns == 3 * MS
    assert (found.both_ns, found.marks_only_ns, found.kernels_only_ns) == (7 * MS, 3 * MS, 0)
    assert (found.marks.overlap_ns, found.kernels.overlap_ns) == (6 * MS, 4 * MS)
    assert (found.marks.overlap_ratio, found.kernels.overlap_ratio) == (0.75, 0.5)
    assert [check for check in found.checks() if not check.ok] == []
    assert found.sentence == (
        "step 7 ran under a profiler: compute 10.00 ms by marks, 7.00 ms by operators (+3.00 ms); of 8.00 ms of "
        "communication 6.00 and 4.00 ms hidden (75.0 and 50.0 %)"
    )


def test_only_what_both_have_seen_counts():
    """The profiler came 2 ms into the step and went 1 ms before its end."""
    found = calibrate(marked([(0, 10)]), lane([(0, 4), (9, 13)]), (at(2), at(11)), RULE)
    assert (found.window.start_ns, found.window.end_ns) == (at(2), at(11))
    assert (found.marks.compute_ns, found.kernels.compute_ns) == (8 * MS, 4 * MS)
    assert (found.both_ns, found.marks_only_ns, found.kernels_only_ns) == (3 * MS, 5 * MS, MS)
    assert all(check.ok for check in found.checks())
    assert found.to_dict()["difference_ns"] == 4 * MS


def test_a_profiler_that_saw_nothing_of_the_step():
    found = calibrate(marked([(0, 10)]), lane([(20, 30)]), (at(20), at(30)), RULE)
    assert (found.window.length_ns, found.difference_ns) == (0, 0)
    assert found.marks.overlap_ratio is None


def test_either_account_is_the_ordinary_partition():
    tl = marked([(0, 3), (4, 10)], [(2, 5), (7, 12)])
    found = calibrate(tl, lane([(1, 8)]), (at(1), at(12)), RULE)
    assert found.marks == partition(tl, found.window)
    assert found.kernels == partition(replace(tl, compute=lane([(1, 8)])), found.window)


def test_unknown_communication_stays_unknown():
    unseen = collective(0, 0, flags=int(RecordFlag.FINISH_UNOBSERVABLE))
    unseen["launch"], unseen["start"], unseen["finish"] = at(4), 0, 0
    found = calibrate(marked([(0, 10)], [unseen]), lane([(0, 3)]), (at(0), at(12)), RULE)
    assert found.sentence.endswith("(+7.00 ms); overlap not known")
    assert found.to_dict()["marks"]["overlap_ns"] is None


def test_one_step_at_a_time():
    two = profile([(0, 10)], steps=step_rows([(1, 0, 5), (2, 5, 10)]))
    with pytest.raises(ValueError, match="one step is calibrated at a time, not 2"):
        calibrate(two, lane([]), (at(0), at(10)), RULE)

import numpy as np
import pytest

from overlapwatch.accounting.steps import step_statistics
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag

COUNTS = ("step", "flags", "collectives", "buckets", "unfinished", "unobservable")


def row(number, window=100, communication=30, hidden=20, *, compute=50, flags=0, **fields):
    """One summary whose parts add up; times in ns."""
    out = np.zeros(1, SUMMARY)
    for name in SUMMARY.names:
        out[name] = 0 if name in COUNTS else NOT_KNOWN
    exposed = communication - hidden
    values = {
        "step": number,
        "flags": flags,
        "start_ns": 1000 * number,
        "end_ns": 1000 * number + window,
        "compute_ns": compute,
        "communication_ns": communication,
        "compute_only_ns": compute - hidden,
        "communication_only_ns": exposed,
        "overlap_ns": hidden,
        "idle_ns": window - compute - exposed,
        **fields,
    }
    for name, value in values.items():
        out[name] = value
    return out


def unknown_parts(number, window=100, **fields):
    out = row(number, window, **fields)
    for name in (
        "communication_ns",
        "compute_only_ns",
        "communication_only_ns",
        "overlap_ns",
        "idle_ns",
    ):
        out[name] = NOT_KNOWN
    return out


def statistics(*rows, kept=()):
    found = step_statistics(np.concatenate([np.empty(0, SUMMARY), *rows]), kept)
    assert [check for check in found.checks() if not check.ok] == []
    return found


def test_the_ratio_is_of_sums_not_a_mean_of_ratios():
    found = statistics(
        row(1, communication=10, hidden=10), row(2, communication=90, hidden=0, compute=10)
    )
    assert (found.overlap.numerator_ns, found.overlap.denominator_ns) == (10, 100)
    assert found.overlap.value == 0.1
    assert (found.exposed_fraction.numerator_ns, found.exposed_fraction.denominator_ns) == (90, 200)
    assert found.overlap.steps == 2


def test_excluded_steps_are_counted_once_by_their_first_reason():
    found = statistics(
        row(1, window=900, flags=StepFlag.UNBUCKETED),
        row(2, flags=StepFlag.REBUILT | StepFlag.PARTIAL),
        row(3, flags=StepFlag.SHADOW),
        row(4, flags=StepFlag.SHADOW),
        row(5, flags=StepFlag.SLOW),
        row(6),
    )
    assert (found.steps, found.counted) == (6, 2)
    assert [(one.reason, one.count) for one in found.excluded] == [
        ("unbucketed", 1),
        ("rebuilt", 1),
        ("shadow", 2),
    ]
    assert found.duration.max_ns == 100
    assert found.slow == (5,)
    assert (found.first_step, found.last_step) == (1, 6)


def test_outliers_show_in_p99_and_by_name():
    rows = [row(number, tail_ns=7) for number in range(1, 101)]
    rows[16]["tail_ns"], rows[70]["tail_ns"], rows[30]["end_ns"] = 420, 2100, 1000 * 31 + 5000
    rows[30]["idle_ns"] += 4900
    found = statistics(*rows)
    assert (found.tail.p50_ns, found.tail.p95_ns, found.tail.p99_ns, found.tail.max_ns) == (
        7,
        7,
        420,
        2100,
    )
    assert [(one.step, one.tail_ns) for one in found.longest_tails[:2]] == [(71, 2100), (17, 420)]
    assert (found.longest[0].step, found.longest[0].duration_ns) == (31, 5000)


def test_unknown_is_left_out_and_the_denominator_says_so():
    found = statistics(
        row(1, tail_ns=4, wait_ns=6), unknown_parts(2, window=300), row(3, tail_ns=8)
    )
    assert (found.duration.count, found.communication.count) == (3, 2)
    assert (found.tail.count, found.tail.total_ns) == (2, 12)
    assert (found.wait.count, found.wait.p50_ns) == (1, 6)
    assert found.exposed_fraction.denominator_ns == 200
    assert found.longest[0].tail_ns is None
    assert found.longest[0].step == 2
    assert [one.step for one in found.longest_tails] == [3, 1]


def test_nothing_known_is_none_not_zero():
    found = statistics(unknown_parts(1))
    assert (found.communication, found.hidden, found.exposed, found.tail, found.wait) == (None,) * 5
    assert found.overlap.value is None
    assert found.to_dict()["tail"] is None
    assert found.to_dict()["overlap"]["value"] is None


def test_a_step_that_has_not_ended_is_not_counted():
    found = statistics(row(1), row(2, end_ns=NOT_KNOWN))
    assert (found.steps, found.counted) == (2, 1)
    assert [(one.reason, one.count) for one in found.excluded] == [("not ended", 1)]


def test_kept_steps():
    found = statistics(row(1), row(2), row(3), kept=[2, 3, 9])
    assert found.kept == 2
    assert found.to_dict()["kept"] == 2


def test_no_steps():
    found = statistics()
    assert (found.steps, found.counted, found.first_step, found.duration) == (0, 0, None, None)
    assert found.overlap.value is None
    assert found.longest == ()


def test_order_of_rows_does_not_matter():
    rows = [row(number, tail_ns=number) for number in (5, 2, 9)]
    assert statistics(*rows) == statistics(*reversed(rows))


@pytest.mark.parametrize("field", ["idle_ns", "overlap_ns", "communication_ns"])
def test_parts_that_do_not_add_up_are_found(field):
    broken = row(1)
    broken[field] += 1
    found = step_statistics(broken, ())
    assert [check for check in found.checks() if not check.ok]

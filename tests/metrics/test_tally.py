"""What adds up, what stays out, what is absent."""

import pytest

from overlapwatch.log.sinks import Standing
from overlapwatch.metrics.catalogue import FAMILIES
from overlapwatch.metrics.tally import Spread, Tally
from overlapwatch.vocabulary import StepFlag
from tests.metrics.rows import full, row


@pytest.fixture
def tally() -> Tally:
    return Tally(unix_ns=lambda: 1_700_000_000_500_000_000)


def test_before_anything_was_seen_only_zero_counts_are_known(tally):
    values = tally.values()
    assert set(values) == {family.name for family in FAMILIES}
    known = {name for name, series in values.items() if series}
    assert known == {
        family.name
        for family in FAMILIES
        if family.shape.value != "gauge"
        and "records" not in family.name
        and "cpu" not in family.name
    }


def test_steps_add_up(tally):
    tally.take(full(1, hidden_ms=30, exposed_ms=10))
    tally.take(full(2, hidden_ms=20, exposed_ms=15, tail_ms=7))
    values = tally.values()
    assert values["overlapwatch_hidden_communication_seconds_total"] == {"": 0.05}
    assert values["overlapwatch_exposed_communication_seconds_total"] == {"": 0.025}
    assert values["overlapwatch_last_tail_seconds"] == {"": 0.007}
    assert values["overlapwatch_steps_total"] == {"": 2}
    assert values["overlapwatch_step_number"] == {"": 2}
    assert values["overlapwatch_last_step_timestamp_seconds"] == {"": 1_700_000_000.5}
    steps = values["overlapwatch_step_seconds"][""]
    assert isinstance(steps, Spread)
    assert (steps.sum, sum(steps.counts)) == (0.2, 2)
    assert steps.counts[6] == 2  # bounds ..., 0.05, 0.1: at or below 0.1 is in


def test_sums_are_exact_over_a_long_run(tally):
    for step in range(10_000):
        tally.take(row(step, communication_only_ns=1))
    assert tally.values()["overlapwatch_exposed_communication_seconds_total"] == {"": 1e-5}


def test_a_step_out_of_statistics_is_counted_and_changes_nothing_else(tally):
    tally.take(full(1))
    before = tally.values()
    shadow = full(2, hidden_ms=0)
    shadow["flags"] = StepFlag.SHADOW | StepFlag.DISTURBED
    assert tally.take(shadow) is None
    after = tally.values()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {
        "overlapwatch_steps_total",
        "overlapwatch_steps_left_out_total",
        "overlapwatch_step_number",
    }
    assert after["overlapwatch_steps_left_out_total"]["shadow"] == 1
    assert sum(after["overlapwatch_steps_left_out_total"].values()) == 1


def test_what_is_not_known_of_the_latest_step_is_absent_and_adds_nothing(tally):
    tally.take(full(1))
    known = tally.take(row(2, compute_ns=5))
    assert known is not None
    assert "tail_seconds" not in known.values
    values = tally.values()
    assert values["overlapwatch_last_tail_seconds"] == {}
    assert values["overlapwatch_last_compute_seconds"] == {"": 5e-9}
    assert sum(values["overlapwatch_tail_seconds"][""].counts) == 1
    assert sum(values["overlapwatch_step_seconds"][""].counts) == 2


def test_a_slow_step_counts_as_slow(tally):
    slow = full(1)
    slow["flags"] = StepFlag.SLOW
    tally.take(slow)
    assert tally.values()["overlapwatch_slow_steps_total"] == {"": 1}


def test_what_stands_between_steps(tally):
    tally.stand(
        Standing(2, 3_000_000_000, records_lost=5, records_late=1, drain_cpu_ns=500_000_000)
    )
    values = tally.values()
    assert values["overlapwatch_collectives_in_flight"] == {"": 2}
    assert values["overlapwatch_oldest_in_flight_seconds"] == {"": 3}
    assert values["overlapwatch_records_lost_total"] == {"": 5}
    assert values["overlapwatch_drain_cpu_seconds_total"] == {"": 0.5}
    known = tally.take(full(1))
    assert known is not None
    assert (known.values["records_lost_total"], known.values["steps_left_out_total"]) == (5, 0)
    tally.stand(Standing(0, None, records_lost=5, records_late=1, drain_cpu_ns=500_000_000))
    values = tally.values()
    assert values["overlapwatch_collectives_in_flight"] == {"": 0}
    assert values["overlapwatch_oldest_in_flight_seconds"] == {}

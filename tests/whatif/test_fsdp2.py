"""Forecasts from a step with known times, what makes no sense, and which settings are worth having."""

import dataclasses

import numpy as np
import pytest

from overlapwatch.errors import ConfigurationError, InputError
from overlapwatch.reports.layout import to_text
from overlapwatch.reports.whatif_fsdp2 import fsdp2
from overlapwatch.timeline.model import Lane
from overlapwatch.vocabulary import StepFlag
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.fsdp2 import fsdp2_forecast
from overlapwatch.whatif.fsdp2_forecast import SettingForecast, better
from tests.support.units import recording
from tests.whatif.test_ddp import run as ddp_run

MS = 1_000_000


def forecast(**settings):
    return fsdp2_forecast([recording()], **settings)


def test_every_setting_has_a_forecast_and_all_of_it_adds_up():
    told = forecast()
    assert told.steps == 4
    assert told.modules == 4
    # Of three blocks one can gather two ahead at most.
    assert len(told.settings) == 3 * 3 * 2
    assert [check for check in told.checks() if not check.ok] == []
    assert {check.name.split(" = ")[0] for check in told.checks()} >= {
        "work that stays + what was cut out",
        "collectives in the order of hooks",
        "parts of the simulated steps",
    }
    assert told.recorded.step_ns == 34 * MS
    assert told.recorded.peak_bytes == 20_000_000
    # One rank of two was read, and blocks.0 prefetches what no depth would.
    assert told.unknown[0].what == "what the other ranks did"
    assert not any(row.recorded for row in told.settings)
    kept = [row for row in told.settings if not row.reshard_after_forward]
    assert {row.gathers for row in kept} == {4}
    assert {row.peak_bytes for row in kept} == {28_000_000}
    given_back = [row for row in told.settings if row.reshard_after_forward]
    assert {row.gathers for row in given_back} == {7}
    plain = given_back[0]
    assert (plain.forward_prefetch, plain.backward_prefetch) == (0, 0)
    assert plain.peak_bytes == 20_000_000  # the model's own, a block, and the next one in backward


def test_settings_of_one_order_are_one_forecast():
    told = forecast()
    by_kind = {}
    for row in told.settings:
        numbers = (row.step_ns, row.exposed_ns, row.tail_ns, row.peak_bytes, row.gathers)
        assert by_kind.setdefault(row.kind, numbers) == numbers
    assert sum(map(len, told.kinds)) == len(told.settings)
    # With parameters kept nothing is gathered in backward: its depth says nothing.
    kept = [one for one in told.kinds if not one[0].reshard_after_forward]
    assert all({row.backward_prefetch for row in several} == {0, 1, 2} for several in kept)


def test_a_faster_network_leaves_the_compute():
    told = forecast(cost=Cost(latency_ns=0, ns_per_byte=1e-6))
    compute = 2 * (0.5 + 2 + 3 + 2) + 4 * 1
    for row in told.settings:
        assert row.exposed_ns < 0.1 * MS
        assert row.step_ns < 34 * MS - compute / 10 * MS
    slow = forecast(cost=Cost(latency_ns=10 * MS, ns_per_byte=0))
    assert min(row.step_ns for row in slow.settings) > 34 * MS


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"forward_prefetch": [-1]}, "forward prefetch depths are whole numbers"),
        ({"forward_prefetch": []}, "forward prefetch depths are whole numbers"),
        ({"backward_prefetch": [1.5]}, "backward prefetch depths are whole numbers"),
        ({"backward_prefetch": [True]}, "backward prefetch depths are whole numbers"),
        ({"backward_prefetch": [3]}, "no module of this run has more than 2 to gather ahead"),
        ({"reshard_after_forward": [2]}, "True or False"),
        ({"reshard_after_forward": []}, "True or False"),
    ],
)
def test_settings_that_make_no_sense_are_one_sentence(settings, says):
    with pytest.raises(ConfigurationError, match=says):
        forecast(**settings)


def test_runs_that_do_not_tell_enough_are_one_sentence():
    with pytest.raises(InputError, match="no FSDP2 module whose parameters were gathered"):
        fsdp2_forecast([ddp_run()])
    whole = recording()

    def refused(says, **changes):
        changed = dataclasses.replace(whole.timeline, **changes)
        with pytest.raises(InputError, match=says):
            fsdp2_forecast([dataclasses.replace(whole, timeline=changed)])

    steps = whole.timeline.steps.copy()
    steps["flags"] |= int(StepFlag.SHADOW)
    refused("no step in statistics has all its uses", steps=steps)
    unfinished = whole.timeline.communication.copy()
    unfinished["finish"] = 0
    refused("the finish of all its collectives", communication=unfinished)
    nothing = Lane(*(np.empty(0, t) for t in (np.int64, np.int64, np.uint32, np.uint8)))
    refused("no compute was recorded between the uses", compute=nothing)
    part = whole.timeline.held.copy()
    part["bytes"][0] //= 2
    part["bytes"][-1] = part["bytes"].max()
    refused(r"reshard_after_forward is a number", held=part)
    phases = whole.timeline.phases
    names = {
        **whole.timeline.names,
        99: dataclasses.replace(whole.timeline.names[11], id=99, text="other"),
    }
    two = np.where(np.arange(len(phases)) == 0, 99, phases.name).astype(np.uint32)
    refused("2 models were run in it", phases=dataclasses.replace(phases, name=two), names=names)


def setting(step_ms, held):
    return SettingForecast(0, 0, True, False, 0, 7, step_ms * MS, 0, 0, held)


@pytest.mark.parametrize(
    ("one", "other", "is_better"),
    [
        ((100, 20), (104, 20), True),  # as much memory, shorter by more than the error
        ((100, 20), (102, 20), False),  # not told apart
        ((102, 10), (100, 20), True),  # half the memory, not told slower
        ((110, 10), (100, 20), False),  # memory against time
        ((100, 20), (120, 10), False),
        ((100, None), (120, 10), False),
    ],
)
def test_which_setting_makes_another_pointless(one, other, is_better):
    assert better(setting(*one), setting(*other), 3 * MS) is is_better


def test_the_text_says_what_the_numbers_are():
    text = to_text(fsdp2(forecast()), 100)
    assert "what other prefetch depths would do: rank 0" in text
    told = " ".join(text.split())
    assert "none of the settings below issues its all-gathers in this order" in told
    assert "at most 20.0 MB held" in told
    assert (
        "not known: what the other ranks did: the logs of 1 of 2 ranks that share parameters were read"
        in told
    )
    rows = [line for line in text.splitlines() if " · yes  " in line or " · no  " in line]
    assert len(rows) == len(forecast().kinds)
    assert rows[0].startswith("  0 · 0, 1 · yes  ")
    assert max(map(len, to_text(fsdp2(forecast()), 60).splitlines())) <= 60

"""What the what-if starts from is small, plain, and says why where there is nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.accounting.selection import Selection
from overlapwatch.reports.html.whatif import whatif_payload
from overlapwatch.timeline.model import Recording
from overlapwatch.whatif.engines import two_engines
from tests.reports.recordings import Job, fsdp2, hostile, profiled, silent, typical
from tests.whatif import test_ddp as ddp

MS = 1_000_000


def payload(*recordings, steps=None):
    selection = Selection(*steps) if steps else None
    told = whatif_payload(recordings, [analyse(one, selection) for one in recordings])
    assert json.loads(json.dumps(told, allow_nan=False)) == told  # plain values, all of them
    return told


def numbers(value):
    """All numbers in it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_a_ddp_run_has_blocks_gradients_a_layout_and_a_cost():
    run = payload(ddp.run(2))["run"]
    assert [bucket["bytes"] for bucket in run["buckets"]] == [2 * ddp.SIZE] * 6
    assert run["blocks"] == [
        "forward",
        *(f"to bucket {b}" for b in range(6)),
        "rest of the backward",
    ]
    assert run["layout"]["sizes"] == [ddp.SIZE] * 12
    assert run["layout"]["types"] == [0] * 12
    assert run["layout"]["launch_delay_ns"] == ddp.DELAY
    assert (run["layout_because"], run["cost_because"]) == (None, None)
    assert run["error_ns"] == ddp.ddp_forecast([ddp.run(2)], (None,)).error_ns
    for step in run["steps"]:
        count = len(run["buckets"])
        assert len(step["segments"]) == count + 2
        assert len(step["still_ns"]) == len(step["compute_ns"]) == sum(step["segments"])
        assert len(step["ready_ns"]) == len(step["delay_ns"]) == len(step["service_ns"]) == count
        assert step["gradients_ns"] == [ddp.EVERY * (i + 1) for i in range(12)]
        recorded = step["recorded"]
        assert recorded["hidden_ns"] + recorded["exposed_ns"] == recorded["communication_ns"]


def test_times_are_relative_integers_that_javascript_holds():
    for recording in (ddp.run(2), typical(), hostile()):
        run = payload(recording)["run"]
        cost = run.pop("cost") or {}
        assert all(isinstance(one, int) and abs(one) < 2**40 for one in numbers(run))
        assert all(isinstance(value, int | float | None) for value in cost.values())


def test_the_steps_are_those_that_the_report_tells():
    whole = Job(steps=9, longer={n: n / 10 for n in range(9)}).recording()
    run = payload(whole, steps=(3, 5))["run"]
    assert [step["step"] for step in run["steps"]] == [3, 4, 5]
    assert run["steps"][run["representative"]]["step"] == 4


def test_a_large_run_stays_small():
    run = ddp.run(2, steps=100)
    told = payload(run)
    assert told["run"]["usable"] == 100
    assert len(json.dumps(told)) < 60_000


@pytest.mark.parametrize(
    ("recording", "says"),
    [
        (profiled(), "not when its gradients were complete"),
        (fsdp2(), "FSDP2"),
        (silent(), "it has no collective"),
    ],
)
def test_an_input_that_cannot_tell_says_why_and_keeps_the_example(recording, says):
    told = payload(recording)
    assert told["run"] is None
    assert says in told["because"]
    assert recording.timeline.origin.path not in told["because"]
    assert len(told["examples"]) == 2


def test_no_cost_is_null_with_its_reason():
    whole = Job(steps=3).recording()
    sizeless = whole.timeline.communication.copy()
    sizeless["bytes"] = 0
    run = payload(Recording(replace(whole.timeline, communication=sizeless)))["run"]
    assert (run["cost"], run["error_ns"]) == (None, None)
    assert "cannot be fitted" in run["cost_because"]
    assert run["layout"] is None
    assert "gradients_every=1" in run["layout_because"]


def test_the_examples_are_those_of_the_definitions():
    results = [
        two_engines(one["compute_ns"], one["communication_ns"])
        for one in payload(silent())["examples"]
    ]
    assert [(one.serial_ns, one.total_ns, one.tail_ns) for one in results] == [
        (9 * MS, 7 * MS, MS),
        (18 * MS, 14 * MS, 8 * MS),
    ]
    assert np.all(results[0].compute_end == [2 * MS, 4 * MS, 6 * MS])

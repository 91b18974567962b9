"""One recording, everything that is told of it; and that what is told is one accounting."""

import json
from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import Selection, analyse, newest_ns
from overlapwatch.accounting.summarize import summarize
from overlapwatch.timeline.model import Recording, Skipped, Unknown
from overlapwatch.vocabulary import Name, NameKind, Phase, StepFlag
from tests.support.scenarios import MS, SCENARIOS, at, collective, lane, lanes, profile, step_rows

NAMES = {
    1: Name(1, NameKind.BUCKET, "bucket 0"),
    2: Name(2, NameKind.BUCKET, "bucket 1"),
    3: Name(3, NameKind.BUCKET, "whole model"),
}
GROUPS = {1: Name(1, NameKind.GROUP, "dp", members=(0, 1))}


def job(numbers, flags=(), *, late=False, **fields):
    """Steps of 100 ms: backward 10-60, optimizer 70-90; reductions 30-40 and 50-70, or 62-66 and 66-70 when late."""
    flags = dict(flags)
    sends, backward, optimizer = [], [], []
    for number in numbers:
        begin = 100 * number
        backward.append((begin + 10, begin + 60))
        optimizer.append((begin + 70, begin + 90))
        common = {"step": number, "group": 1, "phase": Phase.BACKWARD}
        spans = ((62, 66, 20), (66, 70, 55)) if late else ((30, 40, 29), (50, 70, 45))
        if flags.get(number, 0) & StepFlag.UNBUCKETED:
            sends.append(collective(begin + 60, begin + 70, owner=3, **common))
            continue
        if flags.get(number, 0) & StepFlag.SHADOW:
            continue
        for owner, (start, finish, ready) in enumerate(spans, 1):
            sends.append(
                collective(
                    begin + start, begin + finish, ready=begin + ready, owner=owner, **common
                )
            )
    steps = step_rows([(number, 100 * number, 100 * number + 100) for number in numbers])
    steps["flags"] = [flags.get(number, 0) for number in numbers]
    tl = profile(
        [], sends, steps=steps, names=NAMES, groups=GROUPS, phases=lane(backward, Phase.BACKWARD)
    )
    tl = replace(
        tl, compute=lanes(lane(backward, Phase.BACKWARD), lane(optimizer, Phase.OPTIMIZER))
    )
    tl = replace(tl, waits=lane([(100 * number + 60, 100 * number + 70) for number in numbers]))
    return Recording(tl, **{"summaries": summarize(tl), "state": "closed", **fields})


def failed(found):
    return [check for check in found.checks if not check.ok]


def test_a_job():
    found = analyse(job(range(1, 11), {1: StepFlag.UNBUCKETED}))
    assert failed(found) == []
    parts = found.partition
    assert (parts.window_ns, parts.overlap_ns, parts.communication_only_ns) == (
        900 * MS,
        180 * MS,
        90 * MS,
    )
    assert found.window.rule == "9 steps in statistics, 2 to 10"
    assert (found.steps.steps, found.steps.counted, found.steps.kept) == (10, 9, 10)
    assert (found.tail.tail.p50_ns, found.tail.known, len(found.tails)) == (10 * MS, 9, 10)
    assert [row.name for row in found.buckets.rows] == ["bucket 0", "bucket 1"]
    assert [row.name for row in found.buckets.unbucketed] == ["whole model"]
    assert (found.exposed.count, found.exposed.total_ns) == (9, 90 * MS)
    assert [(row.name, row.traffic.count) for row in found.messages.groups] == [("dp", 18)]


def test_the_unbucketed_first_iteration_changes_no_number():
    """Iteration 1 is one bucket, and would give an absurd overlap."""
    with_it = analyse(job(range(1, 11), {1: StepFlag.UNBUCKETED}))
    without = analyse(job(range(2, 11)))
    assert with_it.partition == without.partition
    assert with_it.tail == without.tail
    assert with_it.buckets.rows == without.buckets.rows
    assert with_it.steps.overlap == without.steps.overlap


def test_reductions_after_the_backward_say_why_nothing_was_hidden():
    found = analyse(job(range(1, 5), late=True))
    assert found.partition.overlap_ratio == 0
    assert found.tail.serial == 4
    assert "2.00 ms (median) after the last forward or backward compute" in found.tail.explanation
    assert "ready 40.00 ms (median) before" in found.tail.explanation
    assert found.to_dict()["tail"]["explanation"] == found.tail.explanation


def test_dropped_steps_are_not_idle():
    """A log that keeps every 10th step has the same shares as one that keeps all."""
    every, some = analyse(job(range(1, 41))), analyse(job([1, 2, 3, 10, 20, 30, 40]))
    assert failed(some) == []
    for field in ("overlap_ratio", "exposed_fraction"):
        assert getattr(some.partition, field) == getattr(every.partition, field)
    assert some.partition.idle_ns == 7 * 20 * MS


def test_live_and_offline_are_one_accounting():
    recording = job(range(1, 6))
    names = [check.name for check in analyse(recording).checks]
    assert "hidden in the summaries = hidden in the events" in names
    recording.summaries["overlap_ns"][2] += 1
    assert [check.name for check in failed(analyse(recording))][
        -1
    ] == "hidden in the summaries = hidden in the events"


def test_all_checks_are_gathered():
    names = [check.name for check in analyse(job(range(1, 6))).checks]
    for part in (
        "four parts = window",
        "tail pieces add up",
        "steps in statistics",
        "exposed",
        "groups",
        "communication",
    ):
        assert any(part in name for name in names)


def test_a_collective_reaches_into_a_step_that_is_selected_alone():
    recording = job([1, 2, 3])
    recording.timeline.communication["finish"][3] = at(
        315
    )  # of step 2, into 3, whose compute begins at 310
    whole = replace(recording, summaries=summarize(recording.timeline))
    found = analyse(whole, Selection(3, 3))
    assert found.partition.communication_only_ns == (10 + 10) * MS
    assert failed(found) == []


def test_shadow_steps_cost_and_are_no_idle_time():
    flags = dict.fromkeys(range(3, 40, 4), StepFlag.SHADOW)
    found = analyse(job(range(1, 40), flags))
    assert failed(found) == []
    assert (found.shadow.pairs, found.shadow.distinguishable) == (9, False)
    assert found.partition.window_ns == (39 - 10) * 100 * MS
    assert (found.shadow.wait_with_ns, found.shadow.wait_without_ns) == (10 * MS, 10 * MS)
    assert (found.steps.kept, found.steps.steps) == (29, 39)


def test_a_killed_job_names_what_was_in_flight():
    hung = collective(320, 330, owner=2, group=1, step=3, sequence=6)
    hung["finish"] = 0
    found = analyse(job([1, 2, 3], {3: StepFlag.PARTIAL}, state="killed", in_flight=hung))
    (one,) = found.in_flight
    assert (one.name, one.group, one.step, one.sequence) == ("bucket 1", "dp", 3, 6)
    assert one.age_ns == at(400) - at(320)
    assert found.window.rule == "2 steps in statistics, 1 to 2"
    assert found.state == "killed"


@pytest.mark.parametrize("name", SCENARIOS)
def test_profiles_without_steps(name):
    case = SCENARIOS[name]()
    found = analyse(Recording(case.timeline))
    assert failed(found) == []
    assert found.partition.window_ns == case.window * MS
    assert found.partition.overlap_ns == case.overlap * MS
    assert (found.steps.steps, found.tail.tail, found.tails) == (0, None, ())
    assert not any("recording costs" in one.what for one in found.unknown)
    json.dumps(found.to_dict())


def test_steps_of_a_source_without_summaries_are_summed_here():
    recording = job(range(1, 4))
    without = replace(recording, summaries=np.empty(0, recording.summaries.dtype))
    found = analyse(without)
    assert failed(found) == []
    assert [row.item() for row in found.rows] == [row.item() for row in recording.summaries]


def test_what_is_not_known_is_null_and_said():
    recording = job(range(1, 4))
    recording.timeline.communication["finish"][1] = 0
    told = Unknown("the clock offset", "one host")
    tl = replace(
        recording.timeline, unknown=(told, told), skipped=(Skipped("records", 2, "damaged"),)
    )
    found = analyse(
        Recording(
            tl, summaries=summarize(tl), state="closed", counters={"lost": 2}, notes=("torn",)
        )
    )
    text = found.to_dict()
    assert text["steps"][0]["tail_ns"] is None
    assert text["steps"][0]["overlap_ns"] is None
    assert text["steps"][1]["tail_ns"] == 10 * MS
    assert text["not_known"].count({"what": "the clock offset", "because": "one host"}) == 1
    assert any("tail of 1 of 3 steps" in one["what"] for one in text["not_known"])
    assert any(one["because"] == "there are no shadow steps" for one in text["not_known"])
    assert text["skipped"] == [{"what": "records", "count": 2, "because": "damaged"}]
    assert (text["counters"], text["notes"]) == ({"lost": 2}, ["torn"])


def test_json_contract():
    text = json.loads(
        json.dumps(
            analyse(job(range(1, 4), {1: StepFlag.UNBUCKETED}, about={"torch": "2.13"})).to_dict()
        )
    )
    contract = {
        "rank", "device", "process", "host", "window", "partition", "kinds", "phases", "exposed", "tail",
        "messages", "groups", "call_sites", "steps", "closure", "not_known",
    }  # fmt: skip
    assert contract <= set(text)
    assert set(text["window"]) >= {"start_ns", "end_ns", "rule", "boundary"}
    assert isinstance(text["kinds"], list)
    assert {"rule", "cells"} <= set(text["phases"])
    assert text["steps"][0]["flags"] == ["unbucketed"]
    assert text["steps"][1]["tail_pieces"][0]["kind"] == "residence"
    assert text["about"] == {"torch": "2.13"}
    assert [row["name"] for row in text["call_sites"]] == ["bucket 1", "bucket 0"]
    assert [row["exposed_ns"] for row in text["call_sites"]] == [20 * MS, 0]


def test_newest_time():
    assert newest_ns(job([1, 2])) == at(300)
    assert newest_ns(Recording(profile())) == 0

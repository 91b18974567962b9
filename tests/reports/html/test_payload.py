"""The numbers on a page are those of the JSON of a report, and a page stays small."""

import json
from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.reports.format import bar
from overlapwatch.reports.html import drawn, lanes
from overlapwatch.reports.html import payload as pages
from overlapwatch.reports.html.graphics import picked, runs
from overlapwatch.reports.html.page import html, json_text
from overlapwatch.reports.html.sections import bar_share, sentences
from overlapwatch.reports.json import to_dict
from overlapwatch.reports.layout import heading, sentence
from overlapwatch.reports.text import SECTIONS, plain
from overlapwatch.timeline.model import Lane, Origin, Recording, Timeline
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag
from tests.reports import recordings
from tests.reports.html.pages import data_of, told
from tests.support.scenarios import at

MS = 1_000_000
EVERYTHING = (
    "worked", "queued", "serial", "killed", "silent", "host_times", "hostile", "typical", "profiled", "fsdp2",
)  # fmt: skip


def step_of(data: dict, number: int | None) -> dict:
    (found,) = (one for one in data["lanes"]["steps"] if one["step"] == number)
    return found


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_numbers_are_those_of_the_json(name):
    recording = getattr(recordings, name)()
    data = json.loads(json.dumps(data_of(recording), allow_nan=False))
    report = json.loads(json.dumps(to_dict([analyse(recording)])))
    (rank,), (timeline,) = data["ranks"], report["timelines"]
    assert rank["parts"] == timeline["partition"]
    assert rank["exposed"] == timeline["exposed"]
    by_step = {one["step"]: one for one in timeline["steps"]}
    for place, step in enumerate(rank["series"]["step"]):
        one = by_step[step]
        assert rank["series"]["duration_ns"][place] == one["end_ns"] - one["start_ns"]
        for key in ("overlap_ns", "communication_only_ns", "tail_ns"):
            assert rank["series"][key][place] == one[key]
    assert {one["step"] for one in rank["worst"]} == {
        one["step"]
        for key in ("longest", "longest_tails")
        for one in timeline["step_statistics"][key]
    }
    assert data["checks"] == report["closure"]
    assert data["checks_made"] == len(report["closure"])
    alone = [one for one in report["not_known"] if one["timeline"] is not None]
    assert [(one["what"], one["because"]) for one in data["not_known"]] == [
        (one["what"].replace("\x1b", "\\x1b"), one["because"]) for one in alone
    ]


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_tables_and_sentences_are_those_of_the_text(name):
    recording = getattr(recordings, name)()
    text = " ".join(plain([analyse(recording)], width=400).split())
    (rank,) = data_of(recording)["ranks"]
    assert {one["name"] for one in rank["sections"]} <= {
        "origin",
        *(one.__name__ for one in SECTIONS),
    }
    for section in rank["sections"]:
        assert section["title"] in text or section["name"] == "origin"
        for part in section["parts"]:
            if "text" in part:
                assert " ".join(part["text"].split()) in text
            for row in part.get("rows", []):
                cells = row[:-1] if part["bars"] else row
                assert " ".join(" ".join(cells).split()) in text


@pytest.mark.parametrize("name", ["worked", "queued", "typical", "fsdp2", "profiled"])
def test_the_lanes_of_a_step_add_up_to_its_summary(name):
    recording = getattr(recordings, name)()
    data = data_of(recording)
    rows = {int(row["step"]): row for row in analyse(recording).rows}
    assert data["lanes"]["steps"]
    for step in data["lanes"]["steps"]:
        (rank,) = step["ranks"]
        row = rows[step["step"]]
        assert rank["end"] - rank["start"] == row["end_ns"] - row["start_ns"]
        assert sum(end - start for start, end in rank["exposed"]) == row["communication_only_ns"]
        assert (NOT_KNOWN if rank["tail_ns"] is None else rank["tail_ns"]) == row["tail_ns"]
        assert len({len(column) for column in rank["sent"].values()}) == 1


def test_the_worked_example():
    data = data_of(recordings.worked())
    (rank,) = step_of(data, 4)["ranks"]
    sent = rank["sent"]
    texts = [text for text, _ in data["lanes"]["texts"]]
    assert [texts[name] for name in sent["name"]] == ["bucket 0", "bucket 1", "bucket 2"]
    for moment in ("ready", "launch", "start", "begin"):
        assert sent[moment] == [2 * MS, 4 * MS, 6 * MS]
    assert sent["finish"] == [3 * MS, 5 * MS, 7 * MS]
    assert sent["hidden"] == [MS, MS, 0]
    assert sent["waited"] == [0, 0, MS]
    assert sent["bytes"] == [2_800_000, 8_400_000, 120]
    assert sent["provenance"] == ["mmmm"] * 3
    assert (rank["compute"]["start"], rank["compute"]["length"]) == ([0], [6 * MS])
    assert rank["marks"]["last_compute_end_ns"] == 6 * MS
    assert rank["marks"]["last_reduce_end_ns"] == 7 * MS
    assert data["lanes"]["texts"][sent["name"][0]][1] == (
        "2 parameters, head.weight … layers.0.mlp.weight, float32"
    )
    assert [one["value"] for one in data["ranks"][0]["figures"]] == [
        "66.7 %",
        "14.3 %",
        "1.00 ms",
        "7.00 ms",
    ]


def test_a_hang_is_drawn_open_and_told_first():
    data = data_of(recordings.killed())
    assert "was killed, in step 8" in data["alerts"][0]["text"]
    assert all(one["style"] == "bold" for one in data["alerts"])


def test_times_that_nobody_saw_are_null_and_say_so():
    (rank,) = step_of(data_of(recordings.host_times()), 2)["ranks"]
    assert rank["sent"]["start"] == [None] * 3
    assert rank["sent"]["provenance"] == ["mmne"] * 3
    assert rank["sent"]["begin"] == rank["sent"]["launch"]


def test_the_middle_step_comes_first_and_the_worst_are_there():
    data = data_of(recordings.typical())
    length = [rank["end"] - rank["start"] for rank in data["lanes"]["steps"][0]["ranks"]]
    assert length == [data_middle(recordings.typical())]
    there = {one["step"] for one in data["lanes"]["steps"]}
    assert {30, 44, 6} <= there
    assert not there & {15, 21, 27}  # shadow steps have no events


def data_middle(recording: Recording) -> int:
    told = analyse(recording).steps.duration
    assert told is not None
    return told.p50_ns


def test_several_ranks_lie_on_one_time_axis():
    data = data_of(*(recordings.typical(rank) for rank in (0, 1)))
    assert data["lanes"]["together"]
    for step in data["lanes"]["steps"]:
        assert [rank["rank"] for rank in step["ranks"]] == [0, 1]
        assert min(rank["start"] for rank in step["ranks"]) == 0
    assert data["beside"]["title"] == "2 ranks"
    names = [one["name"] for one in data["across"]["sections"]]
    assert names[:3] == ["compared", "late", "waits"]
    for one in data["across"]["waits"]:
        assert one["stay_ns"] == one["wait_ns"] + one["transfer_ns"]


def test_clocks_that_cannot_be_brought_together_are_said():
    one = recordings.worked()
    origin = Origin("owlog", "runs/a/rank1.owlog", 1, 2, "cpu", "pid 1", "node-b")
    sent = one.timeline.communication.copy()
    sent["sequence"] += 1000  # nothing in common
    other = replace(
        one,
        timeline=replace(one.timeline, origin=origin, communication=sent),
        about={"clock": "other"},
    )
    data = data_of(one, other)
    assert not data["lanes"]["together"]
    assert any("clocks of these ranks" in text for text in data["thinned"])
    assert all(rank["start"] == 0 for step in data["lanes"]["steps"] for rank in step["ranks"])


def test_an_input_with_nothing_in_it():
    data = data_of(Recording(Timeline(Origin("kineto", "empty.json"))))
    assert data["lanes"]["steps"] == []
    assert data["ranks"][0]["series"]["step"] == []
    assert data["whatif"]["run"] is None
    assert html(data)


def test_one_kernel_is_a_page():
    lane = Lane(np.array([at(0)]), np.array([at(2)]), np.zeros(1, np.uint32), np.zeros(1, np.uint8))
    data = data_of(Recording(Timeline(Origin("kineto", "one.json"), compute=lane)))
    (step,) = data["lanes"]["steps"]
    assert step["step"] is None
    assert step["ranks"][0]["compute"]["length"] == [2 * MS]
    assert step["ranks"][0]["sent"]["begin"] == []


# -- what is left out is said, and the page stays small ------------------------------------------


def test_many_steps(monkeypatch):
    monkeypatch.setattr(drawn, "STEPS", 12)
    steps = 60
    data = data_of(recordings.Job(steps=steps, longer={59: 3.0, 17: 2.0}).recording())
    there = [one["step"] for one in data["lanes"]["steps"]]
    assert len(there) == 12 == len(set(there))
    assert {59, 17, 0, 32} <= set(there)
    assert any(
        text.startswith(f"{len(there)} of the {steps} steps with events are drawn")
        for text in data["thinned"]
    )
    assert data["ranks"][0]["recorded"] == [[0, 1, steps]]


def test_two_ranks_that_kept_the_same_steps_show_the_same(monkeypatch):
    monkeypatch.setattr(drawn, "STEPS", 20)
    many = [
        recordings.Job(steps=50, rank=rank, longer={rank + 7: 1.0}).recording() for rank in (0, 1)
    ]
    _, (one,), _ = told(many)
    first, second = ([block.step for block in rank.blocks] for rank in one.ranks)
    assert first == second
    assert {7, 8} <= set(first)


def test_many_kernels():
    count = 50_000
    start = at(0) + np.arange(count, dtype=np.int64) * 10_000
    length = np.where(np.arange(count) % 100 == 0, 4_000, 9_000)
    lane = Lane(start, start + length, np.full(count, 1, np.uint32), np.zeros(count, np.uint8))
    timeline = Timeline(Origin("nsight", "many.sqlite"), compute=lane)
    data = data_of(Recording(timeline))
    (rank,) = data["lanes"]["steps"][0]["ranks"]
    assert len(rank["compute"]["start"]) <= 6_000
    assert sum(rank["compute"]["count"]) == count
    (said,) = rank["left_out"]
    assert said.endswith("where the gap between them is at most 1.0 µs")
    assert len(json_text(data)) < 600_000


def test_many_ranks():
    ranks = 40
    data = data_of(
        *(recordings.Job(rank=rank, world=ranks, steps=2).recording() for rank in range(ranks))
    )
    assert len(data["lanes"]["ranks"]) == lanes.RANKS
    assert len(data["ranks"]) == pages.IN_FULL
    assert len(data["labels"]) == ranks
    assert any(text.startswith("16 of 40 ranks have lanes") for text in data["thinned"])
    assert any(text.startswith("32 of 40 ranks are told in full") for text in data["thinned"])
    assert len(data["beside"]["parts"][0]["rows"]) == ranks


def test_a_long_run_gives_a_page_of_bounded_size():
    """100,000 steps, of which 100 have their events."""
    one = recordings.Job(steps=100).recording()
    steps = 100_000
    rows = np.zeros(steps, SUMMARY)
    rows["step"] = np.arange(steps)
    rows["start_ns"] = recordings.BASE_NS + np.arange(steps) * 7 * MS
    rows["end_ns"] = rows["start_ns"] + 7 * MS
    rows["tail_ns"] = 1000 + np.arange(steps) % 977
    rows["tail_ns"][77_777] = 5 * MS
    made = data_of(replace(one, summaries=rows))
    series = made["ranks"][0]["series"]
    assert len(series["step"]) <= pages.POINTS_A_RANK
    assert 77_777 in series["step"]
    assert "of 100,000 steps are drawn" in series["thinned"]
    assert len(html(made)) < 1_500_000


def test_picked_steps_keep_the_extremes_of_each_stretch():
    rows = np.zeros(1000, SUMMARY)
    rows["end_ns"] = 5
    rows["tail_ns"] = np.arange(1000) % 10
    rows["tail_ns"][123], rows["end_ns"][456] = 99, 99
    places = picked(rows, 40)
    assert {123, 456} <= set(places.tolist())
    assert len(places) <= 40
    assert picked(rows, 1000).tolist() == list(range(1000))
    unknown = rows.copy()
    unknown["tail_ns"] = NOT_KNOWN
    assert 456 in picked(unknown, 40)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([], []),
        ([4], [[4, 1, 1]]),
        ([1, 2, 3, 10, 20, 30, 31], [[1, 1, 3], [10, 10, 3], [31, 1, 1]]),
    ],
)
def test_runs(numbers, found):
    assert runs(numbers) == found
    assert [
        first + i * distance for first, distance, count in found for i in range(count)
    ] == numbers


def test_steps_without_events_are_told_apart():
    (rank,) = data_of(recordings.typical())["ranks"]
    recorded = {first + i * gap for first, gap, count in rank["recorded"] for i in range(count)}
    timeline = recordings.typical().timeline
    shadow = timeline.steps["flags"] & StepFlag.SHADOW != 0
    assert recorded == set(timeline.steps["step"][~shadow].tolist())


# -- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.125, 0.5, 0.33, 1.0])
def test_a_bar_is_as_long_as_the_text_draws_it(share):
    assert bar_share(bar(share, 20)) == pytest.approx(share, abs=0.01)


def test_a_part_that_the_page_does_not_know_is_a_fault():
    with pytest.raises(TypeError, match="Heading"):
        sentences([sentence("a"), heading("b")])

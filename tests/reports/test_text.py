import re
from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.selection import Selection
from overlapwatch.reports.text import plain
from overlapwatch.timeline.model import Origin, Recording, Timeline
from overlapwatch.vocabulary import RECORD, CollectiveKind, RecordFlag, StepFlag
from tests.reports import golden, recordings
from tests.reports.recordings import Job

SCENARIOS = ("worked", "queued", "serial", "killed", "silent", "host_times", "hostile", "fsdp2")
WIDTHS = (60, 80, 100, 140)


def told(name: str, width: int = 100, **selection) -> str:
    return plain([analyse(getattr(recordings, name)(), Selection(**selection))], width)


def two_ranks(width: int = 100, detailed=None) -> str:
    return plain([analyse(recordings.typical(rank)) for rank in (0, 1)], width, detailed)


def section(text: str, title: str) -> str:
    """The lines from a heading to the next one."""
    found = re.search(
        rf"^{re.escape(title)} ─+\n(.*?)(?=^\S.* ─+$|\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"no section {title!r}"
    return found[1]


@pytest.mark.parametrize("name", SCENARIOS)
def test_golden(name):
    golden.check(f"{name}.txt", told(name))


@pytest.mark.parametrize("width", WIDTHS)
def test_golden_of_two_ranks(width):
    golden.check(f"two_ranks_{width}.txt", two_ranks(width))


def test_golden_of_hostile_names_in_little_room():
    golden.check("hostile_60.txt", told("hostile", 60))


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_longer_than_the_width(name, width):
    lines = told(name, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut_at_any_width(width):
    """Names here have no digits, so that folding them breaks no number."""
    job = Job(
        names=("head", "middle", "tail", "left", "right", "embedding"),
        sends=(1.25, 1000.5, 14000.25),
        steps=12,
    )
    wide, text = (plain([analyse(job.recording())], w) for w in (300, width))
    assert sorted(set(re.findall(r"\d[\d,.]*\d|\d", wide))) == sorted(
        set(re.findall(r"\d[\d,.]*\d|\d", text))
    )
    assert "…" not in re.sub(r"\w+ ?\n? *…", "", text)  # only between a bucket's parameters


def test_the_worked_example_in_print():
    parts = section(told("worked"), "Where the time went")
    assert re.search(r"compute only +32\.0 +57\.1 %", parts)
    assert re.search(r"communication only \(exposed\) +8\.0 +14\.3 %", parts)
    assert re.search(r"overlap \(hidden\) +16\.0 +28\.6 %", parts)
    assert re.search(r"window +56\.0 +100\.0 %", parts)
    assert "hidden: 66.7 % of communication (16.0 / 24.0 ms)" in parts
    tail = section(told("queued"), "Tail")
    assert "p50 8.00 ms" in tail
    assert "queue behind bucket 1 4.00 → residence 4.00" in tail


def test_serial_is_explained():
    text = told("serial")
    assert "nothing was hidden; CUDA_DEVICE_MAX_CONNECTIONS=1 in this job" in section(
        text, "Where the time went"
    )
    assert "the first reduction started" in section(text, "Tail")


def test_a_killed_job_is_told_before_any_number():
    before_any_number = " ".join(told("killed").partition("  input ")[0].split())
    assert before_any_number == (
        "overlapwatch report rank 0 was killed, in step 8; last collective launched and not finished: AllReduce bucket 1 "
        "(2 parameters, layers.1.mlp.weight … layers.0.attention.weight), 8.4 MB, group default, sequence 26, "
        "launched 12.3 s before the last event; 1 more in flight, the oldest is AllReduce bucket 0, sequence 25"
    )


def test_a_running_job_without_anything_in_flight():
    text = plain([analyse(replace(recordings.worked(), state="running"))])
    assert "rank 0 is running; the last step that ended is 7; no collective is in flight" in text


def test_an_unknown_state_is_told_as_it_is():
    text = plain([analyse(replace(recordings.worked(), state="unknown: on host node-b"))])
    assert "rank 0 is in state unknown: on host node-b" in text


def test_in_flight_with_nothing_known_of_it():
    flying = np.zeros(1, RECORD)
    flying["collective"] = CollectiveKind.ALL_GATHER
    text = plain([analyse(replace(recordings.worked(), state="killed", in_flight=flying))], 200)
    assert "not finished: AllGather, size not known" in text


def test_many_hung_ranks_are_not_all_told_in_full():
    analyses = [
        analyse(replace(Job(rank=rank, world=12).recording(), state="running"))
        for rank in range(12)
    ]
    text = plain(analyses)
    assert text.count("is running; the last step") == 8
    assert "and 4 ranks more: see the table" in text


def test_no_communication_is_never_zero_ms_of_it():
    text = told("silent")
    assert "no communication was recognised in this window" in text
    assert "communication only" not in text
    assert "exposed" not in section(text, "Steps")
    assert "Exposed segments" not in text


def test_communication_that_nobody_could_see():
    recording = recordings.worked()
    sent = recording.timeline.communication.copy()
    sent["finish"], sent["flags"] = 0, RecordFlag.FINISH_UNOBSERVABLE
    text = plain(
        [
            analyse(
                replace(
                    recording,
                    timeline=replace(recording.timeline, communication=sent),
                    summaries=recording.summaries[:0],
                )
            )
        ]
    )
    parts = section(text, "Where the time went")
    assert "how much of the rest was communication is not known" in parts
    assert "overlap" not in parts
    assert "unobservable" in section(text, "Buckets")
    assert "not known in any of 8 steps" in section(text, "Tail")
    assert "the span of 24 collectives cannot be observed" in section(text, "Not known")


def test_an_input_without_anything():
    text = plain([analyse(Recording(Timeline(Origin("kineto", "empty.json"))))])
    assert "steps: none" in section(text, "Steps")
    assert "steps: the input marks none" in section(text, "Not known")
    assert "no time with recorded events in this window" in text


def test_provenance_is_told():
    text = section(told("host_times"), "Buckets")
    assert "start not recorded; finish estimated (~ holds estimated times)" in text
    assert "~3.00" in text
    assert "launch to finish holds the time in the queue: it is not the communication time" in text
    assert "residence" not in text


def test_provenance_that_differs_between_buckets():
    recording = recordings.worked()
    sent = recording.timeline.communication.copy()
    sent["flags"][sent["owner"] == 102] = RecordFlag.START_ESTIMATED
    text = section(
        plain(
            [analyse(replace(recording, timeline=replace(recording.timeline, communication=sent)))],
            140,
        ),
        "Buckets",
    )
    assert "start measured in bucket 0, bucket 2 and estimated in bucket 1" in text


def test_what_was_left_out_of_statistics_is_counted_by_reason():
    steps = section(two_ranks(140), "Steps")
    assert "60 steps, 0 to 59: 50 in statistics" in steps
    assert (
        "first iteration, one bucket (1); buckets rebuilt (1); shadow, recording off (8)"
        in " ".join(steps.split())
    )
    assert "slow steps (slower than the p99 before them): 30" in steps


def test_the_unbucketed_iteration_stands_apart():
    buckets = section(two_ranks(200), "Buckets")
    assert (
        "before the buckets were laid out: whole model (6 parameters, head.weight … embedding.weight, 11.2 MB), 1 step"
        in buckets
    )


def test_small_messages_are_told_in_bytes():
    assert "120 B" in section(told("worked"), "Process groups and message sizes")


def test_many_buckets_and_sizes_are_shortened_and_it_says_so():
    count = 40
    job = Job(blocks=(1,) * count, sends=(1,) * count, steps=2)
    recording = job.recording()
    sent = recording.timeline.communication.copy()
    sent["bytes"] = sent["owner"]
    text = plain(
        [analyse(replace(recording, timeline=replace(recording.timeline, communication=sent)))]
    )
    buckets = section(text, "Buckets")
    assert "the first and last 16; --json has the 8 buckets between them" in buckets
    assert "bucket 15 " in buckets
    assert "bucket 16 " not in buckets
    assert "bucket 24 " in buckets
    assert "and 28 smaller sizes; --json has them all" in text


def test_a_remainder_is_shown_when_kinds_run_at_once():
    recording = recordings.queued()
    sent = recording.timeline.communication.copy()
    sent["start"] = sent["launch"]
    sent["collective"][sent["owner"] == 102] = CollectiveKind.ALL_GATHER
    text = section(
        plain(
            [analyse(replace(recording, timeline=replace(recording.timeline, communication=sent)))]
        ),
        "Communication by phase and kind",
    )
    # In each step AllReduce runs 2–6 and 6–14, AllGather 4–10: 6 ms twice, of which 2 under compute.
    assert re.search(r"AllGather +8 .* 48\.0 +16\.0 +32\.0 ", text)
    assert re.search(r"at the same time +-48\.0 +-16\.0 +-32\.0", text)
    assert re.search(r"all +24 +96\.0 +32\.0 +64\.0 ", text)


@pytest.mark.parametrize("width", [60, 100])
def test_a_failed_check_is_loud(width):
    analysis = replace(
        analyse(recordings.worked()),
        checks=(Check("a = b", 1, 1), Check("four parts = window", 5, 7)),
    )
    lines = plain([analysis], width).splitlines()
    text = " ".join(" ".join(lines).split())
    assert lines[2] == "  the numbers of rank 0 do not add up: see the end"
    assert "DOES NOT ADD UP" in text
    assert "1 of 2 checks failed" in text
    assert "four parts = window: 5 ≠ 7 ns" in text
    assert "books close" not in text


def test_a_failed_check_of_a_rank_that_is_not_told_in_full():
    bad = replace(analyse(recordings.typical(1)), checks=(Check("four parts = window", 5, 7),))
    assert "four parts = window: 5 ≠ 7 ns" in plain([analyse(recordings.typical(0)), bad])


def test_ranks_are_compared_and_the_chosen_told_in_full():
    text = two_ranks(detailed=(1,))
    assert "rank1-5f3a91c2.owlog" in text
    assert "rank0-5f3a91c2.owlog" not in text
    assert re.search(r"^  0 +50 +231\.8 ", text, re.MULTILINE)
    both = two_ranks(detailed=(0, 1))
    assert both.count("Where the time went") == 2
    assert "in full below" not in both


def test_notes_of_ranks_not_told_in_full_are_kept():
    other = replace(recordings.typical(1), notes=("412 bytes lost",))
    assert "rank 1: 412 bytes lost" in plain([analyse(recordings.typical(0)), analyse(other)])


def test_changed_settings_are_shown_and_defaults_are_not():
    settings = re.search(r"settings +(.*)", told("worked"))[1]
    assert settings == "keep_every=2"


def test_no_variable_that_decides_overlap():
    text = plain([analyse(replace(recordings.worked(), about={"torch": "2.13.0"}))])
    assert "none of the variables that decide overlap was set" in text


def test_names_are_printed_as_they_are_and_control_characters_as_codes():
    text = told("hostile", 300)
    assert "[red]<script>alert(1)</script>[/red]" in text
    assert ":smile: \\x1b[31mred\\x1b[0m" in text
    assert "line\\nbreak" in text
    assert "\x1b" not in text
    assert "модель.слой.вес" in text
    assert "NCCL_ALGO=[link=x]Ring" in text


def test_steps_are_selected():
    text = told("worked", first_step=2, last_step=4)
    assert "3 steps, 2 to 4: 3 in statistics" in text
    assert "window: 3 steps in statistics, 2 to 4; boundary: clip" in text


def test_steps_out_of_statistics_only():
    recording = Job(steps=2, flags={0: StepFlag.UNBUCKETED, 1: StepFlag.REBUILT}).recording()
    text = plain([analyse(recording)])
    assert "2 steps, 0 to 1: 0 in statistics" in text
    assert "no selected step is in statistics" in text


def test_calibration_is_told_where_there_was_one():
    counters = {
        "calibrated_marks_compute_ns": 12_000_000,
        "calibrated_kernels_compute_ns": 10_000_000,
    }
    text = plain([analyse(replace(recordings.worked(), counters=counters))], 200)
    assert (
        "compute is 12.0 ms by marks and 10.0 ms by what the profiler saw: +2.00 ms, 20.0 %"
        in section(text, "Marks and kernels")
    )
    assert "Marks and kernels" not in told("worked")

"""What a report says of an FSDP2 job, beside the golden file `fsdp2.txt`."""

import re
from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.reports.live import step_line
from overlapwatch.reports.text import plain
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind, RecordFlag, RecordKind
from tests.support import units as job
from tests.support.units import BLOCK0, BLOCK1, BLOCK2


def told(records: np.ndarray | None = None, width: int = 200) -> str:
    return plain([analyse(job.recording(1, records))], width)


def test_no_section_of_it_in_a_report_of_buckets():
    from tests.reports import recordings

    text = plain([analyse(recordings.worked())])
    assert "Prefetch" not in text
    assert "unsharded" not in text


def test_the_wrong_prefetch_in_words():
    assert (
        "blocks.2 was prefetched by blocks.0 in forward, but blocks.1 was needed before it: 1 time in 1 step; "
        "blocks.1 then stalled 4.00 ms, 2.00 ms of it while the all-gather of blocks.2 still ran"
    ) in told()


def test_prefetches_in_order_and_none_at_all():
    records = job.step_records(1)
    wrong = (records["collective"] == CollectiveKind.ALL_GATHER) & (records["cause"] == BLOCK0)
    records["cause"][wrong], records["flags"][wrong] = 0, 0
    assert "in order: each of 2 prefetches was of the module needed next" in told(records)
    sent = records["kind"] == RecordKind.COLLECTIVE
    records["cause"][sent], records["flags"][sent] = 0, 0
    assert "nothing was prefetched: each all-gather was issued when compute needed it" in told(
        records
    )


def test_a_prefetch_that_nobody_used_and_a_stall_that_is_not_known():
    records = job.step_records(1)
    waits = records["kind"] == RecordKind.WAIT
    records["owner"][waits & (records["owner"] == BLOCK2)] = 0
    assert "needed before it: 1 time in 1 step, 1 of them never used; blocks.1 then" in told(
        records
    )
    needed = (records["kind"] == RecordKind.COLLECTIVE) & (records["owner"] == BLOCK1)
    needed &= records["collective"] == CollectiveKind.ALL_GATHER
    records["finish"][needed], records["flags"][needed] = 0, RecordFlag.FINISH_UNOBSERVABLE
    assert "how long blocks.1 then stalled is not known" in told(records)


def test_queues_are_told_and_none_said():
    assert "all-gathers and reductions stood behind each other for 3.50 ms" in told()
    records = job.step_records(1)
    sent = records["kind"] == RecordKind.COLLECTIVE
    records["launch"][sent] = records["start"][sent]
    assert "none of 10 collectives stood behind another" in told(records)
    records["start"][sent] = 0
    text = told(records)
    assert "Queues on one communicator" not in text
    assert (
        "what 10 of 10 collectives of modules queued behind: when their turn came is not known"
        in text
    )


def test_estimated_slack_carries_a_mark():
    records = job.step_records(1)
    one = (records["kind"] == RecordKind.COLLECTIVE) & (records["owner"] == BLOCK1)
    records["flags"][one] |= int(RecordFlag.FINISH_ESTIMATED)
    text = told(records)
    assert "~-4.00" in text
    assert "~ holds estimated times" in text


def many(count: int) -> str:
    """A job of `count` equal blocks, gathered one after another; block 7 stalls the longest."""
    rows = [job.row(RecordKind.STEP, 1, start=0, finish=job.LENGTH)]
    names = {}
    for place in range(count):
        owner = 100 + place
        names[owner] = Name(owner, NameKind.MODULE, f"layers.{place}", (), 10, 40, "float32")
        start = place * 0.5
        took = 0.4 if place == 7 else 0.1 + place / 1000
        base = {"owner": owner, "phase": 1, "collective": CollectiveKind.ALL_GATHER}
        times = {"launch": start, "start": start, "finish": start + took}
        rows.append(job.row(RecordKind.COLLECTIVE, 1, bytes=40, group=1, **base, **times))
        rows.append(job.row(RecordKind.WAIT, 1, start=start, finish=start + took, **base))
    recording = job.recording(1, np.concatenate(rows))
    timeline = replace(recording.timeline, names=names)
    return plain([analyse(replace(recording, timeline=timeline))])


def test_many_modules_are_shortened_to_those_that_cost_most():
    text = many(40)
    assert "the 16 of 40 modules with the most exposed time; --json has all" in text
    assert "the 16 of 40 modules with the longest stalls; --json has all" in text
    assert "layers.7 " in text
    assert "layers.39 " in text
    assert "layers.8 " not in text
    assert "layers.8 " in many(24)


def test_the_live_line_counts_modules():
    (row,) = job.recording(1).summaries
    assert step_line(row, "module").endswith("tail 5.00 ms  4 modules")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_number_is_lost_in_little_room(width):

    wide, text = told(width=300), told(width=width)
    numbers = [set(re.findall(r"\d[\d,.]*\d|\d", one)) for one in (wide, text)]
    assert numbers[0] == numbers[1]

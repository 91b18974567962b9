"""The sections that only profiles have; `profiled` says what is in it, and its numbers follow by hand."""

import json
import re
from dataclasses import replace

import pytest

from overlapwatch.accounting.analyse import Rules, analyse
from overlapwatch.accounting.selection import Selection
from overlapwatch.reports.json import to_dict, to_text
from overlapwatch.reports.text import plain
from overlapwatch.timeline.step_rules import AnchorRule
from overlapwatch.vocabulary import Phase
from tests.reports import golden, recordings
from tests.reports.test_text import section

MS = 1_000_000
MIB = 1 << 20


def told(width=100, device=4, **selection):
    return plain([analyse(recordings.profiled(device), Selection(**selection))], width)


def both(width=100, **options):
    return plain([analyse(recordings.profiled(device)) for device in (4, 5)], width, **options)


@pytest.mark.parametrize("width", [60, 100])
def test_golden(width):
    golden.check(f"profile_{width}.txt", told(width))


def test_golden_of_two_devices():
    golden.check("profile_two_devices.txt", both())


def test_golden_json():
    golden.check("profile.json", to_text([analyse(recordings.profiled())]))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_longer_than_the_width(width):
    assert max(map(len, both(width).splitlines())) <= width


def test_the_parts():
    parts = analyse(recordings.profiled()).partition
    assert parts.window_ns == 2345 * MS
    assert (parts.compute_ns, parts.communication_ns) == (3 * 468 * MS, 3 * 211 * MS)
    assert (parts.overlap_ns, parts.communication_only_ns) == (3 * 170 * MS, 3 * 41 * MS)
    assert parts.copies_only_ns == 3 * 5 * MS


def test_steps_and_phases_by_anchors():
    found = analyse(recordings.profiled())
    assert (found.steps.steps, found.steps.duration.p50_ns) == (3, 900 * MS)
    cells = {
        (cell.phase, cell.kind.title): (cell.count, cell.union_ns, cell.exposed_ns)
        for cell in found.phases.cells
    }
    assert cells == {
        (Phase.FORWARD, "AllGather"): (6, 240 * MS, 0),
        (Phase.BACKWARD, "AllGather"): (3, 120 * MS, 0),
        (Phase.BACKWARD, "ReduceScatter"): (6, 150 * MS, 0),
        (Phase.OPTIMIZER, "ReduceScatter"): (0, 120 * MS, 120 * MS),
        (Phase.OPTIMIZER, "AllReduce"): (3, 3 * MS, 3 * MS),
    }
    assert found.phase_rule == "anchor kernels (6 forward, 6 backward)"
    assert all(check.ok for check in found.checks)


def test_one_phase():
    parts = analyse(recordings.profiled(), Selection(phase=Phase.BACKWARD)).partition
    assert (parts.window_ns, parts.communication_ns, parts.overlap_ns) == (
        840 * MS,
        270 * MS,
        270 * MS,
    )
    text = section(told(phase=Phase.BACKWARD), "Where the time went")
    assert "window: backward of whole capture" in text
    assert "only the window is of that phase" in told(phase=Phase.BACKWARD)


def test_rules_can_be_set():
    rules = Rules("anchors", AnchorRule(forward="gemm", backward="flash_bwd", step_gap_ns=10 * MS))
    found = analyse(recordings.profiled(), rules=rules)
    assert found.phase_rule == "anchor kernels (3 forward, 6 backward)"
    assert found.step_rule == "anchor kernels, a gap of over 10 ms starts a step"
    none = analyse(recordings.profiled(), rules=Rules("none"))
    assert none.phases.rule == "no phases known"
    assert "no phases were asked for" in {one.because for one in none.unknown}


def test_exact_sizes_in_print():
    text = section(told(), "Calls of the communication library")
    assert re.search(r"AllReduce +4 B +3$", text, re.MULTILINE)
    assert re.search(r"AllGather +268,435,456 B +268\.4 MB +6$", text, re.MULTILINE)
    assert re.search(r"AllGather +240,451,584 B +240\.5 MB +3$", text, re.MULTILINE)


def test_rates_in_print():
    """4 × (2 × 256 MiB + 240,451,584) bytes a step in 120 ms, and 3/4 of it over the bus."""
    text = section(told(), "Counts and rates")
    gathered = 4 * (2 * 256 * MIB + 240_451_584) / 120e6
    line = rf"AllGather +communicator 5f3a +4 +9 +9 +9 +{gathered:.1f} +{gathered * 3 / 4:.1f}$"
    assert re.search(line, text, re.MULTILINE)
    assert "wait-inclusive lower bound" in text
    assert re.search(r"AllReduce .* <0\.01 +<0\.01$", text, re.MULTILINE)


def test_without_sizes_there_are_counts_and_no_rates():
    text = plain([analyse(recordings.profiled(sized=False))])
    rates = section(text, "Counts and rates")
    assert "lower bound" not in rates
    assert re.search(r"AllGather +communicator 5f3a +4 +9 +9 +0 +– +–$", rates, re.MULTILINE)
    assert "the sizes of its calls are not known" in rates


def test_call_sites_say_what_is_exposed_where():
    sites = analyse(recordings.profiled()).call_sites.sites
    assert [(site.name.rpartition(" > ")[2], site.exposed_ns) for site in sites] == [
        ("reduce_scatter", 120 * MS), ("clip_grad_norm", 3 * MS), ("all_gather", 0),
    ]  # fmt: skip
    assert "train_step > forward_backward" in section(told(140), "Call sites")


def test_fused_kernels_are_told_beside_the_lanes():
    text = " ".join(section(told(), "Where the time went").split())
    assert (
        "in neither lane: 3 kernels that compute and communicate at once, 30.0 ms, of which 0 ms count as idle"
        in text
    )


def test_devices_side_by_side():
    text = section(both(), "2 devices")
    assert re.search(
        r"rank 0, cuda:4 +2,345\.0 +1,404\.0 +633\.0 +80\.6 % +123\.0 +5\.2 % +6$",
        text,
        re.MULTILINE,
    )
    assert re.search(
        r"rank 1, cuda:5 +2,325\.0 +1,284\.0 +633\.0 +71\.1 % +183\.0 +7\.9 % +9$",
        text,
        re.MULTILINE,
    )
    assert "hidden reaches from 71.1 % (rank 1, cuda:5) to 80.6 % (rank 0, cuda:4)" in text
    assert "AllGather 18 = 3 a device and step" in text


def test_which_devices_are_told_in_full():
    one, every = both(), both(all_in_full=True)
    assert "in full below: rank 0, cuda:4; --rank N tells 1 other" in " ".join(one.split())
    assert one.count("Exposed segments ─") == 1
    assert every.count("Exposed segments ─") == 2


def test_devices_that_are_called_the_same_are_told_by_their_files():
    one, other = (analyse(recordings.profiled(4)) for _ in range(2))
    other = replace(other, origin=replace(other.origin, path="runs/other.sqlite"))
    text = plain([one, other], 140)
    assert "rank 0, cuda:4, profile.sqlite" in text
    assert "rank 0, cuda:4, other.sqlite" in text
    assert "hidden is 80.6 % on each" in text


def test_of_many_devices_only_the_spread_is_shown():
    found = analyse(recordings.profiled(4))
    many = [replace(found, origin=replace(found.origin, rank=rank)) for rank in range(33)]
    text = section(plain(many), "33 devices")
    assert "rank 7, cuda:4" not in text
    assert re.search(r"least +2,345\.0 .* 80\.6 %", text)
    assert "AllReduce 99 = 1 a device and step" in text


def test_json_of_several_devices():
    made = json.loads(
        json.dumps(to_dict([analyse(recordings.profiled(device)) for device in (4, 5)]))
    )
    hidden = next(one for one in made["devices"]["spread"] if one["name"] == "hidden")
    assert (hidden["least_timeline"], hidden["most_timeline"]) == (1, 0)
    assert made["timelines"][0]["rates"][0]["closes"] is True
    assert made["timelines"][0]["calls"]["told_by"] == "calls"


def test_the_tail_is_not_told_where_nobody_knows_what_reduces_gradients():
    found = analyse(recordings.profiled())
    assert found.tail.tail is None
    assert any("the phases of launches are not known" in one.because for one in found.unknown)

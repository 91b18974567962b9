"""The flags that profiles have, and several inputs at once; the sources are stood in for."""

import json
import os
from pathlib import Path

import pytest

from overlapwatch.accounting.selection import clock_zeros
from overlapwatch.commands import inputs, main, map_files
from overlapwatch.commands import options as command_options
from overlapwatch.commands.options import make_request, parse_gap, parse_pattern, parse_trim
from overlapwatch.errors import ConfigurationError, InputError
from overlapwatch.timeline.model import Origin, Recording
from overlapwatch.vocabulary import Phase
from tests.reports import recordings
from tests.reports.recordings import BASE_NS, Job
from tests.support.scenarios import profile

MS = 1_000_000


@pytest.fixture
def opened(monkeypatch):
    """`profile.sqlite` holds devices 4 and 5, `rankN.json` rank N, `bad*` cannot be read; what was asked is kept."""
    asked = []

    def open_trace(path, **options):
        asked.append((path, options))
        if path.name.startswith("bad"):
            raise InputError(f"{path}: cannot be read")
        devices = (4, 5) if path.suffix == ".sqlite" else (4 + int(path.stem[4:]),)
        chosen = [one for one in devices if options["devices"] is None or one in options["devices"]]
        return [recordings.profiled(device) for device in chosen]

    monkeypatch.setattr(inputs, "open_trace", open_trace)
    return asked


def printed(capsys, *arguments, code=0):
    assert main(["report", *arguments]) == code
    return capsys.readouterr().out


def fails(capsys, *arguments):
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("overlapwatch: ")
    assert said.err.count("\n") == 1
    return said.err


# -- what was asked ------------------------------------------------------------------------------


def test_trims():
    assert parse_trim(None) is None
    assert parse_trim(["39.964", "46.123"]) == (39.964, 46.123)
    assert parse_trim(["-1", "0"]) == (-1, 0)


@pytest.mark.parametrize(
    "texts", [["5", "4"], ["1", "1"], ["a", "2"], ["0", "inf"], ["nan", "1"], ["", "1"]]
)
def test_trims_that_are_none(texts):
    with pytest.raises(ConfigurationError, match="--trim takes two ascending numbers of seconds"):
        parse_trim(texts)


def test_gaps():
    assert (parse_gap(None), parse_gap("300"), parse_gap("0.5")) == (None, 300 * MS, 500_000)
    for text in ("0", "-1", "x", "inf", "1e-9"):
        with pytest.raises(ConfigurationError, match="--step-gap-ms takes a number above 0"):
            parse_gap(text)


def test_patterns():
    assert parse_pattern(None, "--comm-pattern") is None
    assert parse_pattern("my_ring_.*", "--comm-pattern") == "my_ring_.*"
    with pytest.raises(ConfigurationError, match=r"--comm-pattern '\(' is no regular expression"):
        parse_pattern("(", "--comm-pattern")
    with pytest.raises(ConfigurationError, match="matches every kernel"):
        parse_pattern("x*", "--comm-pattern")


def test_all_flags_reach_the_request(opened, capsys):
    printed(
        capsys, "profile.sqlite", "--device", "4", "--rank", "0", "--trim", "1", "2.5", "--boundary", "contained",
        "--comm-pattern", "ring", "--comm-pattern", "tree", "--phase-rule", "anchors", "--phase", "forward",
        "--anchor-forward", "flash_fwd", "--anchor-backward", "flash_bwd", "--step-gap-ms", "250",
    )  # fmt: skip
    ((path, options),) = opened
    assert path == Path("profile.sqlite")
    assert (options["devices"], options["ranks"]) == ((4,), (0,))
    assert (options["patterns"], options["steps"]) == (("ring", "tree"), None)
    from overlapwatch.commands import make_parser

    request = make_request(
        make_parser().parse_args(["report", "x", "--phase", "forward", "--step-gap-ms", "250"])
    )
    assert request.selection.phase is Phase.FORWARD
    assert request.rules.anchors.step_gap_ns == 250 * MS
    assert make_request(make_parser().parse_args(["report", "x", "--step", "3:"])).steps == range(
        3, command_options.MAX_STEP + 1
    )


def test_choices_are_those_of_the_rules():
    from overlapwatch.timeline.phase_rules import PHASE_RULES

    assert command_options.PHASE_RULES == PHASE_RULES
    assert {phase.upper() for phase in command_options.PHASES} == {one.name for one in Phase} - {
        "OTHER"
    }


def test_nonsense_is_refused_before_anything_is_read(opened, capsys):
    assert "--device takes devices such as 3 or 0,3" in fails(capsys, "x", "--device", "gpu")
    assert "choose --step or --trim, not both" in fails(
        capsys, "x", "--step", "1", "--trim", "1", "2"
    )
    assert "--anchor-forward '[' is no regular" in fails(capsys, "x", "--anchor-forward", "[")
    assert opened == []


# -- what is told --------------------------------------------------------------------------------


def test_seconds_are_of_the_session(opened, capsys):
    """The clock of this profile begins 1 s before its first kernel, as that of its session does."""
    text = printed(capsys, "profile.sqlite", "--device", "4", "--trim", "1.0", "1.9", "--json")
    (timeline,) = json.loads(text)["timelines"]
    assert timeline["window"]["start_ns"] == BASE_NS
    assert timeline["window"]["rule"] == "1 to 1.9 s"
    assert timeline["partition"]["communication_ns"] == 211 * MS
    assert timeline["partition"]["window_ns"] == 900 * MS


def test_without_a_session_seconds_count_from_the_first_event_of_the_input():
    early, late = profile([(3, 9)]), profile([(5, 9)], [(6, 7)])
    assert clock_zeros([Recording(late), Recording(early)]) == [BASE_NS + 3 * MS] * 2
    assert clock_zeros([recordings.profiled()]) == [0]
    assert clock_zeros([]) == []


def test_a_trim_beyond_the_capture_is_remarked(opened, capsys):
    text = printed(capsys, "profile.sqlite", "--device", "4", "--trim", "0", "2")
    assert "1.000 s of the trim lie outside of the capture, and count as idle" in " ".join(
        text.split()
    )
    assert "reaches from 1.000 to 3.345 s" in fails(capsys, "profile.sqlite", "--trim", "10", "11")


def test_several_devices_are_told_side_by_side(opened, capsys):
    text = printed(capsys, "profile.sqlite")
    assert "2 devices ─" in text
    assert text.count("Exposed segments ─") == 1
    every = printed(capsys, "profile.sqlite", "--device", "4,5")
    assert every.count("Exposed segments ─") == 2


def test_several_inputs_are_told_in_the_order_of_ranks(opened, capsys):
    made = json.loads(printed(capsys, "rank1.json", "rank0.json", "--json"))
    assert [one["rank"] for one in made["timelines"]] == [0, 1]
    assert made["devices"]["timelines"] == 2


def test_one_bad_input_does_not_stop_the_others(opened, capsys):
    text = printed(capsys, "rank0.json", "bad.json", "rank1.json")
    assert "left out: bad.json: cannot be read" in text
    assert "2 devices ─" in text
    assert "bad1.json: cannot be read" in fails(capsys, "bad1.json", "bad2.json")


def test_ranks_of_several_inputs(opened, capsys):
    made = json.loads(printed(capsys, "rank0.json", "rank1.json", "--rank", "1,7", "--json"))
    assert [one["rank"] for one in made["timelines"]] == [1]
    assert made["timelines"][0]["notes"] == ["no rank 7 in these inputs"]
    assert "it holds rank 0, 1" in fails(capsys, "rank0.json", "rank1.json", "--rank", "7")


def test_the_same_rank_twice_is_remarked(opened, capsys, monkeypatch):
    from dataclasses import replace

    def open_trace(path, **_options):
        one = recordings.profiled()
        origin = Origin("kineto", str(path), 0, 4, "cuda:0")
        return [replace(one, timeline=replace(one.timeline, origin=origin))]

    monkeypatch.setattr(inputs, "open_trace", open_trace)
    assert "rank 0 is in 2 inputs" in printed(capsys, "a.json", "b.json")


def test_a_device_that_is_not_there(opened, capsys):
    assert "profile.sqlite: no device 9 in it" in fails(capsys, "profile.sqlite", "--device", "9")


def test_what_one_device_does_not_hold_is_left_out(opened, capsys, monkeypatch):
    real = inputs.analyse

    def analyse(recording, *arguments, **how):
        if recording.timeline.origin.rank == 0:
            raise ConfigurationError("rank 0 has none of it")
        return real(recording, *arguments, **how)

    monkeypatch.setattr(inputs, "analyse", analyse)
    text = printed(capsys, "profile.sqlite")
    assert "left out: rank 0 has none of it" in text
    assert "pid 1005, cuda:5" in text


# -- several cores -------------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path):
    for rank in (0, 1):
        Job(rank=rank).write_log(tmp_path)
    return sorted(str(path) for path in tmp_path.glob("*.owlog"))


def test_several_inputs_on_several_cores_are_the_same(logs, capsys, monkeypatch):
    alone = printed(capsys, *logs, "--json")
    monkeypatch.setattr(map_files, "MANY_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    missing = f"{logs[0]}.gone"
    both = printed(capsys, *logs, missing, "--json")
    made, several = json.loads(alone), json.loads(both)
    notes = several["timelines"][0].pop("notes")
    assert notes == [
        f"left out: {missing}: there is no such file or directory",
        *made["timelines"][0].pop("notes"),
    ]
    assert several["timelines"] == made["timelines"]


def test_a_process_that_is_killed_does_not_stop_the_report(logs, capsys, monkeypatch):
    from concurrent.futures.process import BrokenProcessPool

    def broken(*_arguments):
        raise BrokenProcessPool

    monkeypatch.setattr(map_files, "MANY_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(map_files, "_in_a_pool", broken)
    assert "2 ranks ─" in printed(capsys, *logs)

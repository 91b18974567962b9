"""Files as they come: cut, torn, half JSON, with impossible times. Numbers where there are any, else one sentence."""

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.analyse import analyse
from overlapwatch.errors import InputError
from overlapwatch.sources import open_trace
from overlapwatch.sources.kineto import is_kineto, open_kineto
from overlapwatch.sources.kineto.columns import DEVICE
from overlapwatch.sources.kineto.damage import (
    FOREIGN,
    OUTRUNS_CAPTURE,
    OUTRUNS_STREAM,
    implausible,
)
from overlapwatch.sources.kineto.events import decode, end_of_array, objects
from overlapwatch.sources.kineto.stream import Stream
from tests.support.kineto_traces import call, copy, kernel, launch, span, text, write

GEMM = "ampere_sgemm_128x64_nn"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def trace(kernels=30):
    events = [span("user_annotation", "ProfilerStep#1", 0, 1000), call(1, 1000, "allreduce", 8, 8)]
    for i in range(kernels):
        name = REDUCE if i % 5 == 4 else GEMM
        events += [launch(10 * i, i + 1), kernel(name, 10 * i + 5, 8, correlation=i + 1)]
    return [*events, copy(10 * kernels + 5, 3)]


def reasons(tl):
    return {one.because: one.count for one in tl.skipped}


# -- the file ----------------------------------------------------------------------------------


def test_a_compressed_file_that_is_cut_short_gives_what_is_before_the_cut(tmp_path):
    events = [kernel(f"{GEMM} {random.random()}", 10 * i, 5) for i in range(5000)]
    whole = write(tmp_path / "whole.json.gz", events)
    data = whole.read_bytes()
    whole.write_bytes(data[: len(data) // 2])
    (recording,) = open_trace(whole)
    assert 1000 < len(recording.timeline.compute) < 4000
    assert any("cut short" in note for note in recording.notes)
    assert any("ends before the list of events does" in note for note in recording.notes)


def test_json_that_stops_in_an_event_gives_the_events_before(tmp_path):
    path = tmp_path / "t.json"
    whole = text(trace())
    path.write_text(whole[: whole.index('"ts": 105')])
    (recording,) = open_trace(path)
    assert len(recording.timeline.compute) + len(recording.timeline.communication) == 10
    # What stands before the events is still known.
    assert recording.timeline.origin.rank == 3


def test_an_event_that_is_no_json_is_counted_and_the_rest_is_read(tmp_path):
    path = tmp_path / "t.json"
    good = [json.dumps(kernel(GEMM, 10 * i, 5)) for i in range(20)]
    good[7] = good[7].replace('"dur": 5', '"dur": five')
    good[9] = "{broken}"
    path.write_text('{"traceEvents": [' + ",\n".join(good) + "]}")
    (recording,) = open_trace(path)
    assert len(recording.timeline.compute) == 18
    assert reasons(recording.timeline) == {"they are not valid JSON": 2}


def test_a_missing_quote_costs_its_event_and_no_other(tmp_path):
    path = tmp_path / "t.json"
    good = [json.dumps(kernel(GEMM, 10 * i, 5)) for i in range(20)]
    good[7] = good[7].replace('"cat', "cat")
    path.write_text('{"traceEvents": [' + ",\n".join(good) + "]}")
    (recording,) = open_trace(path)
    assert len(recording.timeline.compute) == 19
    assert reasons(recording.timeline) == {"they are not valid JSON": 1}


def test_inf_nan_control_characters_and_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "t.json"
    one = json.dumps(kernel(GEMM, 10, 5, bandwidth=1))
    texts = [
        one.replace('"bandwidth": 1', '"memory bandwidth (GB/s)": inf').encode(),
        one.replace('"bandwidth": 1', '"x": -nan').encode(),
        one.replace('"bandwidth": 1', '"x": NaN, "y": -Infinity').encode(),
        one.replace(GEMM, "gemm\x01\n\t").encode(),
        one.encode().replace(GEMM.encode(), b"gemm \xff\xfe"),
        one.replace(GEMM, "gemm \\ud800").encode(),
    ]
    path.write_bytes(b'{"traceEvents": [' + b",".join(texts) + b"]}")
    (recording,) = open_trace(path)
    assert len(recording.timeline.compute) == 6
    assert recording.timeline.skipped == ()
    assert any("repaired" in note for note in recording.notes)


def test_a_time_that_is_inf_is_no_time(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(
        text([kernel(GEMM, 10, 5), kernel(GEMM, 20, 5)]).replace('"ts": 20', '"ts": inf')
    )
    (recording,) = open_trace(path)
    assert len(recording.timeline.compute) == 1
    assert reasons(recording.timeline) == {"their time or length is not a number": 1}


def test_times_as_text_negative_and_missing(tmp_path):
    bad = kernel(GEMM, 40, 5)
    del bad["dur"]
    events = [
        kernel(GEMM, "10.5", "2"), kernel(GEMM, 20, -5), kernel(GEMM, "soon", 5), bad,
        kernel(GEMM, 60, 0),
    ]  # fmt: skip
    (recording,) = open_trace(write(tmp_path / "t.json", events))
    assert recording.timeline.compute.start.tolist() == [10_500, 60_000]
    assert reasons(recording.timeline) == {
        "their length is negative": 1,
        "their time or length is not a number": 2,
    }


def test_arguments_of_any_shape(tmp_path):
    odd = [None, True, 1.5, -3, "x", "7", [1], {"a": 1}, 10**30]
    events = [
        {**kernel(GEMM, 10 * i, 5), "args": {"device": 0, "correlation": v, "stream": v, "External id": v}}
        for i, v in enumerate(odd)
    ]  # fmt: skip
    events += [{**kernel(GEMM, 200 + 10 * i, 5), "args": v} for i, v in enumerate((None, {}))]
    events += [{**kernel(GEMM, 300 + 10 * i, 5), "name": v, "tid": v} for i, v in enumerate(odd)]
    events += [{**span("cpu_op", "a::b", 1, 1), "tid": v, "pid": v} for v in odd]
    events += [{**kernel(GEMM, 1, 1), "cat": v} for v in odd]
    events += [call(1, 1, v, v, v, ranks=2, **{"Process Group Ranks": v}) for v in odd]
    (recording,) = open_trace(write(tmp_path / "t.json", events))
    assert len(recording.timeline.compute) == 2 * len(odd) + 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no list of traceEvents"),
        (b"{}", "no list of traceEvents"),
        (b"hello", "no list of traceEvents"),
        (b'{"traceEvents": 7}', "no list of traceEvents"),
        (b"\x1f\x8b\x08\x00garbage", "no list of traceEvents"),
        (b"\x1f\x8b", "no list of traceEvents"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path, content, says):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as error:
        open_kineto(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_directory_where_a_file_should_be_and_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="no Kineto trace"):
        open_kineto(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        open_kineto(tmp_path / "absent.json")
    assert not is_kineto(tmp_path)
    assert not is_kineto(tmp_path / "absent.json")


@pytest.mark.parametrize("events", [[], [span("cpu_op", "aten::mm", 1, 0)], [{"ph": "M"}]])
def test_nothing_in_it_is_a_report_that_says_so(tmp_path, events):
    (recording,) = open_trace(write(tmp_path / "t.json", events))
    told = analyse(recording)
    assert any("communication" in one.what for one in told.unknown)
    assert told.partition.communication_ns == 0


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("\ufeff \n" + json.dumps([kernel(GEMM, 1, 1)]))
    (recording,) = open_kineto(path)
    assert len(recording.timeline.compute) == 1


def test_two_members_of_one_gzip_file_are_one_stream(tmp_path):
    path, whole = tmp_path / "t.json.gz", text(trace()).encode()
    path.write_bytes(gzip.compress(whole[:500]) + gzip.compress(whole[500:]) + b"\0\0")
    (recording,) = open_trace(path)
    assert recording.notes == ()
    assert len(recording.timeline.compute) == 24


def test_events_that_begin_with_another_key_are_read_by_their_brackets(tmp_path):
    path = tmp_path / "t.json"
    events = [dict(reversed(one.items())) for one in trace(200)]
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 5}}))
    stream = Stream(path, block=300)
    parts = [decode(chunk.text) for chunk in stream.chunks()]
    assert sum(len(found) for found, _, _ in parts) == len(events)
    assert sum(bad for _, bad, _ in parts) == 0
    assert stream.about["distributedInfo"] == {"rank": 5}


@pytest.mark.parametrize("block", [1, 7, 64, 1000, 1 << 20])
def test_the_size_of_a_block_changes_nothing(tmp_path, block):
    path = tmp_path / "t.json"
    nasty = [{**one, "name": one.get("name", "") + ' },{"ph": "X" ]} \\'} for one in trace()]
    path.write_text(
        json.dumps({"a": [{"ph": "X"}], "traceEvents": nasty, "baseTimeNanoseconds": 9}, indent=1)
    )
    stream = Stream(path, block=block)
    names = [event.name for chunk in stream.chunks() for event in decode(chunk.text)[0]]
    assert names == [one["name"] for one in nasty]
    assert stream.about == {"a": [{"ph": "X"}], "baseTimeNanoseconds": 9}


def test_a_file_is_left_as_it_was_and_secrets_stay_in_it(tmp_path):
    secret = "hunter2-token"
    path = write(
        tmp_path / "t.json", [kernel(GEMM, 1, 1, environment=secret)],
        environment={"KEY": secret}, command_line=secret, traceName=f"/home/{secret}",
    )  # fmt: skip
    path.chmod(0o400)
    before = path.read_bytes(), path.stat().st_mtime_ns
    (recording,) = open_trace(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert secret not in json.dumps(analyse(recording).to_dict(), default=str)


@pytest.mark.parametrize("base", [-5, "x", None, 10**40, 1.5])
def test_a_base_that_is_no_time_is_not_used(tmp_path, base):
    (recording,) = open_trace(
        write(tmp_path / "t.json", [kernel(GEMM, 1, 1)], baseTimeNanoseconds=base)
    )
    assert recording.timeline.compute.start.tolist() == [1000]
    assert any("baseTimeNanoseconds" in note for note in recording.notes)


@pytest.mark.parametrize("info", [7, [], {"rank": -1, "world_size": "x"}, {"rank": True}, None])
def test_a_rank_that_is_none_is_not_known(tmp_path, info):
    (recording,) = open_trace(
        write(tmp_path / "t.json", [kernel(GEMM, 1, 1)], distributedInfo=info)
    )
    assert (recording.timeline.origin.rank, recording.timeline.origin.world) == (None, None)
    assert {"rank", "world size"} <= {one.what for one in recording.timeline.unknown}


def test_one_bad_file_of_a_directory_does_not_stop_the_others(tmp_path):
    write(tmp_path / "a.json", [kernel(GEMM, 1, 1)])
    write(tmp_path / "b.json.gz", [kernel(GEMM, 1, 1)])
    (tmp_path / "c.json").write_text('{"schemaVersion": 1}')
    both = open_trace(tmp_path)
    assert [one.timeline.origin.rank for one in both] == [3, 3]
    assert both[0].notes[0].startswith("left out: ")
    assert "rank 3 is in 2 files" in both[0].notes


# -- impossible times --------------------------------------------------------------------------


def rows(*spans, stream=7):
    found = np.zeros(len(spans), DEVICE)
    found["start"] = [one[0] for one in spans]
    found["end"] = [one[1] for one in spans]
    found["stream"] = stream
    return found


def left_out(found, host_end=None):
    return {
        reason: np.flatnonzero(bad).tolist() for reason, bad in implausible(found, host_end).items()
    }


def test_a_few_corrupt_lengths_do_not_make_the_time():
    """7 of 55,423 events with corrupt lengths made 62 % of the device's time."""
    good = [(100 * i, 100 * i + 80) for i in range(2000)]
    bad = [
        (start, start + 90_000 if place % 300 == 17 else end)
        for place, (start, end) in enumerate(good)
    ]
    assert left_out(rows(*bad)) == {OUTRUNS_STREAM: list(range(17, 2000, 300))}


def test_an_overlap_with_the_next_kernel_is_no_damage():
    """ROCm, and dependent launches of CUDA: a kernel ends after the next one of its stream began."""
    found = [(100 * i, 100 * i + 130) for i in range(50)]
    assert left_out(rows(*found)) == {}


def test_one_event_inside_another_is_no_damage():
    assert left_out(rows((0, 100), (10, 20), (110, 120), (130, 140))) == {}


def test_a_long_collective_among_the_kernels_of_stream_0_is_no_damage():
    """ROCm: stream 0 holds what runs on several queues."""
    found = [(100 * i, 100 * i + 80) for i in range(50)]
    assert left_out(rows((0, 4000), *found, stream=0)) == {}
    assert left_out(rows((5, 4_900), *[(s, s + 1) for s, _ in found], stream=0)) == {
        OUTRUNS_STREAM: [0]
    }


def test_events_twice_in_the_file_are_no_damage():
    assert left_out(rows(*[(0, 100)] * 5, (200, 300))) == {}


@pytest.mark.parametrize("length", [236 * 365 * 86400 * 10**9, 3600 * 10**9])
def test_a_length_of_236_years_and_of_an_hour_outrun_the_capture(length):
    found = [(100 * i, 100 * i + 80) for i in range(50)]
    assert left_out(rows(*found[:-1], (4900, 4900 + length)), host_end=6000) == {
        OUTRUNS_CAPTURE: [49]
    }


def test_a_last_kernel_that_waits_long_is_kept():
    found = [(100 * i, 100 * i + 80) for i in range(50)]
    long = rows(*found, (5000, 40_000))
    assert left_out(long, host_end=41_000) == {}
    assert left_out(long) == {}


def test_a_time_of_0_is_left_out_of_a_capture_of_today():
    now = 1_700_000_000 * 10**9
    found = [(now + 100 * i, now + 100 * i + 80) for i in range(10)]
    assert left_out(rows((0, 50), *found)) == {FOREIGN: [0]}
    assert left_out(rows(*[(s - now, e - now) for s, e in found])) == {}


def test_two_events_say_nothing_about_each_other():
    assert left_out(rows((0, 10**18), (5, 6))) == {}


def test_what_is_left_out_is_counted_with_its_reason(tmp_path):
    events = trace()
    events[7] = {**events[7], "dur": 10**4 * 236 * 365 * 86400}
    (recording,) = open_trace(write(tmp_path / "t.json", events))
    assert sum(reasons(recording.timeline).values()) == 1
    assert analyse(recording).partition.window_ns < 10**6


# -- any damage --------------------------------------------------------------------------------

WHOLE = text(trace(6), baseTimeNanoseconds=1000).encode()
PIECES = [
    b"inf", b"NaN", b"null", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\x00", b"\xff", b"-",
    b"1e999", b"99999999999999999999", b'{"ph":"X"},', b'"ts"', b"\\u12", b"0.", b"\n", b"\x1f\x8b",
]  # fmt: skip


def opened(path):
    """Return what can be read; nothing where the answer is one sentence."""
    says = None
    try:
        return open_kineto(path)
    except InputError as error:
        says = str(error)
    assert says
    assert "\n" not in says
    return []


@st.composite
def damaged(draw):
    data = bytearray(WHOLE)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                del data[place : place + draw(st.integers(1, 40))]
            case 1:
                data[place:place] = draw(st.sampled_from(PIECES))
            case 2:
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case _:
                del data[place:]
    return bytes(data)


@given(data=damaged(), zipped=st.booleans())
@example(data=WHOLE, zipped=True)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_damage_gives_a_report_that_closes_or_one_sentence(tmp_path, data, zipped):
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    for recording in opened(path):
        assert [check for check in analyse(recording).checks if not check.ok] == []


@given(st.integers(0, 2**32), st.lists(st.integers(0, 10**6), max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_damage_to_the_compressed_bytes(tmp_path, seed, places):
    data = bytearray(gzip.compress(text(trace(60)).encode()))
    for place in places:
        data[10 + place % (len(data) - 10)] = random.Random(seed + place).randrange(256)
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    for recording in opened(path):
        assert recording.timeline.origin.source == "kineto"


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_of_any_kind_decode_to_something(data):
    events, bad, _ = decode(data)
    assert bad <= len(list(objects(data))) + 1
    assert len(events) >= 0
    assert -1 <= end_of_array(data) < len(data) + 1

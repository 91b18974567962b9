import gzip
import sqlite3
import zlib

import msgpack
import numpy as np
import pytest

from overlapwatch.errors import InputError
from overlapwatch.log.frames import (
    FRAME_HEAD,
    MAGIC,
    Events,
    FrameType,
    Note,
    Summaries,
    encode,
)
from overlapwatch.log.reader import Damage, concatenate_records, read_header, read_log
from overlapwatch.vocabulary import RECORD, SUMMARY
from tests.log.samples import (
    FRAMES,
    HEADER,
    NAMES,
    frame_ends,
    log_bytes,
    plain,
    step_records,
    step_summary,
    write_log,
)


def framed(items):
    payload = msgpack.packb(items)
    return FRAME_HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def test_everything_is_read_back(tmp_path):
    log = read_log(write_log(tmp_path / "log"))
    assert log.header == HEADER
    assert log.names == {1: NAMES.names[0], 7: NAMES.names[2]}
    assert log.groups == {1: NAMES.names[1]}
    assert [(e.first_step, e.flags) for e in log.events] == [(1, 1), (10, 8)]
    assert log.summaries["step"].tolist() == [1, 2, 3, 10]
    assert log.gradients["ready"].tolist() == [103]
    assert log.counts == {"records_lost": 4}
    assert [pair.monotonic_ns for pair in log.clocks] == [1000, 9000]
    assert log.notes == ("a note",)
    assert log.end is not None
    assert log.end.reason == "closed"
    assert (log.last_step, log.damage, dict(log.skipped)) == (10, (), {})
    assert concatenate_records(log.events)["step"].tolist() == [1, 1, 10, 10]
    assert concatenate_records(()).dtype == RECORD


def test_only_the_steps_asked_for_are_kept(tmp_path):
    log = read_log(write_log(tmp_path / "log"), steps=range(2, 10))
    assert log.events == ()
    assert log.summaries["step"].tolist() == [2, 3]
    assert len(log.gradients) == 0
    assert log.last_step == 10
    assert log.names


def test_progress_reaches_the_end(tmp_path):
    seen = []
    read_log(write_log(tmp_path / "log"), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(log_bytes()), len(log_bytes()))
    assert seen == sorted(seen)


def test_a_log_without_an_end_says_so(tmp_path):
    log = read_log(write_log(tmp_path / "log", FRAMES[:5]))
    assert (log.end, log.counts, log.last_step) == (None, {}, 2)
    assert log.damage == ()
    assert read_log(write_log(tmp_path / "short", FRAMES[:1])).last_step is None


def test_the_header_alone(tmp_path):
    assert read_header(write_log(tmp_path / "log")) == HEADER
    assert read_header(write_log(tmp_path / "late", FRAMES[1:])) is None
    raw = bytearray(log_bytes())
    raw[30] ^= 1
    (tmp_path / "bad").write_bytes(raw)
    assert read_header(tmp_path / "bad") is None
    (tmp_path / "odd").write_bytes(MAGIC + framed([FrameType.HEADER]))
    assert read_header(tmp_path / "odd") is None


def test_a_damaged_frame_costs_that_frame_only(tmp_path):
    ends = frame_ends()
    raw = bytearray(log_bytes())
    raw[ends[2] - 5] ^= 0x10  # in the payload of the first EVENTS
    (tmp_path / "log").write_bytes(raw)
    log = read_log(tmp_path / "log")
    assert log.damage == (Damage(ends[1], ends[2] - ends[1], "wrong checksum"),)
    whole = read_log(write_log(tmp_path / "whole", FRAMES[:2] + FRAMES[3:]))
    assert plain(log) == plain(whole)


@pytest.mark.parametrize("length", [0, 1, 3, 200, 1 << 20, 0xFFFFFFFF])
def test_a_damaged_length_costs_that_frame_only(tmp_path, length):
    ends = frame_ends()
    raw = bytearray(log_bytes())
    raw[ends[1] : ends[1] + 4] = length.to_bytes(4, "little")
    (tmp_path / "log").write_bytes(raw)
    log = read_log(tmp_path / "log")
    assert [(damage.offset, damage.size) for damage in log.damage] == [(ends[1], ends[2] - ends[1])]
    assert log.end is not None


def test_garbage_between_frames_is_skipped_and_measured(tmp_path):
    ends = frame_ends()
    raw = log_bytes()
    garbage = np.random.default_rng(0).bytes(3_000_000)
    (tmp_path / "log").write_bytes(raw[: ends[3]] + garbage + raw[ends[3] :])
    log = read_log(tmp_path / "log")
    assert sum(damage.size for damage in log.damage) == len(garbage)
    assert plain(log) == plain(read_log(write_log(tmp_path / "whole")))


def test_a_frame_that_lies_across_the_search_window_is_found(tmp_path):
    ends = frame_ends()
    raw = log_bytes()
    for size in range((1 << 20) - 12, (1 << 20) + 3):
        (tmp_path / "log").write_bytes(raw[: ends[3]] + b"\xff" * size + raw[ends[3] :])
        log = read_log(tmp_path / "log")
        assert [damage.size for damage in log.damage] == [size]


def test_a_whole_frame_with_senseless_content_costs_that_frame_only(tmp_path):
    bad = framed([FrameType.EVENTS, 5, 4, 0, b""])
    (tmp_path / "log").write_bytes(MAGIC + encode(HEADER) + bad + encode(Note(1, "after")))
    log = read_log(tmp_path / "log")
    assert log.notes == ("after",)
    assert log.damage == (Damage(8 + len(encode(HEADER)), len(bad), "events of steps 5 to 4"),)


def test_frames_of_unknown_types_are_counted(tmp_path):
    raw = MAGIC + encode(HEADER) + framed([42, 1]) + framed([42]) + framed([43, {}])
    (tmp_path / "log").write_bytes(raw)
    log = read_log(tmp_path / "log")
    assert dict(log.skipped) == {42: 2, 43: 1}
    assert log.damage == ()


def test_a_newer_major_version_is_refused_by_name(tmp_path):
    (tmp_path / "log").write_bytes(MAGIC + framed([FrameType.HEADER, 2, 0, {}]) + b"whatever")
    with pytest.raises(InputError, match="written by log format 2; this overlapwatch reads 1: upg"):
        read_log(tmp_path / "log")
    with pytest.raises(InputError, match="format 2"):
        read_header(tmp_path / "log")


def test_other_files_are_named(tmp_path):
    path = tmp_path / "x"
    sqlite3.connect(path).execute("create table t(a)").connection.close()
    with pytest.raises(InputError, match="not an overlapwatch log but an SQLite database"):
        read_log(path)
    for raw, what in (
        (gzip.compress(b"x"), "gzip"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "program"),
        (b'{"traceEvents": []}', "JSON"),
        (b'\n  [{"ph": "X"}]', "JSON"),
        (b"PK\x03\x04abcdefgh", "zip"),
        (b"OWRING\x00\x01", "ring"),
        (b"hello, world", "not an overlapwatch log$"),
        (b"", "empty"),
        (MAGIC[:5], "cut short after 5 bytes"),
        (MAGIC, "without one whole frame"),
        (MAGIC + b"\x00" * 100, "without one whole frame"),
    ):
        path.write_bytes(raw)
        with pytest.raises(InputError, match=what):
            read_log(path)


def test_what_cannot_be_opened_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path)


def test_a_file_made_to_be_slow_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("overlapwatch.log.reader._SEARCH_BUDGET_BYTES", 10_000)
    lie = FRAME_HEAD.pack(5000, 0) + b"\x92\x03"
    raw = MAGIC + encode(HEADER) + b"\xff" * 9 + lie * 1000 + encode(Note(1, "after"))
    (tmp_path / "log").write_bytes(raw)
    log = read_log(tmp_path / "log")
    assert log.header == HEADER
    assert log.notes == ()
    assert log.damage[0].size == len(raw) - 8 - len(encode(HEADER))


def test_many_blocks_of_one_step_are_kept_apart(tmp_path):
    frames = (HEADER, *(Events(4, 4, 0, step_records(4)) for _ in range(3)))
    assert len(read_log(write_log(tmp_path / "log", frames)).events) == 3


def test_an_empty_block_of_summaries_does_no_harm(tmp_path):
    frames = (HEADER, Summaries(np.empty(0, SUMMARY)), Summaries(step_summary(3)))
    assert read_log(write_log(tmp_path / "log", frames)).last_step == 3
    assert read_log(write_log(tmp_path / "log", frames[:2])).last_step is None

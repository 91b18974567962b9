"""Reading on in a log gives what reading it whole gives, however it was cut while it grew."""

import time
import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.log import following
from overlapwatch.log.following import Follower
from overlapwatch.log.frames import FRAME_HEAD, MAGIC, Events, Note, Summaries, encode
from overlapwatch.log.reader import read_log
from overlapwatch.vocabulary import RECORD
from tests.log.samples import (
    FRAMES,
    HEADER,
    NAMES,
    frame_ends,
    log_bytes,
    step_records,
    step_summary,
    write_log,
)

RAW = log_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("following")


def followed(follower: Follower) -> tuple:
    clock = follower.clock
    return (
        follower.header,
        follower.names,
        follower.groups,
        follower.rows.tobytes(),
        tuple(follower.notes),
        follower.end,
        clock,
    )


def whole(path) -> tuple:
    log = read_log(path)
    return (
        log.header,
        log.names,
        log.groups,
        log.summaries[-following.LATEST_STEPS :].tobytes(),
        log.notes[-following.LATEST_NOTES :],
        log.end,
        log.clocks[-1] if log.clocks else None,
    )


def grow(path, raw: bytes, cuts: list[int]) -> Follower:
    """Follow a log that grows to `raw`, and is looked at whenever it has as many bytes as `cuts` say."""
    path.write_bytes(b"")
    follower = Follower(path)
    for low, high in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        with path.open("ab") as file:
            file.write(raw[low:high])
        follower.read()
    return follower


CUTS = st.lists(st.integers(0, len(RAW)), max_size=12).map(sorted)


@settings(max_examples=60, deadline=None)
@given(cuts=CUTS)
def test_cut_anywhere_it_reads_what_the_whole_log_holds(place, cuts):
    follower = grow(place / "log", RAW, cuts)
    assert followed(follower) == whole(place / "log")
    assert (follower.damaged, follower.waiting_bytes, follower.problem) == (0, 0, "")
    assert follower.steps == 4
    assert follower.caught_up


@settings(max_examples=80, deadline=None)
@given(
    cuts=CUTS,
    flips=st.lists(
        st.tuples(st.integers(len(MAGIC), len(RAW) - 1), st.integers(1, 255)), max_size=3
    ),
    lost=st.integers(0, 40),
)
def test_damaged_as_well_it_finds_what_the_reader_finds(place, cuts, flips, lost):
    raw = bytearray(RAW)
    for at, bits in flips:
        raw[at] ^= bits
    raw = bytes(raw[: len(raw) - lost])
    follower = grow(place / "log", raw, [min(cut, len(raw)) for cut in cuts])
    try:
        expected = whole(place / "log")
    except InputError:
        assert follower.header is None
        return
    assert followed(follower) == expected
    damage = read_log(place / "log").damage
    mine = [(one.offset, one.size) for one in follower.damage]
    if (
        follower.waiting_bytes
    ):  # it may still be written: the reader, who will not come again, calls it damage
        mine.append((follower.offset, follower.waiting_bytes))
    assert sum(size for _, size in mine) == sum(one.size for one in damage)
    assert {at for at, _ in mine} >= {one.offset for one in damage[:1]}


def test_a_frame_that_is_being_written_is_neither_read_nor_damage(tmp_path):
    ends = frame_ends()
    follower = grow(tmp_path / "log", RAW[: ends[4] - 3], [ends[3]])
    assert (follower.steps, follower.damaged) == (0, 0)
    assert follower.waiting_bytes == ends[4] - 3 - ends[3]
    with (tmp_path / "log").open("ab") as file:
        file.write(RAW[ends[4] - 3 : ends[4]])
    follower.read()
    assert (follower.steps, follower.damaged, follower.waiting_bytes) == (2, 0, 0)


def test_a_bad_frame_becomes_damage_once_something_whole_follows(tmp_path):
    ends = frame_ends()
    raw = bytearray(RAW)
    raw[ends[3] + 20] ^= 1  # in the summaries
    follower = grow(tmp_path / "log", bytes(raw[: ends[4]]), [])
    assert (follower.damaged, follower.notes) == (0, type(follower.notes)())
    with (tmp_path / "log").open("ab") as file:
        file.write(raw[ends[4] : ends[5]])
    follower.read()
    assert (follower.damaged, follower.damaged_bytes) == (1, ends[4] - ends[3])
    assert follower.damage[0].why == "wrong checksum"
    assert list(follower.notes) == ["a note"]


def test_nothing_that_was_read_is_read_again(tmp_path, monkeypatch):
    path = write_log(tmp_path / "log", FRAMES[:-1])
    follower = Follower(path)
    follower.read()
    reads = []
    real = following.payload_at
    monkeypatch.setattr(
        following, "payload_at", lambda file, at, size: reads.append(at) or real(file, at, size)
    )
    follower.read()
    assert reads == []
    before = path.stat().st_size
    with path.open("ab") as file:
        file.write(encode(Note(1, "new")))
    follower.read()
    assert reads == [before]


def test_records_in_a_long_log_are_passed_over_by_their_length(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "CHECKED_BYTES", 100)
    read = []
    real = following.payload_at
    monkeypatch.setattr(
        following, "payload_at", lambda file, at, size: read.append(at) or real(file, at, size)
    )
    big = Events(1, 1, 0, np.zeros(5000, RECORD))
    frames = (HEADER, NAMES, big, Summaries(step_summary(1)), big, Summaries(step_summary(2)))
    path = write_log(tmp_path / "log", frames)
    ends = frame_ends(frames)
    follower = Follower(path)
    follower.read()
    assert follower.rows["step"].tolist() == [1, 2]
    assert ends[1] not in read
    assert ends[3] not in read
    # A length that leads nowhere is seen, and the way back is found as the reader finds it.
    raw = bytearray(path.read_bytes())
    raw[ends[1]] ^= 0x08
    (tmp_path / "bent").write_bytes(raw)
    follower = Follower(tmp_path / "bent")
    follower.read()
    assert follower.rows["step"].tolist() == [1, 2]
    assert [(one.offset, one.size) for one in follower.damage] == [(ends[1], ends[2] - ends[1])]


def test_only_the_latest_rows_and_notes_are_kept(tmp_path):
    many = following.LATEST_STEPS + 30
    path = write_log(
        tmp_path / "log",
        (
            HEADER,
            *(Summaries(step_summary(step)) for step in range(many)),
            *(Note(1, str(n)) for n in range(9)),
        ),
    )
    follower = Follower(path)
    follower.read()
    assert follower.steps == many
    assert follower.rows["step"].tolist() == list(range(30, many))
    assert list(follower.notes) == ["5", "6", "7", "8"]


def test_names_are_left_out_where_nobody_wants_them(tmp_path):
    follower = Follower(write_log(tmp_path / "log"), keep_names=lambda header: header.rank != 1)
    follower.read()
    assert follower.names == follower.groups == {}
    assert follower.damaged == 0


def test_a_look_that_is_cut_short_goes_on_the_next_time(tmp_path):
    follower = Follower(write_log(tmp_path / "log"))
    looks = 0
    while not follower.read(deadline=time.perf_counter()):
        looks += 1
        assert not follower.caught_up
    assert looks > 3
    assert followed(follower) == whole(tmp_path / "log")


def test_another_file_under_the_same_name_is_read_from_its_beginning(tmp_path):
    path = write_log(tmp_path / "log")
    follower = Follower(path)
    follower.read()
    path.rename(tmp_path / "log.old")
    write_log(path, (HEADER, Summaries(step_summary(77))))
    follower.read()
    assert follower.rows["step"].tolist() == [77]
    assert (follower.steps, follower.end) == (1, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"SQLite format 3\x00", "not an overlapwatch log but an SQLite database"),
        (b"plain text, and more", "not an overlapwatch log"),
    ],
)
def test_what_is_no_log_is_said(tmp_path, content, problem):
    (tmp_path / "log").write_bytes(content)
    follower = Follower(tmp_path / "log")
    assert follower.read()
    assert follower.problem.startswith(problem)


def test_a_log_that_is_not_there_yet_or_no_more(tmp_path):
    path = tmp_path / "log"
    follower = Follower(path)
    assert follower.read()
    assert follower.problem == "the file is not there yet"
    path.write_bytes(b"")
    assert follower.read()
    assert (follower.problem, follower.waiting_bytes) == ("", 0)
    path.write_bytes(MAGIC[:3])
    follower.read()
    assert (follower.problem, follower.waiting_bytes) == ("", 3)
    write_log(path, (HEADER, Events(1, 1, 0, step_records(1))))
    follower.read()
    assert (follower.problem, follower.header) == ("", HEADER)
    path.unlink()
    follower.read()
    assert follower.problem == "the file is gone"
    assert follower.header == HEADER  # what was read stays


def test_a_newer_format_is_refused_by_name(tmp_path):
    payload = msgpack.packb([1, 9, 0, {}])
    frame = FRAME_HEAD.pack(len(payload), zlib.crc32(payload)) + payload
    (tmp_path / "log").write_bytes(MAGIC + frame)
    follower = Follower(tmp_path / "log")
    follower.read()
    assert "written by log format 9" in follower.problem

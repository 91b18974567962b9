import zlib

import msgpack
import numpy as np
import pytest

from overlapwatch.log.frames import (
    FRAME_HEAD,
    MAJOR,
    MAX_ITEMS,
    Counters,
    End,
    Events,
    FrameError,
    FrameType,
    Header,
    Names,
    NewerFormatError,
    Note,
    UnknownFrame,
    decode,
    encode,
    whole_prefix,
)
from overlapwatch.vocabulary import RECORD, Name, NameKind
from tests.log.samples import FRAMES, HEADER, log_bytes, step_records


def payload(frame):
    return encode(frame)[FRAME_HEAD.size :]


def same(one, other):
    assert type(one) is type(other)
    for name in one.__dataclass_fields__:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            assert mine.tobytes() == theirs.tobytes()
        else:
            assert mine == theirs


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_comes_back_as_it_was(frame):
    encoded = encode(frame)
    length, checksum = FRAME_HEAD.unpack_from(encoded)
    assert length == len(encoded) - FRAME_HEAD.size
    assert checksum == zlib.crc32(encoded[FRAME_HEAD.size :])
    same(frame, decode(encoded[FRAME_HEAD.size :]))


def test_every_type_has_a_sample():
    assert {decode(payload(frame)).__class__ for frame in FRAMES} == {
        type(frame) for frame in FRAMES
    }
    assert len({type(frame) for frame in FRAMES}) == len(FrameType)


def test_a_payload_begins_as_the_search_for_frames_expects():
    for frame in FRAMES:
        first, kind = payload(frame)[:2]
        assert 0x92 <= first <= 0x9F
        assert kind < 0x80


def test_numpy_numbers_can_be_written():
    events = Events(np.uint32(3), np.uint32(3), np.uint32(2), step_records(3))
    assert decode(payload(events)).flags == 2
    assert decode(payload(Counters(1, {"a": np.int64(5)}))).counts == {"a": 5}


def test_texts_are_bounded_and_survive_bytes_that_are_not_utf8():
    assert len(decode(payload(Note(0, "Ω" * 50_000))).text) == 16384
    header = Header(1, 4, 1, "h", 1, "r", HEADER.created, environment={"A": "caf\udce9"})
    assert decode(payload(header)).environment == {"A": "caf\\udce9"}
    worst = Note(0, "\udce9" * 50_000)
    assert len(decode(payload(worst)).text) == 6 * 16384


def test_a_newer_major_version_is_named():
    with pytest.raises(NewerFormatError, match=f"format {MAJOR + 1}.* reads {MAJOR}: upgrade"):
        decode(msgpack.packb([FrameType.HEADER, MAJOR + 1, 0, "anything at all"]))


def test_a_newer_minor_version_may_add_items_keys_and_types():
    items = msgpack.unpackb(payload(HEADER))
    items[2] = 99
    items[3]["colour"] = "blue"
    assert decode(msgpack.packb([*items, "more"])) == HEADER
    assert decode(msgpack.packb([FrameType.NOTE, 1, "text", {"more": 1}])) == Note(1, "text")
    assert decode(msgpack.packb([77, "?"])) == UnknownFrame(77)


NAME = [1, 1, "n", b"", 0, 0, ""]


@pytest.mark.parametrize(
    "items",
    [
        [],
        {},
        7,
        ["1"],
        [True, 1],
        [-1],
        [500],
        [FrameType.HEADER],
        [FrameType.HEADER, 1, 0, []],
        [FrameType.HEADER, 1, 0, {}],
        [FrameType.HEADER, "1", 0, {}],
        [FrameType.HEADER, 1, 0, {"created": 5}],
        [FrameType.NAMES, 5],
        [FrameType.NAMES, [5]],
        [FrameType.NAMES, [NAME[:-1]]],
        [FrameType.NAMES, [[1, 99, *NAME[2:]]]],
        [FrameType.NAMES, [[1 << 32, *NAME[1:]]]],
        [FrameType.NAMES, [[1, 1, "n", b"abc", 0, 0, ""]]],
        [FrameType.EVENTS, 1, 1, 0],
        [FrameType.EVENTS, 1, 1, 0, bytes(RECORD.itemsize + 1)],
        [FrameType.EVENTS, 2, 1, 0, b""],
        [FrameType.EVENTS, -1, 1, 0, b""],
        [FrameType.EVENTS, 1.0, 1, 0, b""],
        [FrameType.EVENTS, 1, 1, 0, "text"],
        [FrameType.SUMMARIES, b"x"],
        [FrameType.GRADIENTS, None],
        [FrameType.COUNTERS, 1, {"a": "b"}],
        [FrameType.COUNTERS, 1, {"a": 1.5}],
        [FrameType.COUNTERS, 1 << 63, {}],
        [FrameType.CLOCK, 1],
        [FrameType.NOTE, 1, 2],
        [FrameType.END, "x", 1, []],
        [FrameType.END, b"x", 1, {}],
    ],
)
def test_what_is_not_what_it_promises_is_refused(items):
    with pytest.raises(FrameError):
        decode(msgpack.packb(items))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x92\x02",
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion items
        b"\x92\x08\xdf\xff\xff\xff\xff",  # a map of as many
        b"\x94\x08\x01\xc6\xff\xff\xff\xff",  # bytes of as many
        b"\xdd\x00\x10\x00\x00" * 1000,  # arrays of a million, one in another
        b"\x93\x08\x01\xd4\x05\x00",  # an extension type
        b"\x93\x08\x01\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x93\x08\x01\xa1\xff",  # not UTF-8
        b"\x93\x08\x01\xa1a\x00",  # something behind
        b"\x93\x06\x01\x81\x90\x01",  # an array as a key
    ],
)
def test_hostile_bytes_are_refused_before_anything_large_is_made(raw):
    with pytest.raises(FrameError):
        decode(raw)


def test_too_many_names_at_once_are_refused():
    names = Names(tuple(Name(n, NameKind.MODULE, "") for n in range(MAX_ITEMS + 1)))
    with pytest.raises(FrameError):
        decode(payload(names))


def test_what_cannot_be_written_is_an_error_of_the_caller():
    with pytest.raises(ValueError, match="cannot be written"):
        encode(UnknownFrame(77))
    with pytest.raises(ValueError, match="too long"):
        encode(Events(1, 1, 0, np.zeros((64 << 20) // 64 + 1, RECORD)))


def test_whole_prefix_ends_at_a_frame():
    frames = log_bytes()[8:]
    ends = [0]
    for frame in FRAMES:
        ends.append(ends[-1] + len(encode(frame)))
    for length in range(len(frames) + 1):
        assert whole_prefix(frames, length) == max(end for end in ends if end <= length)


def test_end_carries_its_counts():
    assert decode(payload(End("closed", 5, {"a": 1}))) == End("closed", 5, {"a": 1})

"""A log cut at every byte, flipped at every byte, and damaged at random: what is whole is read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.log.frames import MAGIC
from overlapwatch.log.reader import read_log
from tests.log.samples import FRAMES, frame_ends, log_bytes, plain, write_log

RAW = log_bytes()
ENDS = frame_ends()
NOTHING = None


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def read(place, raw):
    """What is read of these bytes, or NOTHING when they are refused in a sentence."""
    (place / "log").write_bytes(raw)
    try:
        return read_log(place / "log")
    except InputError as error:
        sentence = str(error)
    assert sentence.startswith(str(place / "log"))
    assert "\n" not in sentence
    return NOTHING


def expect(place, frames):
    return plain(read_log(write_log(place / "expected", frames))) if frames else NOTHING


def test_cut_at_every_byte_the_whole_frames_before_are_read(place):
    expected = [expect(place, FRAMES[:count]) for count in range(len(FRAMES) + 1)]
    for size in range(len(RAW)):
        log = read(place, RAW[:size])
        whole = sum(end <= size for end in ENDS)
        if not whole:
            assert log is NOTHING, size
            continue
        assert plain(log) == expected[whole], size
        lost = size - ENDS[whole - 1]
        assert sum(damage.size for damage in log.damage) == lost, size


def test_flipped_at_every_byte_the_other_frames_are_read(place):
    expected = [expect(place, FRAMES[:n] + FRAMES[n + 1 :]) for n in range(len(FRAMES))]
    for offset in range(len(RAW)):
        raw = bytearray(RAW)
        raw[offset] ^= 0xFF if offset % 2 else 1 << offset // 2 % 8
        log = read(place, bytes(raw))
        if offset < len(MAGIC):
            assert log is NOTHING
            continue
        hit = sum(end <= offset for end in ENDS)
        begin = ENDS[hit - 1] if hit else len(MAGIC)
        assert plain(log) == expected[hit], offset
        assert [(d.offset, d.size) for d in log.damage] == [(begin, ENDS[hit] - begin)], offset


DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["cut out", "insert", "overwrite"]),
        st.integers(0, len(RAW)),
        st.integers(0, 300),
        st.binary(max_size=300),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(damage=DAMAGE)
def test_damaged_at_random_nothing_is_invented(place, damage):
    raw = RAW
    for kind, at, size, new in damage:
        if kind == "cut out":
            raw = raw[:at] + raw[at + size :]
        elif kind == "insert":
            raw = raw[:at] + new + raw[at:]
        else:
            raw = raw[:at] + new + raw[at + len(new) :]
    log = read(place, raw)
    if log is NOTHING:
        return
    whole = plain(read_log(write_log(place / "expected")))
    found = plain(log)
    assert found[0] is None or found[0] == whole[0]
    assert all(block in whole[3] for block in found[3])
    assert set(log.summaries["step"].tolist()) <= {1, 2, 3, 10}
    assert set(found[8]) <= set(whole[8])
    assert sum(d.size for d in log.damage) <= len(raw)
    offsets = [d.offset for d in log.damage]
    assert offsets == sorted(offsets)

"""What another process asks of a ring, again and again, without copying all of it."""

import numpy as np
import pytest

from overlapwatch.ring import Ring, RingReader
from overlapwatch.vocabulary import RecordKind


@pytest.fixture
def ring(tmp_path) -> Ring:
    made, problems = Ring.create("ring", 16, (tmp_path / "rings",), {})
    assert problems == []
    return made


def write(ring: Ring, step: int, finish: int = 0) -> int:
    return ring.write(RecordKind.COLLECTIVE, 0, 1, 0, step, 0, 0, 0, step, 0, 8, 0, step, 0, finish)


def reader(ring: Ring) -> RingReader:
    assert ring.path is not None
    return RingReader(ring.path)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40])
def test_the_newest_and_the_unfinished_are_those_of_a_whole_read(ring, count):
    rng = np.random.default_rng(count)
    for step in range(1, count + 1):
        write(ring, step, int(rng.integers(0, 2)) * 1000)
    outside = reader(ring)
    everything = outside.read().records
    assert outside.newest(5).records.tolist() == everything[-5:].tolist()
    assert outside.newest(1000).records.tolist() == everything.tolist()
    assert outside.unfinished().tolist() == everything[everything["finish"] == 0].tolist()


def test_what_finishes_meanwhile_is_seen(ring):
    outside, slots = reader(ring), [write(ring, step) for step in (1, 2, 3)]
    ring.stamp(slots[1], "finish", 99)
    assert outside.unfinished()["step"].tolist() == [1, 3]


def test_a_record_that_is_being_written_is_left_out(ring):
    for step in (1, 2, 3):
        write(ring, step)
    ring._cells[1, 0] = 0  # the begin ticket of the second: a writer is at it
    outside = reader(ring)
    assert outside.unfinished()["step"].tolist() == [1, 3]
    newest = outside.newest(2)
    assert newest.records["step"].tolist() == [3]
    assert (newest.lost, newest.next_slot) == (1, 3)

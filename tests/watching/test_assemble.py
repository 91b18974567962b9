"""A step leaves the ring once, whole, when nothing of it is to come; and not later than a grace after its end."""

from collections.abc import Iterator

import numpy as np
import pytest

from overlapwatch.ring import Ring
from overlapwatch.vocabulary import Phase, RecordFlag, RecordKind
from overlapwatch.watching.assemble import GRACE_NS, Assembler

STEP, COLLECTIVE, PHASE = RecordKind.STEP, RecordKind.COLLECTIVE, RecordKind.PHASE
NOW = 10_000_000_000


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring, _ = Ring.create("test", 16, (), {})
    yield ring
    ring.close(remove=True)


def write(
    ring: Ring, kind: RecordKind, step: int, *, finish: int = 0, flags: int = 0, at: int = 5
) -> int:
    """Write a record that began at `at`."""
    start, launch = (0, at) if kind is COLLECTIVE else (at, 0)
    return ring.write(kind, Phase.OTHER, 0, flags, step, 0, 0, 0, 0, 0, 0, 0, launch, start, finish)


def numbers(steps: list) -> list[int]:
    return [step.number for step in steps]


def test_a_step_comes_when_it_has_ended_and_the_next_has_begun(ring: Ring) -> None:
    assembler = Assembler(ring)
    slot = write(ring, STEP, 1)
    write(ring, PHASE, 1, finish=8)
    assert assembler.poll(NOW) == []
    ring.stamp(slot, "finish", 9)
    assert assembler.poll(NOW) == []  # its end may still move
    write(ring, STEP, 2, at=9)
    (step,) = assembler.poll(NOW)
    assert (step.number, step.overwritten) == (1, 0)
    assert step.records["kind"].tolist() == [STEP, PHASE]
    assert step.records["finish"].tolist() == [9, 8]  # stamped after it was first read
    assert step.slots.tolist() == [0, 1]
    assert assembler.poll(NOW) == []


def test_a_collective_that_runs_on_is_waited_for(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    slot = write(ring, COLLECTIVE, 1)
    write(ring, STEP, 2, finish=12)
    write(ring, STEP, 3)
    assert assembler.poll(NOW) == []  # nor does step 2 overtake it
    assert assembler.in_flight()["step"].tolist() == [1]
    ring.stamp(slot, "finish", 15)
    assert numbers(assembler.poll(NOW + 1)) == [1, 2]
    assert len(assembler.in_flight()) == 0


def test_it_is_not_waited_for_beyond_the_grace(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    write(ring, COLLECTIVE, 1)
    write(ring, STEP, 2)
    assert assembler.poll(NOW) == []
    assert assembler.poll(NOW + GRACE_NS - 1) == []
    (step,) = assembler.poll(NOW + GRACE_NS)
    assert step.records["finish"].tolist() == [9, 0]


def test_a_finish_that_nobody_can_see_is_not_waited_for(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    write(ring, COLLECTIVE, 1, flags=RecordFlag.FINISH_UNOBSERVABLE)
    write(ring, STEP, 2)
    assert numbers(assembler.poll(NOW)) == [1]


def test_at_the_end_nothing_is_waited_for(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    write(ring, COLLECTIVE, 1)
    write(ring, STEP, 2)
    assert numbers(assembler.poll(NOW, everything=True)) == [1, 2]


def test_what_comes_after_its_step_was_emitted_is_counted(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    write(ring, STEP, 2)
    assert numbers(assembler.poll(NOW)) == [1]
    write(ring, COLLECTIVE, 1)
    write(ring, PHASE, 2)
    assert assembler.poll(NOW) == []
    assert (assembler.late, assembler.lost) == (1, 0)


def test_records_overwritten_before_they_were_read_are_lost_and_counted(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    for _ in range(40):
        write(ring, PHASE, 1, finish=8)
    write(ring, STEP, 2, at=9)
    (step,) = assembler.poll(NOW)
    assert assembler.lost == 42 - 16
    assert (step.records["kind"] == PHASE).sum() == 15
    assert not (step.records["kind"] == STEP).any()


def test_records_overwritten_after_they_were_read_keep_their_first_copy(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    write(ring, COLLECTIVE, 1)  # its finish would have been stamped into its slot
    write(ring, PHASE, 1, finish=8)
    assert assembler.poll(NOW) == []
    write(ring, STEP, 2, at=9)
    for _ in range(16):
        write(ring, PHASE, 2, finish=12)
        assembler._take(NOW, everything=False)
    (step,) = assembler.poll(NOW)
    assert step.number == 1
    assert step.records["kind"].tolist() == [STEP, COLLECTIVE, PHASE]
    assert step.overwritten == 1  # only what was not finished is uncertain
    assert assembler.lost == 0


def test_collectives_in_flight_are_told_in_order_whatever_step_they_are_of(ring: Ring) -> None:
    assembler = Assembler(ring)
    assert len(assembler.in_flight()) == 0
    write(ring, STEP, 1, finish=9)
    write(ring, COLLECTIVE, 1, at=6)
    write(ring, COLLECTIVE, 1, at=7, finish=8)
    write(ring, STEP, 2, at=9)
    write(ring, COLLECTIVE, 2, at=10)
    write(ring, COLLECTIVE, 2, at=11, flags=RecordFlag.FINISH_UNOBSERVABLE)
    assembler.poll(NOW)
    assert assembler.in_flight()["launch"].tolist() == [6, 10]
    assert np.diff(assembler.in_flight()["step"]).tolist() == [1]


def test_parameters_that_stay_held_are_not_waited_for(ring: Ring) -> None:
    assembler = Assembler(ring)
    write(ring, STEP, 1, finish=9)
    write(ring, RecordKind.HELD, 1)
    write(ring, STEP, 2)
    (step,) = assembler.poll(NOW)
    assert step.records["finish"].tolist() == [9, 0]
    assert len(assembler.in_flight()) == 0

"""A ring against a plain list: any sequence of writes, holes, late packs and reads."""

import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from overlapwatch.ring import Ring
from tests.test_ring import draw_without_writing

CAPACITY = 8
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 20)),
        st.tuples(st.just("hole"), st.just(0)),
        st.tuples(st.just("error"), st.just(0)),
        st.tuples(st.just("read"), st.booleans()),
    ),
    max_size=25,
)


class PlainRing:
    """The twin: which slot each cell holds, one step at a time."""

    def __init__(self):
        self.cells = [-1] * CAPACITY
        self.drawn = 0

    def write(self):
        self.cells[self.drawn % CAPACITY] = self.drawn
        self.drawn += 1

    def fail(self):
        """Packing clears the cell before it finds that a value does not fit."""
        self.cells[self.drawn % CAPACITY] = -1
        self.drawn += 1

    def read(self, first, *, give_up):
        newest = max(self.cells)
        found, lost, slot = [], 0, first
        while slot <= newest if give_up else self.cells[slot % CAPACITY] >= slot:
            if self.cells[slot % CAPACITY] == slot:
                found.append(slot)
            else:
                lost += 1
            slot += 1
        return found, lost, slot


@example(operations=[("write", 16), ("hole", 0), ("write", 1), ("read", False)])
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS)
def test_a_ring_does_what_its_plain_twin_does(monkeypatch, operations):
    monkeypatch.setattr("overlapwatch.ring.writing._HOLE_GRACE_S", 0.0)
    ring, _ = Ring.create("ring", CAPACITY, (), {})
    twin = PlainRing()
    at = read = lost = 0
    for operation, argument in operations:
        if operation == "write":
            for _ in range(argument):
                ring.write(1, 0, 0, 0, twin.drawn, *[0] * 10)
                twin.write()
        elif operation == "hole":
            draw_without_writing(ring)
            twin.drawn += 1
        elif operation == "error":
            with pytest.raises(struct.error):
                ring.write(-1, *[0] * 14)
            twin.fail()
        else:
            batch = ring.read(at, give_up_on_holes=False)
            if argument and batch.hole:
                batch = ring.read(at, give_up_on_holes=True)
                expected = twin.read(at, give_up=True)
            else:
                expected = twin.read(at, give_up=False)
            assert (batch.slots.tolist(), batch.lost, batch.next_slot) == expected
            assert batch.records["step"].tolist() == expected[0]
            at, read, lost = batch.next_slot, read + len(batch.slots), lost + batch.lost
            assert read + lost == at

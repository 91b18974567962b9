"""The worked example, and the queue against a simulation that serves one job after another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.errors import ConfigurationError
from overlapwatch.whatif.engines import queue, two_engines

MS = 1_000_000


@pytest.mark.parametrize(
    ("communication", "serial", "total", "tail", "starts"),
    [(1, 9, 7, 1, [2, 4, 6]), (4, 18, 14, 8, [2, 6, 10])],
)
def test_the_worked_example(communication, serial, total, tail, starts):
    result = two_engines([2 * MS] * 3, [communication * MS] * 3)
    assert (result.serial_ns, result.total_ns, result.tail_ns) == (
        serial * MS,
        total * MS,
        tail * MS,
    )
    assert (result.start // MS).tolist() == starts


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=8))
def test_hidden_and_exposed_are_those_of_a_bitmap(blocks):
    result = two_engines([c for c, _ in blocks], [s for _, s in blocks])
    computing = {
        t
        for a, b in zip(result.compute_start, result.compute_end, strict=True)
        for t in range(a, b)
    }
    sending = {t for a, b in zip(result.start, result.finish, strict=True) for t in range(a, b)}
    assert result.hidden_ns == len(sending & computing)
    assert result.exposed_ns == len(sending - computing)
    assert result.communication_ns == len(sending) == sum(s for _, s in blocks)
    assert result.total_ns - result.tail_ns == sum(c for c, _ in blocks)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1, max_size=20))
def test_a_queue_serves_in_order(jobs):
    free, expected = None, []
    for launch, service in jobs:
        start = launch if free is None else max(launch, free)
        free = start + service
        expected.append((start, free))
    launch, service = (np.array(column, np.int64) for column in zip(*jobs, strict=True))
    start, finish = queue(launch, service)
    assert list(zip(start.tolist(), finish.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("compute", "communication", "says"),
    [([], [], "at least one"), ([1], [1, 2], "2 and 1"), ([1], [-1], "less than no time")],
)
def test_blocks_that_make_no_sense_are_one_sentence(compute, communication, says):
    with pytest.raises(ConfigurationError, match=says):
        two_engines(compute, communication)

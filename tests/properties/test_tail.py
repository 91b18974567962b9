"""Whatever the marks of the collectives of a step, the pieces of its tail are adjacent and add up to it."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.chain import PieceKind
from overlapwatch.accounting.tail import step_tails
from overlapwatch.accounting.tails import distribution
from overlapwatch.timeline.model import Lane
from overlapwatch.vocabulary import Phase, RecordFlag
from tests.support.scenarios import profile, record, step_rows

MOMENT = st.integers(0, 60)  # 0: not known
SENDS = st.lists(
    st.tuples(MOMENT, MOMENT, MOMENT, st.integers(1, 60), st.integers(0, 15), st.integers(1, 2)),
    max_size=6,
)
COMPUTE = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.integers(0, 20),
        st.sampled_from([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]),
    ),
    max_size=5,
)


def timeline(sends, compute):
    rows = [
        record(
            kind=3, collective=1, phase=Phase.BACKWARD, step=1, owner=number, sequence=number, stream=stream,
            ready=ready, launch=launch, start=start, finish=finish, flags=flags,
        )
        for number, (ready, launch, start, finish, flags, stream) in enumerate(sends, 1)
    ]  # fmt: skip
    starts = np.array([start for start, _, _ in compute], np.int64)
    lengths = np.array([length for _, length, _ in compute], np.int64)
    phase = np.array([phase for _, _, phase in compute], np.uint8)
    lane = Lane(starts, starts + lengths, np.zeros(len(compute), np.uint32), phase)
    steps = step_rows([(1, 0, 0)])
    steps["start"], steps["end"] = 0, 1000
    return replace(profile([], rows, steps=steps), compute=lane)


@settings(deadline=None)
@given(SENDS, COMPUTE)
def test_pieces_tile_the_tail(sends, compute):
    (tail,) = step_tails(timeline(sends, compute))
    if tail.tail_ns is None:
        assert tail.because
        assert tail.pieces == ()
        return
    assert tail.tail_ns == max(0, tail.last_reduce_end_ns - tail.last_compute_end_ns)
    assert tail.check().ok
    assert sum(piece.duration_ns for piece in tail.pieces) == tail.tail_ns
    if tail.pieces:
        assert tail.pieces[0].start_ns == tail.last_compute_end_ns
        assert tail.pieces[-1].end_ns == tail.last_reduce_end_ns
    for before, after in zip(tail.pieces, tail.pieces[1:], strict=False):
        assert before.end_ns == after.start_ns
        assert before.duration_ns > 0
    found = distribution((tail,))
    assert all(check.ok for check in found.checks())


@settings(deadline=None)
@given(SENDS, COMPUTE)
def test_nothing_is_called_measured_that_was_estimated(sends, compute):
    """With every time estimated, only a piece cut by no mark of the reduction can be measured: there is none."""
    flags = int(
        RecordFlag.READY_ESTIMATED
        | RecordFlag.LAUNCH_ESTIMATED
        | RecordFlag.START_ESTIMATED
        | RecordFlag.FINISH_ESTIMATED
    )
    sends = [(*send[:4], flags, send[5]) for send in sends]
    (tail,) = step_tails(timeline(sends, compute))
    assert all(piece.estimated for piece in tail.pieces)


@settings(deadline=None)
@given(SENDS, COMPUTE)
def test_a_queue_names_only_what_was_in_front(sends, compute):
    tl = timeline(sends, compute)
    (tail,) = step_tails(tl)
    for piece in tail.pieces:
        if piece.kind is PieceKind.QUEUE and piece.bucket:
            (ahead,) = [r for r in tl.communication if f"AllReduce {r['sequence']}" == piece.bucket]
            assert ahead["start"] <= piece.start_ns
            assert piece.end_ns <= ahead["finish"]

"""The tail: closed-form answers for the definitions' worked example, and for every piece of a finishing chain."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.chain import PieceKind
from overlapwatch.accounting.tail import reductions, step_tail, step_tails
from overlapwatch.accounting.tails import distribution
from overlapwatch.timeline.model import Timeline
from overlapwatch.vocabulary import (
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    StepFlag,
)
from tests.support.scenarios import (
    MS,
    at,
    collective,
    lane,
    lanes,
    profile,
    records,
    step_rows,
    worked,
)

NAMES = {number: Name(number, NameKind.BUCKET, f"bucket {number}") for number in range(1, 9)}


def bucket(start, finish, ready=None, *, step=1, owner=1, **fields):
    return collective(
        start, finish, ready=ready, step=step, owner=owner, phase=Phase.BACKWARD, **fields
    )


def one_step(compute, sends, *, flags=0, end=100, names=NAMES) -> Timeline:
    base = profile([], sends, steps=step_rows([(1, 0, end)], flags), names=names)
    return replace(base, compute=compute)


def backward(*spans):
    return lane(spans, Phase.BACKWARD)


def pieces(tail):
    return [
        (p.kind, (p.start_ns - at(0)) / MS, (p.end_ns - at(0)) / MS, p.bucket) for p in tail.pieces
    ]


def tail_of(tl):
    (tail,) = step_tails(tl)
    assert tail == step_tail(tl, tl.steps[0])
    assert replace(tail, pieces=()) == step_tail(tl, tl.steps[0], chain=False)
    assert tail.check().ok
    return tail


@pytest.mark.parametrize(
    ("send_ms", "overlapped", "tail_ms", "chain"),
    [
        (1, False, 1, [(PieceKind.RESIDENCE, 8, 9, "bucket 3")]),
        (1, True, 1, [(PieceKind.RESIDENCE, 6, 7, "bucket 3")]),
        (4, False, 4, [(PieceKind.RESIDENCE, 14, 18, "bucket 3")]),
        (
            4,
            True,
            8,
            [(PieceKind.QUEUE, 6, 10, "bucket 2"), (PieceKind.RESIDENCE, 10, 14, "bucket 3")],
        ),
    ],
)
def test_worked_example(send_ms, overlapped, tail_ms, chain):
    case = worked(send_ms, overlapped=overlapped)
    assert case.tail == tail_ms  # the scenario says the same
    tl = replace(case.timeline, names=NAMES, steps=step_rows([(0, 0, case.window)]))
    tail = tail_of(tl)
    assert tail.tail_ns == tail_ms * MS
    assert pieces(tail) == chain
    assert tail.last_bucket == "bucket 3"
    assert tail.first_ready_ns == at(2)
    assert tail.first_reduce_start_ns == at(2)
    assert tail.last_compute_end_ns == at(case.window - (tail_ms if overlapped else send_ms))
    assert tail.last_reduce_end_ns == at(case.window)


def test_every_piece_of_the_chain():
    """Compute ends at 10; the last bucket is ready at 12, launched at 13, starts at 17, ends at 20."""
    last = bucket(17, 20, 12, owner=2, sequence=2)
    last["launch"] = at(13)
    tail = tail_of(one_step(backward((0, 10)), [bucket(9, 15, owner=1, sequence=1), last]))
    assert pieces(tail) == [
        (PieceKind.LATE_READY, 10, 12, "bucket 2"),
        (PieceKind.LAUNCH_DELAY, 12, 13, "bucket 2"),
        (PieceKind.QUEUE, 13, 15, "bucket 1"),
        (PieceKind.QUEUE, 15, 17, ""),  # nobody is known to have been in front
        (PieceKind.RESIDENCE, 17, 20, "bucket 2"),
    ]
    assert tail.dominant == (PieceKind.QUEUE, 4 * MS)
    assert not any(piece.estimated for piece in tail.pieces)


def test_another_queue_is_not_in_front():
    tl = one_step(backward((0, 2)), [bucket(1, 6, owner=1, stream=7), bucket(6, 8, 1, owner=2)])
    assert pieces(tail_of(tl)) == [
        (PieceKind.QUEUE, 2, 6, ""),
        (PieceKind.RESIDENCE, 6, 8, "bucket 2"),
    ]


def test_optimizer_does_not_hide_the_tail():
    compute = lanes(
        lane([(0, 2)], Phase.FORWARD), backward((2, 6)), lane([(5, 30)], Phase.OPTIMIZER)
    )
    tail = tail_of(one_step(compute, [bucket(5, 9)]))
    assert tail.last_compute_end_ns == at(6)
    assert tail.tail_ns == 3 * MS


def test_copying_the_bucket_back_does_not_hide_the_tail():
    tail = tail_of(one_step(backward((0, 6), (9, 9.5)), [bucket(5, 9)]))
    assert tail.tail_ns == 3 * MS


def test_compute_that_outlasts_the_reductions_leaves_no_tail():
    tail = tail_of(one_step(backward((0, 12)), [bucket(5, 9)]))
    assert tail.tail_ns == 0
    assert tail.pieces == ()
    assert tail.dominant is None


def test_compute_only_after_the_reductions_still_counts():
    """There is nothing before it that could be the last compute."""
    assert tail_of(one_step(backward((9, 10)), [bucket(5, 9)])).tail_ns == 0


@pytest.mark.parametrize(
    ("lost", "chain"),
    [
        (
            ["ready"],
            [(PieceKind.UNSPLIT, 10, 13), (PieceKind.QUEUE, 13, 17), (PieceKind.RESIDENCE, 17, 20)],
        ),
        (
            ["start"],
            [
                (PieceKind.LATE_READY, 10, 12),
                (PieceKind.LAUNCH_DELAY, 12, 13),
                (PieceKind.UNSPLIT, 13, 20),
            ],
        ),
        (["launch", "ready"], [(PieceKind.UNSPLIT, 10, 17), (PieceKind.RESIDENCE, 17, 20)]),
    ],
)
def test_a_mark_that_is_not_known_is_not_guessed(lost, chain):
    last = bucket(17, 20, 12)
    last["launch"] = at(13)
    for field in lost:
        last[field] = 0
    tail = tail_of(one_step(backward((0, 10)), [last]))
    assert [piece[:3] for piece in pieces(tail)] == chain
    assert tail.tail_ns == 10 * MS
    assert (tail.first_ready_ns is None) == ("ready" in lost)
    (unknown,) = [one for one in distribution((tail,)).unknown if "pieces" in one.what]
    assert "1 tails" in unknown.what


def test_estimated_edges_are_said_to_be_estimated():
    last = bucket(8, 10, 6, flags=RecordFlag.START_ESTIMATED)
    tail = tail_of(one_step(backward((0, 5)), [last]))
    assert [(piece.kind, piece.estimated) for piece in tail.pieces] == [
        (PieceKind.LATE_READY, False),
        (PieceKind.QUEUE, True),
        (PieceKind.RESIDENCE, True),
    ]
    assert [piece.to_dict()["provenance"] for piece in tail.pieces] == [
        "measured",
        "estimated",
        "estimated",
    ]


@pytest.mark.parametrize("flags", [0, RecordFlag.FINISH_UNOBSERVABLE])
def test_no_tail_without_every_finish(flags):
    hung = bucket(4, 5, owner=2, flags=flags)
    hung["finish"] = 0
    tail = tail_of(one_step(backward((0, 6)), [bucket(5, 9), hung]))
    assert tail.tail_ns is None
    assert tail.last_reduce_end_ns is None
    assert tail.without_finish == 1
    assert tail.because == "1 of 2 gradient reductions have no known finish"
    assert tail.first_reduce_start_ns == at(4)  # what is known stays known


@pytest.mark.parametrize(
    ("flags", "because"),
    [(StepFlag.SHADOW, "recording was off"), (StepFlag.PARTIAL, "records of this step were lost")],
)
def test_no_tail_of_a_step_that_was_not_seen_whole(flags, because):
    tail = tail_of(one_step(backward((0, 6)), [bucket(5, 9)], flags=flags))
    assert tail.tail_ns is None
    assert because in tail.because
    assert tail.last_compute_end_ns == (at(6) if flags == StepFlag.SHADOW else None)


def test_no_reduction_is_no_tail_of_zero():
    gather = collective(2, 8, step=1, kind=CollectiveKind.ALL_GATHER, phase=Phase.BACKWARD)
    tail = tail_of(one_step(backward((0, 6)), [gather]))
    assert tail.tail_ns is None
    assert "no gradient reduction" in tail.because


def test_no_compute_is_no_tail_of_everything():
    tail = tail_of(one_step(lane([(20, 30)], Phase.OPTIMIZER), [bucket(5, 9)]))
    assert tail.tail_ns is None
    assert "compute" in tail.because


def test_what_is_a_reduction():
    names = {1: Name(1, NameKind.BUCKET, "bucket"), 2: Name(2, NameKind.MODULE, "block")}
    rows = [
        collective(
            0, 1, owner=1, phase=Phase.OTHER, kind=CollectiveKind.ALL_TO_ALL
        ),  # a user's hook
        collective(0, 1, owner=2, phase=Phase.BACKWARD, kind=CollectiveKind.REDUCE_SCATTER),
        collective(
            0, 1, owner=2, phase=Phase.BACKWARD, kind=CollectiveKind.ALL_GATHER
        ),  # a prefetch
        collective(
            0, 1, owner=2, phase=Phase.FORWARD, kind=CollectiveKind.ALL_REDUCE
        ),  # a norm's statistics
        collective(
            0, 1, owner=9, phase=Phase.BACKWARD, kind=CollectiveKind.UNKNOWN
        ),  # a generic kernel name
    ]
    found = reductions(records(rows), names)
    assert found["owner"].tolist() == [1, 2, 9]
    assert found["collective"].tolist() == [
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.UNKNOWN,
    ]


def test_unordered_input_is_the_same_input():
    sends = [bucket(100 * i + 5, 100 * i + 10 + i, step=i) for i in (1, 2, 3)]
    steps = step_rows([(i, 100 * i, 100 * i + 100) for i in (1, 2, 3)])
    spans = backward(*((100 * i, 100 * i + 10) for i in (1, 2, 3)))
    tl = replace(profile([], sends, steps=steps, names=NAMES), compute=spans)
    assert [tail.tail_ns for tail in step_tails(tl)] == [MS, 2 * MS, 3 * MS]
    mixed = np.array([2, 0, 1])
    compute = replace(
        tl.compute,
        start=tl.compute.start[mixed],
        end=tl.compute.end[mixed],
        name=tl.compute.name[mixed],
        phase=tl.compute.phase[mixed],
    )
    assert step_tails(
        replace(tl, compute=compute, communication=tl.communication[mixed])
    ) == step_tails(tl)

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


def many(tails_ms, flags=()):
    """Steps of 1,000 ms: compute 0-100 ms, one reduction from 50 ms that outlives it by the given tail."""
    compute, sends, steps = [], [], []
    for number, tail_ms in enumerate(tails_ms, 1):
        begin = 1000 * number
        compute.append((begin, begin + 100))
        sends.append(bucket(begin + 50, begin + 100 + tail_ms, step=number))
        steps.append((number, begin, begin + 1000))
    rows = step_rows(steps)
    for number, flag in flags:
        rows["flags"][number - 1] = flag
    return replace(profile([], sends, steps=rows, names=NAMES), compute=backward(*compute))


def test_outliers_are_told_with_their_steps():
    """512 KB all-reduces: typically 0.7 ms, outliers of 42 and 210 ms. The mean is not the headline."""
    values = [0.7] * 100
    values[16], values[70] = 42, 210
    found = distribution(step_tails(many(values)))
    assert found.steps == found.known == 100
    assert (found.tail.p50_ns, found.tail.p95_ns, found.tail.p99_ns) == (
        0.7 * MS,
        0.7 * MS,
        42 * MS,
    )
    assert found.tail.max_ns == 210 * MS
    assert [(tail.step, tail.tail_ns / MS) for tail in found.worst[:2]] == [(71, 210), (17, 42)]
    worst = found.to_dict()["worst"][0]
    assert worst == {
        "step": 71,
        "tail_ns": 210 * MS,
        "last_bucket": "bucket 1",
        "dominant": "residence",
        "dominant_ns": 210 * MS,
    }
    assert [check for check in found.checks() if not check.ok] == []
    assert [(piece.kind, piece.total_ns, piece.steps) for piece in found.pieces] == [
        (PieceKind.RESIDENCE, round((98 * 0.7 + 252) * MS), 100)
    ]
    assert "one rank alone" in found.unknown[0].because


def test_the_unbucketed_first_iteration_is_out_of_statistics():
    found = distribution(step_tails(many([900, 1, 2], [(1, StepFlag.UNBUCKETED)])))
    assert (found.steps, found.known) == (2, 2)
    assert found.tail.max_ns == 2 * MS


def test_steps_without_a_tail_are_counted_not_taken_as_zero():
    tl = many([5, 6, 7])
    tl.communication["finish"][1] = 0
    found = distribution(step_tails(tl))
    assert (found.steps, found.known, found.tail.count) == (3, 2, 2)
    assert found.tail.p50_ns == 5 * MS
    (unknown,) = [one for one in found.unknown if "tail of 1 of 3 steps" in one.what]
    assert "no known finish" in unknown.because


def test_reductions_after_the_whole_backward_are_explained():
    """The first AllReduce starts after the whole backward: 0 % overlap, because of that; and what was ready when."""
    sends = [bucket(110, 120, 40), bucket(120, 130, 90, owner=2)]
    found = distribution(step_tails(one_step(backward((0, 100)), sends, end=200)))
    assert found.serial == 1
    assert found.explanation == (
        "the first reduction started 10.00 ms (median) after the last forward or backward compute had ended, in "
        "1 of 1 steps; the first bucket had been ready 60.00 ms (median) before that end"
    )


def test_ready_only_then_or_not_known_is_said_too():
    late = bucket(110, 120, 105)
    found = distribution(step_tails(one_step(backward((0, 100)), [late], end=200)))
    assert found.explanation.endswith("no bucket was ready before")
    late["ready"] = 0
    found = distribution(step_tails(one_step(backward((0, 100)), [late], end=200)))
    assert found.explanation.endswith("when the first bucket was ready is not known")


def test_overlap_needs_no_explanation():
    found = distribution(step_tails(many([1, 2])))
    assert (found.serial, found.explanation) == (0, "")


def test_no_steps():
    found = distribution(step_tails(profile()))
    assert (found.steps, found.tail, found.worst, found.checks()) == (0, None, (), ())
    assert found.to_dict()["spread"] is None


def test_unordered_input_is_the_same_input():
    tl = many([3, 1, 2])
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

"""Tails over many steps: outliers with their steps, what is out of statistics, why nothing was hidden."""

from dataclasses import replace

from overlapwatch.accounting.chain import PieceKind
from overlapwatch.accounting.tail import step_tails
from overlapwatch.accounting.tails import distribution
from overlapwatch.vocabulary import Name, NameKind, Phase, StepFlag
from tests.support.scenarios import MS, collective, lane, profile, step_rows

NAMES = {number: Name(number, NameKind.BUCKET, f"bucket {number}") for number in (1, 2)}


def bucket(start, finish, ready=None, *, step=1, owner=1):
    return collective(start, finish, ready=ready, step=step, owner=owner, phase=Phase.BACKWARD)


def backward(*spans):
    return lane(spans, Phase.BACKWARD)


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


def one_step(sends):
    """Backward at 0-100 ms of a step of 200."""
    base = profile([], sends, steps=step_rows([(1, 0, 200)]), names=NAMES)
    return replace(base, compute=backward((0, 100)))


def test_reductions_after_the_whole_backward_are_explained():
    """The first AllReduce starts after the whole backward: 0 % overlap, because of that; and what was ready when."""
    sends = [bucket(110, 120, 40), bucket(120, 130, 90, owner=2)]
    found = distribution(step_tails(one_step(sends)))
    assert found.serial == 1
    assert found.explanation == (
        "the first reduction started 10.00 ms (median) after the last forward or backward compute had ended, in "
        "1 of 1 steps; the first gradients had been ready 60.00 ms (median) before that end"
    )


def test_ready_only_then_or_not_known_is_said_too():
    late = bucket(110, 120, 105)
    found = distribution(step_tails(one_step([late])))
    assert found.explanation.endswith("no gradients were ready before")
    late["ready"] = 0
    found = distribution(step_tails(one_step([late])))
    assert found.explanation.endswith("when the first gradients were ready is not known")


def test_overlap_needs_no_explanation():
    found = distribution(step_tails(many([1, 2])))
    assert (found.serial, found.explanation) == (0, "")


def test_no_steps():
    found = distribution(step_tails(profile()))
    assert (found.steps, found.tail, found.worst, found.checks()) == (0, None, (), ())
    assert found.to_dict()["spread"] is None

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.contention import MIN_SPANS, Contention, contention
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.window import capture_window
from overlapwatch.timeline.model import Lane, Timeline
from overlapwatch.timeline.records import COMPUTE_RULE
from overlapwatch.vocabulary import Name, NameKind, Phase
from tests.support.scenarios import at, profile, step_rows

SIZES = {1: 0.05, 2: 0.12, 3: 0.3}  # ms
NAMES = {number: Name(number, NameKind.OPERATION, f"gemm {number}") for number in SIZES}


def told(tl: Timeline) -> Contention:
    found = contention(tl, lanes_of(tl, capture_window(tl)))
    assert all(check.ok for check in found.checks())
    return found


def job(seed: int, factor: float, *, steps: int = 0, kernels: int = 600, shapes=True, noise=0.1):
    """Kernels one after another, communication half of the time; those under it take `factor` times as long.

    The names are cheap and dear kernels, and the dear ones are more often under communication.
    """
    rng = np.random.default_rng(seed)
    blocks, moment = [], 0.0
    while moment < 400:
        moment += rng.uniform(1, 4)
        length = rng.uniform(2, 5)
        blocks.append((moment, moment + length))
        moment += length
    spans, shape, now, bounds = [], [], 0.0, []
    for number in range(kernels):
        if steps and number % (kernels // steps) == 0:
            bounds.append(now)
        busy = any(low <= now + 0.05 < high for low, high in blocks)
        # In steps the order is fixed; else what runs depends on what runs beside it.
        which = 1 + number % 3 if steps else int(rng.choice([1, 2, 3], p=[0.2, 0.2, 0.6] if busy else [0.6, 0.2, 0.2]))  # fmt: skip
        took = SIZES[which] * rng.lognormal(0, noise) * (factor if busy else 1)
        spans.append((now, now + took, which))
        shape.append(which + 100 if shapes else 0)
        now += took + 0.01
    lane = Lane(
        np.array([at(one[0]) for one in spans], np.int64),
        np.array([at(one[1]) for one in spans], np.int64),
        np.array([one[2] for one in spans], np.uint32),
        np.zeros(len(spans), np.uint8),
        np.array(shape, np.uint32),
    )
    if not shapes:
        lane = replace(lane, shape=None)
    communication = [(low, high) for low, high in blocks if high < now]
    ends = [*bounds[1:], now + 0.001]
    rows = step_rows([(n, b, e) for n, (b, e) in enumerate(zip(bounds, ends, strict=False))])
    return replace(profile(communication=communication), compute=lane, names=NAMES, steps=rows)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.8, 1.2])
def test_a_planted_slow_down_is_recovered(seed, factor) -> None:
    found = told(job(seed, factor))
    assert found.verdict == "slower"
    assert found.matched_by == "name and launch shape"
    assert found.low < factor * 1.03
    assert found.high > factor * 0.97
    assert found.ratio == pytest.approx(factor, rel=0.06)
    assert [work.ratio for work in found.work] == pytest.approx([factor] * 3, rel=0.12)


@pytest.mark.parametrize("seed", range(8))
def test_none_planted_is_not_distinguishable(seed) -> None:
    found = told(job(seed, 1.0))
    assert found.verdict == "not distinguishable"
    assert found.low <= 1 <= found.high


def test_what_runs_faster_is_told_too() -> None:
    assert told(job(1, 0.6)).verdict == "faster"


def test_places_in_the_step_tell_the_same_work_without_shapes() -> None:
    found = told(job(3, 1.5, steps=40, shapes=False))
    assert found.matched_by == "name and place in the step"
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(1.5, rel=0.08)
    assert max(work.places for work in found.work) > 1


def test_one_name_of_unknown_size_is_not_compared() -> None:
    """Dear kernels under communication, cheap ones clear of it: by name alone they would seem slowed."""
    tl = job(2, 1.0, shapes=False)
    tl = replace(tl, compute=replace(tl.compute, name=np.ones(len(tl.compute), np.uint32)))
    found = told(tl)
    assert found.verdict == "not known"
    assert "no work is found 3 times" in found.not_known()[0].because
    assert found.unmatched == found.spans == 600


def test_sizes_are_told_apart_by_the_launch_shape() -> None:
    tl = job(2, 1.0)
    tl = replace(tl, compute=replace(tl.compute, name=np.ones(len(tl.compute), np.uint32)))
    found = told(tl)
    assert found.verdict == "not distinguishable"
    assert (len(found.work), found.work[0].places) == (1, 3)


def test_worked_by_hand() -> None:
    under = [(10 * n, 10 * n + 2) for n in range(MIN_SPANS)]
    clear = [(10 * n + 5, 10 * n + 6) for n in range(MIN_SPANS)]
    tl = profile(under + clear, [(10 * n - 1, 10 * n + 3) for n in range(MIN_SPANS)])
    count = 2 * MIN_SPANS
    lane = replace(tl.compute, name=np.ones(count, np.uint32), shape=np.ones(count, np.uint32))
    found = told(replace(tl, compute=lane, names=NAMES))
    assert (found.ratio, found.low, found.high) == (2.0, 2.0, 2.0)
    assert (found.under_ns, found.clear_ns) == (6_000_000, 3_000_000)
    (work,) = found.work
    assert (work.name, work.under.count, work.clear.count) == ("gemm 1", 3, 3)
    assert (work.under.median_ns, work.under.covered_ns) == (2_000_000, 6_000_000)
    assert work.clear.covered_ns == 0
    assert found.to_dict()["verdict"] == "slower"


def test_modules_of_a_log_without_their_waits() -> None:
    spans = [(10 * n, 10 * n + 4) for n in range(12)]  # 1 of each 4 ms is waiting, where under
    tl = profile((), [(10 * n, 10 * n + 4) for n in range(6)])
    starts = np.array([at(one[0]) for one in spans], np.int64)
    ends = np.array([at(one[1]) for one in spans], np.int64)
    ids, phase = np.full(12, 1, np.uint32), np.full(12, Phase.BACKWARD, np.uint8)
    waits = Lane(starts[:6], starts[:6] + 1_000_000, ids[:6], phase[:6])
    found = told(
        replace(
            tl,
            compute_rule=COMPUTE_RULE,
            phases=Lane(starts, ends, ids, phase),
            waits=waits,
            names={1: Name(1, NameKind.MODULE, "layers.0")},
            steps=step_rows([(n, 10 * n, 10 * n + 10) for n in range(12)]),
        )
    )
    assert found.ratio == 0.75
    assert found.work[0].name == "layers.0, backward"


@pytest.mark.parametrize(
    ("compute", "communication", "because"),
    [
        ([(0, 1)], [], "no communication"),
        ([], [(0, 1)], "no compute in the window"),
        ([(0, 1)], [(5, 6)], "no compute ran under"),
        ([(0, 1)], [(0, 1)], "all compute ran under"),
    ],
)
def test_why_it_cannot_be_told(compute, communication, because) -> None:
    found = told(profile(compute, communication))
    assert found.verdict == "not known"
    assert because in found.not_known()[0].because
    assert found.to_dict()["ratio"] is None


def test_the_same_input_gives_the_same_answer() -> None:
    assert told(job(7, 1.3)) == told(job(7, 1.3))


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.integers(0, 2)), max_size=40),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8),
    st.booleans(),
)
@settings(max_examples=150)
def test_whatever_the_spans_the_counts_close(spans, blocks, shaped) -> None:
    lane = Lane(
        np.array([at(start) for start, _, _ in spans], np.int64),
        np.array([at(start + length) for start, length, _ in spans], np.int64),
        np.array([name for _, _, name in spans], np.uint32),
        np.zeros(len(spans), np.uint8),
        np.ones(len(spans), np.uint32) if shaped else None,
    )
    tl = profile(communication=[(start, start + length) for start, length in blocks])
    steps = step_rows([(n, 5 * n, 5 * n + 5) for n in range(12)])
    found = told(replace(tl, compute=lane, steps=steps))
    if found.ratio is not None:
        assert found.low <= found.high
        assert min(found.under, found.clear) >= MIN_SPANS
        # A weighted ratio lies between the smallest and the largest of its parts.
        ratios = [work.ratio for work in found.work]
        assert min(ratios) - 1e-9 <= found.ratio <= max(ratios) + 1e-9

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.accounting.ranks.live_lateness import NOBODY, live_lateness
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag

MS = 1_000_000
STEP_MS = 100


def rows(tails_ms, *, first=1, offset=0, flags=0):
    found = np.zeros(len(tails_ms), SUMMARY)
    found["step"] = np.arange(first, first + len(tails_ms))
    found["start_ns"] = offset + found["step"] * STEP_MS * MS
    found["end_ns"] = found["start_ns"] + STEP_MS * MS
    found["tail_ns"] = np.round(np.asarray(tails_ms, float) * MS)
    found["flags"] = flags
    return found


def jittered(seed, late=(), by_ms=12.0, steps=50, ranks=4):
    """Tails of all ranks; in each step the rank of `late` (in turn) enters `by_ms` later: a shorter tail."""
    rng = np.random.default_rng(seed)
    tails = 18 + rng.uniform(-0.1, 0.1, (steps, ranks))
    for step in range(steps):
        if late:
            tails[step, late[step % len(late)]] -= by_ms
    return {rank: rows(tails[:, rank], offset=rank * 10**9) for rank in range(ranks)}


def test_the_example() -> None:
    found = live_lateness({rank: rows([tail]) for rank, tail in enumerate((17, 18, 5, 18))})
    assert (found.step, found.late_rank, found.late_ns) == (1, 2, 13 * MS)
    assert found.worst_rank is None  # one step is no pattern


@pytest.mark.parametrize("seed", range(5))
def test_the_same_rank_again_and_again(seed) -> None:
    found = live_lateness(jittered(seed, late=(2,)))
    assert (found.late_rank, found.worst_rank) == (2, 2)
    assert (found.worst_steps, found.judged) == (50, 50)
    assert found.worst_ns == pytest.approx(12 * MS, rel=0.03)


def test_in_rotation_nobody_stands_out() -> None:
    found = live_lateness(jittered(1, late=(0, 1, 2, 3)))
    assert found.late_rank == 49 % 4
    assert found.worst_rank is None


@pytest.mark.parametrize("seed", range(5))
def test_without_a_late_rank_it_abstains(seed) -> None:
    found = live_lateness(jittered(seed))
    assert (found.late_rank, found.worst_rank) == (None, None)
    assert found.judged == 50


def test_late_by_less_than_a_hundredth_of_a_step_is_nothing() -> None:
    found = live_lateness({0: rows([5.0] * 20), 1: rows([5.0] * 20), 2: rows([4.1] * 20)})
    assert (found.late_rank, found.worst_rank) == (None, None)


def test_two_ranks() -> None:
    found = live_lateness({0: rows([20.0] * 20), 1: rows([8.0] * 20)})
    assert (found.late_rank, found.late_ns, found.worst_rank) == (1, 12 * MS, 1)


def test_only_steps_that_all_ranks_have() -> None:
    found = live_lateness({0: rows([9] * 30), 1: rows([9] * 10, first=5), 2: rows([2] * 8, first=6)})  # fmt: skip
    assert (found.step, found.judged, found.late_rank) == (13, 8, 2)


@pytest.mark.parametrize("flag", [StepFlag.SHADOW, StepFlag.UNBUCKETED, StepFlag.PARTIAL])
def test_steps_out_of_statistics_do_not_count(flag) -> None:
    assert live_lateness({0: rows([9] * 9, flags=flag), 1: rows([1] * 9)}) == NOBODY


def test_a_tail_that_is_not_known_does_not_count() -> None:
    mine = rows([9] * 9)
    mine["tail_ns"][3] = NOT_KNOWN
    assert live_lateness({0: mine, 1: rows([1] * 9)}).judged == 8


@pytest.mark.parametrize("summaries", [{}, {0: rows([1])}, {0: rows([1]), 1: rows([])}, {0: rows([1]), 1: rows([1], first=9)}])  # fmt: skip
def test_nothing_to_compare(summaries) -> None:
    assert live_lateness(summaries) == NOBODY


@given(
    st.lists(
        st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=1, max_size=8
    )
)  # fmt: skip
def test_the_late_rank_has_the_shortest_tail_of_the_newest_step(tails) -> None:
    table = np.array(tails)
    found = live_lateness({rank: rows(table[:, rank]) for rank in range(3)})
    last = sorted(tails[-1])
    if found.late_rank is not None:
        assert table[-1, found.late_rank] == last[0]
        assert found.late_ns == (last[1] - last[0]) * MS >= found.material_ns
    else:
        assert (last[1] - last[0]) * MS < found.material_ns

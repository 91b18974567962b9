"""Which steps keep their events: the first, every Nth, the slow ones, those with something unfinished."""

import numpy as np
import pytest

from overlapwatch.vocabulary import SUMMARY, StepFlag
from overlapwatch.watching.keep import LEAST, WINDOW, Keeper

KEPT = StepFlag.EVENTS_KEPT


def summary(step: int, duration: int = 100, flags: int = 0) -> np.void:
    row = np.zeros(1, SUMMARY)[0]
    row["step"], row["flags"], row["start_ns"], row["end_ns"] = step, flags, 1000, 1000 + duration
    return row


def run(keeper: Keeper, durations: list[int], first: int = 1, flags: int = 0) -> list[int]:
    """Judge steps of these lengths; return the numbers of those that are kept."""
    rows = [summary(first + n, duration, flags) for n, duration in enumerate(durations)]
    return [int(row["step"]) for row in rows if keeper.judge(row) & KEPT]


def test_the_first_and_every_nth_are_kept() -> None:
    assert run(Keeper(3, 10), [100] * 40) == [1, 2, 3, 10, 20, 30, 40]
    assert run(Keeper(0, 1), [100] * 4) == [1, 2, 3, 4]


@pytest.mark.parametrize(("before", "slow"), [(LEAST - 1, False), (LEAST, True)])
def test_a_slow_step_is_kept_once_there_is_something_to_compare_with(
    before: int, slow: bool
) -> None:
    keeper = Keeper(0, 10_000)
    assert run(keeper, [100] * before) == []
    judged = keeper.judge(summary(before + 1, 101))
    assert judged == (KEPT | StepFlag.SLOW if slow else 0)


def test_slow_means_slower_than_the_99th_percentile_of_the_steps_before() -> None:
    keeper = Keeper(0, 10_000)
    run(keeper, list(range(1, 201)))  # the 99th percentile of 1..200 is 199
    assert not keeper.is_slow(199)
    assert keeper.is_slow(200)


def test_only_the_latest_steps_are_compared_with() -> None:
    keeper = Keeper(0, 10_000)
    run(keeper, [10_000] * WINDOW)
    assert not keeper.is_slow(5_000)
    run(keeper, [100] * WINDOW, first=WINDOW + 1)
    assert keeper.is_slow(101)
    assert len(keeper._sorted) == len(keeper._recent) == WINDOW


@pytest.mark.parametrize(
    "flag",
    [StepFlag.UNBUCKETED, StepFlag.REBUILT, StepFlag.SHADOW, StepFlag.DISTURBED, StepFlag.PARTIAL],
)
def test_steps_out_of_statistics_are_neither_slow_nor_compared_with(flag: StepFlag) -> None:
    keeper = Keeper(0, 10_000)
    run(keeper, [100] * LEAST)
    assert keeper.judge(summary(LEAST + 1, 9_999, flag)) == flag
    assert keeper.judge(summary(LEAST + 2, 101)) & StepFlag.SLOW


def test_an_unfinished_collective_keeps_a_step_and_recording_off_keeps_none() -> None:
    keeper = Keeper(0, 10)
    assert keeper.judge(summary(3, flags=StepFlag.UNFINISHED)) == StepFlag.UNFINISHED | KEPT
    assert keeper.judge(summary(10, flags=StepFlag.SHADOW)) == StepFlag.SHADOW
    assert Keeper(50, 10).judge(summary(1, flags=StepFlag.SHADOW)) == StepFlag.SHADOW

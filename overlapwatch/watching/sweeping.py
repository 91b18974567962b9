"""`sweep()`: the call with which a user has settings tried in the running job.

In: a watch and the values to try. Out: a `Sweep`. What was asked wrongly raises `ConfigurationError` here, before
anything is touched.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from overlapwatch.errors import ConfigurationError
from overlapwatch.watching.session import NullWatch, Watch
from overlapwatch.watching.sweep import Sweep, make_arms

FEWEST_STEPS = 3


def sweep(
    watch: Watch | NullWatch,
    *,
    rounds: int = 8,
    block: int = 10,
    budget_steps: int | None = None,
    apply: Literal["best", "original"] = "best",
    grid: bool = False,
    stop_file: str | Path | None = None,
    stop_signal: int | None = None,
    **values: Sequence[Any],
) -> Sweep | None:
    """Try settings in turn while the job trains, and find the one with the shortest step. Call it on every rank.

    Args:
        watch: of the job, from `overlapwatch.watch()`.
        rounds: how often each setting is run; its interval comes from so many differences.
        block: steps that are measured of each setting in each round.
        budget_steps: the sweep may take no more steps than that; None for what it needs.
        apply: "best" keeps the recommended setting, "original" only tells it.
        grid: try all combinations of several settings; otherwise one is changed at a time.
        stop_file: when this file appears (seen by rank 0), the sweep ends.
        stop_signal: when rank 0 gets this signal, the sweep ends.
        **values: values by setting, such as `bucket_cap_mb=[5, 25, 100]` with DDP.

    Returns:
        The running sweep; None when the watch does nothing.

    Raises:
        ConfigurationError: a setting that this model does not have, a value that makes no sense, or too few steps.
    """
    if isinstance(watch, NullWatch) or not watch.active:
        return None
    if rounds < 1 or block < FEWEST_STEPS:
        raise ConfigurationError(
            f"rounds={rounds}, block={block}: at least one round of {FEWEST_STEPS} steps is needed"
        )
    if apply not in {"best", "original"}:
        raise ConfigurationError(f"apply={apply!r}: it is 'best' or 'original'")
    knobs = watch.knobs()
    arms = make_arms(knobs, values, grid=grid)
    warm_up = max(knobs[name].warm_up for name in values)
    needs = rounds * len(arms) * (block + warm_up)
    if budget_steps is not None and budget_steps < needs:
        raise ConfigurationError(
            f"{len(arms)} settings in {rounds} rounds of {block} steps, each after {warm_up} to settle, take {needs:,} "
            f"steps, more than budget_steps={budget_steps:,}: try fewer values, rounds or steps"
        )
    return Sweep(
        watch.sweep_host(),
        knobs,
        arms,
        rounds=rounds,
        block=block,
        apply=apply,
        stop_file=Path(stop_file) if stop_file is not None else None,
        stop_signal=stop_signal,
    )

"""The table of a sweep: settings by step time, with what stands beside it.

In: a `SweepResult`. Out: plain text. It computes nothing.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from overlapwatch.compare.arms import ArmResult, SweepResult
from overlapwatch.reports.format import NOT_KNOWN_TEXT, ms, size
from overlapwatch.reports.layout import (
    DEFAULT_WIDTH,
    gap,
    heading,
    note,
    sentence,
    table,
    to_text,
)


def table_text(
    result: SweepResult | None,
    names: Sequence[str],
    because: str,
    results: Sequence[str],
    width: int = DEFAULT_WIDTH,
) -> str:
    """Return what was found, as text.

    Args:
        result: the judgement; None when nothing was measured.
        names: of the settings.
        because: why the sweep ended early, "" when it did not.
        results: what each setting does to the results of training, in words.
        width: characters a line.
    """
    return to_text(_parts(result, names, because, results), width)


def _parts(
    result: SweepResult | None, names: Sequence[str], because: str, results: Sequence[str]
) -> Iterator[RenderableType]:
    yield heading("sweep")
    if because:
        yield sentence(f"Ended early: {because}.")
    if result is None or all(arm.step_ns is None for arm in result.arms):
        yield sentence(f"Nothing was measured of {len(names)} settings.")
        return
    yield table(
        (
            "setting",
            "step, ms",
            "change",
            f"{100 * result.level:.3g} % interval",
            "verdict",
            "rounds",
        ),
        [_judged(arm) for arm in result.arms],
        words=(0, 4),
    )
    memory = any(arm.memory_bytes is not None for arm in result.arms)
    yield gap()
    yield table(
        (
            "setting",
            "hidden",
            "exposed, ms",
            "tail, ms",
            "compute, ms",
            *(["peak memory"] if memory else []),
        ),
        [_beside(arm, memory=memory) for arm in result.arms],
    )
    yield gap()
    best = result.arms[result.best]
    if result.best:
        yield sentence(f"Recommended: {best.name}.")
    else:
        yield sentence("Recommended: leave it as it was; nothing is faster beyond doubt.")
    if result.like_best:
        like = "; ".join(result.arms[place].name for place in result.like_best)
        yield note(f"not distinguishable from that: {like}")
    dropped = [arm for arm in result.arms if arm.dropped_after is not None]
    for arm in dropped:
        yield note(
            f"{arm.name} was clearly slower and left out after round {(arm.dropped_after or 0) + 1}"
        )
    for text in results:
        yield note(text)


def _judged(arm: ArmResult) -> list[str]:
    if arm.change is None:
        return [arm.name, ms(arm.step_ns), "", "", "", ""]
    interval = NOT_KNOWN_TEXT
    if arm.low is not None and arm.high is not None:
        interval = f"{100 * arm.low:+.1f} to {100 * arm.high:+.1f} %"
    change = f"{100 * arm.change:+.1f} %"
    return [arm.name, ms(arm.step_ns), change, interval, arm.verdict, str(arm.rounds)]


def _beside(arm: ArmResult, *, memory: bool) -> list[str]:
    return [
        arm.name,
        NOT_KNOWN_TEXT if arm.hidden_share is None else f"{100 * arm.hidden_share:.1f} %",
        ms(arm.exposed_ns),
        ms(arm.tail_ns),
        ms(arm.compute_ns),
        *([size(arm.memory_bytes)] if memory else []),
    ]

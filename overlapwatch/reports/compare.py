"""A comparison in text: the verdict first, then where the time went before and after.

In: `Comparison`s. Out: Rich renderables. It computes nothing.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from overlapwatch.compare.runs import Comparison, Pair
from overlapwatch.compare.statistics import LEVEL, Verdict
from overlapwatch.reports.format import NOT_KNOWN_TEXT, counted, duration, ms
from overlapwatch.reports.layout import facts, gap, heading, note, sentence, table

_SHOWN = 12
"""Rows of a table of buckets or ranks."""


def report(comparisons: Sequence[Comparison]) -> Iterator[RenderableType]:
    """Yield everything: an overview when there are several, then each."""
    if len(comparisons) > 1:
        yield heading(f"against {comparisons[0].base}")
        yield table(
            ("setting", "step, ms", "change", "95 % interval", "verdict"),
            [
                (
                    one.other,
                    ms(one.step.other_ns),
                    _share(one.step.change),
                    _interval(one.step),
                    one.step.word,
                )
                for one in comparisons
            ],
            words=(0, 4),
        )
    for one in comparisons:
        yield from _one(one)


def _one(one: Comparison) -> Iterator[RenderableType]:
    yield heading(f"{one.other} against {one.base}")
    yield sentence(sentence_of(one))
    if one.different:
        yield sentence(
            f"These are different jobs ({'; '.join(one.different)}): their overlap is not compared. The step times "
            "stand beside each other for what they are."
        )
    if one.misleading:
        yield sentence(
            "The share of communication that is hidden and the step time point in opposite directions: the step time "
            "is what counts."
        )
    yield gap()
    yield facts(
        {
            "step": f"{duration(one.step.base_ns)} → {duration(one.step.other_ns)}",
            "interval": f"{_interval(one.step)} ({100 * LEVEL:.0f} %)",
            "drift within a run": NOT_KNOWN_TEXT
            if one.step.drift is None
            else f"{100 * one.step.drift:.1f} %",
            "runs": f"{one.step.runs[0]} against {one.step.runs[1]}",
        }
    )
    if one.numbers:
        yield from _table("a step (medians)", "number", one.numbers)
    if one.phases:
        yield from _table(
            "exposed in a step, by phase and kind (means over the steps kept)",
            "phase and kind",
            one.phases,
        )
    if one.buckets:
        yield from _table("exposed, by bucket", "bucket", one.buckets)
    if len(one.ranks) > 1:
        yield from _table("step time, by rank", "rank", one.ranks)
    for unknown in one.unknown:
        yield note(f"not known: {unknown.what}: {unknown.because}")


def sentence_of(one: Comparison) -> str:
    """Say the verdict in words."""
    step = one.step
    if step.word == "not distinguishable":
        estimate = "" if step.change is None else f" (estimate {_share(step.change)})"
        return f"Not distinguishable{estimate}: {step.because}."
    change = abs(step.change or 0)
    half = (step.high - step.low) / 2 if step.low is not None and step.high is not None else 0
    return f"{one.other} is {step.word} by {100 * change:.1f} % (± {100 * half:.1f} %)."


def _table(title: str, what: str, pairs: Sequence[Pair]) -> Iterator[RenderableType]:
    shown = pairs
    if len(pairs) > _SHOWN:
        shown = sorted(pairs, key=_size, reverse=True)[:_SHOWN]
    yield gap()
    yield sentence(title)
    yield table(
        (what, "before", "after", "change"),
        [
            (pair.name, _value(pair, pair.base), _value(pair, pair.other), _change(pair))
            for pair in shown
        ],
    )
    if len(shown) < len(pairs):
        yield note(f"the largest {counted(len(shown), 'row')} of {len(pairs)}; --json has all")


def _size(pair: Pair) -> float:
    return max(pair.base or 0, pair.other or 0)


def _value(pair: Pair, value: float | None) -> str:
    if value is None:
        return NOT_KNOWN_TEXT
    if pair.unit == "ns":
        return duration(round(value))
    if pair.unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}"


def _change(pair: Pair) -> str:
    if pair.unit == "share" and pair.base is not None and pair.other is not None:
        return f"{100 * (pair.other - pair.base):+.1f} points"
    return _share(pair.change)


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _interval(step: Verdict) -> str:
    if step.low is None or step.high is None:
        return NOT_KNOWN_TEXT
    return f"{100 * step.low:+.1f} to {100 * step.high:+.1f} %"

"""Does compute run slower while communication runs: the section of a report.

In: one Analysis. Out: renderables for `text`; nothing where nothing could be compared, since "Not
known" says why. It does not compute.
"""

from collections.abc import Iterator

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.contention import CONFIDENCE, Contention, Side
from overlapwatch.reports.format import counted, duration, percent
from overlapwatch.reports.layout import heading, note, sentence, table

LONGEST_NAME = 48
_SAME = {
    "name and place in the step": "the same place in its step",
    "name and launch shape": "the same name and launch shape",
}


def contention(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield how compute under communication compares with compute clear of it."""
    told = analysis.contention
    if told.ratio is None:
        return
    yield heading("Compute while communication runs")
    yield sentence(_verdict(told))
    yield table(
        ("work", "times", "under", "median (quartiles)", "clear", "median (quartiles) "),
        [
            (
                _shortened(one.name),
                f"{one.ratio:.2f}",
                f"{one.under.count:,}",
                _quartiles(one.under),
                f"{one.clear.count:,}",
                _quartiles(one.clear),
            )
            for one in told.work
        ],
    )
    thing = "span" if analysis.state != "profile" else "kernel"
    yield note(
        f"compared: work of {_SAME[told.matched_by]}, "
        f"{counted(told.compared, thing)} of {told.spans:,}; the rest was not found at least three times "
        "on both sides"
    )


def _verdict(told: Contention) -> str:
    assert told.ratio is not None
    interval = f"{told.low:.2f} to {told.high:.2f} at {CONFIDENCE:.0%}"
    if told.verdict == "not distinguishable":
        return f"not distinguishable: {told.ratio:.2f} times as long ({interval})"
    extra = told.under_ns - told.clear_ns
    return (
        f"{told.verdict}: the same work takes {told.ratio:.2f} times as long ({interval}), "
        f"{duration(told.under_ns)} instead of {duration(told.clear_ns)}: "
        f"{duration(abs(extra))} {'more' if extra > 0 else 'less'}, {percent(abs(extra), told.clear_ns)}"
    )


def _quartiles(side: Side) -> str:
    return f"{duration(side.median_ns)} ({duration(side.p25_ns)}–{duration(side.p75_ns)})"


def _shortened(name: str) -> str:
    """Return the beginning of a kernel's name; its arguments are in the JSON."""
    name = name.removeprefix("void ")
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"

"""The report that people read: sections of tables and sentences, the same with and without a
terminal.

In: Analyses, one a rank. Out: Rich renderables, or plain text of a given width. Several ranks
are compared first; one of them, or those that were asked for, is then told in full. It does not
compute: each number is one that the accounting gives.
"""

from collections.abc import Collection, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.reports import (
    closing,
    collectives,
    configured,
    contention,
    opening,
    profiles,
    ranks,
    units,
    where_time_went,
)
from overlapwatch.reports.format import counted
from overlapwatch.reports.layout import DEFAULT_WIDTH, gap, heading, note, sentence, to_text

SECTIONS = (
    where_time_went.steps,
    where_time_went.partition,
    where_time_went.split,
    where_time_went.exposed,
    configured.configured,
    configured.layers,
    units.modules,
    units.slack,
    units.order,
    units.queueing,
    units.memory,
    collectives.buckets,
    collectives.tail,
    collectives.traffic,
    contention.contention,
    profiles.call_sites,
    profiles.calls,
    profiles.rates,
    closing.own_cost,
    closing.calibration,
    closing.left_out,
    closing.not_known,
)
"""What is told of one rank, in reading order; each yields nothing where there is nothing to say."""


def report(
    analyses: Sequence[Analysis],
    detailed: Collection[int] | None = None,
    *,
    all_in_full: bool = False,
    across: AcrossRanks | None = None,
) -> Iterator[RenderableType]:
    """Yield the report.

    Args:
        analyses: at least one.
        detailed: ranks to tell in full; None: the first analysis, of a profile the first with
            communication.
        all_in_full: tell all of them in full.
        across: how they compare in time.

    """
    chosen = _in_full(analyses, detailed, all_in_full=all_in_full)
    yield Text("overlapwatch report", style="bold")
    yield from _apart(opening.alerts(analyses))
    if len(analyses) > 1:
        profile = all(one.state == "profile" for one in analyses)
        yield from profiles.devices(analyses) if profile else opening.ranks(analyses)
        if across is not None:
            yield from ranks.in_report(across)
            yield gap()
        yield from _others(analyses, chosen)
    for analysis in chosen:
        if len(analyses) > 1:
            yield heading(opening.who(analysis))
        else:
            yield gap()
        yield from opening.origin_facts(analysis)
        for section in SECTIONS:
            yield from section(analysis)
        yield gap()
        yield from closing.closure(analysis.checks)
    rest = [check for one in analyses if one not in chosen for check in one.checks]
    if any(not check.ok for check in rest):
        yield from closing.closure(rest)


def _in_full(
    analyses: Sequence[Analysis], ranks: Collection[int] | None, *, all_in_full: bool
) -> Sequence[Analysis]:
    if all_in_full:
        return analyses
    if ranks:
        return [one for one in analyses if one.origin.rank in ranks]
    talking = [one for one in analyses if one.state == "profile" and one.partition.observed]
    return talking[:1] or analyses[:1]


def _apart(parts: Iterator[RenderableType]) -> Iterator[RenderableType]:
    """Yield the parts with an empty line before each."""
    for part in parts:
        yield gap()
        yield part


def _others(analyses: Sequence[Analysis], chosen: Sequence[Analysis]) -> Iterator[RenderableType]:
    """Yield what must not be lost of the ranks that are not told in full."""
    rest = [one for one in analyses if one not in chosen]
    for one in rest:
        for text in one.notes:
            yield sentence(f"{opening.who(one)}: {text}")
    names = zip(opening.labels(analyses), analyses, strict=True)
    told = ", ".join(name for name, one in names if one in chosen)
    if rest:
        flag = "--rank" if rest[0].origin.rank is not None else "--device"
        yield note(f"in full below: {told}; {flag} N tells {counted(len(rest), 'other')}")


def plain(
    analyses: Sequence[Analysis],
    width: int = DEFAULT_WIDTH,
    detailed: Collection[int] | None = None,
    *,
    all_in_full: bool = False,
    across: AcrossRanks | None = None,
) -> str:
    """Return the report as plain text.

    Args:
        analyses: at least one.
        width: characters a line; at least 60 are used.
        detailed: ranks to tell in full, as `report` takes it.
        all_in_full: tell all of them in full.
        across: how they compare in time.

    """
    return to_text(report(analyses, detailed, all_in_full=all_in_full, across=across), width)

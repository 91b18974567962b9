"""Tails and rates of several ranks, as people read them.

In: an `AcrossRanks`. Out: Rich renderables for `ranks`. It does not compute.
"""

from collections.abc import Callable, Iterator

from rich.console import RenderableType

from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.accounting.ranks.tails import WorstTail
from overlapwatch.accounting.ranks.traffic import BOUND, LABEL, GroupRate
from overlapwatch.reports.format import NONE, bar, counted, ms, percent, ranges, scale, size
from overlapwatch.reports.layout import gap, heading, note, sentence, table

BAR_WIDTH = 20
RATES = 24
Write = Callable[[int | None], str]


def tails(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield how long reductions outlived compute on all ranks, and what that was spent on."""
    tails, spread = told.tails, told.tails.spread
    if spread is None:
        return
    yield heading("Tails of all ranks")
    yield sentence(
        f"p50 {ms(spread.p50_ns)} ms, p95 {ms(spread.p95_ns)} ms, p99 {ms(spread.p99_ns)} ms, "
        f"max {ms(spread.max_ns)} ms; {counted(tails.tails, 'tail')} known, of {tails.of:,} steps "
        "on all ranks"
    )
    if tails.job is not None:
        yield sentence(
            f"of the job, from the last compute on any rank: p50 {ms(tails.job.p50_ns)} ms, "
            f"p99 {ms(tails.job.p99_ns)} ms: what would be left if no rank waited for another"
        )
    if tails.parts:
        write = scale(one.total_ns for one in tails.parts)
        yield table(
            ("spent on", "ms", "share", "tails", ""),
            [
                (
                    one.part.value,
                    write(one.total_ns),
                    percent(one.total_ns, spread.total_ns),
                    f"{one.tails:,}",
                    bar(one.total_ns / spread.total_ns, BAR_WIDTH),
                )
                for one in tails.parts
            ],
            bars=True,
        )
    if tails.worst:
        yield gap()
        yield table(
            ("step", "rank", "tail ms", "waited for", "the tail in order, ms"),
            [_worst(one, told) for one in tails.worst],
            words=(1, 3, 4),
        )


def _worst(one: WorstTail, told: AcrossRanks) -> tuple[str, ...]:
    parts = ", ".join(f"{part.value} {ms(length)}" for part, length in one.parts)
    waited = told.labels[one.late] if one.late >= 0 else NONE
    return str(one.step), told.labels[one.table], ms(one.tail_ns), waited, parts


def rates(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield bytes and rates by kind and group, with the waiting taken out."""
    if not told.rates:
        return
    yield heading("Transfer by group")
    shown = told.rates[:RATES]
    write = scale(ns for one in shown for ns in (one.transfer.p50_ns, one.transfer.p99_ns))
    yield table(
        (
            "kind", "group", "ranks", "count", "S", "transfer p50", "p99",
            "algbw GB/s", "busbw", "with waiting",
        ),
        [_rate(one, write) for one in shown],
        words=(0, 1, 2),
    )  # fmt: skip
    if len(told.rates) > RATES:
        yield note(f"and {len(told.rates) - RATES} more; --json has them all")
    labels = dict.fromkeys(one.label for one in shown if one.label)
    if LABEL in labels:
        yield note(
            "rates: S over the stay of the last rank, which waits least; with waiting: over the mean "
            "stay, as one rank alone would tell it. GB = 10^9 bytes, logical"
        )
    if BOUND in labels:
        yield note("not all ranks of some groups were seen: their rates are lower bounds")
    reasons: dict[str, list[str]] = {}
    for one in told.rates:
        if one.because:
            reasons.setdefault(one.because, []).append(one.kind.title)
    for because, kinds in reasons.items():
        yield sentence(f"no rate of {', '.join(dict.fromkeys(kinds))}: {because}")


def _rate(one: GroupRate, write: Write) -> tuple[str, ...]:
    speeds = (one.algbw_gb_s, one.busbw_gb_s, one.with_waiting_gb_s)
    return (
        one.kind.title,
        one.group,
        ranges(sorted(one.members)) if one.members else (str(one.ranks) if one.ranks else NONE),
        f"{one.collectives:,}",
        NONE if one.size_bytes is None else size(one.size_bytes),
        write(one.transfer.p50_ns),
        write(one.transfer.p99_ns),
        *(NONE if speed is None else _gb_s(speed) for speed in speeds),
    )


def _gb_s(rate: float) -> str:
    """Write a rate; one that is not zero is never written as zero."""
    if 0 < rate < 0.005:
        return "<0.01"
    return f"{rate:,.2f}" if rate < 10 else f"{rate:,.1f}"

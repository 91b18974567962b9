"""The sections of a text report that only profiles have: devices side by side, call sites, the
calls of the communication library with their exact sizes, and rates where the counts close.

In: Analyses. Out: renderables for `text`. A rate stands beside the three counts it rests on; where
they do not agree there is none, and why is said. It does not compute: each number is one that the
accounting gives.
"""

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.calls import CallKind
from overlapwatch.accounting.devices import Extent, KindCount, SideBySide, side_by_side
from overlapwatch.accounting.rates import LABEL, Rate
from overlapwatch.reports.format import NONE, counted, percent, scale, size
from overlapwatch.reports.layout import gap, heading, note, sentence, table
from overlapwatch.reports.opening import labels

PAIR = 2
TIMELINES = 32
"""Of more, the table shows only the least, middle and largest of each number."""
SITES = 12
SIZES = 16
_SIDES = ("window", "compute", "communication", "hidden", "exposed", "exposed share")


def devices(analyses: Sequence[Analysis]) -> Iterator[RenderableType]:
    """Yield several ranks and devices side by side, and how far they are apart."""
    told = side_by_side(analyses)
    yield heading(counted(told.timelines, "device"))
    write = scale(
        ns
        for one in analyses
        for ns in (one.partition.window_ns, one.partition.compute_ns, *_sent(one))
    )
    columns = ("device", "window", "compute", "comm", "hidden", "exposed", "of window", "segments")
    names = labels(analyses)
    few = told.timelines <= TIMELINES
    rows = [_row(*pair, write) for pair in zip(names, analyses, strict=True)] if few else []
    extents = {one.name: one for one in told.extents}
    legend = "Times in ms. Hidden: share of communication."
    if told.timelines > PAIR:
        rows += [_extent_row(word, extents, write) for word in ("least", "median", "most")]
        legend += " Least, median and most are taken of each column by itself."
    yield table(columns, rows)
    yield sentence(legend, "dim")
    yield from _spread(told, names)


def _sent(one: Analysis) -> tuple[int, int]:
    return one.partition.communication_ns, one.partition.communication_only_ns


def _row(name: str, one: Analysis, write: Callable[[int | None], str]) -> tuple[str, ...]:
    parts = one.partition
    base = (name, write(parts.window_ns), write(parts.compute_ns))
    if not (parts.observed and parts.communication_known):
        return (*base, *(NONE,) * 5)
    return (
        *base,
        write(parts.communication_ns),
        percent(parts.overlap_ns, parts.communication_ns),
        write(parts.communication_only_ns),
        percent(parts.communication_only_ns, parts.window_ns),
        f"{one.exposed.count:,}",
    )


def _extent_row(
    word: str, extents: dict[str, Extent], write: Callable[[int | None], str]
) -> tuple[str, ...]:
    cells = [word]
    for name in (*_SIDES, "exposed segments"):
        extent = extents.get(name)
        if extent is None:
            cells.append(NONE)
            continue
        value = getattr(extent, word)
        if extent.unit == "ns":
            cells.append(write(value))
        else:
            cells.append(f"{value:,}" if extent.unit == "segments" else f"{100 * value:.1f} %")
    return tuple(cells)


def _spread(told: SideBySide, names: Sequence[str]) -> Iterator[RenderableType]:
    """Yield what one device alone would hide: the spread of the hidden share, and unequal counts."""
    hidden = next((one for one in told.extents if one.name == "hidden"), None)
    if hidden is not None and hidden.known > 1 and hidden.least == hidden.most:
        yield sentence(f"hidden is {100 * hidden.most:.1f} % on each")
    elif hidden is not None and hidden.known > 1:
        yield sentence(
            f"hidden reaches from {100 * hidden.least:.1f} % ({names[hidden.least_at]}) to "
            f"{100 * hidden.most:.1f} % ({names[hidden.most_at]})",
            "bold" if hidden.most - hidden.least >= 0.1 else "",
        )
    if told.silent:
        one = "1 of them has" if told.silent == 1 else f"{told.silent} of them have"
        yield sentence(f"{one} no recognised communication")
    if told.kinds:
        yield sentence(
            "collectives: " + "; ".join(map(_kind_count, told.kinds)),
        )


def _kind_count(one: KindCount) -> str:
    text = f"{one.kind.title} {one.events:,}"
    if one.each is not None:
        per = "a device and step" if one.steps else "a device"
        return f"{text} = {one.each:,} {per}"
    if not one.equal:
        return f"{text}, not equally many on each device"
    return f"{text}, not a whole number in each step"


def call_sites(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield which code launched the communication, the most exposed first."""
    told = analysis.call_sites
    told_elsewhere = {"bucket", "layer", "module"} if analysis.units else {"bucket", "layer"}
    sites = [site for site in told.sites if site.what not in told_elsewhere]
    if not sites:
        return
    yield heading("Call sites")
    write = scale(
        ns for one in sites[:SITES] for ns in (one.union_ns, one.overlap_ns, one.exposed_ns)
    )
    yield table(
        ("call site", "kind", "count", "busy ms", "hidden ms", "exposed ms", "hidden"),
        [
            (
                one.name,
                ", ".join(kind.title for kind in one.kinds),
                f"{one.traffic.count:,}",
                write(one.union_ns),
                write(one.overlap_ns),
                write(one.exposed_ns),
                percent(one.overlap_ns, one.union_ns),
            )
            for one in sites[:SITES]
        ],
        words=(0, 1),
    )
    if len(sites) > SITES:
        yield note(f"and {counted(len(sites) - SITES, 'less exposed one')}; --json has them all")
    if told.elsewhere:
        yield sentence(f"launched from a place that is not known: {told.elsewhere:,}")


def calls(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the calls of the communication library, and each exact size with its count."""
    told = analysis.calls
    if told.told != "calls":
        return
    yield heading("Calls of the communication library")
    yield note("bytes as each call was given them: an AllGather's own part, an AllReduce's buffer")
    yield table(
        ("kind", "calls", "communicators", "p50", "p99", "total", "without size"),
        [_call_row(one) for one in told.kinds],
    )
    rows = [
        (one.kind.title, f"{exact:,} B", size(exact) if exact >= 1000 else "", f"{count:,}")
        for one in told.kinds
        for exact, count in one.sizes
    ]
    if rows:
        yield gap()
        yield table(("kind", "exactly", "", "calls"), rows[:SIZES])
    if len(rows) > SIZES:
        yield note(f"and {counted(len(rows) - SIZES, 'other size')}; --json has them all")


def _call_row(one: CallKind) -> tuple[str, ...]:
    sizes = (one.p50_bytes, one.p99_bytes, one.total_bytes)
    return (
        one.kind.title,
        f"{one.calls:,}",
        f"{one.communicators:,}" if one.communicators else NONE,
        *(NONE if value is None else size(value) for value in sizes),
        f"{one.unsized:,}" if one.unsized else "",
    )


def rates(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield kernels against calls, and rates where they close."""
    told = analysis.rates
    if not told:
        return
    yield heading("Counts and rates")
    if any(one.bytes is not None for one in told):
        yield note(
            f"{LABEL}: the time of a kernel holds waiting for other ranks; GB = 10^9 bytes, logical"
        )
    yield table(
        (
            "kind", "communicator", "ranks", "kernels", "calls", "sizes",
            "algbw GB/s", "busbw GB/s",
        ),
        [_rate_row(one) for one in told],
        words=(0, 1),
    )  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for one in told:
        if one.because:
            reasons.setdefault(one.because, []).append(one.kind.title)
    for because, kinds in reasons.items():
        yield sentence(f"no rate of {', '.join(dict.fromkeys(kinds))}: {because}")


def _rate_row(one: Rate) -> tuple[str, ...]:
    algbw, busbw = one.algbw_gb_s, one.busbw_gb_s
    return (
        one.kind.title,
        one.group or NONE,
        str(one.ranks) if one.ranks else NONE,
        f"{one.kernels:,}",
        f"{one.calls:,}",
        f"{one.sized:,}",
        NONE if algbw is None else _gb_s(algbw),
        NONE if busbw is None else _gb_s(busbw),
    )


def _gb_s(rate: float) -> str:
    """Write a rate; one that is not zero is never written as zero."""
    if 0 < rate < 0.005:
        return "<0.01"
    return f"{rate:,.2f}" if rate < 10 else f"{rate:,.1f}"

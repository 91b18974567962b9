"""The sections of a text report that speak of time: steps, partition, phases, exposed segments.

In: one Analysis. Out: renderables for `text`. Every ratio stands beside its numerator and
denominator, and every table beside the rule that decided it. It does not compute: each number is
one that the accounting gives.
"""

from collections.abc import Iterator

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.exposed import Band, Verdict
from overlapwatch.accounting.split import Amounts, Cell, Split
from overlapwatch.accounting.spread import Spread
from overlapwatch.accounting.steps import Ratio, StepStatistics
from overlapwatch.reports.format import NONE, bar, counted, ms, percent, ranges, scale, size
from overlapwatch.reports.layout import heading, note, sentence, table

BAR_WIDTH = 20
SLOW_STEPS = 20
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The variable that removes overlap most often: it is named where none was measured."""

_REASONS = {
    "unbucketed": "first iteration, one bucket",
    "rebuilt": "buckets rebuilt",
    "shadow": "shadow, recording off",
    "disturbed": "kernel window or changed settings",
    "partial": "records missing, or the job ended in it",
}
_VERDICTS: dict[Verdict, str] = {
    "none": "nothing was exposed",
    "one long": "one long segment holds half of the exposed time or more",
    "many short": "many short segments: most of the exposed time lies in the shortest band",
    "many middling": "many middling segments: most of the exposed time lies between short and long",
    "several long": "several long segments: most of the exposed time lies in the longest band",
}


def ratio_words(ratio: Ratio) -> str:
    """Return `61.3 % (92.1 / 150.2 ms, 12 steps)`."""
    share = percent(ratio.numerator_ns, ratio.denominator_ns)
    sides = f"{ms(ratio.numerator_ns)} / {ms(ratio.denominator_ns)} ms"
    return f"{share} ({sides}, {counted(ratio.steps, 'step')})"


def steps(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the steps: how many, which are left out, and how their numbers spread."""
    told = analysis.steps
    yield heading("Steps")
    if analysis.state == "profile":
        yield note(f"steps: {analysis.step_rule}")
    if told.steps or analysis.state != "profile":
        yield sentence(_which_steps(told))
    if not told.counted:
        return
    silent = told.communication is not None and told.communication.max_ns == 0
    rows: tuple[tuple[str, Spread | None], ...] = (("step", told.duration),)
    if not silent:
        rows += (
            ("communication", told.communication),
            ("  hidden", told.hidden),
            ("  exposed", told.exposed),
            ("tail", told.tail),
        )
    if told.wait is not None or analysis.state != "profile":  # kernels do not show waits
        rows += (("wait of compute", told.wait),)
    write = scale(ns for _, spread in rows if spread for ns in _times(spread))
    yield table(
        ("ms per step", "p50", "p95", "p99", "max", "mean", "steps"),
        [
            (name, *map(write, _times(spread)), f"{spread.count:,}")
            if spread
            else (name, *(NONE,) * 5, "0")
            for name, spread in rows
        ],
    )
    if silent:
        yield sentence("no communication was seen in any of these steps")
    if told.overlap.denominator_ns:
        yield sentence(f"hidden: {ratio_words(told.overlap)} of communication")
        yield sentence(f"exposed: {ratio_words(told.exposed_fraction)} of the steps' time")
    if told.longest:
        worst = ", ".join(f"{fact.step} ({ms(fact.duration_ns)} ms)" for fact in told.longest[:3])
        yield sentence(f"longest steps: {worst}")
    if told.slow:
        more = len(told.slow) - SLOW_STEPS
        shown = ranges(list(told.slow[:SLOW_STEPS])) + (f" and {more} more" if more > 0 else "")
        yield sentence(f"slow steps (slower than the p99 before them): {shown}")


def _which_steps(told: StepStatistics) -> str:
    if told.first_step is None:
        return "no step has ended in this input"
    text = (
        f"{counted(told.steps, 'step')}, {told.first_step} to {told.last_step}: "
        f"{told.counted:,} in statistics, {told.kept:,} with their events in the input"
    )
    reasons = [f"{_REASONS.get(one.reason, one.reason)} ({one.count:,})" for one in told.excluded]
    return f"{text}; left out: {'; '.join(reasons)}" if reasons else text


def _times(spread: Spread) -> tuple[int, ...]:
    return spread.p50_ns, spread.p95_ns, spread.p99_ns, spread.max_ns, spread.mean_ns


def partition(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the window in its four parts."""
    parts, window = analysis.partition, analysis.window
    yield heading("Where the time went")
    yield note(
        f"window: {window.rule}; boundary: {window.boundary}; compute: {analysis.compute_rule}"
    )
    whole = parts.window_ns
    if not whole:
        yield sentence("no time with recorded events in this window")
        return
    if not parts.communication_known:
        known = ("compute", ms(parts.compute_ns), percent(parts.compute_ns, whole))
        yield table(("part", "ms", "of window"), [known])
        yield sentence("how much of the rest was communication is not known: see below")
        return
    named: tuple[tuple[str, int], ...] = (
        ("compute only", parts.compute_only_ns),
        ("communication only (exposed)", parts.communication_only_ns),
        ("overlap (hidden)", parts.overlap_ns),
        ("idle", parts.idle_ns),
    )
    if not parts.observed:
        # Never "0 ms of communication": it may be there under a name that nobody recognised.
        named = (("compute", parts.compute_ns), named[-1])
    write = scale((whole, *(ns for _, ns in named)))
    yield table(
        ("part", "ms", "of window", ""),
        [
            *(
                (name, write(ns), percent(ns, whole), bar(ns / whole, BAR_WIDTH))
                for name, ns in named
            ),
            ("window", write(whole), percent(whole, whole), ""),
        ],
        bars=True,
    )
    if parts.copies_only_ns:
        yield sentence(f"of idle, copies ran in {ms(parts.copies_only_ns)} ms")
    fused = analysis.fused
    if fused.count:
        yield sentence(
            f"in neither lane: {counted(fused.count, 'kernel')} that compute and communicate at "
            f"once, {ms(fused.union_ns)} ms, of which {ms(fused.in_idle_ns)} ms count as idle"
        )
    if not parts.observed:
        yield sentence("no communication was recognised in this window")
        return
    hidden, sent = parts.overlap_ns, parts.communication_ns
    yield sentence(
        f"hidden: {percent(hidden, sent)} of communication ({ms(hidden)} / {ms(sent)} ms), "
        f"exposed: {percent(parts.communication_only_ns, whole)} of the window "
        f"({ms(parts.communication_only_ns)} / {ms(whole)} ms)"
    )
    if parts.exposed_beyond_copies_ns != parts.communication_only_ns:
        yield sentence(f"exposed beyond copies: {ms(parts.exposed_beyond_copies_ns)} ms")
    if not hidden:
        limit = analysis.about.get(CONNECTIONS)
        yield sentence(
            "nothing was hidden" + (f"; {CONNECTIONS}={limit} in this job" if limit else ""), "bold"
        )
    yield note("these shares are for before and after of one job; they do not rank different jobs")


def split(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield communication by phase and kind, with the rule that decided the phases."""
    told = analysis.phases
    if not (told.cells or told.unseen):
        return
    yield heading("Communication by phase and kind")
    yield note(f"phases: {told.rule}")
    columns = ("phase", "kind", "count", "bytes", "busy ms", "hidden ms", "exposed ms", "hidden")
    yield table(columns, _cells(told), words=(0, 1))


def _cells(told: Split) -> Iterator[tuple[str, ...]]:
    rest, whole = told.remainder, told.whole
    amounts: tuple[Cell | Amounts, ...] = (*told.cells, rest, whole)
    ms = scale(ns for one in amounts for ns in _amounts(one))
    for cell in told.cells:
        yield (
            cell.phase.name.lower() if cell.phase is not None else "",
            cell.kind.title,
            f"{cell.count:,}",
            size(cell.bytes) if cell.bytes is not None else NONE,
            *map(ms, _amounts(cell)),
            percent(cell.overlap_ns, cell.union_ns),
        )
    for phase, kind, count in told.unseen:
        yield (phase.name.lower(), kind.title, f"{count:,}", *(NONE,) * 4, "not seen")
    if rest.union_ns:
        yield ("at the same time", "", "", "", *(ms(-ns) for ns in _amounts(rest)), "")
    if len(told.cells) > 1:
        share = percent(whole.overlap_ns, whole.union_ns)
        yield ("all", "", f"{told.collectives:,}", "", *map(ms, _amounts(whole)), share)


def _amounts(one: Cell | Amounts) -> tuple[int, int, int]:
    return one.union_ns, one.overlap_ns, one.exposed_ns


def exposed(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the exposed segments in bands of length."""
    told = analysis.exposed
    if not analysis.partition.observed:
        return
    yield heading("Exposed segments")
    if not told.count:
        yield sentence(_VERDICTS["none"])
        return
    yield note("a segment is a stretch in which there was communication and no compute")
    write = scale(band.total_ns for band in told.bands)
    yield table(
        ("length", "segments", "ms", "share", ""),
        [
            (
                _band(band),
                f"{band.count:,}",
                write(band.total_ns),
                percent(band.total_ns, told.total_ns),
                bar(band.share or 0, BAR_WIDTH),
            )
            for band in told.bands
        ],
        bars=True,
    )
    yield sentence(
        f"{counted(told.count, 'segment')}, {ms(told.total_ns)} ms; median {ms(told.median_ns)} ms, "
        f"longest {ms(told.longest_ns)} ms; {_VERDICTS[told.verdict]}"
    )


def _band(band: Band) -> str:
    low = f"{band.low_ns / 1e6:g}"
    if band.high_ns is None:
        return f"≥ {low} ms"
    high = f"{band.high_ns / 1e6:g} ms"
    return f"{low} to {high}" if band.low_ns else f"< {high}"

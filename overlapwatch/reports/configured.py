"""Two sections of a report: what was configured to overlap and what came of it, and communication by layer.

In: one Analysis. Out: renderables for `text`. It does not compute: each number is one that the accounting gives.
"""

from collections.abc import Iterator

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.configured import CONNECTIONS, Verdict
from overlapwatch.reports.format import counted, ms, percent, scale, size
from overlapwatch.reports.layout import facts, heading, note, sentence, table

NONE = "–"
ROWS = 40
"""Rows of layers told; the rest is in the JSON."""


def configured(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the options that decide overlap, and a verdict on each that asks for it."""
    told = analysis.configured
    if told is None:
        return
    yield heading("Configured to overlap")
    pairs = [("framework", told.framework)]
    if told.sizes:
        pairs.append(("parallel", ", ".join(f"{word} {number}" for word, number in told.sizes)))
    pairs.append(("on", ", ".join(told.switched_on) or "none of the options that decide overlap"))
    if told.values:
        pairs.append(("options", ", ".join(f"{name}={value}" for name, value in told.values)))
    if CONNECTIONS not in analysis.about and analysis.origin.device.startswith("cuda"):
        pairs.append((CONNECTIONS, "not set"))
    pairs += [("buckets" if number == 0 else "", text) for number, text in enumerate(told.buckets)]
    yield facts(pairs)
    for verdict in told.verdicts:
        yield sentence(_verdict(verdict), "bold" if verdict.nothing_hidden else "")
        for reason in verdict.reasons:
            yield sentence(f"  likely because: {reason}")
    for text in told.by_design:
        yield note(f"by design: {text}")


def _verdict(one: Verdict) -> str:
    if not one.count:
        return f"{one.option} is on; no {one.what} were sent in this window"
    text = f"{one.option} is on: "
    if one.union_ns:
        text += (
            f"{percent(one.hidden_ns, one.union_ns)} of the time of its {one.what} was hidden "
            f"({ms(one.hidden_ns)} / {ms(one.union_ns)} ms, {one.spans:,} of {counted(one.count, 'collective')})"
        )
    else:
        text += (
            f"how much of {one.what} was hidden is not known, since the finish of none of "
            f"{counted(one.count, 'collective')} is"
        )
    if one.in_time is not None:
        text += f"; {one.in_time:,} of {one.count:,} launched before backward ended"
    return text


def layers(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what layers exchange, alike layers together, and the layers that were exposed most."""
    told = analysis.layers
    if not told.rows:
        return
    yield heading("Communication by layer")
    shown = told.alike[:ROWS]
    write = scale(ns for row in shown for ns in (row.union_ns, row.exposed_ns, row.wait_ns))
    columns = ("layer", "kind", "count", "bytes", "busy ms", "hidden", "exposed ms", "waited ms")
    for phase in dict.fromkeys(row.phase for row in shown):
        yield note(phase.name.lower())
        yield table(
            columns,
            [
                (
                    row.layer + (f" ({row.layers})" if row.layers > 1 else ""),
                    row.kind.title,
                    f"{row.count:,}",
                    size(row.bytes) if row.bytes is not None else NONE,
                    write(row.union_ns),
                    percent(row.overlap_ns, row.union_ns) if row.union_ns else NONE,
                    write(row.exposed_ns),
                    write(row.wait_ns) if row.waits else NONE,
                )
                for row in shown
                if row.phase is phase
            ],
            words=(0, 1),
        )
    if len(told.alike) > ROWS:
        yield note(f"and {counted(len(told.alike) - ROWS, 'row')} more; --json has them all")
    several = [row for row in told.rows if row.exposed_ns]
    if several and len(told.rows) > len(told.alike):
        worst = "; ".join(
            f"{row.layer} ({row.kind.title} in {row.phase.name.lower()}) {ms(row.exposed_ns)} ms"
            for row in several[:3]
        )
        yield sentence(f"most exposed: {worst}")
    yield note(
        "in brackets: so many alike layers; waited: waits for what was in flight, known even where a "
        "finish is not (the wait for a synchronous collective is what it is exposed)"
    )

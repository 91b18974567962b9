"""Several ranks in time: who was late, what was waiting, where tails came from, as people read it.

In: an `AcrossRanks`. Out: Rich renderables, or plain text of a given width. It does not compute:
each number is one that the accounting gives.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.accounting.ranks.lateness import Lateness, LateRank, Verdict
from overlapwatch.accounting.ranks.owners import OwnerRow
from overlapwatch.accounting.ranks.table import few
from overlapwatch.reports import rank_tails
from overlapwatch.reports.closing import closure
from overlapwatch.reports.format import NONE, counted, duration, percent, scale
from overlapwatch.reports.layout import (
    DEFAULT_WIDTH,
    facts,
    gap,
    heading,
    note,
    sentence,
    table,
    to_text,
)

RANKS = 16
"""Of more ranks, those with the most to tell are shown."""
OWNERS = 16


def ranks(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield all that is told of several ranks: what `overlapwatch ranks` prints."""
    yield Text("overlapwatch ranks", style="bold")
    yield gap()
    yield from compared(told)
    for section in (late, waits, overlap, owners, rank_tails.tails, rank_tails.rates, not_known):
        yield from section(told)
    yield gap()
    yield from closure(told.checks())


def in_report(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield what a report of several ranks tells before it turns to one of them."""
    yield heading("Across ranks")
    yield from compared(told)
    yield gap()
    yield from verdict(told)
    if len(told.matches):
        yield gap()
        yield from _late_table(told)
        yield from overlap(told)
        yield from rank_tails.tails(told)
    for one in told.unknown:
        if one not in told.lateness.unknown:
            yield sentence(f"not known: {one.what}: {one.because}")
    if any(not check.ok for check in told.checks()):
        yield from closure(told.checks())
    if len(told.matches):
        yield note("overlapwatch ranks tells more: by bucket, by group, rates")


def plain(told: AcrossRanks, width: int = DEFAULT_WIDTH) -> str:
    """Return what `overlapwatch ranks` prints as plain text."""
    return to_text(ranks(told), width)


def compared(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield what was compared, on which clocks, and what was left out or is missing."""
    matched, alignment = told.matches, told.alignment
    all_of_them = matched.by_ends == len(matched)
    by_ends = f", {'all' if all_of_them else f'{matched.by_ends:,}'} by their ends"
    by_ends = by_ends if matched.by_ends else ""
    alone = sum(matched.alone)
    lines = [("compared", counted(len(told.tables), "rank") + _hosts(told))]
    text = f"{counted(len(matched), 'collective')}{by_ends}"
    out = len(matched) - int(told.waiting.counted.sum())
    text += f", {out:,} of them out of statistics" if out else ""
    lines.append(
        ("matched", f"{text}; {counted(alone, 'record')} without a match" if alone else text)
    )
    clocks = alignment.clocks
    if len(clocks) == 1 and len(told.tables) > 1:
        lines.append(("clock", f"one: {clocks[0].name or 'that of the input'}{_ends(told)}"))
    yield facts(lines)
    if len(clocks) > 1:
        yield from _clock_table(told)
    for text in told.notes:
        yield sentence(text)


def _hosts(told: AcrossRanks) -> str:
    hosts = list(dict.fromkeys(one.host for one in told.tables if one.host))
    return f" on {counted(len(hosts), 'host')}" if len(hosts) > 1 else ""


def _ends(told: AcrossRanks) -> str:
    p50, p95 = told.alignment.ends_p50_ns, told.alignment.ends_p95_ns
    if p50 is None:
        return ""
    return (
        f"; the ranks' ends of one collective lie {duration(p50)} apart (p50), "
        f"{duration(p95)} (p95)"
    )


def _clock_table(told: AcrossRanks) -> Iterator[RenderableType]:
    rows: list[tuple[str, ...]] = []
    for place, one in enumerate(told.alignment.clocks):
        fit = one.fit
        named = few([told.labels[at].removeprefix("rank ") for at in one.tables])
        if fit is None:
            rows.append((one.name or NONE, named, "not known", NONE, NONE, NONE))
            continue
        drift = f"{fit.drift * 1e6:+.1f}" if fit.drift else NONE
        offset = "the reference" if not place else duration(fit.offset_ns)
        residual = tuple(NONE if ns is None else duration(ns) for ns in (fit.p50_ns, fit.p95_ns))
        rows.append((one.name or NONE, named, offset, drift, *residual))
    rows, rest = rows[:RANKS], len(rows) - RANKS
    yield table(
        ("clock of", "ranks", "offset", "drift ppm", "residual p50", "p95"), rows, words=(0, 1)
    )
    if rest > 0:
        yield note(f"and {counted(rest, 'clock')} more; --json has them all")
    yield note("residual: how far the ends of matched collectives lie from the offset")


def late(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield who was late, again and again or not, and why."""
    yield heading("Late ranks")
    yield from verdict(told)
    yield from _late_table(told)


def verdict(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield what can be said about lateness in sentences."""
    late = told.lateness
    if late.verdict is Verdict.NOT_KNOWN:
        for unknown in late.unknown:
            yield sentence(f"not known: {unknown.what}: {unknown.because}")
        return
    for one in late.named:
        yield sentence(_persistent(one, told), "bold")
    if late.verdict is Verdict.ROTATING:
        yield sentence(_rotating(late), "bold")
    elif late.verdict is Verdict.OCCASIONAL:
        yield sentence(
            f"no rank is persistently late: in {_of_steps(len(late.steps), late)} one rank was late by "
            f"more than {duration(late.material_ns)}, too seldom or too unevenly to name it",
            "bold",
        )
    elif late.verdict is Verdict.NONE:
        yield sentence(
            f"no rank is late: in {_of_steps(late.judged - len(late.steps), late)} nobody by more than "
            f"{duration(late.material_ns)}",
            "bold",
        )
    unit = (
        ""
        if late.by_step
        else " (the input tells no steps: a chain of collectives is taken for one)"
    )
    yield note(
        f"late: by more than {duration(late.material_ns)} after the middle rank in a step of "
        f"{duration(late.step_ns)}{unit}; judged in {counted(late.judged, 'step')}"
        + (f", {late.left_out} out of statistics" if late.left_out else "")
    )
    if told.waiting.estimated:
        yield note(
            f"the entry of {percent(told.waiting.estimated, len(told.matches.row))} of the records is "
            "their launch or an estimate: nobody sees a collective begin on the host"
        )


def _of_steps(count: int, late: Lateness) -> str:
    return f"{count} of {counted(late.judged, 'step')}"


def _persistent(one: LateRank, told: AcrossRanks) -> str:
    by = duration(one.lateness.p50_ns) if one.lateness else NONE
    waited = sum(told.waits[table].waited_for_ns for table in one.tables)
    text = (
        f"{one.label} is late again and again: in {one.late} of {counted(one.steps, 'step')} "
        f"({percent(one.late, one.steps)}; {100 * one.share_low:.0f} to {100 * one.share_high:.0f} % with 95 % "
        f"confidence), by {by} (median)"
    )
    if waited:
        text += f"; the others stood still {duration(waited)} for it, added"
    if one.cause:
        text += f". Mostly {one.cause.value}: {_MEANS[one.cause.name]}"
    return text


_MEANS = {
    "BEFORE": "the step before, or its optimizer, ended later there",
    "INPUT": "its forward began later in the step (data loading?)",
    "FORWARD": "its forward took longer",
    "BUCKET": "its backward took longer until the gradients were ready",
    "LAUNCH": "its gradients were ready, and the launch came later",
    "QUEUE": "it was launched, and its turn came later",
    "COMPUTE": "its device computed longer since the collective before",
    "GAP": "its device had nothing to do since the collective before (the host was late)",
    "ENTRY": "what came before is not recorded",
}


def _rotating(late: Lateness) -> str:
    sizes = sorted(one.late_ns for one in late.steps)
    often = ", ".join(f"{one.label} {one.last}" for one in late.ranks[:4] if one.last)
    more = len([one for one in late.ranks if one.last]) - 4
    return (
        f"lateness goes round: in {_of_steps(len(late.steps), late)} one rank was late, by "
        f"{duration(sizes[(len(sizes) - 1) // 2])} (median), mostly another one each time ({often}"
        f"{f' and {more} more' if more > 0 else ''}): no slow rank, rather pauses that hit one at a time "
        "(garbage collection, data loading, a busy host)"
    )


def _late_table(told: AcrossRanks) -> Iterator[RenderableType]:
    rows = (*told.lateness.hosts, *told.lateness.ranks)
    if not rows:
        return
    write = scale(
        ns for one in rows if one.lateness for ns in (one.lateness.p50_ns, one.lateness.p95_ns)
    )
    yield table(
        ("rank", "last", "late", "of steps", "by p50 ms", "p95 ms", "by chance", "mostly"),
        [
            (
                one.label,
                f"{one.last:,}",
                f"{one.late:,}",
                f"{one.steps:,}",
                write(one.lateness.p50_ns) if one.lateness else NONE,
                write(one.lateness.p95_ns) if one.lateness else NONE,
                _chance(one.chance),
                one.cause.value if one.cause else NONE,
            )
            for one in rows[:RANKS]
        ],
        words=(0, 7),
    )
    if len(rows) > RANKS:
        yield note(f"and {counted(len(rows) - RANKS, 'rank')} that were late less often")


def _chance(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.1f}"


def waits(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield what each rank waited, and was waited for."""
    if not len(told.matches):
        return
    yield heading("Waiting and transfer")
    stay = sum(one.stay_ns for one in told.waits)
    wait = sum(one.wait_ns for one in told.waits)
    yield sentence(
        f"of {duration(stay)} in collectives, all ranks added, {duration(wait)} "
        f"({percent(wait, stay)}) were waiting for the last rank"
    )
    rows = sorted(told.waits, key=lambda one: -one.waited_for_ns)
    write = scale(
        ns for one in rows for ns in (one.stay_ns, one.wait_ns, one.exposed_ns, one.waited_for_ns)
    )
    yield table(
        (
            "rank",
            "in collectives",
            "waited",
            "share",
            "standing still",
            "waited for",
            "entered last",
        ),
        [
            (
                told.labels[one.table].removeprefix("rank "),
                write(one.stay_ns),
                write(one.wait_ns),
                percent(one.wait_ns, one.stay_ns),
                write(one.exposed_ns),
                write(one.waited_for_ns),
                f"{one.last:,} of {one.of:,}",
            )
            for one in rows[:RANKS]
        ],
    )
    if len(rows) > RANKS:
        yield note(f"and {counted(len(rows) - RANKS, 'rank')} that were waited for less")
    yield note(
        "ms. The rank with the longest time in collectives is a victim: it waited. Standing still: "
        "the waiting in which it did not compute; waited for: that of the others, for this rank"
    )


def overlap(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield overlap and exposed time, as recorded and with waiting taken out."""
    rows = [one for one in told.overlaps if one.split]
    if not rows:
        return
    yield gap()
    yield note("communication of each rank, and without (w/o) its waiting for other ranks")
    rows.sort(key=lambda one: -one.exposed_waiting_ns)
    write = scale(
        ns
        for one in rows
        for part in (one.recorded, one.transfer)
        for ns in (part.communication_ns, part.communication_only_ns)
    )
    yield table(
        ("rank", "comm ms", "comm w/o", "hidden", "hidden w/o", "exposed ms", "exposed w/o"),
        [
            (
                told.labels[one.table].removeprefix("rank "),
                write(one.recorded.communication_ns),
                write(one.transfer.communication_ns),
                percent(one.recorded.overlap_ns, one.recorded.communication_ns),
                percent(one.transfer.overlap_ns, one.transfer.communication_ns),
                write(one.recorded.communication_only_ns),
                write(one.transfer.communication_only_ns),
            )
            for one in rows[:RANKS]
        ],
    )
    if len(rows) > RANKS:
        yield note(f"and {counted(len(rows) - RANKS, 'rank')} with less exposed waiting")


def owners(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield the waiting by bucket, module or kind."""
    if not told.owners:
        return
    yield heading("By bucket or module")
    shown = told.owners[:OWNERS]
    write = scale(
        ns
        for one in shown
        for ns in (*(two.p50_ns for two in (one.skew, one.transfer) if two), one.wait_ns)
    )
    yield table(
        (
            "what",
            "count",
            "latest most often",
            "skew p50",
            "transfer p50",
            "waited",
            "standing still",
        ),
        [_owner(one, told.labels, write) for one in shown],
        words=(0, 2),
    )
    if len(told.owners) > OWNERS:
        yield note(f"and {len(told.owners) - OWNERS} more with less waiting; --json has them all")
    yield note("ms; waited: by all ranks, added")


def _owner(one: OwnerRow, labels: Sequence[str], write: rank_tails.Write) -> tuple[str, ...]:
    late = f"{labels[one.late]}, {one.late_count} of {one.told}" if one.late >= 0 else NONE
    return (
        one.name,
        f"{one.collectives:,}",
        late,
        write(one.skew.p50_ns if one.skew else None),
        write(one.transfer.p50_ns if one.transfer else None),
        write(one.wait_ns),
        write(one.exposed_ns),
    )


def not_known(told: AcrossRanks) -> Iterator[RenderableType]:
    """Yield what cannot be told, and why."""
    if not told.unknown:
        return
    yield heading("Not known")
    for one in told.unknown:
        yield sentence(f"{one.what}: {one.because}")

"""The sections of a text report that speak of modules as communication units (FSDP2, HSDP).

In: one Analysis. Out: renderables for `text`; nothing where no module owns a collective. Times that
were not measured carry a `~` (estimated). It does not compute: each number is one that the
accounting gives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.units.modules import ModuleCell
from overlapwatch.accounting.units.order import Misordered
from overlapwatch.accounting.units.queueing import Queued
from overlapwatch.accounting.units.residency import Residency
from overlapwatch.accounting.units.told import Units
from overlapwatch.accounting.units.uses import SlackRow, Uses
from overlapwatch.reports.format import NONE, bar, counted, ms, percent, scale, size
from overlapwatch.reports.layout import heading, note, sentence, table
from overlapwatch.vocabulary import CollectiveKind

BAR_WIDTH = 20
MODULES = 16
"""Of more than half as many again, only those with the most exposed time or the longest stalls."""
ORDERS = 8
SLICES = 12
HOLDERS = 6
_GATHER = CollectiveKind.ALL_GATHER
_REDUCTIONS = {
    CollectiveKind.REDUCE_SCATTER: "reduce-scatters",
    CollectiveKind.ALL_REDUCE: "all-reduces",
}


def modules(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what each module sent, and how much of it was hidden."""
    told = analysis.units
    if told is None:
        return
    yield heading("Communication by module")
    by_module: dict[str, list[ModuleCell]] = {}
    for cell in told.modules.cells:
        by_module.setdefault(cell.module, []).append(cell)
    exposed = {name: sum(cell.exposed_ns for cell in cells) for name, cells in by_module.items()}
    order = [
        name for name in dict.fromkeys(row.module for row in told.uses.rows) if name in exposed
    ]
    order += [name for name in by_module if name not in order]
    shown = _most(order, exposed)
    yield note(
        f"ms over {counted(analysis.steps_in_window, 'step') if analysis.steps_in_window else 'the window'}; "
        "hidden and exposed: of the module's own spans"
        + (", which overlap one another" if told.modules.remainder.union_ns else "")
    )
    if len(shown) < len(order):
        yield note(_shortened(len(shown), len(order), "the most exposed time"))
    kinds = [_GATHER, *(kind for kind in _REDUCTIONS if _any(told, kind))]
    columns = ["module", "size"]
    for kind in kinds:
        columns += [_REDUCTIONS.get(kind, "all-gathers"), "hidden", "exposed"]
    write = scale(ns for cell in told.modules.cells for ns in (cell.overlap_ns, cell.exposed_ns))
    rows = []
    for name in shown:
        row = [name, _size(by_module[name])]
        for kind in kinds:
            cells = [cell for cell in by_module[name] if cell.kind is kind]
            count = sum(cell.count + cell.without_span for cell in cells)
            known = [cell for cell in cells if cell.count]
            row.append(f"{count:,}")
            for field in ("overlap_ns", "exposed_ns"):
                whole = sum(getattr(cell, field) for cell in known)
                row.append(write(whole) if known else NONE)
        rows.append(row)
    yield table(columns, rows)
    whole = told.modules.whole
    yield sentence(
        f"of all modules: hidden {percent(whole.overlap_ns, whole.union_ns)} "
        f"({ms(whole.overlap_ns)} / {ms(whole.union_ns)} ms), exposed {ms(whole.exposed_ns)} ms"
    )
    yield from _edges(told)


def _any(told: Units, kind: CollectiveKind) -> bool:
    return any(cell.kind is kind for cell in told.modules.cells)


def _size(cells: Sequence[ModuleCell]) -> str:
    """Return the bytes of one all-gather, else of one reduction, of a module."""
    first = min(cells, key=lambda cell: (cell.kind is not _GATHER, cell.phase))
    count = first.count + first.without_span
    return size(first.bytes // count) if count and first.bytes else NONE


def _most(names: Sequence[str], weight: Mapping[str, int]) -> list[str]:
    """Return the names, in order; of very many, those that weigh most."""
    if len(names) <= MODULES * 3 // 2:
        return list(names)
    heavy = sorted(names, key=lambda name: -weight[name])[:MODULES]
    return [name for name in names if name in set(heavy)]


def _shortened(shown: int, count: int, what: str) -> str:
    return f"the {shown} of {counted(count, 'module')} with {what}; --json has all"


def _edges(told: Units) -> Iterator[RenderableType]:
    """Yield the first all-gather and the last reduction of the steps: nothing can hide them."""
    ends = told.edges
    words = [
        f"the {word} ({edge.kind.title} of {edge.module}) {ms(edge.exposed_ns)} ms"
        for word, edge in (("first all-gather", ends.first), ("last reduction", ends.last))
        if edge.steps
    ]
    if not words or not ends.all_exposed_ns:
        return
    share = percent(ends.exposed_ns, ends.all_exposed_ns)
    yield sentence(
        f"exposed and unavoidable in a step's own order: {' and '.join(words)}, "
        f"{share} of all exposed time ({ms(ends.exposed_ns)} / {ms(ends.all_exposed_ns)} ms)"
    )


def slack(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield whether the parameters had arrived when compute needed them."""
    told = analysis.units
    if told is None or not told.uses.rows:
        return
    yield heading("Prefetch slack")
    yield note(
        "from the finish of an all-gather to the use of its parameters; negative: compute stalled"
    )
    rows = told.uses.rows
    weight: dict[str, int] = {}
    for row in rows:
        weight[row.module] = weight.get(row.module, 0) + row.stall_ns
    shown = _most(list(weight), weight)
    if len(shown) < len(weight):
        yield note(_shortened(len(shown), len(weight), "the longest stalls"))
    rows = tuple(row for row in rows if row.module in set(shown))
    write = scale(
        ns for row in rows for ns in (row.median_ns, row.least_ns, row.stall_ns, row.wait_ns)
    )
    yield table(
        (
            "module",
            "phase",
            "uses",
            "prefetched",
            "slack p50",
            "least",
            "stalls",
            "stall ms",
            "wait ms",
        ),
        [
            (
                row.module,
                row.phase.name.lower(),
                f"{row.uses:,}",
                _prefetched(row),
                ("~" if row.estimated else "") + write(row.median_ns),
                write(row.least_ns),
                f"{row.stalls:,}" if row.known else NONE,
                write(row.stall_ns) if row.known else NONE,
                write(row.wait_ns),
            )
            for row in rows
        ],
        words=(0, 1),
    )
    yield from _stalls(told.uses)


def _prefetched(row: SlackRow) -> str:
    return "held" if row.held == row.uses else f"{row.prefetched:,}"


def _stalls(told: Uses) -> Iterator[RenderableType]:
    held = sum(row.held for row in told.rows)
    known = sum(row.known for row in told.rows)
    if held:
        yield sentence(
            f"{counted(held, 'use')} needed no all-gather: the parameters were still held"
        )
    if known:
        beyond = told.known_wait_ns - told.stall_ns
        text = (
            f"stalls: {ms(told.stall_ns)} ms of the {ms(told.wait_ns)} ms that compute waited for "
            f"parameters, in {counted(sum(row.stalls for row in told.rows), 'use')} of {known:,}"
        )
        if beyond:
            text += f"; {ms(beyond)} ms were waited after the all-gather had finished (copying out)"
        yield sentence(text)
    if any(row.estimated for row in told.rows):
        yield note("~ holds estimated times")
    if told.never_used:
        yield sentence(f"{counted(told.never_used, 'all-gather')} of used modules no use consumed")
    for one in told.gradients[:3]:
        yield sentence(
            f"waits for gradients: {ms(one.wait_ns)} ms in {one.module}, {counted(one.count, 'wait')}"
        )


def order(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what was prefetched before its turn, and what that cost; and queues on one communicator."""
    told = analysis.units
    if told is None or not told.uses.rows:
        return
    yield heading("Prefetch order")
    prefetched = sum(row.prefetched for row in told.uses.rows)
    if not told.order:
        yield sentence(
            f"in order: each of {counted(prefetched, 'prefetch', 'prefetches')} was of the module needed next"
            if prefetched
            else "nothing was prefetched: each all-gather was issued when compute needed it"
        )
        return
    for one in told.order[:ORDERS]:
        yield sentence(_misordered(one))
    if len(told.order) > ORDERS:
        yield note(f"and {len(told.order) - ORDERS} more; --json has all")


def _misordered(one: Misordered) -> str:
    by = f" by {one.by}" if one.by else ""
    times = counted(one.count, "time")
    text = (
        f"{one.module} was prefetched{by} in {one.phase.name.lower()}, but {one.needed} was needed "
    )
    text += f"before it: {times} in {counted(one.steps, 'step')}"
    if one.never_used:
        text += f", {one.never_used:,} of them never used"
    if one.stall_ns is None:
        return f"{text}; how long {one.needed} then stalled is not known"
    if not one.stall_ns:
        return f"{text}; {one.needed} did not stall"
    text += f"; {one.needed} then stalled {ms(one.stall_ns)} ms"
    if one.behind_ns:
        text += f", {ms(one.behind_ns)} ms of it while the all-gather of {one.module} still ran"
    return text


def queueing(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield which collectives of modules stood behind others on one communicator."""
    told = analysis.units
    if told is None:
        return
    queues = told.queueing
    known = queues.collectives - queues.without_queue
    if not known:
        return
    yield heading("Queues on one communicator")
    if not queues.rows:
        yield sentence(f"none of {counted(known, 'collective')} stood behind another")
        return
    write = scale(ns for row in queues.rows for ns in (row.queued_ns, row.longest_ns))
    yield table(
        ("waiting", "behind", "group", "count", "ms", "longest", "the longest"),
        [_queued(row, write) for row in queues.rows],
        words=(0, 1, 2, 6),
    )
    if queues.crossed_ns:
        yield sentence(
            f"all-gathers and reductions stood behind each other for {ms(queues.crossed_ns)} ms: "
            "they share a communicator, which runs one at a time"
        )
        yield note(
            "torch 2.13 and later: set_separate_reduce_scatter_group gives reductions their own"
        )
    else:
        yield sentence(
            "no all-gather stood behind a reduction, and no reduction behind an all-gather"
        )


def _queued(row: Queued, write: Callable[[int | None], str]) -> tuple[str, ...]:
    mark = "~" if row.estimated else ""
    return (
        row.kind.title,
        row.ahead.title,
        row.group or NONE,
        f"{row.count:,} of {row.launched:,}",
        mark + write(row.queued_ns),
        write(row.longest_ns),
        f"{row.longest[0]} behind {row.longest[1]}",
    )


def memory(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the memory held by unsharded parameters: its course, its peak, one prefetch more."""
    told = analysis.units
    if told is None or told.residency.peak_bytes is None:
        return
    held = told.residency
    yield heading("Memory of unsharded parameters")
    where = ""
    if held.peak_step is not None:
        where = f" in step {held.peak_step}, {ms(held.peak_ns)} ms after its start"
    yield sentence(
        f"peak {size(held.peak_bytes)}{where}; median of the steps' peaks "
        f"{size(held.median_peak_bytes)}, mean over time {size(held.mean_bytes)}, "
        f"all modules at once {size(held.all_bytes)}"
    )
    holders = [f"{name} ({size(one)})" for name, one in held.peak_modules[:HOLDERS]]
    more = len(held.peak_modules) - HOLDERS
    holders += [f"{more} more"] if more > 0 else []
    yield sentence(f"held at the peak: {', '.join(holders)}")
    yield from _course(analysis, held)
    if held.with_next_bytes is None or held.peak_bytes is None:
        return
    if not held.next_module:
        yield sentence("one more module prefetched at each moment would not raise the peak")
        return
    yield sentence(
        f"with one more module prefetched at each moment: at most {size(held.with_next_bytes)} "
        f"(+{size(held.with_next_bytes - held.peak_bytes)}, with {held.next_module}), an upper estimate"
    )


def _course(analysis: Analysis, held: Residency) -> Iterator[RenderableType]:
    """Yield the most that was held in equal slices of the step of the peak."""
    row = [one for one in analysis.rows if int(one["step"]) == held.peak_step]
    if not row or not held.peak_bytes:
        return
    start, end = int(row[0]["start_ns"]), int(row[0]["end_ns"])
    course = held.course(start, end, SLICES)
    write = scale(low - start for low, _ in course)
    yield table(
        ("ms in the step", "held at most", ""),
        [
            (write(low - start), size(most), bar(most / held.peak_bytes, BAR_WIDTH))
            for low, most in course
        ],
        words=(),
        bars=True,
    )

"""The sections of a text report that speak of single collectives: buckets, tail, groups, sizes.

In: one Analysis. Out: renderables for `text`. Times that were not measured carry a `~`
(estimated), or say why there is none. It does not compute: each number is one that the accounting
gives.
"""

from collections.abc import Callable, Iterator

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.buckets import BucketRow, Moment, Provenance
from overlapwatch.accounting.chain import Piece, PieceKind
from overlapwatch.accounting.messages import Traffic
from overlapwatch.accounting.tail import StepTail
from overlapwatch.reports.format import NONE, bar, counted, ms, percent, ranges, scale, size
from overlapwatch.reports.layout import gap, heading, note, sentence, table
from overlapwatch.reports.opening import parameter_span

BAR_WIDTH = 20
BUCKETS = 16
"""Of more than twice as many, only the first and the last are shown."""
SIZES = 12
CHAINS = 3
PIECES = 6
"""Of a tail made of more, only the first and last three are shown."""
MOMENTS = ("ready", "launch", "start", "finish")
Write = Callable[[int | None], str]
_ESTIMATES = {Provenance.ESTIMATED, Provenance.MIXED}


def buckets(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the life of each bucket: when it was ready, launched, started and finished."""
    told = analysis.buckets
    if not told.rows and not told.unbucketed:
        return
    yield heading("Buckets")
    if told.rows:
        rows = told.rows
        yield note("medians over its steps, ms after the backward began")
        if len(rows) > 2 * BUCKETS:
            rows = (*rows[:BUCKETS], *rows[-BUCKETS:])
            left_out = counted(len(told.rows) - len(rows), "bucket")
            yield note(f"the first and last {BUCKETS}; --json has the {left_out} between them")
        write = scale(getattr(row, name).median_ns for row in rows for name in MOMENTS)
        yield table(("bucket", "size", "steps", *MOMENTS), [_moments(row, write) for row in rows])
        yield note(_provenance(told.rows))
        yield gap()
        yield from _lasting(rows)
        yield gap()
        yield table(
            ("bucket", "elements", "parameters", "last gradient"),
            [_content(row) for row in rows],
            words=(0, 2, 3),
        )
    for row in told.unbucketed:
        moments = ", ".join(f"{name} {_moment(getattr(row, name), ms)}" for name in MOMENTS)
        yield sentence(
            f"before the buckets were laid out: {row.name} ({parameter_span(row)}, "
            f"{size(row.bytes or None)}), {counted(row.steps, 'step')}: {moments} ms"
        )


def _moments(row: BucketRow, write: Write) -> tuple[str, ...]:
    moments = (_moment(getattr(row, name), write) for name in MOMENTS)
    return row.name, size(row.bytes) if row.bytes else NONE, f"{row.steps:,}", *moments


def _moment(moment: Moment, write: Write) -> str:
    if moment.median_ns is None:
        return NONE if moment.provenance in _ESTIMATES else moment.provenance.value
    return ("~" if moment.provenance in _ESTIMATES else "") + write(moment.median_ns)


def _provenance(rows: tuple[BucketRow, ...]) -> str:
    """Return how the four times came to be, naming the buckets only where they differ."""
    words = []
    for name in MOMENTS:
        found: dict[Provenance, list[str]] = {}
        for row in rows:
            found.setdefault(getattr(row, name).provenance, []).append(row.name)
        if len(found) == 1:
            words.append(f"{name} {next(iter(found)).value}")
        else:
            each = (f"{how.value} in {_some(names)}" for how, names in found.items())
            words.append(f"{name} {' and '.join(each)}")
    text = "; ".join(words)
    if all(
        getattr(row, name).provenance is Provenance.MEASURED for row in rows for name in MOMENTS
    ):
        return "all four times were measured"
    estimated = any(getattr(row, name).provenance in _ESTIMATES for row in rows for name in MOMENTS)
    return f"{text} (~ holds estimated times)" if estimated else text


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} buckets"


def _lasting(rows: tuple[BucketRow, ...]) -> Iterator[RenderableType]:
    """Yield how long each stretch of a bucket's life took, by what is known of it."""
    split = any(row.queue_ns is not None for row in rows)
    middle = ("queue", "residence") if split else ("launch to finish",)
    lasted = [_lasted(row, split=split) for row in rows]
    write = scale(ns for times in lasted for ns in times)
    yield table(
        ("ms (medians)", "launch delay", *middle, "hidden", "exposed", "hidden share"),
        [
            (
                row.name,
                *map(write, times),
                percent(row.hidden_total_ns, row.span_total_ns) if row.spans else NONE,
            )
            for row, times in zip(rows, lasted, strict=True)
        ],
    )
    if not split:
        yield note("launch to finish holds the time in the queue: it is not the communication time")


def _lasted(row: BucketRow, *, split: bool) -> tuple[int | None, ...]:
    middle = (row.queue_ns, row.residence_ns) if split else (row.launch_to_finish_ns,)
    return (row.launch_delay_ns, *middle, row.hidden_ns, row.exposed_ns)


def _content(row: BucketRow) -> tuple[str, str, str, str]:
    elements = f"{row.elements:,} {row.dtype}".strip() if row.elements else NONE
    held = parameter_span(row) if row.parameters else NONE
    gate = f"{row.gated_by} ({row.gated_count} of {row.count})" if row.gated_by else NONE
    return row.name, elements, held, gate


def tail(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield how long reductions outlived compute, what that was spent on, and the worst steps."""
    told = analysis.tail
    if not told.steps or not analysis.messages.total.count:
        return
    yield heading("Tail")
    yield note("last reduction's end minus the last forward or backward compute's end, at least 0")
    if told.tail is None:
        yield sentence(f"not known in any of {counted(told.steps, 'step')}: see below")
        return
    spread = told.tail
    yield sentence(
        f"p50 {ms(spread.p50_ns)} ms, p95 {ms(spread.p95_ns)} ms, p99 {ms(spread.p99_ns)} ms, "
        f"max {ms(spread.max_ns)} ms; known in {told.known} of {counted(told.steps, 'step')} with events"
    )
    if told.explanation:
        yield sentence(told.explanation, "bold")
    if told.pieces:
        write = scale(piece.total_ns for piece in told.pieces)
        yield table(
            ("spent on", "ms", "share", "steps", ""),
            [
                (
                    piece.kind.value,
                    write(piece.total_ns),
                    percent(piece.total_ns, spread.total_ns),
                    f"{piece.steps:,}",
                    bar(piece.total_ns / spread.total_ns, BAR_WIDTH) if spread.total_ns else "",
                )
                for piece in told.pieces
            ],
            bars=True,
        )
    worst = [one for one in told.worst if one.tail_ns][:CHAINS]
    if worst:
        yield gap()
        yield table(
            ("step", "tail ms", "last reduction", "the tail in order, ms"),
            [(str(one.step), ms(one.tail_ns), one.last_bucket, _chain(one)) for one in worst],
            words=(2, 3),
        )


def _chain(one: StepTail) -> str:
    """Return the pieces of a tail in order; of many, the first and last few."""
    pieces = one.pieces
    if len(pieces) <= PIECES:
        return " → ".join(map(_piece, pieces))
    first, last = pieces[: PIECES // 2], pieces[-(PIECES // 2) :]
    between = pieces[PIECES // 2 : -(PIECES // 2)]
    left_out = f"{len(between)} more {ms(sum(piece.duration_ns for piece in between))}"
    return " → ".join([*map(_piece, first), left_out, *map(_piece, last)])


def _piece(piece: Piece) -> str:
    mark = "~" if piece.estimated else ""
    words = piece.kind.value
    if piece.kind is PieceKind.QUEUE:
        words += f" behind {piece.bucket}" if piece.bucket else ", behind nothing seen"
    return f"{words} {mark}{ms(piece.duration_ns)}"


def traffic(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield collectives by process group and by message size."""
    told = analysis.messages
    if not told.total.count:
        return
    yield heading("Process groups and message sizes")
    yield note(
        "launch to finish holds the queue and waiting for other ranks, so no rate is made of it"
        + ("; bytes: of all ranks' parts" if analysis.state == "profile" else "")
    )
    columns = ("count", "bytes", "p50 ms", "p99 ms", "max ms")
    traffics = (*(row.traffic for row in told.groups), *(row.traffic for row in told.sizes))
    write = scale(ns for one in traffics for ns in _times(one))
    yield table(
        ("group", "ranks", *columns),
        [
            (
                row.name or (f"group {row.group}" if row.group else "not known"),
                ranges(sorted(row.ranks)) or NONE,
                *_traffic(row.traffic, write),
            )
            for row in told.groups
        ],
        words=(0, 1),
    )
    yield gap()
    yield table(
        ("kind", "message", *columns),
        [
            (
                row.kind.title,
                NONE if row.size_bytes is None else size(row.size_bytes),
                *_traffic(row.traffic, write),
            )
            for row in told.sizes[:SIZES]
        ],
    )
    if len(told.sizes) > SIZES:
        yield note(f"and {counted(len(told.sizes) - SIZES, 'smaller size')}; --json has them all")


def _traffic(one: Traffic, write: Write) -> tuple[str, ...]:
    sent = NONE if one.bytes is None else size(one.bytes)
    return f"{one.count:,}", sent, *map(write, _times(one))


def _times(one: Traffic) -> tuple[int | None, int | None, int | None]:
    spread = one.launch_to_finish
    return (spread.p50_ns, spread.p99_ns, spread.max_ns) if spread else (None, None, None)

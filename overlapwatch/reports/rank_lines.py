"""The ranks of a live view: a line each, and the latest steps of one of them.

In: a `RunView`. Out: lines of an exact width: the newest step and what it was spent on, how the steps went, and what
the rank is doing. It does not compute: each number is one that the accounting gives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from overlapwatch.accounting.running import RankView, RunView
from overlapwatch.accounting.running.latest import Latest
from overlapwatch.reports.drawing import Glyphs, cut, line, parts_bar
from overlapwatch.reports.format import NONE, counted, ms, percent
from overlapwatch.reports.layout import MINIMUM_WIDTH, clean, gap, sentence
from overlapwatch.reports.unfinished import age

PART_NAMES = ("compute", "hidden", "exposed", "idle")
STYLES = ("blue", "green", "red", "dim")
_GAP, _MS = 2, 8


def rank_lines(view: RunView, width: int, rows: int, glyphs: Glyphs) -> Iterator[RenderableType]:
    """Yield a heading and a line for each of the first so many ranks."""
    widths = _widths(view, max(width, MINIMUM_WIDTH))
    legend = _legend(glyphs)
    if widths.bar < cell_len(legend.plain):
        legend.pad_left(2)
        yield legend
        legend = Text("newest step"[: widths.bar])
    yield _head(widths, glyphs, legend)
    for one in view.ranks[:rows]:
        yield _rank(one, widths, glyphs)


def steps_of_first(view: RunView, width: int, glyphs: Glyphs) -> Iterator[RenderableType]:
    """Yield the latest steps of the first rank that has any."""
    one = next((rank for rank in view.ranks if rank.latest and rank.latest.statistics), None)
    if one is None or one.latest is None or one.latest.statistics is None:
        return
    latest, told = one.latest, one.latest.statistics
    room = max(min(width - 46, 80), 12)
    shown = min(room, len(latest.durations))
    yield gap()
    head = f"rank {one.rank}, last {counted(shown, 'step')}, ms"
    yield Text(f"{head:<{room + 12}}  {'newest':>8}  {'median':>8}  {'largest':>8}", style="bold")
    rows = (
        ("step", latest.durations, told.duration),
        ("hidden", latest.hidden, told.hidden),
        ("exposed", latest.exposed, told.exposed),
        ("tail", latest.tails, told.tail),
    )
    for name, values, spread in rows:
        newest = values[-1]
        middle = ms(spread.p50_ns) if spread else NONE
        largest = max((value for value in values[-shown:] if value is not None), default=None)
        yield Text(
            f"  {name:<8}  {line(values, room, glyphs):<{room}}  {_or_dash(newest):>8}  {middle:>8}  "
            f"{_or_dash(largest):>8}",
            no_wrap=True,
            overflow="crop",
        )
    if told.overlap.denominator_ns:
        yield sentence(
            f"hidden: {percent(told.overlap.numerator_ns, told.overlap.denominator_ns)} of communication; exposed: "
            f"{percent(told.exposed_fraction.numerator_ns, told.exposed_fraction.denominator_ns)} of the steps' time "
            f"({counted(told.overlap.steps, 'step')})"
        )


def _or_dash(ns: int | None) -> str:
    return NONE if ns is None else ms(ns)


def state_in_short(one: RankView) -> str:
    """Return the state in a word or two, to count ranks by."""
    if one.trouble:
        words = {"waiting": "waiting for others", "no step": "without a new step"}
        return words.get(one.trouble, one.trouble)
    if not one.caught_up:
        return "still being read"
    return {"closed": "ended", "elsewhere": "on other hosts", "not known": "without a header"}.get(
        one.process, one.process
    )


@dataclass(frozen=True, slots=True)
class _Widths:
    rank: int
    step: int
    bar: int
    line: int  # of step times; 0: none
    exposed: int  # of exposed time; 0: none
    state: int


def _widths(view: RunView, width: int) -> _Widths:
    rank = max(4, *(len(f"{one.rank}") for one in view.ranks))
    step = max(4, *(len(str(one.latest.step)) if one.latest else 0 for one in view.ranks))
    state = 20 if width < 80 else 28 if width < 140 else 40
    left = width - rank - step - _MS - state - 4 * _GAP
    if left < 36:
        return _Widths(rank, step, left, 0, 0, state)
    if width < 140:
        lines = (left - _GAP) * 2 // 5
        return _Widths(rank, step, left - _GAP - lines, lines, 0, state)
    lines = (left - 2 * _GAP) // 3
    return _Widths(rank, step, left - 2 * (_GAP + lines), lines, lines, state)


def _legend(glyphs: Glyphs) -> Text:
    legend = Text(no_wrap=True)
    for place, name in enumerate(PART_NAMES):
        legend.append(f"{'  ' if place else ''}{glyphs.parts[place]} {name}", STYLES[place])
    return legend


def _head(widths: _Widths, glyphs: Glyphs, over_bars: Text) -> Text:
    head = Text(style="bold", no_wrap=True, overflow="crop")
    head.append(f"{'rank':>{widths.rank}}  {'step':>{widths.step}}  {'ms':>{_MS}}  ")
    over_bars.truncate(widths.bar, pad=True)
    head.append_text(over_bars)
    for room, title in ((widths.line, "step time"), (widths.exposed, "exposed")):
        if room:
            head.append("  " + cut(f"{title}, last {room}", room, glyphs).ljust(room))
    head.append("  state")
    return head


def _rank(one: RankView, widths: _Widths, glyphs: Glyphs) -> Text:
    latest = one.latest
    row = Text(no_wrap=True, overflow="crop")
    step = str(latest.step) if latest else NONE
    took = _short_ms(latest.duration_ns) if latest else NONE
    row.append(f"{one.rank:>{widths.rank}}  {step:>{widths.step}}  {took:>{_MS}}  ")
    row.append_text(_bar(latest, widths.bar, glyphs))
    exposed: Sequence[int | None] = latest.exposed if latest else ()
    durations: Sequence[int | None] = latest.durations if latest else ()
    for room, values in ((widths.line, durations), (widths.exposed, exposed)):
        if room:
            row.append("  " + line(values, room, glyphs).ljust(room))
    style = "bold red" if one.trouble else "dim" if one.process == "closed" else ""
    row.append("  " + cut(clean(_state(one, widths.state)), widths.state, glyphs), style)
    return row


def _short_ms(ns: int) -> str:
    """Write ns in ms in at most `_MS` characters: `412.3`, `431,683`, `10000 s`."""
    text = ms(ns)
    if len(text) > _MS:
        text = f"{ns / 1e6:,.0f}"
    return text if len(text) <= _MS else f"{ns // 1_000_000_000} s"


def _bar(latest: Latest | None, width: int, glyphs: Glyphs) -> Text:
    if latest is not None and latest.parts is not None:
        return parts_bar(latest.parts.shares_ns, width, glyphs, STYLES)
    words = "no step has ended" if latest is None else "parts not known"
    return Text(cut(words, width, glyphs).ljust(width), style="dim")


def _state(one: RankView, room: int) -> str:  # noqa: PLR0911 - one a state
    inside = f" in step {one.step_now}" if one.step_now is not None else ""
    match one.trouble:
        case "killed" | "stopped":
            return one.trouble + inside
        case "unreadable":
            return one.problem
        case "behind":
            return _since("behind", inside, one.ended_ago_ns, room)
        case "waiting":
            oldest = max((flight.age_ns or 0 for flight in one.in_flight or ()), default=0)
            return _since("waits", inside, oldest, room)
        case "no step":
            return f"no step for {age(one.ended_ago_ns or 0)}"
        case "silent":
            return f"log silent for {age(one.silent_ns or 0)}"
    if not one.caught_up:
        return "log still being read"
    if one.process == "closed":
        return "ended"
    if one.process == "elsewhere":
        return f"on {one.host}"
    if one.process == "not known":
        return "header damaged"
    return one.process if one.latest else one.process + inside


def _since(what: str, inside: str, ns: int | None, room: int) -> str:
    """Return `waits in step 60, 14.9 s`, without the step where there is no room for it."""
    since = f", {age(ns)}" if ns is not None else ""
    whole = f"{what}{inside}{since}"
    return whole if len(whole) <= room else what + since

"""Collectives that do not finish, in a live view: who waits, and who has not launched them.

In: a `RunView`. Out: a table, or sentences where lines are short. It does not compute.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from overlapwatch.accounting.ranks.order_result import Position
from overlapwatch.accounting.running import RunView
from overlapwatch.accounting.running.unfinished import Unfinished
from overlapwatch.reports.format import NONE, counted, duration, ranges, size
from overlapwatch.reports.layout import gap, note, sentence, table

TABLE_WIDTH = 90
"""In a shorter line a collective is told in words."""
NOT_LAUNCHED = "has not launched it"


def unfinished(view: RunView, width: int, most: int) -> Iterator[RenderableType]:
    """Yield the old collectives, at most so many; or how many are in flight, where none is old."""
    old, young = view.old, len(view.unfinished)
    if not old:
        oldest = max((one.age_ns or 0 for one in view.unfinished), default=0)
        if young:
            yield note(f"{counted(young, 'collective')} in flight, for {age(oldest)} at most")
        elif any(one.in_flight is not None for one in view.ranks):
            yield note("no collective in flight")  # said too, so that nothing moves when there is
        return
    yield gap()
    yield Text(f"unfinished: {counted(len(old), 'collective')}", style="bold red")
    shown = old[:most]
    if width < TABLE_WIDTH:
        for one in shown:
            yield sentence(_unfinished_words(one))
    else:
        columns = ("age", "collective", "seq", "group", "step", "bytes", "waits", NOT_LAUNCHED)
        yield table(columns, map(_unfinished_row, shown), words=(1, 3, 6, 7))
    if len(old) > len(shown):
        yield note(f"and {len(old) - len(shown):,} more")


def _unfinished_words(one: Unfinished) -> str:
    lasted, name, number, group, step, total, waits, missing = _unfinished_row(one)
    what = f"{name}, sequence {number} of {group}, step {step}, {total}"
    return f"{lasted}  {what}; waits: {waits}; {NOT_LAUNCHED}: {missing}"


def _unfinished_row(one: Unfinished) -> tuple[str, ...]:
    told = one.first
    alive = tuple(rank for rank in one.ranks if rank not in one.killed)
    waits = who(alive) if alive else ""
    if one.killed:
        waits += f"{'; ' if waits else ''}{who(one.killed)} (killed)"
    kind = told.kind.title
    return (
        age(one.age_ns) if one.age_ns is not None else NONE,
        told.name if told.name.startswith(kind) else f"{kind} {told.name}",
        str(told.sequence or NONE),
        told.group or NONE,
        str(told.step),
        size(told.bytes) if told.bytes is not None else NONE,
        waits,
        _missing(one),
    )


def _missing(one: Unfinished) -> str:
    words = [_behind(at) for at in one.behind]
    if one.not_seen:
        words.append(f"{who(one.not_seen)} not seen")
    return "; ".join(words) or (NONE if one.not_seen is None else "nobody")


def _behind(at: Position) -> str:
    return f"{who(at.ranks)} (last: {at.sequence or 'none'})"


def who(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 0–6, 9`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(sorted(ranks))}"


def age(ns: int) -> str:
    """Write how long ago, so that it is seen to grow: `14.9 s`, `7 min 05 s`, `2 h 05 min`."""
    seconds = ns // 1_000_000_000
    if seconds < 60 or seconds >= 7200:
        return duration(ns)
    return f"{seconds // 60} min {seconds % 60:02d} s"

"""The live view of a running job, as a screen or as plain text.

In: a `RunView`. Out: Rich renderables: what does not finish comes first, then a line a rank, then the latest steps of
one rank, who is late, and what is not known. It does not compute: each number is one that the accounting gives.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.text import Text

from overlapwatch.accounting.running import RankView, RunView
from overlapwatch.reports.drawing import ASCII, UNICODE, Glyphs, cut, to_ascii
from overlapwatch.reports.format import counted, ms
from overlapwatch.reports.layout import (
    DEFAULT_WIDTH,
    MINIMUM_WIDTH,
    clean,
    gap,
    note,
    sentence,
    to_text,
)
from overlapwatch.reports.rank_lines import rank_lines, state_in_short, steps_of_first
from overlapwatch.reports.unfinished import unfinished, who
from overlapwatch.reports.words import lateness_words

USUAL_ROWS = 16
MOST_UNFINISHED, FEW_UNFINISHED = 8, (3, 1)
FEWEST_ROWS = 3
MOST_NOTES = 6
_SHORTEST_PATH = 12
KEYS = "q quit   t trouble first   r by rank   s by step time   e by exposed share"
_ORDER_WORDS = {
    "trouble": "trouble first",
    "rank": "by rank",
    "step": "longest step first",
    "exposed": "largest exposed share first",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How to show it.

    Args:
        width: characters a line.
        rows: at most so many ranks; None: as many as suit.
        order: in which they come, a key of `look`.
        keys: whether somebody can press some.
        collectives: at most so many that do not finish.
        steps: whether to draw the latest steps of the first rank.

    """

    width: int = DEFAULT_WIDTH
    rows: int | None = None
    order: str = "trouble"
    keys: bool = False
    collectives: int = MOST_UNFINISHED
    steps: bool = True


def plain(view: RunView, how: Look, *, unicode: bool = True) -> str:
    """Return the view as plain text; without `unicode` in 7-bit characters."""
    rows = USUAL_ROWS if how.rows is None else how.rows
    text = to_text(_parts(view, how, rows, UNICODE if unicode else ASCII), how.width)
    return text if unicode else to_ascii(text)


def screen(view: RunView, how: Look, console: Console) -> RenderableType:
    """Return the view for a terminal of this size; where it is small, less is shown."""
    unicode = console.encoding.startswith("utf")
    glyphs = UNICODE if unicode else ASCII
    enough = min(len(view.ranks), FEWEST_ROWS if how.rows is None else how.rows)
    less = replace(how, steps=False)
    for one in (how, less, *(replace(less, collectives=few) for few in FEW_UNFINISHED)):
        room = _room_for_ranks(view, one, console, glyphs)
        if room >= enough:
            break
    rows = max(room, 1) if how.rows is None else how.rows
    if unicode:
        return Group(*_parts(view, one, rows, glyphs))
    return Text(to_ascii(to_text(_parts(view, one, rows, glyphs), how.width)))


def _parts(view: RunView, how: Look, rows: int, glyphs: Glyphs) -> Iterator[RenderableType]:
    yield from _above(view, how)
    yield from _ranks(view, how, rows, glyphs)
    yield from _below(view, how, glyphs)


def _room_for_ranks(view: RunView, how: Look, console: Console, glyphs: Glyphs) -> int:
    """Return how many ranks fit beside everything else."""
    options = console.options.update(width=how.width)
    lines = len(console.render_lines(Group(*_parts(view, how, 0, glyphs)), options))
    room = console.height - lines
    return room + 1 if room + 1 >= len(view.ranks) else room  # no line for the rest, then


# -- above the ranks ---------------------------------------------------------------------------


def _above(view: RunView, how: Look) -> Iterator[RenderableType]:
    yield _title(view, how.width)
    if not view.ranks:
        yield gap()
        yield sentence(f"no log in {view.path} yet; it is looked for again and again")
        return
    yield _states(view)
    yield from unfinished(view, how.width, how.collectives)
    for one in view.differing:
        number = one.mismatch.sequence if one.mismatch else 0
        yield sentence(
            f"{one.group.name}: collective {number} is not the same on all ranks: overlapwatch order {view.path} "
            "tells which differ",
            "bold red",
        )


def _title(view: RunView, width: int) -> RenderableType:
    """Return whose run it is and the time; of a long path the end is shown."""
    clock = time.strftime("%H:%M:%S", time.localtime(view.wall_ns / 1e9))
    modes = sorted({one.mode for one in view.ranks if one.mode})
    words = [f"run {clean(view.run_id)}"] if view.run_id else []
    words += [counted(view.world, "rank")] if view.world else []
    words += map(clean, modes)
    path = clean(view.path)
    room = max(width, MINIMUM_WIDTH) - len(clock) - 2
    shortest = min(cell_len(path), _SHORTEST_PATH)
    while words and cell_len("  ".join(["overlapwatch top", *words])) + 2 + shortest > room:
        words.pop()  # what is said last matters least
    for_path = room - cell_len("  ".join(["overlapwatch top", *words])) - 2
    end = max(for_path - 2, _SHORTEST_PATH - 2)
    if cell_len(path) > for_path and len(path) > end + 2:
        path = ".." + path[-end:]
    left = set_cell_size("  ".join(["overlapwatch top", path, *words]), room)
    return Text(f"{left}  {clock}", style="bold", no_wrap=True)


def _states(view: RunView) -> RenderableType:
    """Return how many ranks are in which state: `3 running, 1 killed; no log here of rank 7`."""
    words = _counted_states(view.ranks)
    if view.absent:
        words += f"; no log here of {who(view.absent)}"
    bad = any(one.trouble for one in view.ranks)
    return sentence(words, "yellow" if bad or view.absent else "")


def _ranks(view: RunView, how: Look, rows: int, glyphs: Glyphs) -> Iterator[RenderableType]:
    if not view.ranks:
        return
    yield gap()
    yield from rank_lines(view, how.width, rows, glyphs)
    rest = view.ranks[rows:]
    if rest:
        more = counted(len(rest), "more rank")
        yield note(f"{_ORDER_WORDS[how.order]}; {more}: {_counted_states(rest)}")


def _counted_states(ranks: Sequence[RankView]) -> str:
    counts = Counter(state_in_short(one) for one in ranks)
    return ", ".join(f"{count:,} {state}" for state, count in counts.most_common())


# -- below the ranks ---------------------------------------------------------------------------


def _below(view: RunView, how: Look, glyphs: Glyphs) -> Iterator[RenderableType]:
    if how.steps:
        yield from steps_of_first(view, how.width, glyphs)
    told = [*_late(view)]
    if told:
        yield gap()
        yield from told
    remarks = [*_remarks(view)]
    if remarks:
        yield gap()
        yield from (note(text) for text in remarks[:MOST_NOTES])
        if len(remarks) > MOST_NOTES:
            yield note(f"and {len(remarks) - MOST_NOTES} more remarks: --json tells all")
    if how.keys:
        yield gap()
        yield Text(cut(KEYS, how.width, glyphs), style="dim")


def _late(view: RunView) -> Iterator[RenderableType]:
    slowest = view.slowest
    if slowest is not None:
        yield sentence(
            f"slowest: rank {slowest.rank}, {ms(slowest.usual_ns)} ms a step; median of {slowest.ranks:,} ranks: "
            f"{ms(slowest.median_ns)} ms"
        )
    if view.lateness.step is not None:
        yield sentence("late: " + lateness_words(view.lateness).strip().replace("  ", "; "))


def _remarks(view: RunView) -> Iterator[str]:
    """Yield what else must be known: what is not, what is damaged, what the writers say."""
    for check in view.checks():
        if not check.ok:
            yield f"does not add up: {check.name}: {check.left:,} and {check.right:,} {check.unit}"
    for one in view.ranks:
        if one.only_begun and one.trouble in {"no step", "waiting", "stopped"}:
            yield (
                f"rank {one.rank}: of step {one.step_now} nothing but its beginning is recorded: nothing has run yet, "
                "or it is a shadow step, in which collectives are not recorded"
            )
    yield from (f"{unknown.what}: not known, {unknown.because}" for unknown in view.unknown)
    for one in view.ranks:
        if one.damaged:
            yield (
                f"rank {one.rank}: {counted(one.damaged, 'place')} of its log damaged, "
                f"{counted(one.damaged_bytes, 'byte')} left out"
            )
        if one.full:
            yield f"rank {one.rank}: its log has reached max_log_mb, and may grow no more"
        if one.notes and not (one.process == "running" and one.trouble == "waiting"):
            yield f"rank {one.rank} wrote: {one.notes[-1]}"
    yield from view.notes

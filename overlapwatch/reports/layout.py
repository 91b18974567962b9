"""Headings, tables, facts and sentences: the few shapes that a report is made of.

In: plain strings, of which some are user data (names of parameters, groups, hosts). Out: Rich
renderables that print the same without a terminal, and say what they hold (`reports.html` shows the
same shapes on a page). Nothing in a string is taken for markup, and
what cannot be printed (escape sequences, line breaks in a name) is shown as its code.

A table keeps its numbers whole. When the width is short it first folds its columns of words, then
gives up its bars, and at last tells each row on lines of its own:

    group     ranks  count    bytes         default
    ─────────────────────────────             ranks  0, 1
    default   0, 1      24  89.6 MB           count  24
                                              bytes  89.6 MB
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TypedDict

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

DEFAULT_WIDTH = 100
MINIMUM_WIDTH = 60
INDENT = 2
GAP = 2
"""Spaces between columns."""
FOLD_AT = 14
"""A column of words is not made narrower than this: "ReduceScatter" stays whole."""


class _Literal(TypedDict):
    markup: bool
    emoji: bool
    highlight: bool


_LITERAL: _Literal = {"markup": False, "emoji": False, "highlight": False}
"""Names are printed as they are."""


def clean(text: str) -> str:
    """Return user data as one printable line: control characters become their codes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


@dataclass(frozen=True, slots=True)
class Heading:
    """The line that opens a section; made by `heading`."""

    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print as a rule with its title, after an empty line."""
        yield Text("")
        yield Rule(Text(self.title, style="bold"), align="left", style="dim", characters="─")


@dataclass(frozen=True, slots=True)
class Gap:
    """An empty line; made by `gap`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print nothing but the end of a line."""
        yield Text("")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or with the style `dim` a remark; made by `sentence` and `note`."""

    text: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print wrapped, with a hanging indent of two."""
        table = Table.grid(padding=0)
        table.add_column(width=2)
        table.add_column(overflow="fold")
        table.add_row("", Text(self.text, style=self.style))
        yield table


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, one a line; made by `facts`."""

    pairs: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print with the values under one another."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self.pairs:
            table.add_row(Text("  " + name, style="dim"), Text(value))
        yield table


def heading(title: str) -> RenderableType:
    """Return the line that opens a section."""
    return Heading(clean(title))


def gap() -> RenderableType:
    """Return an empty line."""
    return Gap()


def sentence(text: str, style: str = "") -> RenderableType:
    """Return a sentence, wrapped with a hanging indent of two."""
    return Sentence(clean(text), style)


def note(text: str) -> RenderableType:
    """Return a remark that explains what stands beside it."""
    return sentence(text, "dim")


def facts(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> RenderableType:
    """Return names with their values, one a line, values under one another."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return Facts(tuple((clean(name), clean(value)) for name, value in items))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table that suits the width it is printed in; made by `table`."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[int]
    bars: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print as a table where it fits, else row by row."""
        available = options.max_width - INDENT
        count = len(self.columns)
        for shown in (count, count - 1) if self.bars else (count,):
            widths = self._widths(shown, available)
            if widths is not None:
                yield Padding(self._table(widths), (0, 0, 0, INDENT))
                return
        yield from self._row_by_row()

    def _widths(self, shown: int, available: int) -> list[int] | None:
        """Return the width of each of the first `shown` columns, None when they do not fit."""
        natural = [
            max(cell_len(row[place]) for row in (self.columns, *self.rows))
            for place in range(shown)
        ]
        # The bars are in a last column of their own, and are not folded.
        folded = [place for place in range(shown) if place in self.words]
        if self.bars and shown == len(self.columns):
            folded = [place for place in folded if place != shown - 1]
        widths = [
            min(width, FOLD_AT) if place in folded else width for place, width in enumerate(natural)
        ]
        left = available - sum(widths) - GAP * (shown - 1)
        if left < 0:
            return None
        while left and (short := [place for place in folded if widths[place] < natural[place]]):
            for place in short[:left]:
                widths[place] += 1
                left -= 1
        return widths

    def _table(self, widths: list[int]) -> Table:
        result = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, GAP - 1, 0, 0),
            header_style="bold",
        )
        for place, width in enumerate(widths):
            result.add_column(
                Text(self.columns[place]),
                justify="left" if place in self.words else "right",
                width=width,
                overflow="fold",
            )
        for row in self.rows:
            result.add_row(*(Text(value) for value in row[: len(widths)]))
        return result

    def _row_by_row(self) -> Iterator[RenderableType]:
        last = len(self.columns) - 1 if self.bars else len(self.columns)
        for row in self.rows:
            yield sentence(row[0])
            pairs = zip(self.columns[1:last], row[1:last], strict=True)
            yield Padding(facts((name, value) for name, value in pairs if value), (0, 0, 0, INDENT))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Iterable[int] = (0,),
    bars: bool = False,
) -> RenderableType:
    """Return a table.

    Args:
        columns: headers, with the unit where there is one.
        rows: one string a column.
        words: positions of the columns that hold words: left-aligned, folded when the width is
            short. All others hold numbers: right-aligned and never broken.
        bars: the last column holds bars, which can be done without.

    """
    left = {*words, *((len(columns) - 1,) if bars else ())}
    cleaned = tuple(tuple(map(clean, row)) for row in rows)
    return Fitted(tuple(columns), cleaned, frozenset(left), bars)


def to_text(parts: Iterable[RenderableType], width: int = DEFAULT_WIDTH) -> str:
    """Return the parts as plain text, without trailing spaces."""
    out = StringIO()
    plain = plain_console(out, width)
    for part in parts:
        plain.print(part)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def plain_console(file: StringIO, width: int) -> Console:
    """Return a console that writes plain text of a fixed width."""
    return Console(
        file=file,
        width=max(width, MINIMUM_WIDTH),
        force_terminal=False,
        color_system=None,
        legacy_windows=False,
        **_LITERAL,
    )


def terminal(width: int | None = None) -> Console:
    """Return a console on stdout as it is; `width` None is the terminal's own."""
    console = Console(**_LITERAL)
    console.width = max(width or console.width, MINIMUM_WIDTH)
    return console

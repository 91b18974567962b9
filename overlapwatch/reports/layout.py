"""Headings, tables, facts and sentences: the few shapes that a text report is made of.

In: plain strings, of which some are user data (names of parameters, groups, hosts). Out: Rich
renderables that print the same without a terminal. Nothing in a string is taken for markup, and
what cannot be printed (escape sequences, line breaks in a name) is shown as its code.

A table keeps its numbers whole: when the width is short, the columns of words are folded.
"""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TypedDict

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

DEFAULT_WIDTH = 100
MINIMUM_WIDTH = 60


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


def heading(title: str) -> RenderableType:
    """Return the line that opens a section."""
    return Group(
        Text(""), Rule(Text(clean(title), style="bold"), align="left", style="dim", characters="─")
    )


def gap() -> RenderableType:
    """Return an empty line."""
    return Text("")


def sentence(text: str, style: str = "") -> RenderableType:
    """Return a sentence, wrapped with a hanging indent of two."""
    table = Table.grid(padding=0)
    table.add_column(width=2)
    table.add_column(overflow="fold")
    table.add_row("", Text(clean(text), style=style))
    return table


def note(text: str) -> RenderableType:
    """Return a remark that explains what stands beside it."""
    return sentence(text, "dim")


def facts(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> RenderableType:
    """Return names with their values, one a line, values under one another."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in items:
        table.add_row(Text("  " + clean(name), style="dim"), Text(clean(value)))
    return table


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,)
) -> RenderableType:
    """Return a table.

    Args:
        columns: headers, with the unit where there is one.
        rows: one string a column.
        words: positions of the columns that hold words: left-aligned, folded when the width is
            short. All others hold numbers: right-aligned and never broken.

    """
    result = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for position, title in enumerate(columns):
        if position in words:
            result.add_column(Text(title), overflow="fold", min_width=6, vertical="top")
        else:
            result.add_column(Text(title), justify="right", no_wrap=True, vertical="top")
    for row in rows:
        result.add_row(*(Text(clean(value)) for value in row))
    return Padding(result, (0, 0, 0, 2))


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

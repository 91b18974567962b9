"""The sections of the text report as plain values, so that the page shows the same sentences and tables.

In: what the sections yield (`reports.layout`). Out: JSON-ready sections of parts:

| part                                  | of                                              |
|---------------------------------------|-------------------------------------------------|
| {"text", "style"}                     | a sentence; `dim` is a remark, `bold` matters   |
| {"columns", "rows", "words", "bars"}  | a table; `bars`: its last column is a length    |
| {"facts"}                             | names with their values                         |

A bar is given as its share of the longest that a text report draws, so it is as long on the page.
It does not compute.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.reports import opening, rank_tails, ranks, text
from overlapwatch.reports.format import EIGHTHS
from overlapwatch.reports.layout import Facts, Fitted, Gap, Heading, Sentence

_ACROSS: tuple[Callable[[AcrossRanks], Iterator[RenderableType]], ...] = (
    ranks.late,
    ranks.waits,
    ranks.overlap,
    ranks.owners,
    rank_tails.tails,
    rank_tails.rates,
)
BAR = 20
"""Cells of the longest bar in a text report."""


def of_analysis(analysis: Analysis) -> list[dict[str, Any]]:
    """Return what is told of one rank, in reading order, each with the name of its section."""
    found = [_section("origin", "Where it comes from", opening.origin_facts(analysis))]
    found += [_section(one.__name__, "", one(analysis)) for one in text.SECTIONS]
    return [one for one in found if one["parts"]]


def of_ranks(across: AcrossRanks) -> list[dict[str, Any]]:
    """Return what is told of several ranks together in time."""
    found = [_section("compared", "What was compared", ranks.compared(across))]
    found += [_section(one.__name__, "", one(across)) for one in _ACROSS]
    return [one for one in found if one["parts"]]


def side_by_side(parts: Iterable[RenderableType]) -> dict[str, Any]:
    """Return the table of several ranks or devices."""
    return _section("beside", "", parts)


def sentences(parts: Iterable[RenderableType]) -> list[dict[str, Any]]:
    """Return the parts alone, for what has no heading."""
    return [part for one in parts for part in _part(one)]


def _section(name: str, title: str, parts: Iterable[RenderableType]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for one in parts:
        if isinstance(one, Heading):
            title = one.title
        else:
            found += _part(one)
    return {"name": name, "title": title, "parts": found}


def _part(one: RenderableType) -> Iterator[dict[str, Any]]:
    if isinstance(one, Sentence):
        yield {"text": one.text, "style": one.style}
    elif isinstance(one, Facts):
        yield {"facts": [list(pair) for pair in one.pairs]}
    elif isinstance(one, Fitted):
        rows: list[list[Any]] = [list(row) for row in one.rows]
        if one.bars:
            rows = [[*row[:-1], bar_share(row[-1])] for row in rows]
        yield {
            "columns": list(one.columns),
            "rows": rows,
            "words": sorted(one.words),
            "bars": one.bars,
        }
    elif not isinstance(one, Gap):
        raise TypeError(f"a section holds {type(one).__name__}, which the page does not know")


def bar_share(drawn: str) -> float:
    """Return how long a bar is, as a share of `BAR` cells: `██▌` is 0.125.

    Raises:
        ValueError: it is no bar.

    """
    full = drawn.count("█")
    rest = drawn.strip("█")
    return (full + (EIGHTHS.index(rest) / 8 if rest else 0)) / BAR

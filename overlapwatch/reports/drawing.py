"""Bars of parts and lines of many steps, in characters, where a terminal may show only some.

In: integers, None where not known. Out: Rich texts and strings of an exact width. With `ASCII` nothing but 7-bit
characters is drawn; the parts of a bar differ by character, not only by colour.

    parts 50, 25, 20, 5 of 100 in 20 cells    ██████████▓▓▓▓▓▒▒▒▒░
                                              ##########=====!!!!.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What to draw with.

    Args:
        parts: one character a part of a bar.
        levels: of a line, from nothing to the largest value.
        unknown: in a line, a value that is not known.
        ellipsis: stands for what was cut off.

    """

    parts: str
    levels: str
    unknown: str
    ellipsis: str


UNICODE = Glyphs("█▓▒░", "▁▂▃▄▅▆▇█", "·", "…")
ASCII = Glyphs("#=!.", "_.:-=+*#", "?", "~")
_TO_ASCII = str.maketrans({"─": "-", "–": "-", "…": "~", "×": "x", "·": "?", "≥": ">", "µ": "u"})


def to_ascii(text: str) -> str:
    """Return the text in 7-bit characters: what has no likeness becomes a question mark."""
    return text.translate(_TO_ASCII).encode("ascii", "replace").decode()


def parts_bar(parts: Sequence[int], width: int, glyphs: Glyphs, styles: Sequence[str] = ()) -> Text:
    """Return a bar of exactly `width` cells, shared among the parts.

    What is not zero has at least one cell, where there are enough; rounding goes to the largest remainders.
    """
    bar = Text()
    for place, cells in enumerate(_cells(parts, width)):
        bar.append(glyphs.parts[place] * cells, styles[place] if styles else "")
    return bar


def _cells(parts: Sequence[int], width: int) -> list[int]:
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    cells = [part * width // whole for part in parts]
    rest = [part * width % whole for part in parts]
    for place in sorted(range(len(parts)), key=lambda one: -rest[one])[: width - sum(cells)]:
        cells[place] += 1
    for place, part in enumerate(parts):
        largest = max(range(len(parts)), key=cells.__getitem__)
        if part > 0 and not cells[place] and cells[largest] > 1:
            cells[place], cells[largest] = 1, cells[largest] - 1
    return cells


def line(values: Sequence[int | None], width: int, glyphs: Glyphs) -> str:
    """Return the last `width` values as one character each, from 0 to the largest of them.

    0 has a character of its own: what is not zero is never drawn as zero.
    """
    shown = values[-width:] if width > 0 else []
    largest = max((value for value in shown if value), default=0)
    above = len(glyphs.levels) - 2
    return "".join(
        glyphs.unknown
        if value is None
        else glyphs.levels[1 + round(above * value / largest)]
        if value > 0
        else glyphs.levels[0]
        for value in shown
    )


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Return the text in at most `width` cells."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)) + glyphs.ellipsis[:width]

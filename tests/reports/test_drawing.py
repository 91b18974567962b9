import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.reports.drawing import ASCII, UNICODE, cut, line, parts_bar, to_ascii

PARTS = st.lists(st.integers(0, 10**12), min_size=4, max_size=4)


def test_the_example():
    assert parts_bar((50, 25, 20, 5), 20, UNICODE).plain == "█" * 10 + "▓" * 5 + "▒" * 4 + "░"
    assert parts_bar((50, 25, 20, 5), 20, ASCII).plain == "##########=====!!!!."


@given(PARTS, st.integers(4, 80))
def test_a_bar_has_its_width_and_shows_all_that_is_not_zero(parts, width):
    bar = parts_bar(parts, width, ASCII).plain
    assert len(bar) == (width if sum(parts) else 0)
    for part, glyph in zip(parts, ASCII.parts, strict=True):
        cells = bar.count(glyph)
        assert (cells > 0) == (part > 0)
        if sum(parts):
            assert (
                abs(cells - part * width / sum(parts)) <= 4
            )  # a cell of its own for each other part


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([0, 1, 50, 100], 10, "_.=#"),
        ([0, None, 7], 10, "_?#"),
        ([0, 0], 10, "__"),
        ([None], 10, "?"),
        ([], 10, ""),
        ([100, 1, 1], 2, "##"),  # scaled to what is shown
        ([1, 2, 3], 0, ""),
    ],
)
def test_a_line(values, width, drawn):
    assert line(values, width, ASCII) == drawn


@given(st.lists(st.none() | st.integers(0, 10**12), max_size=50), st.integers(0, 60))
def test_what_is_not_zero_is_never_drawn_as_zero(values, width):
    drawn = line(values, width, UNICODE)
    shown = values[-width:] if width else []
    assert len(drawn) == len(shown)
    for value, glyph in zip(shown, drawn, strict=True):
        assert (glyph == UNICODE.unknown) == (value is None)
        assert (glyph == UNICODE.levels[0]) == (value == 0)


def test_ascii_is_ascii():
    text = "0–6, 9 ─ 12.3 µs … × Ω é"
    assert to_ascii(text) == "0-6, 9 - 12.3 us ~ x ? ?"
    assert all(len(glyphs) == 1 or glyphs.isascii() for glyphs in (ASCII.parts, ASCII.levels))


def test_cut():
    assert cut("日本語", 4, UNICODE) == "日 …"  # a wide character has two cells
    assert [cut("abcdef", width, UNICODE) for width in (6, 3, 1, 0)] == ["abcdef", "ab…", "…", ""]

"""docs/exports.md describes the tables that the code writes. `UPDATE_DOCS=1` writes that part anew."""

import os
from pathlib import Path

from overlapwatch.commands.export import FORMATS
from overlapwatch.exports.rows import Row, title_of
from overlapwatch.exports.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"
MARK = "<!-- tables: made by UPDATE_DOCS=1 pytest tests/exports/test_page.py -->\n"


def described() -> str:
    lines = []
    for table in TABLES.values():
        lines += [f"\n### {table.name}\n", f"{table.about[0].upper()}{table.about[1:]}.\n",
                  "| column | type | what it holds |", "|---|---|---|"]  # fmt: skip
        lines += [f"| `{one.name}` | {one.type.value} | {one.about} |" for one in table.columns]
    return "\n".join(lines) + "\n"


def test_the_page_lists_every_column_of_every_table():
    head, mark, rest = PAGE.read_text().partition(MARK)
    assert mark
    if os.environ.get("UPDATE_DOCS"):
        rest = described()
        PAGE.write_text(head + mark + rest)
    assert rest == described()


def test_the_page_names_every_format_and_every_row_of_a_trace():
    page = PAGE.read_text()
    assert all(f"--to {one}" in page for one in FORMATS)
    assert all(title_of(row) in page for row in Row)

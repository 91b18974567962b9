"""docs/settings.md says what the code does. `UPDATE_DOCS=1` writes it anew."""

import os
from pathlib import Path

from overlapwatch.settings import PREFIX, describe

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

HEAD = """# Settings

Each is an argument of `overlapwatch.watch()` and an environment variable; an argument wins over a variable, a variable
over the default. A value that makes no sense is refused in one sentence before anything is touched. This table is made
from `overlapwatch/settings.py` (`UPDATE_DOCS=1 pytest tests/test_settings_doc.py`).

| argument | variable | default | meaning |
|---|---|---|---|
"""


def shown(default):
    if default is None:
        return "–"
    if isinstance(default, tuple):
        return ", ".join(str(part) for part in default)
    return str(int(default)) if isinstance(default, bool) else str(default)


def test_the_page_lists_every_setting():
    rows = [
        f"| `{variable.removeprefix(PREFIX).lower()}` | `{variable}` | {shown(default)} | {meaning} |"
        for variable, default, meaning in describe()
    ]
    page = HEAD + "\n".join(rows) + "\n"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page

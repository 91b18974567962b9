"""Compare printed output with what was printed before, kept in `tests/golden`.

After a change that is meant: `UPDATE_GOLDEN=1 python -m pytest tests/reports`, then read the difference.
"""

import os
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "golden"


def check(name: str, text: str) -> None:
    """Fail unless the golden file `name` holds `text`; with UPDATE_GOLDEN=1, write it instead."""
    path = DIRECTORY / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{name}: no golden file; UPDATE_GOLDEN=1 makes it"
    assert text == path.read_text(encoding="utf-8"), f"{name}: see this module's docstring"

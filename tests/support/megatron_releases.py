"""Where other releases of megatron-core lie, once scripts/fetch_megatron has fetched them.

In: a version. Out: a directory to put on PYTHONPATH, or None.
"""

import sys
from pathlib import Path

RELEASES = ("0.10.0", "0.13.1", "0.17.1")
"""The oldest that is supported, one in between, and one newer than what this Python can install."""


def where(release: str) -> Path | None:
    """Return the directory that holds `megatron/core` of this release."""
    place = Path(sys.prefix) / "megatron-core" / release
    return place if (place / "megatron" / "core").is_dir() else None

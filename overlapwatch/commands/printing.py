"""Where the answer of a verb goes: a file, a pipe, or a terminal with its width and colours.

In: text, values for JSON, or what a report yields. Out: nothing but what is written. A terminal gets
colours (Rich honours NO_COLOR); anything else gets plain text of a fixed width.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType


def write(text: str, output: str | None = None, flag: str = "--output") -> None:
    """Write to a file, or to stdout.

    Args:
        text: what is written.
        output: the file; None: stdout.
        flag: what named the file.

    Raises:
        ConfigurationError: the file cannot be written.

    """
    if output is None:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{flag} {output}: {error.strerror or error}") from None
    sys.stderr.write(f"written to {output}\n")


def write_json(fields: Mapping[str, Any], output: str | None = None) -> None:
    """Write one JSON object, indented.

    Raises:
        ConfigurationError: the file cannot be written.
        ValueError: a value is not a number that JSON has (a fault of ours, never written out).

    """
    write(json.dumps(fields, indent=1, allow_nan=False) + "\n", output)


def show(
    parts: "Iterable[RenderableType]", width: int | None = None, output: str | None = None
) -> None:
    """Write what a report yields.

    Args:
        parts: of the report.
        width: characters a line; None: the terminal's, else the usual one.
        output: a file; None: stdout.

    Raises:
        ConfigurationError: the file cannot be written.

    """
    from overlapwatch.reports.layout import DEFAULT_WIDTH, terminal, to_text  # noqa: PLC0415 - Rich

    if output or not sys.stdout.isatty():
        write(to_text(parts, width or DEFAULT_WIDTH), output)
        return
    console = terminal(width)
    for part in parts:
        console.print(part)

"""`overlapwatch report INPUT ...`: read, account, print.

In: run directories, logs, profiles, or whatever else `sources.open_trace` reads. Out: the report on
stdout or in a file, as text, JSON or a page; exit code 1 when the numbers do not add up. It
computes nothing.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlapwatch.commands import exit_codes
from overlapwatch.commands.options import (
    add_json,
    add_output,
    add_selection,
    add_width,
    make_request,
    parse_width,
)
from overlapwatch.commands.printing import show, write
from overlapwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from overlapwatch.accounting.analyse import Analysis
    from overlapwatch.accounting.ranks.across import AcrossRanks
    from overlapwatch.commands.inputs import Request
    from overlapwatch.reports.json import InputFile

HEAD_BYTES = 1 << 20


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "report",
        help="what a run's log or a profile says: hidden, exposed, buckets, tail, call sites",
        description="Print what a recorded run or a profile says about hidden and exposed "
        "communication. A job that is still running, hangs or was killed can be read as well. "
        "Several inputs, such as one profile a rank, are told side by side.",
    )
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="+",
        help="a run directory, a log, an Nsight Systems export or a PyTorch (Kineto) trace",
    )
    add_json(parser)
    add_selection(parser)
    add_width(parser)
    add_output(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write one page with the lanes of the steps there, for a browser, instead of printing",
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 0, or 1 when a closure check failed.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    width = parse_width(arguments.width)
    request = make_request(arguments)
    if arguments.html is not None:
        return _page(arguments, request)
    from overlapwatch.commands.inputs import read_all  # noqa: PLC0415 - slow to import

    analyses = read_all([Path(path) for path in arguments.input], request)
    across = compared(analyses)
    if arguments.json:
        write(to_json(analyses, across), arguments.output)
    else:
        from overlapwatch.reports.text import report  # noqa: PLC0415 - slow to import

        in_full = request.devices is not None
        parts = report(analyses, request.ranks, all_in_full=in_full, across=across)
        show(parts, width, arguments.output)
    return exit_code(analyses, across)


def _page(arguments: argparse.Namespace, request: "Request") -> int:
    """Write the page of a report; return 0, or 1 when a closure check failed.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    if arguments.json or arguments.output is not None:
        raise ConfigurationError(
            "choose one: --html FILE writes a page, --json and --output a report"
        )
    path = Path(arguments.html)
    _writable(path)
    from overlapwatch.commands.inputs import read_beside  # noqa: PLC0415 - slow to import
    from overlapwatch.reports.html.drawn import draw  # noqa: PLC0415
    from overlapwatch.reports.html.page import page  # noqa: PLC0415

    analyses, drawn = read_beside([Path(one) for one in arguments.input], request, draw)
    across = compared(analyses)
    write(page(analyses, drawn, across), arguments.html, "--html")
    return exit_code(analyses, across)


def _writable(path: Path) -> None:
    """Say early that a page cannot be written: reading may take minutes.

    Raises:
        ConfigurationError: one sentence.

    """
    directory = path.parent
    if path.is_dir():
        raise ConfigurationError(f"--html {path}: this is a directory; name a file in it")
    if not directory.is_dir():
        raise ConfigurationError(f"--html {path}: there is no directory {directory}")
    if not os.access(path if path.exists() else directory, os.W_OK):
        raise ConfigurationError(f"--html {path}: it cannot be written (permission denied)")


def exit_code(analyses: "Sequence[Analysis]", across: "AcrossRanks | None") -> int:
    """Return 0, or 1 when a closure check failed."""
    checks = [check for one in analyses for check in one.checks]
    checks += across.checks() if across else ()
    return exit_codes.of_checks(checks)


def compared(analyses: "Sequence[Analysis]") -> "AcrossRanks | None":
    """Return how the ranks compare in time; None of one alone."""
    if len(analyses) < 2:
        return None
    from overlapwatch.accounting.ranks.across import across_ranks  # noqa: PLC0415 - for several only

    return across_ranks([one.table for one in analyses if one.table is not None])


def to_json(analyses: "Sequence[Analysis]", across: "AcrossRanks | None") -> str:
    """Return the report that scripts read."""
    from overlapwatch.reports.json import to_text  # noqa: PLC0415 - slow to import

    return to_text(analyses, [_file(path) for path in _paths(analyses)], across)


def _paths(analyses: "Sequence[Analysis]") -> list[str]:
    return list(dict.fromkeys(one.origin.path for one in analyses))


def _file(path: str) -> "InputFile":
    """Return what is known of a file; it may be gone since it was read."""
    import hashlib  # noqa: PLC0415

    from overlapwatch.reports.json import InputFile  # noqa: PLC0415

    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
            return InputFile(path, hashlib.sha256(head).hexdigest(), Path(path).stat().st_size)
    except OSError:
        return InputFile(path, None, None)

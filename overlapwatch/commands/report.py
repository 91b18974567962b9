"""`overlapwatch report RUN`: read, account, print.

In: a run directory, a log, or whatever else `sources.open_trace` reads. Out: the report on stdout
or in a file, as text or JSON; exit code 1 when the numbers do not add up. It computes nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlapwatch.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from overlapwatch.accounting.analyse import Analysis
    from overlapwatch.reports.json import InputFile
    from overlapwatch.timeline.model import Recording

DOES_NOT_ADD_UP = 1
HEAD_BYTES = 1 << 20
MAX_STEP = (1 << 32) - 1
"""Steps are 32-bit numbers in every record."""

StepRange = tuple[int | None, int | None]
"""First and last step, inclusive; None is no limit."""


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "report",
        help="what a run's log (or a profile) says: hidden, exposed, buckets, tail",
        description="Print what a recorded run says about hidden and exposed communication. "
        "A job that is still running, hangs or was killed can be read as well.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory, or one log of it")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--step",
        metavar="A:B",
        help="only steps A to B, both included; also 120, :50, 50:",
    )
    parser.add_argument(
        "--rank", metavar="N[,M]", help="only these ranks, each in full (default: all, one in full)"
    )
    parser.add_argument(
        "--boundary",
        choices=("clip", "contained"),
        default="clip",
        help="spans across the window's edge: cut them (default), or leave them out",
    )
    parser.add_argument(
        "--width", metavar="N", help="characters a line (default: the terminal's, else 100)"
    )
    parser.add_argument("--output", metavar="FILE", help="write there instead of to stdout")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 0, or 1 when a closure check failed.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    steps, ranks = parse_steps(arguments.step), parse_ranks(arguments.rank)
    width = parse_width(arguments.width)
    # What is slow to import is imported once the arguments make sense.
    from overlapwatch.accounting.analyse import analyse  # noqa: PLC0415
    from overlapwatch.accounting.selection import Selection  # noqa: PLC0415

    selection = Selection(first_step=steps[0], last_step=steps[1], boundary=arguments.boundary)
    recordings = _read(Path(arguments.run), ranks, steps)
    analyses = [analyse(recording, selection) for recording in recordings]
    if arguments.json:
        from overlapwatch.reports.json import to_text  # noqa: PLC0415

        _write(to_text(analyses, [_file(path) for path in _paths(analyses)]), arguments.output)
    elif arguments.output or not sys.stdout.isatty():
        from overlapwatch.reports.layout import DEFAULT_WIDTH  # noqa: PLC0415
        from overlapwatch.reports.text import plain  # noqa: PLC0415

        _write(plain(analyses, width or DEFAULT_WIDTH, ranks), arguments.output)
    else:
        _show(analyses, width, ranks)
    return 0 if all(check.ok for one in analyses for check in one.checks) else DOES_NOT_ADD_UP


def parse_steps(text: str | None) -> StepRange:
    """Return the steps asked for: `120`, `100:200` (both included), `:50`, `50:`.

    Raises:
        ConfigurationError: the text is none of these.

    """
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    numbers = [_step(part, text) if part.strip() else None for part in (first, last)]
    if numbers == [None, None]:
        raise _bad_step(text)
    low, high = numbers if colon else (numbers[0], numbers[0])
    if low is not None and high is not None and high < low:
        raise ConfigurationError(f"--step {text}: the first step lies after the last")
    return low, high


def _step(part: str, text: str) -> int:
    if not (part.strip().isascii() and part.strip().isdigit()) or int(part) > MAX_STEP:
        raise _bad_step(text)
    return int(part)


def _bad_step(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"--step takes step numbers such as 120, 100:200, :50 or 50:, not {text!r}"
    )


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """Return the ranks asked for: `3`, `0,3`; None without any.

    Raises:
        ConfigurationError: the text is neither.

    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(f"--rank takes ranks such as 3 or 0,3, not {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_width(text: str | None) -> int | None:
    """Return the width asked for; None without any.

    Raises:
        ConfigurationError: it is no number of characters.

    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 1000:
        raise ConfigurationError(f"--width takes a number of characters up to 1000, not {text!r}")
    return int(text)


def _read(path: Path, ranks: tuple[int, ...] | None, steps: StepRange) -> "list[Recording]":
    from overlapwatch.commands.progress import LateProgress  # noqa: PLC0415
    from overlapwatch.sources import open_trace  # noqa: PLC0415

    first, last = steps
    wanted = None
    if steps != (None, None):
        wanted = range(first or 0, (MAX_STEP if last is None else last) + 1)
    with LateProgress(f"reading {path}", sys.stderr) as progress:
        recordings = open_trace(path, ranks=ranks, steps=wanted, progress=progress)
    return recordings if ranks is None else _of_ranks(recordings, ranks, path)


def _of_ranks(
    recordings: "list[Recording]", ranks: tuple[int, ...], path: Path
) -> "list[Recording]":
    """Return those of the ranks; when some are absent, with a note; when all are, raise."""
    there = {one.timeline.origin.rank: one for one in recordings}
    chosen = [there[rank] for rank in ranks if rank in there]
    absent = ", ".join(str(rank) for rank in ranks if rank not in there)
    if not chosen:
        known = ", ".join(str(rank) for rank in there if rank is not None)
        holds = f"it holds rank {known}" if known else "it does not say of which rank it is"
        raise InputError(f"{path}: no rank {absent} in it; {holds}")
    if absent:
        chosen[0] = replace(chosen[0], notes=(f"no rank {absent} in {path}", *chosen[0].notes))
    return chosen


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


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output {output}: {error.strerror or error}") from None
    sys.stderr.write(f"written to {output}\n")


def _show(analyses: "Sequence[Analysis]", width: int | None, ranks: tuple[int, ...] | None) -> None:
    """Print on a terminal, with its width and colours (Rich honours NO_COLOR)."""
    from overlapwatch.reports.layout import terminal  # noqa: PLC0415
    from overlapwatch.reports.text import report  # noqa: PLC0415

    console = terminal(width)
    for part in report(analyses, ranks):
        console.print(part)

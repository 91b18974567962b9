"""`overlapwatch order INPUT ...`: do all ranks issue the same collectives, and who is behind?

In: run directories, logs, profiles with sequence numbers, PyTorch Flight Recorder dumps. Out: text or
JSON; exit code 3 when ranks issue different collectives. Each rank is read on its own, on several
cores or a Dask cluster, and only what it issued is kept.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overlapwatch.errors import InputError, OverlapwatchError

if TYPE_CHECKING:
    from overlapwatch.accounting.ranks.order_result import OrderCheck
    from overlapwatch.timeline.issued import Issued

DIFFERS = 3
DOES_NOT_ADD_UP = 1
MANY_FAILURES = 5


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "order",
        help="whether all ranks issue the same collectives, and which ranks are behind",
        description="Compare what the ranks issued, group by group: kind, size and dtype of the "
        "collectives with the same number. Where they differ first, and which ranks are behind, is "
        "what one wants to know of a job that hangs. Exit code 3: they differ.",
    )
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="+",
        help="a run directory, logs, PyTorch (Kineto) traces, or PyTorch Flight Recorder dumps "
        "(pickle or JSON), one a rank, or a directory of them",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="read on the workers of this Dask scheduler, which must see the same paths",
    )
    parser.add_argument(
        "--width", metavar="N", help="characters a line (default: the terminal's, else 100)"
    )
    parser.add_argument("--output", metavar="FILE", help="write there instead of to stdout")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print how the ranks compare; return 0, 3 when they differ, 1 when the counts do not add up.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    from overlapwatch.commands.report import parse_width, write  # noqa: PLC0415

    width = parse_width(arguments.width)
    check = compare([Path(path) for path in arguments.input], arguments.scheduler)
    if arguments.json:
        import json  # noqa: PLC0415

        write(
            json.dumps({"schema": 1, "order": check.to_dict()}, indent=1) + "\n", arguments.output
        )
    elif arguments.output or not sys.stdout.isatty():
        from overlapwatch.reports.layout import DEFAULT_WIDTH  # noqa: PLC0415
        from overlapwatch.reports.order import plain  # noqa: PLC0415

        write(plain(check, width or DEFAULT_WIDTH), arguments.output)
    else:
        from overlapwatch.reports.layout import terminal  # noqa: PLC0415
        from overlapwatch.reports.order import order  # noqa: PLC0415

        console = terminal(width)
        for part in order(check):
            console.print(part)
    if not all(one.ok for one in check.checks()):
        return DOES_NOT_ADD_UP
    return 0 if check.agrees else DIFFERS


def compare(paths: list[Path], scheduler: str | None = None) -> "OrderCheck":
    """Return how the ranks in these inputs compare.

    Raises:
        ConfigurationError, InputError: nothing can be compared; one sentence.

    """
    from dataclasses import replace  # noqa: PLC0415 - what is slow to import waits for a call

    from overlapwatch.accounting.ranks.order import OrderReduce  # noqa: PLC0415
    from overlapwatch.commands.map_files import files_of, map_files  # noqa: PLC0415

    files, notes = files_of(paths)
    reduce = OrderReduce()
    failures: list[OverlapwatchError] = []
    read = 0
    for _, outcome in map_files(issued_in, files, scheduler=scheduler):
        if isinstance(outcome, OverlapwatchError):
            failures.append(outcome)
            continue
        for issued in outcome:
            reduce.add(issued)
            read += 1
    if not read:
        raise failures[0] if failures else InputError("there is nothing in these inputs")
    notes += [f"left out: {failure}" for failure in failures[:MANY_FAILURES]]
    if len(failures) > MANY_FAILURES:
        notes.append(f"left out: {len(failures) - MANY_FAILURES} more files that cannot be read")
    result = reduce.result()
    return replace(result, notes=(*notes, *result.notes))


def issued_in(path: Path) -> "list[Issued]":
    """Return what was issued by each rank in one file.

    Raises:
        InputError: it cannot be read.

    """
    from overlapwatch.sources import open_trace  # noqa: PLC0415
    from overlapwatch.sources.flight_recorder import (  # noqa: PLC0415
        is_flight_recorder,
        open_flight_recorder,
    )
    from overlapwatch.timeline.issued import issued_of  # noqa: PLC0415

    if is_flight_recorder(path):
        return [open_flight_recorder(path)]
    found = [issued_of(recording) for recording in open_trace(path)]
    # A rank of a profile may have several devices: those without collectives say nothing.
    return [one for one in found if one.groups] or found[:1]

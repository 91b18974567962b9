"""`overlapwatch order INPUT ...`: do all ranks issue the same collectives, and who is behind?

In: run directories, logs, profiles with sequence numbers, PyTorch Flight Recorder dumps. Out: text or
JSON; exit code 3 when ranks issue different collectives. Each rank is read on its own, on several
cores or a Dask cluster, and only what it issued is kept.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from overlapwatch.commands import exit_codes
from overlapwatch.commands.options import (
    add_json,
    add_output,
    add_scheduler,
    add_width,
    parse_width,
)
from overlapwatch.commands.printing import show, write_json
from overlapwatch.errors import InputError, OverlapwatchError

if TYPE_CHECKING:
    from overlapwatch.accounting.ranks.order_result import OrderCheck
    from overlapwatch.timeline.issued import Issued

SCHEMA = 1


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
    add_json(parser)
    add_scheduler(parser)
    add_width(parser)
    add_output(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print how the ranks compare; return 0, 3 when they differ, 1 when the counts do not add up.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    width = parse_width(arguments.width)
    check = compare([Path(path) for path in arguments.input], arguments.scheduler)
    if arguments.json:
        write_json({"schema": SCHEMA, "order": check.to_dict()}, arguments.output)
    else:
        from overlapwatch.reports.order import order  # noqa: PLC0415 - slow to import

        show(order(check), width, arguments.output)
    return exit_codes.of_checks(check.checks()) or (0 if check.agrees else exit_codes.DIFFERS)


def compare(paths: list[Path], scheduler: str | None = None) -> "OrderCheck":
    """Return how the ranks in these inputs compare.

    Raises:
        ConfigurationError, InputError: nothing can be compared; one sentence.

    """
    from dataclasses import replace  # noqa: PLC0415 - what is slow to import waits for a call

    from overlapwatch.accounting.ranks.order import OrderReduce  # noqa: PLC0415
    from overlapwatch.commands.map_files import files_of, left_out, map_files  # noqa: PLC0415

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
    result = reduce.result()
    return replace(result, notes=(*notes, *left_out(failures), *result.notes))


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

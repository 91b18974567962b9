"""`overlapwatch ranks INPUT ...`: who was late, what was waiting, where tails came from.

In: run directories, logs or profiles of several ranks. Out: text or JSON; exit code 1 when the numbers
do not add up. Each rank is read on its own, on several cores or a Dask cluster, and only a table of
its collectives is kept.
"""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError

if TYPE_CHECKING:
    from overlapwatch.accounting.ranks.across import AcrossRanks
    from overlapwatch.accounting.ranks.table import RankTable
    from overlapwatch.commands.inputs import Request

SCHEMA = 1
DOES_NOT_ADD_UP = 1
MANY_FAILURES = 5


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    from overlapwatch.commands.report import add_selection  # noqa: PLC0415 - siblings

    parser = subparsers.add_parser(
        "ranks",
        help="which rank is late, again and again; waiting and transfer; tails over all ranks",
        description="Match the collectives of several ranks and tell waiting from transfer: which "
        "rank comes last, how often, by how much and why; what of the overlap and of the tails is "
        "waiting for it; rates with the waiting taken out.",
    )
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="+",
        help="a run directory, logs, Nsight Systems exports or PyTorch (Kineto) traces of several "
        "ranks",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    add_selection(parser)
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
    """Print how the ranks compare; return 0, or 1 when a closure check failed.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    from overlapwatch.commands.report import make_request, parse_width, write  # noqa: PLC0415

    width = parse_width(arguments.width)
    request = make_request(arguments)
    told = compare([Path(path) for path in arguments.input], request, arguments.scheduler)
    if arguments.json:
        entry = {"schema": SCHEMA, "across_ranks": told.to_dict(), "not_known": _unknown(told)}
        write(json.dumps(entry, indent=1, allow_nan=False) + "\n", arguments.output)
    elif arguments.output or not sys.stdout.isatty():
        from overlapwatch.reports.layout import DEFAULT_WIDTH  # noqa: PLC0415
        from overlapwatch.reports.ranks import plain  # noqa: PLC0415

        write(plain(told, width or DEFAULT_WIDTH), arguments.output)
    else:
        from overlapwatch.reports.layout import terminal  # noqa: PLC0415
        from overlapwatch.reports.ranks import ranks  # noqa: PLC0415

        console = terminal(width)
        for part in ranks(told):
            console.print(part)
    return 0 if all(check.ok for check in told.checks()) else DOES_NOT_ADD_UP


def _unknown(told: "AcrossRanks") -> list[dict[str, str]]:
    return [{"what": one.what, "because": one.because} for one in told.unknown]


def compare(paths: list[Path], request: "Request", scheduler: str | None = None) -> "AcrossRanks":
    """Return how the ranks in these inputs compare.

    Raises:
        ConfigurationError, InputError: nothing can be compared; one sentence.

    """
    from overlapwatch.accounting.ranks.across import across_ranks  # noqa: PLC0415 - slow to import
    from overlapwatch.accounting.ranks.sharing import Shared  # noqa: PLC0415
    from overlapwatch.commands.map_files import files_of, map_files  # noqa: PLC0415

    files, notes = files_of(paths)
    shared = Shared()
    tables: list[RankTable] = []
    failures: list[OverlapwatchError] = []
    for _, outcome in map_files(partial(tables_in, request=request), files, scheduler=scheduler):
        if isinstance(outcome, OverlapwatchError):
            failures.append(outcome)
        else:
            tables += map(shared, outcome)
    if not tables:
        nothing = "there is nothing in these inputs"
        if request.ranks is not None:
            nothing = f"these inputs hold no rank {', '.join(map(str, request.ranks))}"
        raise failures[0] if failures else InputError(nothing)
    notes += [f"left out: {failure}" for failure in failures[:MANY_FAILURES]]
    if len(failures) > MANY_FAILURES:
        notes.append(f"left out: {len(failures) - MANY_FAILURES} more files that cannot be read")
    told = across_ranks(tables)
    return replace(told, notes=(*notes, *told.notes))


def tables_in(path: Path, request: "Request") -> "list[RankTable]":
    """Return the table of each rank and device in one file that has communication, or the first.

    Raises:
        ConfigurationError, InputError: it cannot be read, or does not hold what is selected.

    """
    from overlapwatch.accounting.analyse import ruled  # noqa: PLC0415 - slow to import
    from overlapwatch.accounting.ranks.table import rank_table  # noqa: PLC0415
    from overlapwatch.accounting.selection import choose, clock_zeros  # noqa: PLC0415
    from overlapwatch.sources import open_trace  # noqa: PLC0415

    recordings = open_trace(
        path,
        ranks=request.ranks,
        steps=request.steps,
        devices=request.devices,
        patterns=request.patterns,
    )
    found: list[RankTable] = []
    failures: list[ConfigurationError] = []
    for recording, zero in zip(recordings, clock_zeros(recordings), strict=True):
        told, _ = ruled(recording, request.rules)
        try:
            choice = choose(told, replace(request.selection, zero_ns=zero))
        except ConfigurationError as error:
            failures.append(error)
            continue
        found.append(rank_table(told, choice))
    if request.ranks is not None:
        found = [one for one in found if one.rank in request.ranks]
        if not found:
            return []
    if not found:
        raise failures[0] if failures else InputError(f"{path}: there is no work of a device in it")
    # A rank of a profile may have several devices: those without collectives say nothing.
    return [one for one in found if len(one.records)] or found[:1]

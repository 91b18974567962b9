"""`overlapwatch ranks INPUT ...`: who was late, what was waiting, where tails came from.

In: run directories, logs or profiles of several ranks. Out: text or JSON; exit code 1 when the numbers
do not add up. Each rank is read on its own, on several cores or a Dask cluster, and only a table of
its collectives is kept.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overlapwatch.commands import exit_codes
from overlapwatch.commands.options import (
    add_json,
    add_output,
    add_scheduler,
    add_selection,
    add_width,
    make_request,
    parse_width,
)
from overlapwatch.commands.printing import show, write_json
from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError

if TYPE_CHECKING:
    from overlapwatch.accounting.ranks.across import AcrossRanks
    from overlapwatch.accounting.ranks.table import RankTable
    from overlapwatch.commands.inputs import Request

SCHEMA = 1


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
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
    add_json(parser)
    add_selection(parser)
    add_scheduler(parser)
    add_width(parser)
    add_output(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print how the ranks compare; return 0, or 1 when a closure check failed.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    width = parse_width(arguments.width)
    request = make_request(arguments)
    told = compare([Path(path) for path in arguments.input], request, arguments.scheduler)
    if arguments.json:
        entry = {"schema": SCHEMA, "across_ranks": told.to_dict(), "not_known": _unknown(told)}
        write_json(entry, arguments.output)
    else:
        from overlapwatch.reports.ranks import ranks  # noqa: PLC0415 - slow to import

        show(ranks(told), width, arguments.output)
    return exit_codes.of_checks(told.checks())


def _unknown(told: "AcrossRanks") -> list[dict[str, str]]:
    return [{"what": one.what, "because": one.because} for one in told.unknown]


def compare(paths: list[Path], request: "Request", scheduler: str | None = None) -> "AcrossRanks":
    """Return how the ranks in these inputs compare.

    Raises:
        ConfigurationError, InputError: nothing can be compared; one sentence.

    """
    from overlapwatch.accounting.ranks.across import across_ranks  # noqa: PLC0415 - slow to import
    from overlapwatch.accounting.ranks.sharing import Shared  # noqa: PLC0415
    from overlapwatch.commands.map_files import files_of, left_out, map_files  # noqa: PLC0415

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
    told = across_ranks(tables)
    return replace(told, notes=(*notes, *left_out(failures), *told.notes))


def tables_in(path: Path, request: "Request") -> "list[RankTable]":
    """Return the table of each rank and device in one file that has communication, or the first.

    Raises:
        ConfigurationError, InputError: it cannot be read, or does not hold what is selected.

    """
    from overlapwatch.accounting.analyse import ruled  # noqa: PLC0415 - slow to import
    from overlapwatch.accounting.ranks.table import rank_table  # noqa: PLC0415
    from overlapwatch.accounting.selection import choose, clock_zeros  # noqa: PLC0415
    from overlapwatch.commands.inputs import recordings_in  # noqa: PLC0415

    recordings = recordings_in(path, request)
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

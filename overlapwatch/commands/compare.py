"""`overlapwatch compare RUN_A RUN_B [...]`: before and after, of the same job, whatever recorded it.

In: two or more inputs. Out: the comparison on stdout, as text or JSON. It computes nothing.
"""

import argparse
from pathlib import Path

from overlapwatch.commands.options import add_json, add_width, parse_steps, parse_width
from overlapwatch.commands.printing import show, write_json
from overlapwatch.errors import ConfigurationError

SCHEMA = 1


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "compare",
        help="two or more runs of one job: which is faster, how sure, and where the time went",
        description="Compare runs of one job under different settings by their step time, with an interval and a plain "
        "verdict; overlap, exposed time and tail stand beside it. Each further input is compared with the first. With "
        "--against, the inputs before it are repeats of one setting and those behind it of the other.",
    )
    parser.add_argument("input", metavar="RUN", nargs="+", help="a run directory, a log, a profile")
    parser.add_argument(
        "--against", metavar="RUN", nargs="+", default=[], help="the runs of the other setting"
    )
    parser.add_argument("--step", metavar="A:B", help="only steps A to B of each, both included")
    add_json(parser)
    add_width(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 0.

    Raises:
        ConfigurationError, InputError: one sentence for the user.
    """
    width = parse_width(arguments.width)
    steps = parse_steps(arguments.step)
    if not arguments.against and len(arguments.input) < 2:
        raise ConfigurationError("name two runs to compare")
    from overlapwatch.accounting.selection import Selection  # noqa: PLC0415 - slow to import
    from overlapwatch.commands.inputs import Request, read_all  # noqa: PLC0415
    from overlapwatch.compare.runs import Setting, compare  # noqa: PLC0415
    from overlapwatch.reports.compare import report  # noqa: PLC0415

    request = Request(Selection(first_step=steps[0], last_step=steps[1]))

    def setting(paths: list[str]) -> Setting:
        name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return Setting(name, tuple(tuple(read_all([Path(path)], request)) for path in paths))

    if arguments.against:
        settings = [setting(arguments.input), setting(arguments.against)]
    else:
        settings = [setting([path]) for path in arguments.input]
    comparisons = [compare(settings[0], other) for other in settings[1:]]
    if arguments.json:
        write_json({"schema": SCHEMA, "comparisons": [one.to_dict() for one in comparisons]})
    else:
        show(report(comparisons), width)
    return 0

"""The command line: one module per verb, and the one place where an error becomes a sentence and an exit code.

In: the arguments. Out: an exit code (see `exit_codes`).

Adding a verb means adding its module to `COMMANDS`. A module has `add_parser(subparsers)` and `run(arguments)`; what is
slow to import is imported by `run`. Nothing here imports torch.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Protocol

from overlapwatch.commands import compare, exit_codes, export, order, ranks, report, top, whatif
from overlapwatch.errors import OverlapwatchError


class Command(Protocol):
    """What a module of this package offers."""

    def add_parser(
        self, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]"
    ) -> argparse.ArgumentParser:
        """Add the parser of this verb, named as on the command line."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit code."""


COMMANDS: tuple[Command, ...] = (report, top, ranks, order, compare, whatif, export)

DESCRIPTION = (
    "How much of a training step's communication was hidden behind compute: every step, every rank."
)
EXAMPLES = """\
examples:
  overlapwatch report runs/a                      the report of a run: a directory with one log per rank
  overlapwatch report runs/a --rank 3             the same, with the details of rank 3
  overlapwatch report runs/a --step 100:200       only steps 100 to 200
  overlapwatch report runs/a --json > a.json      for scripts
  overlapwatch report trace_rank*.json.gz         PyTorch profiler traces, one a rank
  overlapwatch report profile.sqlite --trim 39.964 46.123 --device 4
                                                  an Nsight Systems export: some seconds of one device
  overlapwatch top runs/a                         a running job, live: steps, what hangs, who is late
  overlapwatch ranks runs/a                       which rank is late again and again, and why
  overlapwatch order runs/a                       a job hangs: which ranks differ, which are behind
  overlapwatch export runs/a --to perfetto --output a.json.gz
                                                  a trace for ui.perfetto.dev

to record a run, add to the training script, after DDP has wrapped the model:
  overlapwatch.watch(model, log_dir="runs/a")
"""


class _Version(argparse.Action):
    """`--version`, read only when asked for."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - argparse's signature
        values: object,  # noqa: ARG002 - argparse's signature
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        from overlapwatch import __version__  # noqa: PLC0415 - only for this flag

        sys.stdout.write(f"overlapwatch {__version__}\n")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="overlapwatch",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(command=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the arguments without the program's name; None takes those of the process.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "command"):
        parser.print_help()
        return 0
    _show_what_can_be_shown()
    try:
        code: int = arguments.command.run(arguments)
        sys.stdout.flush()
    except OverlapwatchError as error:
        sys.stderr.write(f"overlapwatch: {error}\n")
        return exit_codes.USER_ERROR
    except BrokenPipeError:
        # The reader (head, less) left. Python would complain again when it flushes stdout at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("overlapwatch: interrupted\n")
        return exit_codes.INTERRUPTED
    return code


def _show_what_can_be_shown() -> None:
    """Let a terminal or pipe without a character print a question mark, not raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")

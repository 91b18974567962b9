"""`overlapwatch top RUN`: the live view of a job, from outside of it.

In: the directory of a run, which the job may be writing on another host. Out: a full screen on a terminal, until q or
Ctrl-C; plain text or JSON elsewhere. It reads logs and rings and nothing else: the job does nothing for it.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from overlapwatch.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from overlapwatch.accounting.running import Order, RunView
    from overlapwatch.reports.top import Look
    from overlapwatch.sources.live import LiveRun

SCHEMA = 1
USUAL_EVERY_S = 1.0
READ_AT_MOST = 0.5
"""Of the time between two looks, so much is spent on reading; the rest is read at the next one."""
_REST = 4
"""After a look it waits at least so many times the processor time that the look took."""
ORDER_OF_KEY: "dict[str, Order]" = {"t": "trouble", "r": "rank", "s": "step", "e": "exposed"}


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "top",
        help="a running job from outside: each rank's steps, what hangs, who is late",
        description="Show a running job from outside of it, again and again: what each rank's step was spent on, which "
        "collectives do not finish and who has not launched them, which ranks are late, stopped or dead. It reads the "
        "logs, and the rings of the ranks on this host, so it works while the job hangs. Without a terminal it prints "
        "once, unless --every is given.",
        epilog="keys: q quit, t ranks with trouble first, r by rank, s by step time, e by exposed share",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory (log_dir), or one log")
    parser.add_argument(
        "--every", metavar="SECONDS", help="look again after so long (default: 1 on a terminal)"
    )
    parser.add_argument("--once", action="store_true", help="look once, print and end")
    parser.add_argument("--rank", metavar="N[,M]", help="only these ranks")
    parser.add_argument(
        "--rows", metavar="N", help="show so many ranks (default: what fits; without a terminal 16)"
    )
    parser.add_argument(
        "--sort",
        choices=tuple(ORDER_OF_KEY.values()),
        default="trouble",
        help="which ranks come first (default: those with trouble, then the late one)",
    )
    parser.add_argument(
        "--width", metavar="N", help="characters a line (default: the terminal's, else 100)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a look")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show the run; return 0.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    from overlapwatch.commands.options import parse_numbers, parse_width  # noqa: PLC0415 - siblings

    every_s = _parse_every(arguments.every)
    if arguments.once and every_s is not None:
        raise ConfigurationError("choose --once or --every, not both")
    width, rows = parse_width(arguments.width), _parse_rows(arguments.rows)
    ranks = parse_numbers(arguments.rank, "rank")
    path = Path(arguments.run)
    _refuse_profile(path)
    from overlapwatch.sources.live import LiveRun  # noqa: PLC0415 - slow to import

    live = LiveRun(path, ranks)
    on_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    try:
        if on_screen and not arguments.once and not arguments.json:
            from overlapwatch.commands.top_screen import show  # noqa: PLC0415

            show(live, every_s or USUAL_EVERY_S, width, rows, arguments.sort)
        else:
            _print(live, every_s, width, rows, arguments)
    except KeyboardInterrupt:
        pass  # the way to end it
    return 0


def _print(
    live: "LiveRun",
    every_s: float | None,
    width: int | None,
    rows: int | None,
    arguments: argparse.Namespace,
) -> None:
    """Print one view, or one every so often until all ranks have ended."""
    from overlapwatch.commands.progress import LateProgress  # noqa: PLC0415
    from overlapwatch.reports.layout import DEFAULT_WIDTH  # noqa: PLC0415
    from overlapwatch.reports.top import Look  # noqa: PLC0415

    how = Look(width or _terminal_width() or DEFAULT_WIDTH, rows, arguments.sort)
    with LateProgress(f"reading {live.path}", sys.stderr) as progress:
        while not live.read(USUAL_EVERY_S):
            progress(*live.bytes_read)
    if every_s is None:
        _refuse_nothing(live)
    first = True
    while True:
        pause = Pause(every_s or 0)
        if not first:
            live.read(READ_AT_MOST * (every_s or 0))
        view = _look(live, how, whole=arguments.json)
        sys.stdout.write(_text(view, how, json=arguments.json, first=first))
        sys.stdout.flush()
        if every_s is None or view.over:
            return
        first = False
        time.sleep(pause.left_s())


class Pause:
    """The time between two looks, begun with a look; `left_s` is asked for once it is done.

    Args:
        every_s: from the beginning of one look to that of the next.

    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._began, self._spent_before = time.monotonic(), time.process_time()

    def left_s(self) -> float:
        """Return how long to wait now, so that looking takes a fifth of a core at most."""
        left = self._began + self._every_s - time.monotonic()
        return max(left, _REST * (time.process_time() - self._spent_before))


def _text(view: "RunView", how: "Look", *, json: bool, first: bool) -> str:
    if json:
        import json as as_json  # noqa: PLC0415

        return as_json.dumps({"schema": SCHEMA, "top": view.to_dict()}, allow_nan=False) + "\n"
    from overlapwatch.reports.top import plain  # noqa: PLC0415

    unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "").startswith("utf")
    return ("" if first else "\n") + plain(view, how, unicode=unicode)


def _look(live: "LiveRun", how: "Look", *, whole: bool = False) -> "RunView":
    """Return the view of what has been read; `whole`: with the statistics of every rank."""
    from overlapwatch.accounting.running import look  # noqa: PLC0415
    from overlapwatch.reports.top import USUAL_ROWS  # noqa: PLC0415

    shown = USUAL_ROWS if how.rows is None else how.rows
    return look(live.now(), cast("Order", how.order), None if whole else shown)


def _terminal_width() -> int | None:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return None


# -- bad input ---------------------------------------------------------------------------------


def _refuse_profile(path: Path) -> None:
    """Raise where this is something that another command reads."""
    from overlapwatch.sources import SOURCES  # noqa: PLC0415 - slow to import
    from overlapwatch.sources.owlog import is_owlog  # noqa: PLC0415

    if not path.exists() or is_owlog(path):
        return
    title = next((source.title for source in SOURCES if source.recognise(path)), None)
    if title is not None:
        raise InputError(
            f"{path}: a profile, not the logs of a job ({title}): overlapwatch report reads it"
        )


def _refuse_nothing(live: "LiveRun") -> None:
    """Raise where a single look finds nothing to show."""
    now = live.now()
    if now.ranks:
        return
    if now.notes:
        raise InputError(now.notes[0])
    if now.asked is not None and list(live.path.glob("*.owlog")):
        raise InputError(f"{live.path}: no log of rank {', '.join(map(str, now.asked))}")
    raise InputError(f"{live.path}: there is no log (*.owlog) in it yet")


def _parse_every(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 3600:
        raise ConfigurationError(f"--every takes seconds between 0.1 and 3600, not {text!r}")
    return seconds


def _parse_rows(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 100_000:
        raise ConfigurationError(f"--rows takes a number of ranks, not {text!r}")
    return int(text)

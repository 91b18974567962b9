"""The full screen of `overlapwatch top`: looks, draws and listens to keys until it is told to end.

In: a run that is followed, and a terminal. Out: the alternate screen, which is gone afterwards. The terminal is left
as it was, also when the process is told to end (SIGTERM).
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import cast

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from overlapwatch.accounting.running import Order, RunView, look
from overlapwatch.commands.top import ORDER_OF_KEY, READ_AT_MOST, Pause
from overlapwatch.reports.layout import MINIMUM_WIDTH
from overlapwatch.reports.top import Look, screen
from overlapwatch.sources.live import LiveRun

_MOMENT_S = 0.1
"""How soon a key or another size of the terminal is noticed."""
_TOLD_TO_END = 128 + signal.SIGTERM


def show(live: LiveRun, every_s: float, width: int | None, rows: int | None, order: str) -> None:
    """Show the run until q or Ctrl-C.

    Args:
        live: the run.
        every_s: seconds between two looks.
        width: characters a line; None: the terminal's.
        rows: ranks to show; None: as many as fit.
        order: which come first.

    """
    console = Console(markup=False, emoji=False, highlight=False)
    how = Look(rows=rows, order=order, keys=sys.stdin.isatty())
    with (
        _ending_in_order(),
        _single_keys() as keys,
        Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as display,
    ):
        while True:
            pause = Pause(every_s)
            live.read(READ_AT_MOST * every_s)
            now = live.now()
            view = look(now, cast("Order", how.order), rows or console.height)
            size = _draw(display, console, view, how, width)
            until = time.monotonic() + pause.left_s()
            while time.monotonic() < until:
                pressed = keys.read(min(_MOMENT_S, max(until - time.monotonic(), 0)))
                if pressed & {"q", "Q"}:
                    return
                chosen = [ORDER_OF_KEY[key] for key in pressed & ORDER_OF_KEY.keys()]
                if chosen:
                    how = replace(how, order=chosen[0])
                    view = look(now, chosen[0], rows or console.height)
                if chosen or console.size != size:
                    size = _draw(display, console, view, how, width)


def _draw(
    display: Live, console: Console, view: RunView, how: Look, width: int | None
) -> ConsoleDimensions:
    """Draw the view; return the size of the terminal that it was drawn for."""
    size = console.size
    fitting = replace(how, width=max(width or size.width, MINIMUM_WIDTH))
    display.update(screen(view, fitting, console), refresh=True)
    return size


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM leave by the same way as an error does, so that the terminal is put back."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(_TOLD_TO_END)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Keys:
    """Keys as they are pressed; none where nobody can press any."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def read(self, seconds: float) -> set[str]:
        """Return what is pressed within so long, or at once when something is."""
        if self._descriptor is None:
            time.sleep(seconds)
            return set()
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return set()
        typed = os.read(self._descriptor, 64)
        if not typed:
            self._descriptor = None  # the terminal is gone
        # An arrow or a function key comes as several characters, none of which was meant.
        return set() if typed.startswith(b"\x1b") else set(typed.decode("ascii", "ignore"))


@contextmanager
def _single_keys() -> Iterator[_Keys]:
    """Give keys without waiting for a line; Ctrl-C still interrupts."""
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    import termios  # noqa: PLC0415 - there is none without a terminal
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

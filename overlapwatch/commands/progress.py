"""A progress bar that only appears when a read is long, and only where somebody looks.

In: (bytes done, bytes in all), as sources call it. Out: a bar on a terminal once `AFTER_S` have
passed; nothing on anything else. It is gone when the read ends.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AFTER_S = 1.0


class LateProgress:
    """Called with (bytes done, bytes in all); a context that takes the bar away at its end.

    Args:
        title: what is being done.
        stream: where the bar goes when it is a terminal.
        now: a clock in seconds.

    """

    def __init__(
        self, title: str, stream: TextIO, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._stream = stream
        self._now = now
        self._watched = stream.isatty()
        self._begun = now()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Show how far the read is, once it has taken long enough."""
        if not self._watched or (self._bar is None and self._now() - self._begun < AFTER_S):
            return
        if self._bar is None:
            self._bar = self._start()
            self._task = self._bar.add_task(self._title, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _start(self) -> "Progress":
        from rich.console import Console  # noqa: PLC0415 - most reads end before it is needed
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        bar.start()
        return bar

    def __enter__(self) -> "LateProgress":  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

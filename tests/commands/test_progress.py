import io

from overlapwatch.commands.progress import AFTER_S, LateProgress


class Stream(io.StringIO):
    """A stream that is a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Clock:
    """Moves when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def read(stream: Stream, seconds: float) -> str:
    clock = Clock()
    with LateProgress("reading [red]runs/a[/red]", stream, clock) as progress:
        progress(0, 1000)
        clock.now += seconds
        progress(600, 1000)
        progress(1000, 1000)
    return stream.getvalue()


def test_a_short_read_shows_nothing():
    assert read(Stream(terminal=True), AFTER_S / 2) == ""


def test_a_long_read_shows_a_bar():
    shown = read(Stream(terminal=True), 2 * AFTER_S)
    assert "reading [red]runs/a[/red]" in shown
    assert "1.0/1.0 kB" in shown


def test_nobody_looks():
    assert read(Stream(terminal=False), 100 * AFTER_S) == ""

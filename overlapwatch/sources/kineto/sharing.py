"""One large trace -> Columns, read by several processes at once.

In: a path. Out: Columns, and the Stream that knows what stands beside the events. This process cuts the
file into chunks, decompressing it where it must, gives chunks to helpers that are free and reads the
others itself. A helper reads a chunk to a `Part` and sends all its parts at the end; they are joined in
the order of the file, so that nothing in the result tells who read what. A helper is a Python of its
own that is given text on its standard input, has no file open, and ends when its input does.

Nothing depends on helpers: where none can be started, or one is lost, this process reads the whole file.

    this process    | chunk 0 | chunk 3 | chunk 4 | take parts 0 1 2 3 4 ...
    helper          | start | chunk 1 | chunk 2 |

Memory: in each process one chunk and its events, here besides two chunks for each helper that wait for
it; the columns, a tenth of the text and less, exist twice while they are joined.
"""

import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from queue import Empty, Full, Queue
from struct import Struct
from threading import Thread
from typing import IO, Any

from overlapwatch.sources.kineto.columns import Columns, Part
from overlapwatch.sources.kineto.parts import read_part
from overlapwatch.sources.kineto.stream import GZIP, Chunk, Progress, Stream

LARGE_BYTES = 100 << 20
"""Of text. Below this, starting other processes costs more than it saves."""
MOST_PROCESSES = 4
"""One process cuts the chunks for all: it has enough to do with three helpers."""

_PACKED = 10  # a trace compresses about so well, as a rule better
_HEAD = Struct("<Q?Q")  # index of a chunk, whether it is torn, its bytes
_HELLO = b"parts of a trace\n"
_PROGRAM = (
    "import pickle, sys; "
    "sys.path[:], sys.dont_write_bytecode, sys.pycache_prefix = pickle.load(sys.stdin.buffer); "
    "from overlapwatch.sources.kineto.sharing import help_to_read; help_to_read()"
)


def read_columns(
    path: Path, progress: Progress | None = None, *, processes: int | None = None
) -> tuple[Columns, Stream]:
    """Read a trace.

    Args:
        path: the file.
        progress: called with (bytes read, bytes in all).
        processes: how many read it, this one included; by its size and the cores when not given.

    Raises:
        InputError: the file cannot be opened, or holds no events.
    """
    if processes is None:
        processes = _processes_for(path)
    helpers = _started(processes - 1)
    if helpers:
        try:
            stream = Stream(path, progress)
            return _read_with(helpers, stream), stream
        except _HelperLostError:
            pass  # killed, as a rule for its memory: without it there may be enough
        finally:
            for helper in helpers:
                helper.end()
    stream, columns = Stream(path, progress), Columns()
    for chunk in stream.chunks():
        columns.take(read_part(chunk))
    return columns, stream


def _processes_for(path: Path) -> int:
    """Return how many processes read a file; 1 in a process that is one of several already."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
    except OSError:
        return 1
    if size * (_PACKED if packed else 1) < LARGE_BYTES or parent_process() is not None:
        return 1
    return min(_cores(), MOST_PROCESSES)


def _cores() -> int:
    """Return how many cores this process may use."""
    with suppress(AttributeError, OSError):  # not on every platform
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_with(helpers: list["_Helper"], stream: Stream) -> Columns:
    parts: dict[int, Part] = {}
    for index, chunk in enumerate(stream.chunks()):
        if not any(helper.take(index, chunk) for helper in helpers):
            parts[index] = read_part(chunk)
    for helper in helpers:
        waiting = helper.close()
        if waiting is not None:
            parts[waiting[0]] = read_part(waiting[1])
    for helper in helpers:
        parts |= helper.parts()
    columns = Columns()
    for index in range(len(parts)):
        columns.take(parts.pop(index))
    return columns


# -- a helper, seen from the process that started it -----------------------------------------------


class _HelperLostError(Exception):
    """A helper ended before its work did."""


def _started(count: int) -> list["_Helper"]:
    """Return so many helpers; fewer, or none, where they cannot be started."""
    helpers: list[_Helper] = []
    # The program of another name would be a program that embeds Python.
    if not Path(sys.executable or "").stem.lower().startswith("py") or hasattr(sys, "frozen"):
        return helpers
    with suppress(OSError):
        while len(helpers) < count:
            helpers.append(_Helper())
    return helpers


class _Helper:
    """A process that reads chunks. Its input is written by a thread: it takes as long as reading does."""

    def __init__(self) -> None:
        # Not forked: threads of this process may hold locks that a forked one would wait for. Not
        # multiprocessing's way either: it would run the user's script a second time.
        self._process = subprocess.Popen(  # noqa: S603 - this Python, with this module
            [sys.executable, "-I", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._given: list[int] = []
        self._waiting: Queue[tuple[int, Chunk] | None] = Queue(1)
        self._lost = False
        self._writer = Thread(target=self._write, name="overlapwatch-reading", daemon=True)
        self._writer.start()

    def take(self, index: int, chunk: Chunk) -> bool:
        """Take a chunk, and say so; not while another one waits."""
        if self._lost:
            raise _HelperLostError
        try:
            self._waiting.put_nowait((index, chunk))
        except Full:
            return False
        self._given.append(index)
        return True

    def close(self) -> tuple[int, Chunk] | None:
        """Say that there are no more chunks; return the one that still waits."""
        waiting = None
        with suppress(Empty):
            waiting = self._waiting.get_nowait()
        if waiting is not None:
            self._given.remove(waiting[0])
        if not self._lost:
            self._waiting.put(None)
        return waiting

    def parts(self) -> dict[int, Part]:
        """Return what the helper read."""
        output = _pipe(self._process.stdout)
        try:
            if output.read(len(_HELLO)) != _HELLO:
                raise _HelperLostError
            parts: dict[int, Part] = pickle.load(output)  # noqa: S301 - of our own process
        except (OSError, EOFError, pickle.UnpicklingError):
            raise _HelperLostError from None
        if sorted(parts) != self._given:
            raise _HelperLostError
        return parts

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        with suppress(Full):  # then the thread finds a broken pipe instead
            self._waiting.put_nowait(None)
        self._writer.join()
        _pipe(self._process.stdout).close()

    def _write(self) -> None:
        stdin = _pipe(self._process.stdin)
        try:
            with stdin:
                state = (_search_path(), sys.dont_write_bytecode, sys.pycache_prefix)
                pickle.dump(state, stdin)
                while (given := self._waiting.get()) is not None:
                    index, chunk = given
                    stdin.write(_HEAD.pack(index, chunk.torn, len(chunk.text)))
                    stdin.write(chunk.text)
                    stdin.flush()
        except OSError:
            self._lost = True


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _search_path() -> list[str]:
    """Return where the helper finds modules: where this process does."""
    home = str(Path(__file__).parents[3])
    return [home, *(one for one in sys.path if one)]


# -- a helper, from the inside ---------------------------------------------------------------------


def help_to_read() -> None:
    """Read chunks from the standard input until it ends; then write their parts."""
    # Control-C reaches all processes of a terminal: the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given, output = sys.stdin.buffer, _own_output()
    parts: dict[int, Part] = {}
    while head := given.read(_HEAD.size):
        index, torn, size = _HEAD.unpack(head)
        text = given.read(size)
        if len(text) < size:
            raise EOFError
        parts[index] = read_part(Chunk(text, torn))
    with output:
        output.write(_HELLO)
        pickle.dump(parts, output, protocol=5)


def _own_output() -> IO[Any]:
    """Return the standard output, which nothing else can write to from here on."""
    output = os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return output

"""Where bytes and step lines go: log files, and the live outputs of a running job.

In: whole frames (`ByteSink`), or one step's SUMMARY row and its line (`StepSink`). Out: a file that
ends in a whole frame; lines on a stream or in a file; one JSON object a step; a call of the user's
function. A step sink that fails is dropped with one warning and the rest go on: the job is never
stopped for its output. What it does not know: how a line is worded.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from overlapwatch.errors import ConfigurationError
from overlapwatch.log.frames import whole_prefix
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag


class ByteSink(Protocol):
    """Takes whole frames, several at a time. Any of these may raise OSError."""

    def write(self, data: bytes) -> None:
        """Store whole frames; after an error, no part of a frame is left behind."""

    def flush(self) -> None:
        """Say that this is a good moment; raise when what was written is out of reach."""

    def close(self) -> None:
        """Let go."""


class FileSink:
    """Appends to a new file, one `os.write` a call, without ever waiting for the disk.

    An older file of that name is moved aside to `NAME.old`, so two runs never mix in one file.

    Raises:
        OSError: the file or its directory cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_name(path.name + ".old"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(path, flags, 0o644)
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append; on an error (disk full) cut the file back to the last whole frame and raise."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            done = whole_prefix(data, done)
            os.ftruncate(self._descriptor, self._size + done)
            raise
        finally:
            self._size += done

    def flush(self) -> None:
        """Raise FileNotFoundError when the file was removed: nobody would ever read the rest."""
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(0, "the file was removed")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class StepSink(Protocol):
    """Takes one finished step at a time, on the drain thread."""

    def step(self, summary: np.void, line: str) -> None:
        """Take a SUMMARY row and the line that tells it."""

    def close(self) -> None:
        """Let go."""


def as_dict(summary: np.void, rank: int) -> dict[str, Any]:
    """Return a SUMMARY row for JSON: times in ns, null where not known, flags as words."""
    values: dict[str, Any] = {"rank": rank}
    for name, value in zip(SUMMARY.names or (), summary.item(), strict=True):
        values[name] = None if value == NOT_KNOWN else value
    flags = StepFlag(values["flags"])
    values["flags"] = [str(flag.name).lower() for flag in StepFlag if flag in flags]
    return values


class StreamSink:
    """Lines on `sys.stdout` or `sys.stderr`, whatever those are when a step ends."""

    def __init__(self, name: str) -> None:
        self._name = name

    def step(self, summary: np.void, line: str) -> None:  # noqa: ARG002 - the protocol's
        """Print the line."""
        stream: TextIO = getattr(sys, self._name)
        stream.write(line + "\n")
        stream.flush()

    def close(self) -> None:
        """Leave the stream open: it is not ours."""


class TextSink:
    """Lines appended to a text file."""

    def __init__(self, path: Path) -> None:
        self._file = _append(path)

    def step(self, summary: np.void, line: str) -> None:  # noqa: ARG002 - the protocol's
        """Append the line."""
        self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonlSink:
    """One JSON object a step, appended to a file."""

    def __init__(self, path: Path, rank: int) -> None:
        self._file = _append(path)
        self._rank = rank

    def step(self, summary: np.void, line: str) -> None:  # noqa: ARG002 - the protocol's
        """Append the object."""
        self._file.write(json.dumps(as_dict(summary, self._rank)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CallbackSink:
    """Calls the user's function with the dict that JSONL would hold."""

    def __init__(self, function: Callable[[dict[str, Any]], object], rank: int) -> None:
        self._function = function
        self._rank = rank

    def step(self, summary: np.void, line: str) -> None:  # noqa: ARG002 - the protocol's
        """Call the function, on the drain thread."""
        self._function(as_dict(summary, self._rank))

    def close(self) -> None:
        """Nothing is held."""


class StepSinks:
    """Several step sinks as one; a sink that raises is dropped with one warning.

    Args:
        sinks: the sinks.
        warn: where the one sentence goes; the `overlapwatch` logger by default.
    """

    def __init__(
        self, sinks: Iterable[StepSink], warn: Callable[[str], object] | None = None
    ) -> None:
        self._sinks = list(sinks)
        self._warn = warn or logging.getLogger("overlapwatch").warning

    def __len__(self) -> int:
        return len(self._sinks)

    def step(self, summary: np.void, line: str) -> None:
        """Hand one step to every sink that still works."""
        for sink in tuple(self._sinks):
            self._try(sink, partial(sink.step, summary, line))

    def close(self) -> None:
        """Close all of them."""
        for sink in tuple(self._sinks):
            self._try(sink, sink.close)
        self._sinks.clear()

    def _try(self, sink: StepSink, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a user's callback may raise anything
            self._sinks.remove(sink)
            with contextlib.suppress(Exception):  # the warning below says it already
                sink.close()
            self._warn(
                f"step lines to {type(sink).__name__} stopped: {type(error).__name__}: {error}"
            )


_Maker = Callable[[str, int], "StepSink | None"]

REGISTRY: Mapping[str, _Maker] = {
    "stdout": lambda _path, _rank: StreamSink("stdout"),
    "stderr": lambda _path, _rank: StreamSink("stderr"),
    "none": lambda _path, _rank: None,
    "text": lambda path, _rank: TextSink(Path(path)),
    "jsonl": lambda path, rank: JsonlSink(Path(path), rank),
}
_WITH_PATH = ("text", "jsonl")


def parse(spec: object, rank: int) -> StepSink | None:
    """Return the sink that a setting asks for; None for "none".

    Args:
        spec: `stdout`, `stderr`, `none`, `text:PATH`, `jsonl:PATH` ({rank} stands for the rank), a
            function of one dict, or an object with `step` and `close`.
        rank: this process.

    Raises:
        ConfigurationError: there is no such sink, its path is missing, or it cannot be opened.
    """
    if not isinstance(spec, str):
        if hasattr(spec, "step") and hasattr(spec, "close"):
            return spec
        if callable(spec):
            return CallbackSink(spec, rank)
        raise ConfigurationError(f"a sink is a text, a function or a StepSink, not {spec!r}")
    name, _, path = spec.partition(":")
    known = ", ".join(f"{word}:PATH" if word in _WITH_PATH else word for word in REGISTRY)
    if name not in REGISTRY or bool(path) != (name in _WITH_PATH):
        raise ConfigurationError(f"there is no sink {spec!r}; there are {known}, or a function")
    try:
        return REGISTRY[name](path.replace("{rank}", str(rank)), rank)
    except OSError as error:
        raise ConfigurationError(f"sink {spec!r} cannot be opened ({error.strerror})") from None


def open_sinks(
    specs: Iterable[object], rank: int, warn: Callable[[str], object] | None = None
) -> StepSinks:
    """Return the sinks of several settings as one. Raises as `parse` does."""
    sinks = (parse(spec, rank) for spec in specs)
    return StepSinks([sink for sink in sinks if sink is not None], warn)


def _append(path: Path) -> TextIO:
    """Open for appending, line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", buffering=1)

"""Where bytes and step lines go: log files, and the live outputs of a running job.

In: whole frames (`ByteSink`), or one step's SUMMARY row and its line (`StepSink`, `MetricsSink`).
Out: a file that ends in a whole frame; lines on a stream or in a file; one JSON object a step; a call
of the user's function. A step sink that fails is dropped with one warning and the rest go on: the job
is never stopped for its output. What it does not know: how a line is worded, and where metrics go.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

import numpy as np

from overlapwatch.errors import ConfigurationError, OverlapwatchError
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


@dataclass(frozen=True, slots=True)
class Standing:
    """What a watch knows between steps, some once a second, also while the job hangs.

    Args:
        in_flight: collectives launched and not finished now.
        oldest_ns: age of the oldest of them; None when there is none.
        records_lost: records overwritten before they were read, so far.
        records_late: records that came after their step was summed up, so far.
        drain_cpu_ns: processor time of the drain thread so far.
    """

    in_flight: int
    oldest_ns: int | None
    records_lost: int
    records_late: int
    drain_cpu_ns: int


@runtime_checkable
class MetricsSink(Protocol):
    """Takes the numbers of every step, whatever `line_every` is, on the drain thread.

    Making one checks what was asked for and may raise ConfigurationError; `open` takes what it needs
    of the machine, later, on the thread that calls `watch()`.
    """

    def open(self) -> None:
        """Begin; raise OverlapwatchError with one sentence when that cannot be."""

    def step(self, summary: np.void, line: str | None) -> None:
        """Take a SUMMARY row, and the line that tells it; None when it is not its turn."""

    def standing(self, standing: Standing) -> None:
        """Take what is known between steps."""

    def close(self) -> None:
        """Let go, within a few seconds at most."""


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
        self.name = name

    def step(self, summary: np.void, line: str) -> None:  # noqa: ARG002 - the protocol's
        """Print the line."""
        stream: TextIO = getattr(sys, self.name)
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

    @property
    def metrics(self) -> list[MetricsSink]:
        """Those that take every step."""
        return [sink for sink in self._sinks if isinstance(sink, MetricsSink)]

    @property
    def lines(self) -> bool:
        """Whether anybody takes lines."""
        return len(self._sinks) > len(self.metrics)

    @property
    def streams(self) -> list[str]:
        """`stdout` and `stderr`, where lines go there."""
        return [sink.name for sink in self._sinks if isinstance(sink, StreamSink)]

    @property
    def places(self) -> list[str]:
        """Where metrics go, in words."""
        return [_what(sink) for sink in self.metrics]

    def open(self) -> None:
        """Open those that have something to open."""
        for sink in self.metrics:
            self._try(sink, sink.open)

    def step(self, summary: np.void, line: str | None) -> None:
        """Hand one step to every sink that still works; without a line, only to those that take every step."""
        if line is None:
            for one in self.metrics:
                self._try(one, partial(one.step, summary, None))
            return
        for sink in tuple(self._sinks):
            self._try(sink, partial(sink.step, summary, line))

    def standing(self, standing: Standing) -> None:
        """Hand what is known between steps to those that take it."""
        for sink in self.metrics:
            self._try(sink, partial(sink.standing, standing))

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
            told = str(error) if isinstance(error, OverlapwatchError) else ""
            self._warn(told or f"{_what(sink)} stopped: {type(error).__name__}: {error}")


def _what(sink: StepSink) -> str:
    if isinstance(sink, MetricsSink):
        return f"metrics to {getattr(sink, 'title', type(sink).__name__)}"
    return f"step lines to {type(sink).__name__}"


@dataclass(frozen=True, slots=True)
class Maker:
    """How a name in `sinks` becomes a sink.

    Args:
        usage: how it is written: `jsonl:PATH` takes what follows the colon, `stdout` nothing.
        make: from that text ({rank} stands for the rank in it) and the rank to the sink, or to None.
        every_rank: whether every rank has one where `sink_ranks` does not say; otherwise rank 0.
        checked: whether it is made, and so checked, on all ranks, to fail on all of them alike.
    """

    usage: str
    make: Callable[[str, int], "StepSink | None"]
    every_rank: bool = False
    checked: bool = False


REGISTRY: Mapping[str, Maker] = {
    "stdout": Maker("stdout", lambda _path, _rank: StreamSink("stdout")),
    "stderr": Maker("stderr", lambda _path, _rank: StreamSink("stderr")),
    "none": Maker("none", lambda _path, _rank: None),
    "text": Maker("text:PATH", lambda path, rank: TextSink(_of_rank(path, rank))),
    "jsonl": Maker("jsonl:PATH", lambda path, rank: JsonlSink(_of_rank(path, rank), rank)),
}


def parse(
    spec: object,
    rank: int,
    ranks: tuple[int, ...] | str | None = None,
    more: Mapping[str, Maker] | None = None,
) -> StepSink | None:
    """Return the sink that a setting asks for; None for "none", and where another rank has it.

    Args:
        spec: `stdout`, `stderr`, `none`, `text:PATH`, `jsonl:PATH` ({rank} stands for the rank), a
            name in `more`, a function of one dict, or an object with `step` and `close`.
        rank: this process.
        ranks: which ranks have sinks; None: every one; "auto": as the sink's maker says.
        more: further names.

    Raises:
        ConfigurationError: there is no such sink, what it needs is missing, or it cannot be opened.
    """
    if not isinstance(spec, str):
        here = _here(rank, ranks, every_rank=False)
        if hasattr(spec, "step") and hasattr(spec, "close"):
            return spec if here else None
        if callable(spec):
            return CallbackSink(spec, rank) if here else None
        raise ConfigurationError(f"a sink is a text, a function or a StepSink, not {spec!r}")
    makers = {**REGISTRY, **(more or {})}
    name, _, argument = spec.partition(":")
    maker = makers.get(name)
    if maker is None or bool(argument) != (":" in maker.usage):
        known = ", ".join(one.usage for one in makers.values())
        raise ConfigurationError(f"there is no sink {spec!r}; there are {known}, or a function")
    here = _here(rank, ranks, every_rank=maker.every_rank)
    if not here and not maker.checked:
        return None
    try:
        sink = maker.make(argument, rank)
    except OSError as error:
        raise ConfigurationError(f"sink {spec!r} cannot be opened ({error.strerror})") from None
    return sink if here else None


def _here(rank: int, ranks: tuple[int, ...] | str | None, *, every_rank: bool) -> bool:
    if isinstance(ranks, tuple):
        return rank in ranks
    return ranks is None or every_rank or rank == 0


def open_sinks(
    specs: Iterable[object],
    rank: int,
    warn: Callable[[str], object] | None = None,
    *,
    ranks: tuple[int, ...] | str | None = None,
    more: Mapping[str, Maker] | None = None,
) -> StepSinks:
    """Return the sinks of several settings as one. Arguments, and what is raised, as in `parse`."""
    sinks = (parse(spec, rank, ranks, more) for spec in specs)
    return StepSinks([sink for sink in sinks if sink is not None], warn)


def _of_rank(path: str, rank: int) -> Path:
    return Path(path.replace("{rank}", str(rank)))


def _append(path: Path) -> TextIO:
    """Open for appending, line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", buffering=1)

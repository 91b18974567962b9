"""A trace file -> chunks of its events as text, and what stands beside them, in bounded memory.

In: a path to JSON or gzipped JSON: `{"traceEvents": [...], ...}`, or a bare array of events. Out: an
iterator of chunks of whole events; after it, `Stream` knows the other entries of the object and what
was wrong with the file. One block is in memory at a time. A file that ends early gives the events
before its end. It does not know what an event means, and decodes none.

Blocks are cut between two events, where `},{` is followed by the key `"ph"` that every event begins
with. Where events begin otherwise the brackets are counted, which takes longer.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol

import msgspec

from overlapwatch.errors import InputError
from overlapwatch.sources.kineto.events import end_of_array, end_of_objects, repaired

fast_zlib: ModuleType = zlib
with suppress(
    ImportError
):  # no wheel for this platform: the standard library does the same, slower
    fast_zlib = import_module("isal.isal_zlib")

Progress = Callable[[int, int], object]

GZIP = b"\x1f\x8b"
BLOCK = 4 << 20
_LONGEST = 64 << 20
"""No event, and nothing before the events, is longer than this."""
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE = b" \t\r\n"
_BETWEEN = b", \t\r\n"
"""What stands between two events."""
_ERRORS: tuple[type[Exception], ...] = (zlib.error, fast_zlib.error)


class _Inflater(Protocol):
    eof: bool
    unused_data: bytes
    unconsumed_tail: bytes

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events as text.

    Args:
        text: the inside of a JSON array of them.
        torn: the file ends in it, as a rule within an event.
    """

    text: bytes | memoryview
    torn: bool = False


class Stream:
    """One file, read once.

    Args:
        path: the file.
        progress: called with (bytes read, bytes in all).
        block: bytes that are read at once, `BLOCK` when not given.

    Attributes:
        about: what stands beside the events, after all events were read.
        notes: what was wrong with the file, in words.
    """

    def __init__(self, path: Path, progress: Progress | None = None, block: int = 0) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.notes: list[str] = []
        self._progress = progress
        self._block = block or BLOCK

    def chunks(self) -> Iterator[Chunk]:
        """Yield the events, in the order of the file.

        Raises:
            InputError: the file cannot be opened, or holds no events.
        """
        try:
            size = self.path.stat().st_size
            file = self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}") from None
        with file:
            blocks = self._blocks(file, size)
            head, buffer = self._opening(blocks)
            for more in blocks:
                buffer += more
                end, begin = _last_boundary(buffer)
                if end < 0 and len(buffer) > 2 * self._block:
                    end = begin = end_of_objects(buffer)
                if end < 0:
                    if len(buffer) > _LONGEST:
                        raise InputError(
                            f"{self.path}: over {_LONGEST >> 20} MiB without the end of an event"
                        )
                    continue
                yield Chunk(memoryview(buffer)[:end])
                buffer = buffer[begin:]
                if end == begin:
                    buffer = buffer.lstrip(_BETWEEN)
            yield from self._last(head, buffer)

    def _opening(self, blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
        """Return what stands before the events, and the first of their bytes."""
        buffer = b""
        for more in blocks:
            buffer += more
            if len(buffer) < 3:
                continue
            if buffer.startswith(b"\xef\xbb\xbf"):
                buffer = buffer[3:]
            plain = buffer.lstrip(_SPACE)
            if plain.startswith(b"["):
                return b"", plain[1:]
            if not plain.startswith(b"{"):
                break
            found = _OPENING.search(buffer)
            if found:
                return buffer[: found.end()], buffer[found.end() :]
            if len(buffer) > _LONGEST:
                break
        else:
            plain = buffer.lstrip(_SPACE)
            if plain.startswith(b"["):
                return b"", plain[1:]
        damage = f" ({self.notes[0]})" if self.notes else ""
        raise InputError(f"{self.path}: not a Kineto trace: no list of traceEvents in it{damage}")

    def _last(self, head: bytes, buffer: bytes) -> Iterator[Chunk]:
        """Yield the last events, and read what stands after them."""
        cut, begin = _last_boundary(buffer)
        if cut > 0:
            yield Chunk(memoryview(buffer)[:cut])
        rest = buffer[max(begin, 0) :].lstrip(_BETWEEN)
        end = end_of_array(rest)
        if end >= 0:
            yield Chunk(rest[:end].strip(_BETWEEN))
            self._read_about(head, rest[end:])
            return
        self.notes.append("the file ends before the list of events does: what came before is read")
        yield Chunk(rest.strip(_BETWEEN), torn=True)
        self._read_about(head, b"]}")

    def _read_about(self, head: bytes, tail: bytes) -> None:
        if not head:
            return
        text = head + tail
        for attempt in (text, repaired(text)):
            try:
                about = msgspec.json.decode(attempt)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if isinstance(about, dict):
                self.about = {key: value for key, value in about.items() if key != "traceEvents"}
                return
        # What follows the events is damaged: what stands before them may still be read.
        try:
            about = msgspec.json.decode(repaired(head + b"]}"))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            about = None
        if isinstance(about, dict):
            self.about = {key: value for key, value in about.items() if key != "traceEvents"}
        self.notes.append("what stands beside the events could not be read in full")

    # -- bytes -------------------------------------------------------------------------------

    def _blocks(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        """Yield the file, decompressed, in blocks."""
        zipped = file.read(2) == GZIP
        file.seek(0)
        inflater = _inflater()
        step = max(1, self._block // 16) if zipped else self._block
        done = 0
        while data := self._read(file, step):
            done += len(data)
            if self._progress is not None:
                self._progress(done, size)
            if not zipped:
                yield data
                continue
            while data:
                try:
                    text = inflater.decompress(data, self._block)
                except _ERRORS as error:
                    self.notes.append(f"the compressed data is damaged: {error}")
                    return
                if text:
                    yield text
                data = inflater.unconsumed_tail
                if inflater.eof:
                    data = inflater.unused_data
                    if data and not data.startswith(GZIP):
                        if data.strip(b"\0"):
                            self.notes.append("bytes after the compressed data were passed over")
                        return
                    if data:  # another member: what `cat a.gz b.gz` makes
                        inflater = _inflater()
        if zipped and not inflater.eof:
            self.notes.append("the compressed data is cut short")

    def _read(self, file: BinaryIO, step: int) -> bytes:
        try:
            return file.read(step)
        except OSError as error:
            self.notes.append(f"reading stopped: {error.strerror or error}")
            return b""


def head_of(path: Path, size: int = 1 << 16) -> bytes:
    """Return the first bytes of a file, decompressed; b"" when it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError:
        return b""
    if not data.startswith(GZIP):
        return data
    try:
        return _inflater().decompress(data, size)
    except _ERRORS:
        return b""


def _inflater() -> _Inflater:
    made: _Inflater = fast_zlib.decompressobj(31)
    return made


def _last_boundary(text: bytes) -> tuple[int, int]:
    """Return where the last event but one ends, and where the last one begins; -1 without two."""
    place = len(text)
    while (place := text.rfind(b'"ph"', 0, place)) > 0:
        brace = _before(text, place)
        if brace < 0 or text[brace] != ord("{"):
            continue
        comma = _before(text, brace)
        if comma < 0 or text[comma] != ord(","):
            continue
        end = _before(text, comma)
        if end >= 0 and text[end] == ord("}"):
            return comma, brace
    return -1, -1


def _before(text: bytes, place: int) -> int:
    place -= 1
    while place >= 0 and text[place] in _SPACE:
        place -= 1
    return place

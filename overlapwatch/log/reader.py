"""Reads a log back, however damaged: what is whole is returned, what is not is counted and located.

In: a path, perhaps a range of steps. Out: `LogContents`. One frame is in memory at a time, and what
was asked for. After a bad frame the reader goes on behind it when a whole frame (or the end) follows
there, else at the next place that is a whole frame, length, CRC and all:

    HEADER EVENTS EV#NTS SUMMARIES     CRC wrong, a frame follows: that frame is lost
    HEADER EVENTS ##ENTS SUMMARIES     length wrong: the next whole frame is searched
    HEADER EVENTS EVEN                 cut short: the tail is lost
"""

import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import InputError
from overlapwatch.log.frames import (
    FRAME_HEAD,
    MAGIC,
    MAX_FRAME_BYTES,
    Clock,
    ClockPair,
    Counters,
    End,
    Events,
    Frame,
    FrameError,
    Gradients,
    Header,
    Names,
    NewerFormatError,
    Note,
    Summaries,
    UnknownFrame,
    decode,
)
from overlapwatch.vocabulary import GRADIENT_READY, RECORD, SUMMARY, Name, NameKind

_WINDOW_BYTES = 1 << 20
_SEARCH_BUDGET_BYTES = 1 << 30
_SHORTEST_PAYLOAD = 2

Progress = Callable[[int, int], object]
"""(bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class Damage:
    """`size` bytes from `offset` on could not be read."""

    offset: int
    size: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class LogContents:
    """Everything a log holds.

    Args:
        path, size_bytes: the file as it was read.
        header: None when its frame is damaged.
        names, groups: by id; groups have a numbering of their own.
        events: the blocks of records, in file order, of the steps asked for.
        summaries: SUMMARY array, of the steps asked for, in file order.
        gradients: GRADIENT_READY array, of the steps asked for, in file order.
        counts: the last counters.
        clocks: readings of both clocks, the header's first.
        notes: sentences of the writer.
        end: None when the log was not closed in order.
        last_step: the highest step that was summed up in the whole file; None without one.
        damage: what could not be read.
        skipped: how many frames of types this version does not know, by type.
    """

    path: Path
    size_bytes: int
    header: Header | None
    names: Mapping[int, Name]
    groups: Mapping[int, Name]
    events: tuple[Events, ...]
    summaries: NDArray[np.void]
    gradients: NDArray[np.void]
    counts: Mapping[str, int]
    clocks: tuple[ClockPair, ...]
    notes: tuple[str, ...]
    end: End | None
    last_step: int | None
    damage: tuple[Damage, ...] = ()
    skipped: Mapping[int, int] = field(default_factory=dict)


def read_log(
    path: Path, progress: Progress | None = None, *, steps: range | None = None
) -> LogContents:
    """Read one `.owlog`.

    Args:
        path: the file; it may be growing meanwhile.
        progress: called now and then.
        steps: keep only rows of steps in this range (half-open, step 1).

    Raises:
        InputError: it cannot be opened, is not an owlog, is of a newer major version, or holds no
            whole frame at all.
    """
    shelf = _Shelf(steps)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            check_magic(path, file.read(len(MAGIC)))
            for frame in _frames(file, size, shelf.damage):
                shelf.put(frame)
                if progress is not None:
                    progress(file.tell(), size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except NewerFormatError as error:
        raise InputError(f"{path}: {error}") from None
    if not shelf.frames:
        raise InputError(f"{path}: an overlapwatch log without one whole frame ({size} bytes)")
    return shelf.contents(path, size)


def read_header(path: Path) -> Header | None:
    """Return the header alone; None when its frame is damaged. Raises as `read_log` does."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            check_magic(path, file.read(len(MAGIC)))
            payload = payload_at(file, len(MAGIC), size)[0]
        frame = decode(payload) if payload is not None else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except NewerFormatError as error:
        raise InputError(f"{path}: {error}") from None
    except FrameError:
        return None
    return frame if isinstance(frame, Header) else None


class _Shelf:
    """Collects frames by what they hold."""

    def __init__(self, steps: range | None) -> None:
        self.frames = 0
        self.damage: list[Damage] = []
        self._steps = steps
        self._header: Header | None = None
        self._names: dict[int, Name] = {}
        self._groups: dict[int, Name] = {}
        self._events: list[Events] = []
        self._summaries: list[NDArray[np.void]] = [np.empty(0, SUMMARY)]
        self._gradients: list[NDArray[np.void]] = [np.empty(0, GRADIENT_READY)]
        self._counts: Mapping[str, int] = {}
        self._clocks: list[ClockPair] = []
        self._notes: list[str] = []
        self._end: End | None = None
        self._last_step = -1
        self._skipped: Counter[int] = Counter()

    def put(self, frame: Frame) -> None:
        self.frames += 1
        match frame:
            case Header():
                self._header = frame
                self._clocks.append(frame.created)
            case Names(names=names):
                for name in names:
                    table = self._groups if name.kind is NameKind.GROUP else self._names
                    table[name.id] = name
            case Events():
                kept = self._wanted(frame.records)
                if len(kept):
                    self._events.append(
                        Events(frame.first_step, frame.last_step, frame.flags, kept)
                    )
            case Gradients(rows=rows):
                self._gradients.append(self._wanted(rows))
            case Summaries(rows=rows):
                self._last_step = max(self._last_step, int(rows["step"].max()) if len(rows) else -1)
                self._summaries.append(self._wanted(rows))
            case Counters(counts=counts):
                self._counts = counts
            case Clock(pair=pair):
                self._clocks.append(pair)
            case Note(text=text):
                self._notes.append(text)
            case End(counts=counts):
                self._end, self._counts = frame, counts
            case UnknownFrame(type=kind):
                self._skipped[kind] += 1

    def _wanted(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        if self._steps is None:
            return rows
        step = rows["step"]
        return rows[(step >= self._steps.start) & (step < self._steps.stop)]

    def contents(self, path: Path, size: int) -> LogContents:
        return LogContents(
            path=path,
            size_bytes=size,
            header=self._header,
            names=self._names,
            groups=self._groups,
            events=tuple(self._events),
            summaries=np.concatenate(self._summaries),
            gradients=np.concatenate(self._gradients),
            counts=self._counts,
            clocks=tuple(self._clocks),
            notes=tuple(self._notes),
            end=self._end,
            last_step=self._last_step if self._last_step >= 0 else None,
            damage=tuple(self.damage),
            skipped=self._skipped,
        )


_LOOKS_LIKE = (
    (b"SQLite format 3\x00", "an SQLite database (an Nsight Systems export?)"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x7fELF", "a program or library"),
    (b"OWRING", "an overlapwatch ring"),
    (b"PK\x03\x04", "a zip file"),
    (b"{", "JSON"),
    (b"[", "JSON"),
)


def check_magic(path: Path, start: bytes) -> None:
    """Raise InputError, with what it looks like, unless a file that starts so is an owlog."""
    if start == MAGIC:
        return
    if not start:
        raise InputError(f"{path}: the file is empty")
    if MAGIC.startswith(start):
        raise InputError(f"{path}: an overlapwatch log cut short after {len(start)} bytes")
    for mark, what in _LOOKS_LIKE:
        if start.lstrip().startswith(mark[: len(MAGIC)]):
            raise InputError(f"{path}: not an overlapwatch log but {what}")
    raise InputError(f"{path}: not an overlapwatch log")


def _frames(file: BinaryIO, size: int, damage: list[Damage]) -> Iterator[Frame]:
    """Return the whole frames from the file's position on; note what lies between."""
    offset = len(MAGIC)
    budget = [_SEARCH_BUDGET_BYTES]
    while offset < size:
        payload, why = payload_at(file, offset, size)
        if payload is not None:
            following = offset + FRAME_HEAD.size + len(payload)
            try:
                yield decode(payload)
            except NewerFormatError:
                raise
            except FrameError as error:
                damage.append(Damage(offset, following - offset, str(error)))
            offset = following
            continue
        following = after_damage(file, offset, size, budget)
        damage.append(Damage(offset, following - offset, why))
        offset = following


def payload_at(file: BinaryIO, offset: int, size: int) -> tuple[bytes | None, str]:
    """Return the payload of the frame at `offset`, or None and why there is none."""
    file.seek(offset)
    head = file.read(FRAME_HEAD.size)
    if len(head) < FRAME_HEAD.size:
        return None, "cut short"
    length, checksum = FRAME_HEAD.unpack(head)
    if not _SHORTEST_PAYLOAD <= length <= MAX_FRAME_BYTES:
        return None, "impossible length"
    if offset + FRAME_HEAD.size + length > size:
        return None, "cut short, or a damaged length"
    payload = file.read(length)
    if len(payload) != length or zlib.crc32(payload) != checksum:
        return None, "wrong checksum"
    return payload, ""


def after_damage(file: BinaryIO, offset: int, size: int, budget: list[int]) -> int:
    """Return where to go on after the bad frame at `offset`: at a whole frame, or at the end."""
    file.seek(offset)
    head = file.read(FRAME_HEAD.size)
    if len(head) == FRAME_HEAD.size:
        behind = offset + FRAME_HEAD.size + int(FRAME_HEAD.unpack(head)[0])
        if behind == size or (behind < size and payload_at(file, behind, size)[0] is not None):
            return behind
    for candidate, length in _candidates(file, offset + 1, size):
        budget[0] -= length
        if budget[0] < 0:
            break  # a file made to be slow, or gigabytes of garbage: leave the rest
        if payload_at(file, candidate, size)[0] is not None:
            return candidate
    return size


def _candidates(file: BinaryIO, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Return (offset, length) of every place from `start` on that looks like a frame's beginning.

    That is: a possible length, then 4 bytes, then the head of a msgpack array of 2 to 15 items and
    a small number.
    """
    look = FRAME_HEAD.size + 2
    while start + look <= size:
        file.seek(start)
        window = np.frombuffer(file.read(_WINDOW_BYTES + look - 1), np.uint8)
        count = len(window) - look + 1
        if count <= 0:
            return
        lengths = sum(
            (window[place : place + count].astype(np.int64) << 8 * place for place in range(4)),
            start=np.zeros(count, np.int64),
        )
        array, kind = window[8 : 8 + count], window[9 : 9 + count]
        ends = np.arange(start, start + count) + FRAME_HEAD.size + lengths
        plausible = (lengths >= _SHORTEST_PAYLOAD) & (lengths <= MAX_FRAME_BYTES) & (ends <= size)
        plausible &= (array > 0x91) & (array < 0xA0) & (kind < 0x80)
        for place in np.flatnonzero(plausible).tolist():
            yield start + place, int(lengths[place])
        start += count


def concatenate_records(events: Iterable[Events]) -> NDArray[np.void]:
    """Return the records of all blocks as one RECORD array."""
    # As plain bytes: numpy compares the fields of structured types one by one.
    plain = [np.ascontiguousarray(block.records).view(f"V{RECORD.itemsize}") for block in events]
    return np.concatenate([np.empty(0, f"V{RECORD.itemsize}"), *plain]).view(RECORD)

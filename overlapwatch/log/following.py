"""Reads on in a log that is being written: each look takes in what was appended since the last one.

In: a path, again and again. Out: the header, the latest summaries, names, notes and the end. What is whole and what is
damaged is decided as `reader` decides it, only later: a bad frame with nothing whole behind it may be one that is
still being written, so it waits.

    first look    HEADER SUMMARIES SUMM           waits at SUMM
    next look     HEADER SUMMARIES SUMMARIES      goes on there; nothing before it is read again
    later         ... SUMM#RIES NOTE              a whole frame follows: now it is damage

Records and gradients are passed over; in the part of a long log that was there at the first look, by their length
alone, so that damage inside them is not seen there. Only the latest rows and notes are kept.
"""

import os
import time
from collections import deque
from collections.abc import Callable
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
    End,
    Frame,
    FrameError,
    FrameType,
    Header,
    Names,
    NewerFormatError,
    Note,
    Summaries,
    decode,
)
from overlapwatch.log.reader import Damage, after_damage, check_magic, payload_at
from overlapwatch.vocabulary import SUMMARY, Name, NameKind

LATEST_STEPS = 120
LATEST_NOTES = 4
MOST_DAMAGE = 100
"""More damaged places are counted, not listed."""
CHECKED_BYTES = 1 << 20
"""So much of the end of a log is checked at the first look; before it records are passed over unchecked."""
_SEARCH_BYTES = 64 << 20
_PASSED_OVER = (FrameType.EVENTS, FrameType.GRADIENTS)
_TYPE_BYTES = 2
"""The head of a short array and the type of a frame: what a payload begins with."""


class Follower:
    """One log, read from where it was left.

    Args:
        path: the file; it need not be there yet.
        keep_names: whether what ids stand for is wanted of the log with this header; a table of names is large.

    Attributes:
        header, end: None as long as there is none, or its frame is damaged.
        rows: SUMMARY array, the latest `LATEST_STEPS` in file order.
        steps: how many rows there were in all.
        clock: the latest reading of both clocks.
        names, groups: by id.
        notes: the latest sentences of the writer.
        damage: the first damaged places; `damaged` counts all of them, `damaged_bytes` their bytes.
        size: bytes of the file at the latest look; 0 before it is there.
        offset: so far it was read.
        problem: why nothing is read of it at all; "" while something may be.

    """

    def __init__(
        self, path: Path, *, keep_names: Callable[[Header], bool] = lambda _header: True
    ) -> None:
        self.path = path
        self._keep_names = keep_names
        self._file_id = (0, 0)
        self._looked = False
        self._begin()

    def _begin(self) -> None:
        self.header: Header | None = None
        self.end: End | None = None
        self.rows = np.empty(0, SUMMARY)
        self.steps = 0
        self.clock: ClockPair | None = None
        self.names: dict[int, Name] = {}
        self.groups: dict[int, Name] = {}
        self.notes: deque[str] = deque(maxlen=LATEST_NOTES)
        self.damage: list[Damage] = []
        self.damaged = self.damaged_bytes = 0
        self.frames = 0
        self.size = self.offset = 0
        self.problem = ""
        self._searched = 0  # the size at which nothing whole was found behind a bad frame
        self._unchecked = 0  # up to there records are passed over unchecked
        self._new_rows: list[NDArray[np.void]] = []

    @property
    def caught_up(self) -> bool:
        """Whether everything that was whole at the latest look has been read."""
        return self._looked and (self.offset >= self.size or self._searched == self.size)

    @property
    def waiting_bytes(self) -> int:
        """Bytes at the end that are no whole frame yet: being written, or cut short."""
        return self.size - self.offset if self.caught_up else 0

    def read(self, deadline: float = float("inf")) -> bool:
        """Take in what was appended; return whether that is all of it.

        Args:
            deadline: on `time.perf_counter`; the rest is read the next time.

        """
        self._looked = True
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file_id or found.st_size < self.offset:
                    self._begin()  # another file under this name
                    self._file_id = (found.st_dev, found.st_ino)
                self.size = found.st_size
                self._read(file, deadline)
        except FileNotFoundError:
            self.problem = "the file is gone" if self.frames else "the file is not there yet"
        except OSError as error:
            self.problem = f"cannot be read ({error.strerror or error})"
        except (InputError, NewerFormatError) as error:
            self.problem = str(error).removeprefix(f"{self.path}: ")
        else:
            self.problem = ""
        if self._new_rows:
            self.rows = np.concatenate((self.rows, *self._new_rows))[-LATEST_STEPS:].copy()
            self._new_rows.clear()
        return self.caught_up or bool(self.problem)

    def _read(self, file: BinaryIO, deadline: float) -> None:
        if self.offset < len(MAGIC):
            start = file.read(len(MAGIC))
            if MAGIC.startswith(start) and len(start) < len(MAGIC):
                self._searched = self.size  # it has just been made
                return
            check_magic(self.path, start)
            self.offset = len(MAGIC)
            self._unchecked = self.size - CHECKED_BYTES
        if self._searched == self.size:
            return
        while self.offset < self.size:
            if not self._step(file):
                self._searched = self.size
                return
            if time.perf_counter() > deadline:
                return

    def _step(self, file: BinaryIO) -> bool:
        """Go beyond one frame, or beyond damage; return whether that was possible."""
        kind, following = self._peek(file)
        passed_over = kind in _PASSED_OVER
        if passed_over and following <= self._unchecked and self._may_begin(file, following):
            self.offset = following
            return True
        payload, why = payload_at(file, self.offset, self.size)
        if payload is None:
            following = after_damage(file, self.offset, self.size, [_SEARCH_BYTES])
            if following == self.size:
                return False
            self._damaged(following, why)
        else:
            following = self.offset + FRAME_HEAD.size + len(payload)
            try:
                if not passed_over and (kind != FrameType.NAMES or self._names_wanted()):
                    self._take(decode(payload))
                self.frames += 1
            except NewerFormatError:
                raise
            except FrameError as error:
                self._damaged(following, str(error))
        self.offset = following
        return True

    def _names_wanted(self) -> bool:
        return self.header is None or self._keep_names(self.header)

    def _damaged(self, following: int, why: str) -> None:
        self.damaged += 1
        self.damaged_bytes += following - self.offset
        if len(self.damage) < MOST_DAMAGE:
            self.damage.append(Damage(self.offset, following - self.offset, why))

    def _peek(self, file: BinaryIO) -> tuple[int, int]:
        """Return the type of the frame that seems to be here, -1 without, and where it ends."""
        file.seek(self.offset)
        head = file.read(FRAME_HEAD.size + _TYPE_BYTES)
        if len(head) < FRAME_HEAD.size + _TYPE_BYTES:
            return -1, self.size
        length = int(FRAME_HEAD.unpack_from(head)[0])
        if not _TYPE_BYTES <= length <= MAX_FRAME_BYTES or not _short_array(head[-2]):
            return -1, self.size
        return head[-1], self.offset + FRAME_HEAD.size + length

    def _may_begin(self, file: BinaryIO, offset: int) -> bool:
        """Say whether a frame seems to begin there; `offset` lies well before the end."""
        file.seek(offset)
        head = file.read(FRAME_HEAD.size + _TYPE_BYTES)
        length = int(FRAME_HEAD.unpack_from(head)[0])
        return (
            _TYPE_BYTES <= length <= MAX_FRAME_BYTES and _short_array(head[-2]) and head[-1] < 0x80
        )

    def _take(self, frame: Frame) -> None:
        match frame:
            case Header():
                self.header, self.clock = frame, frame.created
            case Names(names=names):
                for name in names:
                    table = self.groups if name.kind is NameKind.GROUP else self.names
                    table[name.id] = name
            case Summaries(rows=rows):
                self.steps += len(rows)
                self._new_rows.append(rows)
            case Clock(pair=pair):
                self.clock = pair
            case Note(text=text):
                self.notes.append(text)
            case End():
                self.end = frame
            case _:
                pass


def _short_array(octet: int) -> bool:
    return 0x91 < octet < 0xA0

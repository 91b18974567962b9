"""Reading a ring while others write it, from inside the process (the drain) or from outside.

In: the cells, live memory. Out: `Batch`es of whole records. A writer clears the slot and stores the
begin ticket, the record, the end ticket, in that order (it is one `pack_into`); a reader looks at
the end ticket, copies, and looks at the begin ticket, so both agree only when nothing was stored
between. With four cells, and slot 6 drawn by a thread that has not packed it yet:

    cell          0        1        2        3
    slot held     4        5        2        7       (6 belongs in cell 2, which still holds 2)
    read(3)       3 was lapped by 7: lost 1;  4 and 5 returned;  next_slot 6, at a hole
"""

import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import InputError
from overlapwatch.ring.layout import (
    FIELD_WORD,
    FIXED_HEADER,
    MAGIC,
    MAX_CAPACITY,
    MAX_HEADER_BYTES,
    PAGE_BYTES,
    SLOT_BYTES,
    WORDS_PER_SLOT,
)
from overlapwatch.vocabulary import RECORD

I64 = NDArray[np.int64]
FIRST_LOOK_SLOTS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one read returned.

    Args:
        records: RECORD array, in slot order.
        slots: int64, the slot number of each record.
        next_slot: where the next read should begin.
        lost: slots before `next_slot` that were overwritten unread, or given up as holes.
        hole: the read stopped at a slot that a thread has drawn and not packed, with newer ones
            behind it; False when it stopped because there is nothing newer.
    """

    records: NDArray[np.void]
    slots: I64
    next_slot: int
    lost: int
    hole: bool = False


class RingReader:
    """The reading end for another process, on the live file of a job that runs, hangs or is dead.

    Args:
        path: the ring file.

    Attributes:
        about: what `Ring.create` was told about the ring.

    Raises:
        InputError: the file is not a ring, is cut short, or of a layout this version does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < PAGE_BYTES:
                    raise InputError(f"{path}: not an overlapwatch ring")
                buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        magic, header_bytes, slot_bytes, capacity, length = FIXED_HEADER.unpack_from(buffer)
        if magic[:6] != MAGIC[:6]:
            raise InputError(f"{path}: not an overlapwatch ring")
        if magic != MAGIC or slot_bytes != SLOT_BYTES:
            raise InputError(f"{path}: a ring of another overlapwatch version; read it with that")
        if (
            not PAGE_BYTES <= header_bytes <= MAX_HEADER_BYTES
            or not 0 < capacity <= MAX_CAPACITY
            or capacity & (capacity - 1)
            or size < header_bytes + capacity * SLOT_BYTES
            or length > header_bytes - FIXED_HEADER.size
        ):
            raise InputError(f"{path}: the ring is cut short or damaged")
        try:
            about = json.loads(buffer[FIXED_HEADER.size : FIXED_HEADER.size + length])
        except ValueError:
            about = None
        if not isinstance(about, dict):
            raise InputError(f"{path}: the ring's header is damaged")
        self.about: dict[str, Any] = about
        self._cells = map_cells(buffer, capacity, header_bytes)

    def read(self) -> Batch:
        """Return every whole record, oldest first.

        `lost` counts what was overwritten since the beginning, and holes.
        """
        return read_all(self._cells, 0, newest_slot(self._cells))

    def newest(self, count: int) -> Batch:
        """Return the whole records of the newest `count` slots, oldest first."""
        end = newest_slot(self._cells) + 1
        slots = np.arange(max(0, end - min(count, len(self._cells))), end, dtype=np.int64)
        words, whole = copy_slots(self._cells, slots)
        return Batch(as_records(words[whole]), slots[whole], end, len(slots) - int(whole.sum()))

    def unfinished(self) -> NDArray[np.void]:
        """Return the whole records, of any kind, that have no finish, oldest first.

        A look at one word of every cell, and a copy of what was found.
        """
        open_ended = (self._cells[:, FIELD_WORD["finish"]] == 0) & (self._cells[:, -1] > 0)
        words, whole = copy_slots(self._cells, np.sort(self._cells[open_ended, -1]) - 1)
        records = as_records(words[whole])
        return np.asarray(records[records["finish"] == 0])


def map_cells(buffer: mmap.mmap, capacity: int, header_bytes: int) -> I64:
    """Return the cells as live int64 words, [capacity, 10]: ticket, eight words of RECORD, ticket.

    As numbers they are copied several times faster than as structures.
    """
    words = np.frombuffer(buffer, "<i8", capacity * WORDS_PER_SLOT, header_bytes)
    return words.reshape(capacity, WORDS_PER_SLOT)


def as_records(words: I64) -> NDArray[np.void]:
    """Return int64 words [n, 8] as n RECORDs."""
    return np.ascontiguousarray(words).view(RECORD)[:, 0]


def copy_slots(cells: I64, slots: I64) -> tuple[I64, NDArray[np.bool_]]:
    """Copy slots from anywhere in the ring, as words [n, 8]; the mask says which are whole.

    Whole: both tickets were those of the slot asked for, the end before the copy, the begin after.
    """
    at, tickets = slots & (len(cells) - 1), slots + 1
    complete = cells[at, -1] == tickets
    words = cells[at, 1:-1]
    return words, complete & (cells[at, 0] == tickets)


def newest_slot(cells: I64) -> int:
    """Return the highest slot number in the ring, -1 when it is empty. Looks at every cell."""
    return int(cells[:, -1].max()) - 1


def read_to_hole(cells: I64, first: int) -> Batch:
    """Walk from `first`, in growing looks, to a cell that holds neither its slot nor a later one.

    Returns at most one ring full.
    """
    capacity = len(cells)
    parts, numbers = [np.empty((0, 8), np.int64)], [np.empty(0, np.int64)]
    slot, lost, look, hole = first, 0, FIRST_LOOK_SLOTS, False
    ahead = np.arange(1, FIRST_LOOK_SLOTS)
    while slot - first - lost < capacity:
        at = slot % capacity
        seen = cells[at : at + look]
        tickets = np.arange(slot + 1, slot + 1 + len(seen), dtype=np.int64)
        found = seen[:, -1].copy()
        missing = found < tickets
        reach = int(missing.argmax()) if missing.any() else len(seen)
        copied = seen[:reach, 1:-1].copy()
        whole = (found[:reach] == tickets[:reach]) & (seen[:reach, 0] == tickets[:reach])
        parts.append(copied[whole])
        numbers.append(tickets[:reach][whole] - 1)
        lost += reach - int(whole.sum())
        slot += reach
        if reach < len(seen):
            hole = bool((cells[(slot + ahead) % capacity, -1] > slot + 1).any())
            break
        if not whole.any():
            # Lapped, perhaps many times: go on at the first slot that no cell has gone beyond.
            next_in_cell = slot + (np.arange(capacity) - slot) % capacity
            reached = int(np.maximum(next_in_cell, cells[:, -1] - 1).min())
            lost, slot = lost + reached - slot, reached
        look *= 8
    return Batch(as_records(np.concatenate(parts)), np.concatenate(numbers), slot, lost, hole)


def read_all(cells: I64, first: int, newest: int) -> Batch:
    """Return the whole slots from `first` to `newest`; whatever else lies between is lost."""
    next_slot = max(first, newest + 1)
    there = np.sort(cells[:, -1]) - 1
    slots = there[(there >= first) & (there < next_slot)]
    words, whole = copy_slots(cells, slots)
    lost = next_slot - first - int(whole.sum())
    return Batch(as_records(words[whole]), slots[whole], next_slot, lost)

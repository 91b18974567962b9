"""The writing end of a ring: where its memory comes from, and the hot path.

In: records and times, from any thread. Out: slots in the mapped file. The memory is allocated
before it is mapped, since a full `/dev/shm` otherwise kills the process (SIGBUS) at a later store;
and it stays mapped as long as anything refers to it, so nothing that comes late can crash.
"""

import itertools
import json
import mmap
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from overlapwatch.ring.layout import (
    FIELD_WORD,
    FIXED_HEADER,
    FLAGS_BYTE,
    MAGIC,
    MAX_CAPACITY,
    MAX_HEADER_BYTES,
    PAGE_BYTES,
    SLOT_BYTES,
    SLOT_STRUCT,
    WORDS_PER_SLOT,
)
from overlapwatch.ring.reading import (
    I64,
    Batch,
    as_records,
    copy_slots,
    map_cells,
    newest_slot,
    read_all,
    read_to_hole,
)

WriteRecord = Callable[..., int]
"""(kind, phase, collective, flags, step, owner, group, stream, sequence, cause, bytes, ready,
launch, start, finish), by position -> slot number."""

Stamp = Callable[[int, int], bool]
"""(slot number, time in ns) -> whether the record was still there."""

_HOLE_GRACE_S = 0.02


class Ring:
    """The writing end, made by `Ring.create`.

    `write` is the hot path; the closures that `stamper(field)` returns come next. All may be called
    from any thread, at any time, also after `close`. A stamp checks the ticket and stores, without
    a point between at which the interpreter switches threads, so it reaches only the record it was
    meant for. A value that does not fit its field raises `struct.error`.

    In a forked child writes and stamps do nothing: the ring stays the parent's.
    """

    write: WriteRecord

    def __init__(self, buffer: mmap.mmap, header_bytes: int, path: Path | None) -> None:
        self.capacity = (len(buffer) - header_bytes) // SLOT_BYTES
        self.path = path
        self._cells = map_cells(buffer, self.capacity, header_bytes)
        self._build_hot_path(buffer, header_bytes)
        self._stamps = {field: self._stamper(field) for field in FIELD_WORD}
        _LIVE.add(self)

    @classmethod
    def create(
        cls, name: str, capacity: int, directories: tuple[Path, ...], about: dict[str, Any]
    ) -> "tuple[Ring, list[str]]":
        """Make a ring of `capacity` slots named `name` in the first directory that takes it.

        When none does, the ring is private memory: the watch works, and nobody outside can read it
        (`path` is None). Returns the ring and one sentence for each directory that failed.

        Args:
            name: file name; unique to the run, rank and process. A stale file of that name is
                replaced, not overwritten: who still maps it keeps it.
            capacity: slots of 80 bytes each, a power of two up to `MAX_CAPACITY`.
            directories: candidates, in order; made (0700) when absent. One that belongs to somebody
                else, that others can write to, or that is a symbolic link is refused.
            about: what a reader outside needs to know (run, rank, pid, log path, clock), as JSON.

        Raises:
            ValueError: the capacity, the name or the size of `about` is out of bounds.
        """
        if capacity & (capacity - 1) or not 0 < capacity <= MAX_CAPACITY:
            raise ValueError(f"a ring has a power of 2 up to {MAX_CAPACITY} slots, not {capacity}")
        if name in {"", ".", ".."} or "/" in name:
            raise ValueError(f"a ring's name is a plain file name, not {name!r}")
        text = json.dumps(about).encode()
        header_bytes = -(-(FIXED_HEADER.size + len(text)) // PAGE_BYTES) * PAGE_BYTES
        if header_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"the ring's description is too long: {len(text)} bytes")
        size = header_bytes + capacity * SLOT_BYTES
        problems: list[str] = []
        for directory in directories:
            try:
                buffer = _allocate(directory, name, size)
            except OSError as error:  # noqa: PERF203 - at most a handful, once
                problems.append(f"no ring in {directory}: {error.strerror or error}")
            else:
                path: Path | None = directory / name
                break
        else:
            buffer, path = mmap.mmap(-1, size), None
        buffer[FIXED_HEADER.size : FIXED_HEADER.size + len(text)] = text
        # The magic goes in last: a reader outside never takes half a header for a whole one.
        FIXED_HEADER.pack_into(buffer, 0, MAGIC, header_bytes, SLOT_BYTES, capacity, len(text))
        return cls(buffer, header_bytes, path), problems

    def _build_hot_path(self, buffer: mmap.mmap, header_bytes: int) -> None:
        """Bind `write`, `_stamper`, `_add_flags` and `_disarm`: closures over shared cells.

        Cells are faster than attributes, and `_disarm` empties them for everyone who already holds
        one of the closures, without a test in the hot path.
        """
        pack: Callable[..., object] = SLOT_STRUCT.pack_into
        draw, mask, slot_bytes = itertools.count().__next__, self.capacity - 1, SLOT_BYTES
        slot_words = WORDS_PER_SLOT
        octets = cast("MutableSequence[int]", memoryview(buffer)[header_bytes:])
        words = cast("MutableSequence[int]", memoryview(buffer)[header_bytes:].cast("q"))

        # fmt: off
        def write(
            kind: int, phase: int, collective: int, flags: int, step: int, owner: int, group: int,
            stream: int, sequence: int, cause: int, size: int,
            ready: int, launch: int, start: int, finish: int,
        ) -> int:
            slot = draw()
            ticket = slot + 1
            pack(
                buffer, header_bytes + (slot & mask) * slot_bytes, ticket, kind, phase, collective,
                flags, step, owner, group, stream, sequence, cause, size,
                ready, launch, start, finish, ticket,
            )
            return slot
        # fmt: on

        def stamper(field: str) -> Stamp:
            offset = FIELD_WORD[field]

            def stamp(slot: int, value: int) -> bool:
                word = (slot & mask) * slot_words
                if words[word] != slot + 1:
                    return False
                words[word + offset] = value
                return True

            return stamp

        def add_flags(slot: int, flags: int) -> bool:
            word = (slot & mask) * slot_words
            if words[word] != slot + 1:
                return False
            octets[word * 8 + FLAGS_BYTE] |= flags
            return True

        def disarm() -> None:
            nonlocal pack, words, octets
            pack = _pack_nothing
            words = octets = cast("MutableSequence[int]", _Nowhere())

        self.write = write
        self._stamper, self._add_flags, self._disarm = stamper, add_flags, disarm

    def stamper(self, field: str) -> Stamp:
        """Return the fast form of `stamp` for one field: ready, launch, start or finish."""
        return self._stamps[field]

    def stamp(self, slot: int, field: str, value: int) -> bool:
        """Store one time into a record; False when it has been overwritten since."""
        return self._stamps[field](slot, value)

    def add_flags(self, slot: int, flags: int) -> bool:
        """Set RecordFlag bits in a record; False when it has been overwritten since."""
        return self._add_flags(slot, flags)

    def read(self, first: int, *, give_up_on_holes: bool = False) -> Batch:
        """Copy out the whole records from slot number `first` on; at most one ring full.

        Stops at the first hole: a slot that was drawn and not packed yet, which is filled within
        microseconds as a rule. A slot that was lapped counts as lost. The cost is that of the new
        slots, plus a look at 256 cells.

        Args:
            first: a slot number; `next_slot` of the read before.
            give_up_on_holes: give holes 20 ms, once, then count those that are still there as lost
                and go on behind them. For the end, and for a drain that stood at a hole for a while
                (an exception can strike a thread between drawing and packing).
        """
        batch = read_to_hole(self._cells, first)
        newest = newest_slot(self._cells) if give_up_on_holes else -1
        if newest < batch.next_slot:
            return batch
        time.sleep(_HOLE_GRACE_S)
        rest = read_all(self._cells, batch.next_slot, newest)
        return Batch(
            np.concatenate([batch.records, rest.records]),
            np.concatenate([batch.slots, rest.slots]),
            rest.next_slot,
            batch.lost + rest.lost,
        )

    def peek(self, slots: I64) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
        """Re-read the records with these slot numbers; the mask says which are still there."""
        words, there = copy_slots(self._cells, slots)
        return as_records(words), there

    def close(self, *, remove: bool) -> None:
        """Stop writing; `remove` also deletes the file. Late writes and stamps do nothing."""
        self._disarm()
        _LIVE.discard(self)
        if remove and self.path is not None:
            self.path.unlink(missing_ok=True)

    def disown(self) -> None:
        """Forget the file without touching it: what a forked child does."""
        self._disarm()
        self.path = None


class _Nowhere:
    """Stands in for the mapping once it must not be touched: no slot is ever there."""

    def __getitem__(self, index: int) -> int:
        return -1

    def __setitem__(self, index: int, value: int) -> None:
        """Keep nothing."""


def _pack_nothing(*_: object) -> None:
    """Stand in for `pack_into` once the mapping must not be touched."""


_LIVE: "weakref.WeakSet[Ring]" = weakref.WeakSet()


def _disown_in_child() -> None:
    for ring in tuple(_LIVE):
        ring.disown()
    _LIVE.clear()


os.register_at_fork(after_in_child=_disown_in_child)


def _allocate(directory: Path, name: str, size: int) -> mmap.mmap:
    """Map a new file of `size` bytes, all of them allocated, in a directory that is ours alone."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = directory.lstat()  # the place may be world-writable: look at who got there first
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError("it is a symbolic link, not a directory of ours")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {found.st_uid}, not to us")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("other users may write to it")
    path = directory / name
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def default_directories(chosen: Path | None = None) -> tuple[Path, ...]:
    """Where a ring may lie: the chosen directory, shared memory, the temporary directory."""
    shared = Path("/dev/shm")  # noqa: S108 - the purpose is shared memory
    places = [chosen] if chosen else []
    if shared.is_dir():
        places.append(shared)
    places.append(Path(tempfile.gettempdir()))
    return tuple(place / f"overlapwatch-{os.getuid()}" for place in places)


def now_pair() -> tuple[int, int]:
    """(monotonic ns, wall-clock ns) read together, to place one clock on the other."""
    return time.perf_counter_ns(), time.time_ns()

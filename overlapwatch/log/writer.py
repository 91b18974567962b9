"""Appends frames to a log, within a budget, and never harms the job.

In: frames from one thread (the drain's). Out: bytes in a `ByteSink`, in one piece a flush. Two
limits keep a long run readable: events and gradients stop at 7/8 of `max_bytes`, so that summaries
go on to the end. After the first OSError the writer is off: it remembers one sentence and counts
what it no longer writes. It raises nothing into its caller for what the disk does.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from overlapwatch.log.frames import (
    MAGIC,
    MAX_ITEMS,
    End,
    Events,
    Frame,
    Gradients,
    Header,
    Names,
    Note,
    Summaries,
    encode,
)
from overlapwatch.log.sinks import ByteSink, FileSink

FLUSH_BYTES = 1 << 20
"""A flush happens by itself when this much waits; it also bounds the loss by a damaged frame."""

_END_RESERVE = 4096


class LogWriter:
    """Writes one rank's log. Make it with `to_file`, or on any sink.

    Args:
        sink: where bytes go; None: nowhere, everything is only counted.
        header: the first frame, written at once.
        max_bytes: the file stays below this.
        problem: why there is no sink.

    Attributes:
        problem: the sentence to warn with once, when the writer has turned itself off.
        bytes_by_type: bytes written for each frame type, by its name in lower case.
        dropped: rows or frames not written, by frame type.
    """

    def __init__(
        self, sink: ByteSink | None, header: Header, max_bytes: int, problem: str | None = None
    ) -> None:
        self.problem = problem
        self.bytes_by_type: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._sink = sink
        self._waiting = bytearray(MAGIC)
        self._waiting_rows: Counter[str] = Counter()
        self._size = len(MAGIC)
        self._written = 0
        self._limit = max_bytes - _END_RESERVE
        self._bulk_limit = self._limit - max_bytes // 8
        self._bulk_stopped = False
        self._pid = os.getpid()
        self.write(header)
        self.flush()

    @classmethod
    def to_file(cls, path: Path, header: Header, max_bytes: int) -> "LogWriter":
        """Write to a new file; when it cannot be made, return a writer that is off and says why."""
        try:
            sink = FileSink(path)
        except OSError as error:
            return cls(None, header, max_bytes, f"no log in {path}: {error.strerror or error}")
        return cls(sink, header, max_bytes)

    @property
    def counts(self) -> dict[str, int]:
        """What to put among the counters: bytes written, by frame type, and what was dropped."""
        counts = {"log_bytes": self._size if self._sink else self._written}
        counts |= {f"log_bytes_{name}": size for name, size in self.bytes_by_type.items()}
        return counts | {f"log_dropped_{name}": count for name, count in self.dropped.items()}

    def write(self, frame: Frame) -> bool:
        """Take one frame, to be written at the next flush; False when it was dropped instead.

        A frame with many rows becomes several, so that damage costs little.
        """
        if os.getpid() != self._pid:
            return False
        kept = True
        for part in _split(frame):
            kept &= self._write_part(part)
        if len(self._waiting) >= FLUSH_BYTES:
            self.flush()
        return kept

    def note(self, text: str) -> bool:
        """Write one sentence for the reader of the log."""
        return self.write(Note(time.perf_counter_ns(), text))

    def flush(self) -> None:
        """Hand everything that waits to the sink, in one piece."""
        if self._sink is None or os.getpid() != self._pid:
            return
        try:
            if self._waiting:
                self._sink.write(bytes(self._waiting))
                self._written = self._size
            self._sink.flush()
        except OSError as error:
            self.problem = (
                f"{getattr(self._sink, 'path', 'log')}: nothing more is logged "
                f"({error.strerror or error}); training goes on"
            )
            self.dropped += self._waiting_rows
            self._release()
        self._waiting.clear()
        self._waiting_rows.clear()

    def close(self, reason: str, counts: Mapping[str, int]) -> None:
        """Write END with these counters and our own, flush, close. A second call does nothing."""
        if os.getpid() != self._pid:
            return
        if self._sink is not None:
            self.write(End(reason, time.perf_counter_ns(), {**counts, **self.counts}))
            self.flush()
        self._release()

    def _write_part(self, frame: Frame) -> bool:
        name = type(frame).__name__.lower()
        if self._sink is None:
            self.dropped[name] += _rows(frame)
            return False
        encoded = encode(frame)
        after = self._size + len(encoded)
        bulky = isinstance(frame, (Events, Gradients))
        if bulky and not self._bulk_stopped and after > self._bulk_limit:
            self._bulk_stopped = True
            self.note(
                f"the log reached {self._size} bytes: events of later steps are left out, "
                "summaries go on (max_log_mb)"
            )
        full = after > self._limit and not isinstance(frame, (Header, End))
        if full or (bulky and self._bulk_stopped):
            self.dropped[name] += _rows(frame)
            return False
        self._waiting += encoded
        self._waiting_rows[name] += _rows(frame)
        self._size = self._size + len(encoded)
        self.bytes_by_type[name] += len(encoded)
        return True

    def _release(self) -> None:
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.close()
        except OSError as error:  # a network file system may report a lost write only here
            self.problem = self.problem or f"log: closing it failed ({error.strerror or error})"


def _rows(frame: Frame) -> int:
    match frame:
        case Events():
            return len(frame.records)
        case Gradients() | Summaries():
            return len(frame.rows)
        case Names():
            return len(frame.names)
        case _:
            return 1


def _split(frame: Frame) -> Iterator[Frame]:
    """Return the frame in parts of about `FLUSH_BYTES` at most; nothing for one without rows."""
    match frame:
        case Events(first_step=first, last_step=last, flags=flags, records=records):
            at_once = FLUSH_BYTES // records.itemsize
            for start in range(0, len(records), at_once):
                yield Events(first, last, flags, records[start : start + at_once])
        case Gradients(rows=rows) | Summaries(rows=rows):
            at_once = FLUSH_BYTES // rows.itemsize
            for start in range(0, len(rows), at_once):
                yield type(frame)(rows[start : start + at_once])
        case Names(names=names):
            for start in range(0, len(names), MAX_ITEMS // 8):
                yield Names(names[start : start + MAX_ITEMS // 8])
        case _:
            yield frame

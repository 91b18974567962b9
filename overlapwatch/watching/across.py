"""Late ranks while the job runs: rank 0 reads the summaries that the others have logged already.

In: the log files of a run in a directory that the ranks share. Out: some words for the step line. The
drain thread does it, at its flush: it reads what was appended since, at most so many bytes and for so
long at a time, and waits for nothing. No process group and no store is used, and the other ranks do
nothing for it. A file that is not there yet, or not on this host, is a rank that is not compared; what
cannot be read is left alone for good.
"""

import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from overlapwatch.accounting.ranks.live_lateness import LiveLateness, live_lateness
from overlapwatch.log.frames import (
    FRAME_HEAD,
    MAGIC,
    MAX_FRAME_BYTES,
    FrameError,
    FrameType,
    Summaries,
    decode,
)
from overlapwatch.reports.words import lateness_words

USUAL_EVERY = 50
MOST_RANKS = 1024
"""With more ranks it is off unless asked for: a thousand files a second are another's file system."""
LATEST_STEPS = 100
ROW = np.dtype(
    [
        ("step", "<u4"),
        ("flags", "<u4"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("tail_ns", "<i8"),
    ]
)
"""What is kept of a SUMMARY: of 1,024 ranks, 3 MB."""
AT_ONCE_BYTES = 1 << 18
AT_ONCE_S = 0.02
_TYPE_AT = 1
"""Where in a payload its type stands, behind the head of a short array."""


def effective_every(asked: int | str, world: int) -> int:
    """Return every how many steps late ranks are told; 0: never. `asked` may be "auto"."""
    if isinstance(asked, int):
        return asked
    return USUAL_EVERY if 1 < world <= MOST_RANKS else 0


class _Tail:
    """One rank's log, read from where it was left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = np.empty(0, ROW)
        self.given_up = False
        self._offset = len(MAGIC)

    def read(self) -> None:
        """Take in the summaries that were appended since."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(AT_ONCE_BYTES)
        except FileNotFoundError:
            return  # not yet, or not on this host
        except OSError:
            self.given_up = True
            return
        at = 0
        while at + FRAME_HEAD.size + 2 <= len(data):
            length = FRAME_HEAD.unpack_from(data, at)[0]
            if not 2 <= length <= MAX_FRAME_BYTES:
                self.given_up = True  # damaged: the report finds its way behind that, later
                return
            payload = at + FRAME_HEAD.size
            if data[payload + _TYPE_AT] == FrameType.SUMMARIES:
                if payload + length > len(data):
                    # Being written, or reaching beyond what was read: the next time. One that can
                    # never be held is no summary of ours.
                    self.given_up = at == 0 and len(data) == AT_ONCE_BYTES
                    break
                self._take(data[payload : payload + length])
            at = payload + length
        self._offset += at  # beyond the data, where a frame that is not wanted reaches there

    def _take(self, payload: bytes) -> None:
        with suppress(FrameError):
            frame = decode(payload)
            if isinstance(frame, Summaries):
                new = np.empty(len(frame.rows), ROW)
                for column in ROW.names or ():
                    new[column] = frame.rows[column]
                self.rows = np.concatenate((self.rows, new))[-LATEST_STEPS:]


class AcrossRanks:
    """Tells the late rank now and then.

    Args:
        directory: where the ranks log.
        run_id: of this run.
        world: number of ranks.
        every: tell it every so many steps.

    """

    def __init__(self, directory: Path, run_id: str, world: int, every: int) -> None:
        self._tails = [_Tail(directory / f"rank{rank}-{run_id}.owlog") for rank in range(world)]
        self._every = every
        self._next = 0  # whose turn it is
        self._told_at = 0

    def poll(self) -> None:
        """Read on, for a moment; the next call goes on with the next rank."""
        deadline = time.perf_counter() + AT_ONCE_S
        for _ in range(len(self._tails)):
            tail = self._tails[self._next]
            self._next = (self._next + 1) % len(self._tails)
            if not tail.given_up:
                tail.read()
            if time.perf_counter() > deadline:
                return

    def words(self, step: int) -> str:
        """Return what to add to the line of `step`; "" when it is not its turn or nothing is known."""
        if step - self._told_at < self._every:
            return ""
        told = self.judge()
        if told.step is None:
            return ""
        self._told_at = step
        return lateness_words(told)

    def judge(self) -> LiveLateness:
        """Return who was late, as far as it is known by now."""
        return live_lateness({rank: one.rows for rank, one in enumerate(self._tails)})

"""One rank of a run that is being written: its log, its ring where this is its host, and its process.

In: the path of its log. Out: a `RankNow`. Of the ring only what is without a finish and the newest records are
copied; of the log what was appended. It changes nothing and waits for nothing.
"""

import socket
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overlapwatch.log.following import Follower
from overlapwatch.log.frames import Header
from overlapwatch.ring import Batch, RingReader
from overlapwatch.sources.owlog import in_flight, rank_in_name
from overlapwatch.sources.processes import Fate, fate_of
from overlapwatch.sources.rings import OutOfReach, open_ring
from overlapwatch.timeline.model import STEP, Origin, Recording, Timeline
from overlapwatch.timeline.running import Process, RankNow
from overlapwatch.vocabulary import RecordKind

RECENT_RECORDS = 2048
"""So many of the newest records of a ring tell how far the rank got."""
_NEARLY_FULL_BYTES = 64 << 10
_PROCESS: dict[Fate, Process] = {"runs": "running", "stopped": "stopped", "gone": "killed"}


class LiveRank:
    """Follows one rank.

    Args:
        path: its log.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Names are for what is in the ring: of ranks on other hosts nothing needs them.
        self.log = Follower(path, keep_names=lambda header: header.host == socket.gethostname())
        self._growth = _Growth(path)
        self._ring: RingReader | OutOfReach | None = None
        self._ring_of: Header | None = None

    def read(self, deadline: float = float("inf")) -> bool:
        """Read on in the log; return whether all of it has been read.

        Args:
            deadline: on `time.perf_counter`.

        """
        done = self.log.read(deadline)
        self._growth.look(self.log.size)
        return done

    def now(self) -> RankNow:
        """Return what is known of the rank at this moment."""
        log, header = self.log, self.log.header
        process = self._process()
        now_ns = time.perf_counter_ns() if process in {"running", "stopped", "killed"} else None
        flying: NDArray[np.void] | None = None
        recent: Recording | None = None
        step_now, only_begun, because = None, False, "its log is closed"
        if process != "closed":
            ring = self._reach_ring(header)
            if isinstance(ring, RingReader):
                flying, newest = in_flight(ring.unfinished()), ring.newest(RECENT_RECORDS)
                recent = self._recording(newest, flying, process)
                step_now = int(newest.records["step"].max()) if len(newest.records) else None
                only_begun = int((newest.records["step"] == step_now).sum()) == 1
            elif header is None and not log.caught_up:
                because = "the log is still being read"
            else:
                because = ring.because
        ended_ago_ns = self._ended_ago_ns(now_ns)
        return RankNow(
            rank=header.rank if header else rank_in_name(self.path) or 0,
            path=str(self.path),
            host=header.host if header else "",
            pid=header.pid if header else None,
            mode=header.mode if header else "",
            process=process,
            rows=log.rows,
            steps=log.steps,
            ended_ago_ns=ended_ago_ns,
            by_wall_clock=now_ns is None,
            silent_ns=self._growth.silent_ns(),
            full=self._full(),
            now_ns=now_ns,
            in_flight=flying,
            in_flight_because="" if flying is not None else because,
            recent=recent,
            step_now=step_now,
            only_begun=only_begun,
            names=log.names,
            groups=log.groups,
            caught_up=log.caught_up,
            damaged=log.damaged,
            damaged_bytes=log.damaged_bytes,
            notes=tuple(log.notes),
            problem=log.problem,
        )

    def _process(self) -> Process:
        header = self.log.header
        if self.log.end is not None:
            return "closed"
        if header is None:
            return "not known"
        if header.host != socket.gethostname():
            return "elsewhere"
        return _PROCESS[fate_of(header.pid, header.created.wall_ns / 1e9)]

    def _reach_ring(self, header: Header | None) -> RingReader | OutOfReach:
        """Return the ring of this header, opened once; one out of reach is asked for again."""
        if not isinstance(self._ring, RingReader) or self._ring_of is not header:
            self._ring, self._ring_of = open_ring(header), header
        return self._ring

    def _recording(
        self, newest: Batch, flying: NDArray[np.void], process: Process
    ) -> Recording | None:
        """Return the newest records in the shape that the order of collectives is told from."""
        header, records = self.log.header, newest.records
        if header is None or not len(records):
            return None
        begun = records[records["kind"] == RecordKind.STEP]
        steps = np.zeros(max(len(begun), 1), STEP)
        # The newest step may have pushed its own record out: it is there all the same.
        steps["step"] = begun["step"] if len(begun) else records["step"].max()
        return Recording(
            timeline=Timeline(
                origin=Origin("owlog", str(self.path), header.rank, header.world, header.device),
                communication=records[records["kind"] == RecordKind.COLLECTIVE],
                steps=steps,
                names=self.log.names,
                groups=self.log.groups,
            ),
            summaries=self.log.rows[-1:],
            in_flight=flying,
            state=process,
        )

    def _ended_ago_ns(self, now_ns: int | None) -> int | None:
        """Return how long ago the newest step ended; by wall clocks where the process is elsewhere."""
        if not len(self.log.rows) or self.log.clock is None:
            return None
        end_ns = int(self.log.rows["end_ns"].max())
        if now_ns is None:
            end_ns += self.log.clock.wall_ns - self.log.clock.monotonic_ns
            now_ns = time.time_ns()
        return max(0, now_ns - end_ns)

    def _full(self) -> bool:
        header = self.log.header
        allowed = header.settings.get("max_log_mb", "") if header else ""
        if not allowed.isdigit():
            return False
        return self.log.size > int(allowed) * 1_000_000 - _NEARLY_FULL_BYTES


class _Growth:
    """How long a file has not grown: since it was seen to, or by its time stamp at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._since_ns: int | None = None  # on `time.monotonic_ns`

    def look(self, size: int) -> None:
        """Take note of the size that the file has now."""
        if self._size < 0:
            try:
                age_s = time.time() - self._path.stat().st_mtime
            except OSError:
                return
            self._since_ns = time.monotonic_ns() - max(0, int(age_s * 1e9))
        elif size != self._size:
            self._since_ns = time.monotonic_ns()
        self._size = size

    def silent_ns(self) -> int | None:
        """Return since when it has not grown; None before the first look."""
        return None if self._since_ns is None else time.monotonic_ns() - self._since_ns

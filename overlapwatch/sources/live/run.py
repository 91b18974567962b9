"""All ranks of a run that is being written, in one directory that may be another host's as well.

In: the directory, or one log. Out: a `RunNow`. Logs that appear later are found; a newer run in the same directory
takes over. A look at many logs may be cut short: the next one goes on with the rank after.
"""

import time
from collections.abc import Collection
from pathlib import Path

from overlapwatch.errors import InputError
from overlapwatch.log.frames import Header
from overlapwatch.log.reader import read_header
from overlapwatch.sources.live.rank import LiveRank
from overlapwatch.sources.owlog import choose_newest
from overlapwatch.timeline.running import RunNow


class LiveRun:
    """Follows a run.

    Args:
        path: its directory, or one log of it.
        ranks: only these.

    Raises:
        InputError: there is no such directory or log, or it is something else.

    """

    def __init__(self, path: Path, ranks: Collection[int] | None = None) -> None:
        self.path = path
        self._asked = tuple(sorted(ranks)) if ranks is not None else None
        self._ranks: dict[Path, LiveRank] = {}
        self._headers: dict[Path, Header | None] = {}
        self._not_yet: dict[Path, str] = {}  # logs without a readable beginning, and why
        self._notes: list[str] = []
        self._next = 0  # whose turn it is
        if not path.exists():
            raise InputError(f"{path}: there is no such directory")
        if not path.is_dir() and path.stat().st_size:
            read_header(path)  # says what it is, where it is no log

    def read(self, seconds: float = float("inf")) -> bool:
        """Look for new logs and read on in all; return whether everything has been read.

        Args:
            seconds: stop after about so long, and go on the next time.

        """
        deadline = time.perf_counter() + seconds
        self._discover()
        followed = list(self._ranks.values())
        for _ in followed:
            self._next = (self._next + 1) % len(followed)
            followed[self._next].read(deadline)
            if time.perf_counter() > deadline:
                break
        return all(one.log.caught_up or one.log.problem for one in followed)

    @property
    def bytes_read(self) -> tuple[int, int]:
        """So many bytes of the logs have been read, of so many."""
        logs = [one.log for one in self._ranks.values()]
        return sum(log.offset for log in logs), sum(log.size for log in logs)

    def now(self) -> RunNow:
        """Return what is known of all ranks at this moment."""
        ranks = sorted((one.now() for one in self._ranks.values()), key=lambda one: one.rank)
        headers = [one.log.header for one in self._ranks.values() if one.log.header is not None]
        world = max((header.world for header in headers), default=None)
        there = {one.rank for one in ranks}
        wanted = range(world or 0) if self._asked is None else self._asked
        return RunNow(
            path=str(self.path),
            run_id=headers[0].run_id if headers else "",
            world=world,
            ranks=tuple(ranks),
            absent=tuple(rank for rank in wanted if rank not in there)
            if self.path.is_dir()
            else (),
            asked=self._asked,
            wall_ns=time.time_ns(),
            notes=(*self._notes, *(f"{path}: {why}" for path, why in self._not_yet.items())),
        )

    def _discover(self) -> None:
        """Take up logs that were not there before."""
        try:
            paths = sorted(self.path.glob("*.owlog")) if self.path.is_dir() else [self.path]
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None
        # A damaged header stays so; one that is being written is whole a moment later.
        news = [self._look_at(path) for path in paths if self._headers.get(path) is None]
        if any(news):
            self._choose()

    def _look_at(self, path: Path) -> bool:
        """Read a header; return whether that says something new."""
        try:
            header = read_header(path)
        except InputError as error:
            self._not_yet[path] = str(error).removeprefix(f"{path}: ")
            return False
        self._not_yet.pop(path, None)
        new = path not in self._headers or header is not None
        self._headers[path] = header
        return new

    def _choose(self) -> None:
        if self.path.is_dir():
            files, self._notes = choose_newest(self.path, self._headers)
        else:
            header = self._headers[self.path]
            files, self._notes = {header.rank if header else 0: self.path}, []
        chosen = {
            path: rank for rank, path in files.items() if self._asked is None or rank in self._asked
        }
        self._ranks = {path: self._ranks.get(path) or LiveRank(path) for path in chosen}

"""A run that is looked at while it is written: what is known of each rank at one moment.

In: whatever a source that follows logs and rings knows. Out: one `RunNow`, of one `RankNow` a rank; the accounting
of a live view sees nothing else. Times are int64 ns. What could not be known is None, with the reason beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import SUMMARY, Name

Process = Literal["running", "stopped", "killed", "closed", "elsewhere", "not known"]
"""What became of a rank's process. Closed: it ended its log in order. Elsewhere: it is on another host."""


@dataclass(frozen=True, slots=True, eq=False)
class RankNow:
    """One rank at the moment it was looked at.

    Args:
        rank: from the log's header, or the file's name where that is damaged.
        path: its log.
        host, pid, mode: from the header; "", None and "" without it.
        process: what became of its process.
        rows: SUMMARY array, its latest steps in the order of the log.
        steps: how many steps the log has summed up.
        ended_ago_ns: since the newest of these ended; None without one.
        by_wall_clock: `ended_ago_ns` compares the wall clocks of two hosts.
        silent_ns: since the log last grew; None when that was not seen yet and no clock tells.
        full: the log has reached the size it was allowed.
        now_ns: the moment of looking, on the clock of the records; None for a process that is not on this host.
        in_flight: COLLECTIVE records without a finish, oldest first; None: not known.
        in_flight_because: why not.
        recent: what the ring holds of the latest collectives; None without a ring.
        step_now: the step that the ring is in; None without a ring.
        only_begun: of `step_now` the ring has nothing but its beginning.
        names, groups: what ids stand for; empty where nothing of the rank needs them.
        caught_up: the log was read up to its end.
        damaged, damaged_bytes: places in the log that could not be read.
        notes: the writer's latest sentences.
        problem: why the log cannot be read at all; "".

    """

    rank: int
    path: str
    host: str = ""
    pid: int | None = None
    mode: str = ""
    process: Process = "not known"
    rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, SUMMARY))
    steps: int = 0
    ended_ago_ns: int | None = None
    by_wall_clock: bool = False
    silent_ns: int | None = None
    full: bool = False
    now_ns: int | None = None
    in_flight: NDArray[np.void] | None = None
    in_flight_because: str = ""
    recent: Recording | None = None
    step_now: int | None = None
    only_begun: bool = False
    names: Mapping[int, Name] = field(default_factory=dict)
    groups: Mapping[int, Name] = field(default_factory=dict)
    caught_up: bool = True
    damaged: int = 0
    damaged_bytes: int = 0
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RunNow:
    """All ranks of a run at one moment.

    Args:
        path: what was asked for: the run's directory, or a log.
        run_id: of the run; "" before there is a header.
        world: how many ranks it has; None before there is a header.
        ranks: those that have a log, in order.
        absent: ranks of the world without a log, of those that were asked for.
        asked: ranks that were asked for; None: all.
        wall_ns: the moment, since 1970 UTC.
        notes: sentences about the directory.

    """

    path: str
    run_id: str
    world: int | None
    ranks: tuple[RankNow, ...]
    absent: tuple[int, ...]
    asked: tuple[int, ...] | None
    wall_ns: int
    notes: tuple[str, ...] = ()

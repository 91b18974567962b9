"""What a live view shows: one `RunView` of one `RankView` a rank, with its checks and its JSON.

In: what `look` found. Out: frozen results. Nothing is computed here.
"""

from dataclasses import dataclass
from typing import Any, Literal

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.messages import InFlight
from overlapwatch.accounting.ranks.live_lateness import LiveLateness
from overlapwatch.accounting.ranks.order_result import GroupOrder
from overlapwatch.accounting.running.latest import Latest
from overlapwatch.accounting.running.unfinished import Unfinished
from overlapwatch.timeline.model import Unknown
from overlapwatch.timeline.running import Process

Trouble = Literal["killed", "stopped", "unreadable", "behind", "waiting", "no step", "silent", ""]


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as it is now.

    Args:
        rank, path, host, pid, mode, process, steps, ended_ago_ns, by_wall_clock, silent_ns, full, step_now,
            only_begun, caught_up, damaged, damaged_bytes, notes, problem: as in `RankNow`.
        trouble: what is wrong; "".
        latest: its latest steps; None before one has ended.
        in_flight: its collectives without a finish, oldest first; None: not known.
        in_flight_because: why not.

    """

    rank: int
    path: str
    host: str
    pid: int | None
    mode: str
    process: Process
    trouble: Trouble
    steps: int
    ended_ago_ns: int | None
    by_wall_clock: bool
    silent_ns: int | None
    full: bool
    step_now: int | None
    only_begun: bool
    latest: Latest | None
    in_flight: tuple[InFlight, ...] | None
    in_flight_because: str
    caught_up: bool
    damaged: int
    damaged_bytes: int
    notes: tuple[str, ...]
    problem: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        plain = (
            "rank", "path", "host", "pid", "mode", "process", "steps", "ended_ago_ns", "by_wall_clock", "silent_ns",
            "full", "step_now", "only_begun", "caught_up", "damaged", "damaged_bytes",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in plain},
            "trouble": self.trouble or None,
            "latest": self.latest.to_dict() if self.latest else None,
            "in_flight": None
            if self.in_flight is None
            else [one.to_dict() for one in self.in_flight],
            "in_flight_because": self.in_flight_because or None,
            "notes": list(self.notes),
            "problem": self.problem or None,
        }


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank whose usual step is longest, beside the median over all ranks."""

    rank: int
    usual_ns: int
    median_ns: int
    ranks: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it is now.

    Args:
        path, run_id, world, absent, asked, wall_ns, notes: as in `RunNow`.
        ranks: those with a log, in the order asked for.
        slowest: None of fewer than two ranks.
        lateness: who enters the last reduction late.
        unfinished: the old ones of all ranks, oldest first, then the others.
        differing: groups in which the ranks issue different collectives.
        unknown: what cannot be told.
        closure: the checks.

    """

    path: str
    run_id: str
    world: int | None
    ranks: tuple[RankView, ...]
    absent: tuple[int, ...]
    asked: tuple[int, ...] | None
    wall_ns: int
    slowest: Slowest | None
    lateness: LiveLateness
    unfinished: tuple[Unfinished, ...]
    differing: tuple[GroupOrder, ...]
    unknown: tuple[Unknown, ...]
    notes: tuple[str, ...]
    closure: tuple[Check, ...]

    @property
    def old(self) -> tuple[Unfinished, ...]:
        """The collectives that have lasted for longer than is usual."""
        return tuple(one for one in self.unfinished if one.old)

    @property
    def over(self) -> bool:
        """Whether every rank that was asked for has ended, as far as this host can know."""
        ended = all(one.process in {"closed", "killed"} for one in self.ranks)
        return bool(self.ranks) and ended and not self.absent

    def checks(self) -> tuple[Check, ...]:
        """Return how the parts of the steps and the ranks add up."""
        return self.closure

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values; what is not known is null."""
        return {
            "path": self.path,
            "run": self.run_id or None,
            "wall_ns": self.wall_ns,
            "world": self.world,
            "absent": list(self.absent),
            "ranks": [one.to_dict() for one in sorted(self.ranks, key=lambda one: one.rank)],
            "slowest": self.slowest.to_dict() if self.slowest else None,
            "lateness": self.lateness.to_dict(),
            "unfinished": [one.to_dict() for one in self.unfinished],
            "differing": [one.to_dict() for one in self.differing],
            "not_known": [{"what": one.what, "because": one.because} for one in self.unknown],
            "notes": list(self.notes),
            "closure": [check.to_dict() for check in self.closure],
        }

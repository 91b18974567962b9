"""Lanes of work and one link: where everything runs when lanes send collectives and wait for them.

In: for each rank a few lanes, each a list of `Op`s that it does in order; how long each collective keeps the link busy
by itself. Out: a `Course`: spans of work, when each collective was sent, began and finished, and what was held.

A lane is whatever does one thing after another: a host thread, or a stream of a device. A collective begins when all
ranks have sent it and the link takes it; the link takes those of one channel in order, `width` at a time. On a shared
link those that run at once share its rate:

    two collectives of 4 sent at 0 and 2, width 2        first 0-6, second 2-8
    the same, width 1                                    first 0-4, second 4-8
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from overlapwatch.errors import InputError
from overlapwatch.vocabulary import Phase


class Does(IntEnum):
    """What a lane does next."""

    WORK = 0  # for `ns`; `computing` says whether it is compute
    SEND = 1  # the collective `name`; the lane goes on
    AWAIT = 2  # until the collective `name` has finished, or `name` was signalled
    SIGNAL = 3  # `name`, to the lanes of its rank
    UNTIL = 4  # not before `ns` after the rank's beginning
    HOLD = 5  # from now on the parameters of `name` are in memory
    FREE = 6  # from now on they are not


class Op(NamedTuple):
    """One thing that a lane does."""

    does: Does
    name: str = ""
    ns: int = 0
    computing: bool = False
    phase: int = Phase.OTHER


class Job(NamedTuple):
    """One collective: how long it takes by itself, and on which channel."""

    service_ns: int
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """What carries the collectives.

    Args:
        width: how many of a channel run at once.
        shared: whether all that run share one rate; else each channel has its own.
        in_order: whether a channel takes collectives in the order of the jobs, not as they come.
    """

    width: int = 1
    shared: bool = True
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of one rank, which begins at `begin_ns`."""

    rank: int
    begin_ns: int
    ops: Sequence[Op]


class Worked(NamedTuple):
    """One span of work of a lane; `name` is that of its `Op`."""

    name: str
    start_ns: int
    end_ns: int
    computing: bool
    phase: int


class Sent(NamedTuple):
    """One collective as one rank saw it."""

    launch_ns: int
    start_ns: int
    finish_ns: int
    phase: int


class Held(NamedTuple):
    """Parameters in memory."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Course:
    """What came of one step, as rank `told` saw it; ns on the clock of the lanes' beginnings.

    Args:
        work: of its lanes, in no order.
        sent: its collectives, by name.
        held: what it held; to `end_ns` where nothing freed it.
        end_ns: when the last of its lanes was done.
    """

    work: list[Worked] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    end_ns: int = 0


def course(lanes: Sequence[Lane], jobs: Mapping[str, Job], link: Link, told: int = 0) -> Course:
    """Run all lanes to their ends.

    Args:
        lanes: of all ranks.
        jobs: by name, in the order in which an `in_order` channel takes them.
        link: what carries them.
        told: whose course to return.

    Raises:
        InputError: a lane waits for what never comes.
    """
    return _Run(lanes, jobs, link, told).result()


class _Run:
    def __init__(
        self, lanes: Sequence[Lane], jobs: Mapping[str, Job], link: Link, told: int
    ) -> None:
        self._lanes, self._told = lanes, told
        self._ranks = {lane.rank for lane in lanes}
        begin = min(lane.begin_ns for lane in lanes)
        self._carrier = _Carrier(jobs, link, len(self._ranks), begin)
        self._next = [0] * len(lanes)
        self._ready: list[tuple[int, int]] = []
        self._signalled: dict[tuple[int, str], int] = {}
        self._waiting: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self._launched: dict[str, tuple[int, int]] = {}
        self._holds: dict[str, int] = {}
        self._course = Course()
        for number, lane in enumerate(lanes):
            heappush(self._ready, (lane.begin_ns, number))

    def result(self) -> Course:
        while self._ready or self._carrier.busy:
            finish = self._carrier.next_finish()
            if finish is not None and (not self._ready or finish <= self._ready[0][0]):
                at = round(finish)
                for name in self._carrier.finished(finish):
                    for rank in self._ranks:
                        self._signal(rank, name, at)
            else:
                now, number = heappop(self._ready)
                self._go_on(number, now)
        done = self._course
        if any(n < len(lane.ops) for n, lane in zip(self._next, self._lanes, strict=True)):
            raise InputError("the ranks' logs do not fit each other: one waits for what none sends")
        spans = self._carrier.spans
        for name, (at, phase) in self._launched.items():
            start, finish_ns = spans[name]
            done.sent[name] = Sent(at, max(round(start), at), round(finish_ns), phase)
        for name, since in self._holds.items():
            done.held.append(Held(name, since, done.end_ns))
        return done

    def _go_on(self, number: int, now: int) -> None:
        """Let a lane do what it can at this moment."""
        lane = self._lanes[number]
        mine = lane.rank == self._told
        while self._next[number] < len(lane.ops):
            op = lane.ops[self._next[number]]
            if op.does is Does.AWAIT:
                at = self._signalled.get((lane.rank, op.name))
                if at is None:
                    self._waiting.setdefault((lane.rank, op.name), []).append((now, number))
                    return
            self._next[number] += 1
            later = now
            if op.does is Does.WORK:
                later = now + op.ns
                if mine and op.ns:
                    self._course.work.append(Worked(op.name, now, later, op.computing, op.phase))
            elif op.does is Does.UNTIL:
                later = max(now, lane.begin_ns + op.ns)
            elif op.does is Does.SEND:
                if mine:
                    self._launched[op.name] = (now, op.phase)
                self._carrier.send(op.name, now)
            elif op.does is Does.SIGNAL:
                self._signal(lane.rank, op.name, now)
            elif mine and op.does is Does.HOLD:
                self._holds.setdefault(op.name, now)
            elif mine and op.does is Does.FREE and op.name in self._holds:
                self._course.held.append(Held(op.name, self._holds.pop(op.name), now))
            if later > now:
                heappush(self._ready, (later, number))
                if mine:
                    self._course.end_ns = max(self._course.end_ns, later)
                return
        if mine:
            self._course.end_ns = max(self._course.end_ns, now)

    def _signal(self, rank: int, name: str, at: int) -> None:
        self._signalled[rank, name] = at
        for since, number in self._waiting.pop((rank, name), ()):
            heappush(self._ready, (max(since, at), number))


class _Carrier:
    """The link: which collectives run now, and how much of each is left."""

    def __init__(self, jobs: Mapping[str, Job], link: Link, ranks: int, begin: int) -> None:
        self._jobs, self._link, self._parties = jobs, link, ranks
        self._missing: dict[str, int] = {}
        self._queue: dict[int, list[str]] = {}
        if link.in_order:
            for name, job in jobs.items():
                self._queue.setdefault(job.channel, []).append(name)
        self._complete: set[str] = set()
        self._running: dict[str, float] = {}
        self._per_channel: dict[int, int] = {}
        self._now = float(begin)
        self.spans: dict[str, tuple[float, float]] = {}

    @property
    def busy(self) -> bool:
        """Whether something runs."""
        return bool(self._running)

    def send(self, name: str, at: int) -> None:
        """One rank has sent a collective."""
        left = self._missing.get(name, self._parties) - 1
        self._missing[name] = left
        if left:
            return
        self._advance(at)
        self._complete.add(name)
        if not self._link.in_order:
            self._queue.setdefault(self._jobs[name].channel, []).append(name)
        self._admit(self._jobs[name].channel)

    def next_finish(self) -> float | None:
        """Return when the next one finishes, unless another is sent before."""
        if not self._running:
            return None
        return self._now + min(self._running.values()) * self._sharing

    def finished(self, at: float) -> list[str]:
        """Take out those that finish at `at`."""
        self._advance(at)
        least = min(self._running.values())
        over = [name for name, left in self._running.items() if left <= least]
        for name in over:
            del self._running[name]
            channel = self._jobs[name].channel
            self._per_channel[channel] -= 1
            self.spans[name] = (self.spans[name][0], at)
        for channel in dict.fromkeys(self._jobs[name].channel for name in over):
            self._admit(channel)
        return over

    @property
    def _sharing(self) -> int:
        return len(self._running) if self._link.shared else 1

    def _advance(self, at: float) -> None:
        if self._running and at > self._now:
            gone = (at - self._now) / self._sharing
            self._running = {name: left - gone for name, left in self._running.items()}
        self._now = max(self._now, at)

    def _admit(self, channel: int) -> None:
        queue = self._queue[channel]
        while (
            queue
            and queue[0] in self._complete
            and self._per_channel.get(channel, 0) < self._link.width
        ):
            name = queue.pop(0)
            self._per_channel[channel] = self._per_channel.get(channel, 0) + 1
            self._running[name] = float(self._jobs[name].service_ns)
            self.spans[name] = (self._now, self._now)

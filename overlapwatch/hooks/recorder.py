"""Turns what hooks see into records: the hot path, and the state it needs (current step, current phase).

In: calls from hooks, on any thread. Out: records in the ring. One call is one clock read and one pack. Nothing here
raises into training: hooks run under `Guard`, which turns the whole recorder off at the first fault.

A span is written when it begins, with its finish empty, and stamped when it ends; so a reader outside sees what is
still running. Where times come from is the business of a `Times`: the host clock stamps at once, a device clock later.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from overlapwatch.hooks.names import Names
from overlapwatch.hooks.nvtx import NullRanges
from overlapwatch.hooks.times import Times
from overlapwatch.ring import Ring
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag, RecordKind

log = logging.getLogger("overlapwatch")


class Guard:
    """Keeps our faults ours. The first one turns recording off, with one warning; training goes on."""

    def __init__(self) -> None:
        self.tripped: str | None = None
        self._on_trip: list[Callable[[str], None]] = []
        self._lock = threading.Lock()

    def call_when_tripped(self, action: Callable[[str], None]) -> None:
        """Have `action(reason)` called, once, on the thread where the fault happened."""
        self._on_trip.append(action)

    def trip(self, where: str, error: BaseException) -> None:
        """Record a fault of ours in `where`. Only the first one counts."""
        with self._lock:
            if self.tripped is not None:
                return
            self.tripped = f"{where}: {type(error).__name__}: {error}"
        log.warning("overlapwatch turned itself off (%s); training is not affected", self.tripped)
        log.debug("the fault", exc_info=error)
        for action in self._on_trip:
            action(self.tripped)


NEVER_NS = (1 << 63) - 1
"""Later than anything."""


@dataclass(frozen=True, slots=True)
class BackwardReport:
    """What DDP's own statistics say about one synchronising backward, for the drain to place on the clock.

    Args:
        step: step number.
        module: index of the DDP module.
        ready_after_ns: per parameter, in the reducer's order, ns from the reducer's base to gradient-ready.
        base_earliest_ns, base_latest_ns: the base lies between these (the forward ran then).
        waited_until_ns: by then what was launched had finished, since DDP waited for it; NEVER_NS: it may not have.
        parameters: PARAMETER ids in the reducer's order.
        buckets: per launched bucket: (slot, launch ns, member parameter ids).
    """

    step: int
    module: int
    ready_after_ns: list[int]
    base_earliest_ns: int
    base_latest_ns: int
    waited_until_ns: int
    parameters: tuple[int, ...]
    buckets: list[tuple[int, int, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class FinishBound:
    """A collective was waited for, so it was over when the wait was, whenever its finish gets stamped.

    Args:
        step: the step of both records.
        collective: slot of the COLLECTIVE.
        wait: slot of the WAIT, which ends when the collective did, or at once if that was before it began.
        until_ns: by then it was over.
    """

    step: int
    collective: int
    wait: int
    until_ns: int


class Recorder:
    """The state every hook shares. Attributes are plain so that the hot path reads them directly."""

    def __init__(self, ring: Ring, names: Names, times: Times, guard: Guard) -> None:
        self.ring = ring
        self.names = names
        self.times = times
        self.guard = guard
        self.now = times.now
        self.on = True  # False: the watch is off for good
        self.recording = True  # False: this is a shadow step
        self.step = 0
        self.phase: int = Phase.OTHER
        self.backward_reports: deque[BackwardReport] = deque(maxlen=4096)
        self.finish_bounds: deque[FinishBound] = deque(maxlen=1 << 16)
        self.step_flags: deque[tuple[int, int]] = deque(maxlen=4096)
        self.group_workers: dict[
            int, int
        ] = {}  # group id -> collectives its backend runs at a time
        self.boundary_listeners: list[Callable[[int], None]] = []
        self.ranges: NullRanges | None = None  # NVTX ranges, when a tool listens
        self._open_ranges: dict[int, int] = {}  # slot -> range
        self._step_slot = -1
        self._on_host, self._stream = times.on_host, times.stream
        self._write = ring.write
        guard.call_when_tripped(self._turn_off)

    def _turn_off(self, _reason: str) -> None:
        self.on = self.recording = False

    # -- spans -------------------------------------------------------------------------------------------------

    def begin(
        self,
        kind: RecordKind,
        phase: int,
        owner: int,
        collective: int = 0,
        size: int = 0,
        stream: int = 0,
        at: int = 0,
    ) -> int:
        """Write a span that begins now; return its slot.

        Args:
            kind: what it is a span of.
            phase: where in the step.
            owner: id of a Name.
            collective: CollectiveKind of what it has to do with; 0 = none, or not known.
            size: bytes.
            stream: 0 for the host, or the compute stream of a device.
            at: "now" as the caller has read it from the host clock.
        """
        at = (at or self.now()) if self._on_host else 0
        slot = self._write(
            kind, phase, collective, 0, self.step, owner, 0, stream, 0, 0, size, 0, 0, at, 0
        )
        if not at:
            self.times.mark(slot, "start")
        if self.ranges is not None and kind == RecordKind.PHASE:
            self._open_ranges[slot] = self.ranges.start_phase(phase)
        return slot

    def end(self, slot: int) -> None:
        """Stamp the end of a span that `begin` wrote."""
        self.times.mark(slot, "finish")
        if self._open_ranges:
            self.range_ended(slot)

    def range_ended(self, slot: int) -> None:
        """Close the NVTX range of a span, if it has one."""
        token = self._open_ranges.pop(slot, None)
        if token is not None and self.ranges is not None:
            self.ranges.end(token)

    def launch(
        self,
        collective: CollectiveKind,
        owner: int,
        group: int,
        sequence: int,
        size: int,
        flags: int,
        at: int,
        cause: int = 0,
    ) -> int:
        """Write a collective launched at `at` (host ns); return its slot. Its finish comes from `Times.mark_finish`."""
        slot = self._write(
            RecordKind.COLLECTIVE,
            self.phase,
            collective,
            flags,
            self.step,
            owner,
            group,
            self._stream,
            sequence,
            cause,
            size,
            0,
            at,
            0,
            0,
        )
        if self.ranges is not None:
            if owner:  # a bucket is launched because it is complete and its turn has come
                self.ranges.ready(owner)
            self._open_ranges[slot] = self.ranges.start(collective, owner)
        return slot

    def end_at(self, slot: int, at: int, flags: int = 0) -> None:
        """Stamp the end of a span or collective at `at` (host ns), which the caller has seen."""
        self.ring.stamp(slot, "finish", at)
        if flags:
            self.ring.add_flags(slot, flags)
        if self._open_ranges:
            self.range_ended(slot)

    def unobservable(self, slot: int) -> None:
        """Say of a collective that its finish cannot be seen."""
        self.ring.add_flags(slot, RecordFlag.FINISH_UNOBSERVABLE)

    # -- steps -------------------------------------------------------------------------------------------------

    def open_step(self, start: int, flags: int = 0) -> None:
        """Begin the next step at `start` (host ns)."""
        self.step += 1
        self._step_slot = self._write(
            RecordKind.STEP, 0, 0, 0, self.step, 0, 0, 0, 0, 0, 0, 0, 0, start, 0
        )
        if flags:
            self.flag_step(flags)
        self.times.step_began()
        if self.ranges is not None:
            self.ranges.push_step(self.step)
        for listener in self.boundary_listeners:
            listener(self.step)

    def close_step(self, end: int) -> None:
        """End the running step at `end` (host ns)."""
        if self._step_slot >= 0:
            if self.times.on_host:
                self.ring.stamp(self._step_slot, "finish", end)
            self._step_slot = -1
            if self.ranges is not None:
                self.ranges.pop()

    def step_may_end(self, at: int) -> None:
        """An optimizer has stepped, at `at` (host ns); the step ends here unless another one follows."""
        if self._step_slot >= 0:
            self.times.step_may_end(self._step_slot, at)

    def flag_step(self, flags: int) -> None:
        """Say something about the running step (StepFlag)."""
        self.step_flags.append((self.step, flags))

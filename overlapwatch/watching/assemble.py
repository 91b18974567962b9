"""Gathers the ring's records into steps that are over.

In: the ring. Out: for each step, once, its records with every time that will be known: the step has ended and its
collectives have finished, or a grace has passed. A record's finish is stamped into its slot after the record was read,
so the slots of a pending step are read again when it ends.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from overlapwatch.ring import Ring
from overlapwatch.timeline.records import join_records
from overlapwatch.vocabulary import RECORD, RecordFlag, RecordKind

GRACE_NS = 2_000_000_000
"""How long a finished step waits for the finish of its last collectives."""
HOLE_GRACE_NS = 1_000_000_000


_HELD = int(RecordKind.HELD)
_STEP = int(RecordKind.STEP)  # plain ints: enum arithmetic costs a microsecond each time
_UNOBSERVABLE = int(RecordFlag.FINISH_UNOBSERVABLE)


@dataclass(frozen=True, slots=True, eq=False)
class EndedStep:
    """One step, ready to be summed up.

    Args:
        number: the step.
        records: RECORD array, final.
        slots: slot of each record.
        overwritten: records of which the ring kept only the first copy; their last times are not known.
    """

    number: int
    records: NDArray[np.void]
    slots: NDArray[np.int64]
    overwritten: int


@dataclass(slots=True)
class _Pending:
    records: list[NDArray[np.void]] = field(default_factory=list)
    slots: list[NDArray[np.int64]] = field(default_factory=list)
    step_slot: int = -1
    ended_seen_ns: int = 0


class Assembler:
    """Reads a ring in order. Not thread-safe: one drain thread owns it."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._next = 0
        self._pending: dict[int, _Pending] = {}
        self._last_emitted = 0
        self._stuck_since_ns = 0
        self.lost = 0
        self.late = 0  # records of a step that had been emitted already

    def poll(self, now_ns: int, *, everything: bool = False) -> list[EndedStep]:
        """Return the steps that are over, oldest first. `everything` does not wait for anything any more."""
        self._take(now_ns, everything=everything)
        ended = []
        for number in sorted(self._pending):
            step = self._finish(number, self._pending[number], now_ns, everything=everything)
            if step is None:
                break  # steps are emitted in order
            del self._pending[number]
            self._last_emitted = max(self._last_emitted, number)
            ended.append(step)
        return ended

    def _take(self, now_ns: int, *, everything: bool) -> None:
        stuck = self._stuck_since_ns and now_ns - self._stuck_since_ns > HOLE_GRACE_NS
        batch = self._ring.read(self._next, give_up_on_holes=bool(everything or stuck))
        self.lost += batch.lost
        if not batch.hole or batch.next_slot != self._next:
            self._stuck_since_ns = now_ns if batch.hole else 0
        elif not self._stuck_since_ns:
            self._stuck_since_ns = now_ns
        self._next = batch.next_slot
        for number in set(batch.records["step"].tolist()):
            chosen = batch.records["step"] == number
            if number <= self._last_emitted:
                self.late += int(chosen.sum())
                continue
            pending = self._pending.setdefault(int(number), _Pending())
            records, slots = batch.records[chosen], batch.slots[chosen]
            pending.records.append(records)
            pending.slots.append(slots)
            steps = slots[records["kind"] == _STEP]
            if len(steps):
                pending.step_slot = int(steps[-1])

    def _finish(
        self, number: int, pending: _Pending, now_ns: int, *, everything: bool
    ) -> EndedStep | None:
        if not everything and not pending.ended_seen_ns:
            # A step is over when the next one has begun: on a device its end may be marked more than once.
            if not any(other > number for other in self._pending):
                return None
            if pending.step_slot >= 0 and not self._has_ended(pending.step_slot):
                return None
            pending.ended_seen_ns = now_ns
        slots = pending.slots[0] if len(pending.slots) == 1 else np.concatenate(pending.slots)
        fresh, there = self._ring.peek(slots)
        records = fresh if there.all() else np.where(there, fresh, join_records(pending.records))
        running = (records["finish"] == 0) & (records["flags"] & _UNOBSERVABLE == 0)
        running &= (
            records["kind"] != _HELD
        )  # parameters may be held for ever: nobody waits for that
        if not everything and (running & there).any() and now_ns - pending.ended_seen_ns < GRACE_NS:
            return None
        return EndedStep(number, records, slots, int((running & ~there).sum()))

    def _has_ended(self, step_slot: int) -> bool:
        if step_slot < 0:
            return False
        record, there = self._ring.peek(np.array([step_slot], np.int64))
        return bool(not there[0] or record["finish"][0])

    def in_flight(self) -> NDArray[np.void]:
        """Return the collectives launched and not finished, oldest first."""
        parts = []
        for pending in self._pending.values():
            records, there = self._ring.peek(np.concatenate(pending.slots))
            parts.append(records[there])
        if not parts:
            return np.empty(0, RECORD)
        records = join_records(parts)
        open_ = (records["kind"] == RecordKind.COLLECTIVE) & (records["finish"] == 0)
        open_ &= records["flags"] & _UNOBSERVABLE == 0
        return np.asarray(records[open_])

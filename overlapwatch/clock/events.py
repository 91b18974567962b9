"""Device events placed on the host clock: the hot path records them, the drain thread resolves them.

In: `mark(slot, field)` on any thread, `anchor()` at every step, `poll(stamp)` on the drain thread. Out: calls of
`stamp(slot, field, ns)`, ns on the host clock, and a `DeviceClockReport`. Nothing here ever waits for the device.

What is measured and what is estimated. The time between two events is the device's own measurement. Where they lie on
the host clock is an estimate, known to within `uncertainty_ns` (see clock/offset.py), a proven bound as long as the
clocks drift apart by less than `DRIFT_PPM`. All events placed by one anchor share one offset, so their differences are
the device's, untouched. From one anchor to the next the offset moves towards the middle of what is possible, no faster
than the clocks may drift, and at once when it is proven wrong (a counted correction).

Why anchors. A device reports elapsed time as a float32 in ms: its step is 0.06 ms at 1,000 s. So an anchor event is
recorded at every step and placed relative to the anchor before it; events are placed relative to their step's anchor.
A mark that finds the anchor too old (a long step, a pause between steps) makes one itself.

    anchor A0    event a     anchor A1        event b (its anchor: A1)
    d = 0        +3.2 ms     A0 + 100.1 ms    A1 + 40.7 ms     each term small, so each is exact to some ns
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from overlapwatch.clock.device import Device
from overlapwatch.clock.host import HostClock
from overlapwatch.clock.offset import DRIFT_PPM, OffsetEstimate

MAX_ANCHOR_AGE_NS = 4_000_000_000
"""Below 4.1 s a float32 of ms is exact to 0.12 us."""

Stamp = Callable[[int, str, int], bool]
"""(slot, field, host ns) -> whether the record was still there."""


@dataclass(slots=True, eq=False)
class _Anchor:
    event: Any
    recorded_ns: int
    not_before_ns: int  # when it was recorded, or last seen not to be complete
    device_ns: int = 0
    offset_ns: int | None = None  # None until something was placed by it
    complete: bool = False
    freed: bool = False  # its event went back to the pool
    users: int = 0  # pending marks that will be placed by it; the drain thread's business only


_Mark = tuple[int, Any, int, "_Anchor | None", int, str]
"""(stream number, event, recorded ns, anchor, slot, field)."""


@dataclass(frozen=True, slots=True)
class DeviceClockReport:
    """What the clock did, for the report's notes.

    Args:
        stamped: events resolved and stored into a record.
        overwritten: resolved, but the record was gone.
        missed: not recorded, because the pool was empty.
        in_capture: not recorded, because a graph was being captured.
        unresolved: given up at `close`.
        pending: recorded and not complete yet.
        anchors: anchors resolved.
        restarts: times the offset was found impossible and estimated anew (drift beyond DRIFT_PPM, or a clock set).
        corrections: times an anchor's offset had to jump, the one in force being proven wrong.
        largest_correction_ns: the largest such jump.
        uncertainty_ns: bound on the placement of the latest events on the host clock; None before the first.
        worst_uncertainty_ns: the same over all events so far.
        events: device events made.
    """

    stamped: int
    overwritten: int
    missed: int
    in_capture: int
    unresolved: int
    pending: int
    anchors: int
    restarts: int
    corrections: int
    largest_correction_ns: int
    uncertainty_ns: int | None
    worst_uncertainty_ns: int | None
    events: int


class DeviceEventClock:
    """Events of one device.

    Args:
        device: where the events are.
        host: the clock they are placed on.
        capacity: how many device events exist at most; marks beyond that are counted, not recorded.
        drift_ppm: how fast the two clocks may drift apart.
    """

    def __init__(
        self, device: Device, host: HostClock, *, capacity: int = 8192, drift_ppm: int = DRIFT_PPM
    ) -> None:
        self._device = device
        self._now = host.now
        self._capacity = capacity
        self._drift_ppm = drift_ppm
        self._offset = OffsetEstimate(drift_ppm)
        self._free: deque[Any] = deque()
        self._inbox: deque[_Mark] = deque()
        self._anchors: deque[_Anchor] = deque()  # recorded, not complete yet, in order
        self._kept: list[
            _Anchor
        ] = []  # complete and still needed, in order; the last is the newest
        self._queues: dict[int, deque[_Mark]] = {}  # pending, per stream
        self._waiting: dict[
            int, tuple[Any, int]
        ] = {}  # per stream: event last seen incomplete, when
        self._last_ns: dict[int, int] = {}  # latest stamp, per stream
        self._anchor: _Anchor | None = None  # the newest recorded
        self._in_force: tuple[int, int] | None = (
            None  # the offset chosen last, and for which device time
        )
        self._lock = threading.Lock()  # guards the counters of the rare paths
        self._closed = False
        self._made = self._missed = self._in_capture = 0
        self._stamped = self._overwritten = self._unresolved = self._anchored = 0
        self._corrections = self._largest_correction_ns = 0
        self._uncertainty_ns: int | None = None
        self._worst_uncertainty_ns: int | None = None

    # -- the hot path, any thread ---------------------------------------------------------------------

    def mark(self, slot: int, field: str, stream: Any = None) -> None:
        """Record an event on a stream (the current one by default); its time goes into `field` of record `slot`."""
        event = self._take()
        if event is None:
            return
        device = self._device
        if stream is None:
            stream = device.current_stream()
        now = self._now()  # before the record: the event cannot be complete earlier
        anchor = self._anchor
        if anchor is None or now - anchor.recorded_ns > MAX_ANCHOR_AGE_NS:
            self.anchor(stream)
            anchor = self._anchor
        device.record(event, stream)
        self._inbox.append((device.stream_number(stream), event, now, anchor, slot, field))

    def anchor(self, stream: Any = None) -> None:
        """Record a new anchor; call it at every step, on the compute stream."""
        event = self._take()
        if event is None:
            return
        now = self._now()
        anchor = _Anchor(event, now, now)
        self._device.record(event, self._device.current_stream() if stream is None else stream)
        self._anchors.append(anchor)
        self._anchor = anchor

    def stream(self) -> int:
        """Return the number of the calling thread's current stream, for a record's `stream`."""
        return self._device.stream_number(self._device.current_stream())

    def capturing(self) -> bool:
        """Say whether the current stream is being captured: no event may be recorded then, and no stream waited for."""
        return self._device.is_capturing()

    def _take(self) -> Any:
        if self._closed:
            return None
        if self._device.is_capturing():
            with self._lock:
                self._in_capture += 1
            return None
        try:
            return self._free.popleft()
        except IndexError:
            with self._lock:
                if self._made >= self._capacity:
                    self._missed += 1
                    return None
                self._made += 1
            return self._device.make_event()

    # -- the drain thread -----------------------------------------------------------------------------

    def calibrate(self, budget_ns: int = 2_000_000, rounds: int = 8) -> bool:
        """Find the offset before the first step, so that the first times are already good.

        Records anchors and asks for each until it is complete, for `budget_ns` in all: an idle device answers within
        some us. Call it before training starts and before the drain thread does. Returns whether the device answered.
        """
        end = self._now() + budget_ns
        for _ in range(rounds):
            self.anchor()
            while self._anchors:
                with self._device.querying():
                    self._resolve_anchors()
                if self._anchors and self._now() > end:
                    return bool(self._kept)
        return bool(self._kept)

    def poll(self, stamp: Stamp) -> int:
        """Stamp every event that is complete by now; return how many.

        Streams are asked one by one, each up to its first event that is not complete, so a slow stream holds up only
        its own events.
        """
        if self._closed:  # a mark that was under way when the clock was closed
            self.close()
            return 0
        self._sort_inbox()
        if not self._anchors and not any(self._queues.values()):
            return 0
        with self._device.querying():
            self._resolve_anchors()
            done = self._resolve_marks() if self._kept else []
        # Everything these events say about the offset is known by now: the bounds are the best there are.
        bounds = [self._place(*item, stamp) for item in done]
        if bounds:
            self._uncertainty_ns = max(bounds)
            self._worst_uncertainty_ns = max(self._uncertainty_ns, self._worst_uncertainty_ns or 0)
        if self._kept:
            self._free_anchors()
        return len(done)

    def close(self) -> int:
        """Forget what a last `poll` left; return how many events that were. Later marks do nothing."""
        self._closed = True
        self._sort_inbox()
        left = sum(map(len, self._queues.values()))
        self._unresolved += left
        for holder in (self._queues, self._waiting, self._anchors, self._kept, self._free):
            holder.clear()
        self._anchor = None
        return left

    def report(self) -> DeviceClockReport:
        """Return the counts and bounds so far."""
        return DeviceClockReport(
            stamped=self._stamped,
            overwritten=self._overwritten,
            missed=self._missed,
            in_capture=self._in_capture,
            unresolved=self._unresolved,
            pending=len(self._inbox) + sum(map(len, self._queues.values())),
            anchors=self._anchored,
            restarts=self._offset.restarts,
            corrections=self._corrections,
            largest_correction_ns=self._largest_correction_ns,
            uncertainty_ns=self._uncertainty_ns,
            worst_uncertainty_ns=self._worst_uncertainty_ns,
            events=self._made,
        )

    def _sort_inbox(self) -> None:
        inbox = self._inbox
        while inbox:
            mark = inbox.popleft()
            if mark[3] is not None:
                mark[3].users += 1
            self._queues.setdefault(mark[0], deque()).append(mark)

    def _resolve_anchors(self) -> None:
        while self._anchors:
            anchor = self._anchors[0]
            asked = self._now()
            if not self._device.query(anchor.event):
                anchor.not_before_ns = asked
                return
            seen = self._now()
            self._anchors.popleft()
            previous = self._kept[-1] if self._kept else None
            error_ns = 0
            if previous is not None:
                apart_ns, error_ns = self._elapsed(previous.event, anchor.event)
                anchor.device_ns = previous.device_ns + apart_ns
                self._offset.loosen(error_ns)
            self._offset.observe(anchor.device_ns, anchor.not_before_ns, seen, error_ns)
            anchor.complete = True
            self._anchored += 1
            self._kept.append(anchor)

    def _choose_offset(self, device_ns: int) -> int:
        """Return the offset for an anchor: towards the middle of the feasible interval, but continuous."""
        low, high = self._feasible(device_ns)
        middle = (low + high) // 2
        if self._in_force is None:
            offset = middle
        else:
            before, at = self._in_force
            if low <= before <= high:
                step = abs(device_ns - at) * self._drift_ppm // 1_000_000
                offset = before + min(max(middle - before, -step), step)
            else:
                offset = min(max(before, low), high)
                self._corrections += 1
                moved_ns = abs(offset - before)
                self._largest_correction_ns = max(self._largest_correction_ns, moved_ns)
        self._in_force = offset, device_ns
        return offset

    def _resolve_marks(self) -> list[tuple[_Mark, _Anchor, int, int]]:
        done = []
        for number, queue in self._queues.items():
            while queue:
                asked = self._now()
                if not self._device.query(queue[0][1]):
                    self._waiting[number] = (queue[0][1], asked)
                    break
                done.append(self._resolve(queue.popleft(), self._now()))
        return done

    def _resolve(self, mark: _Mark, seen_ns: int) -> tuple[_Mark, _Anchor, int, int]:
        """Return a completed mark with the anchor that places it, its device time and the rounding error of that."""
        number, event, not_before_ns, anchor, _, _ = mark
        waiting = self._waiting.get(number)
        if waiting is not None and waiting[0] is event:
            not_before_ns = waiting[1]
            del self._waiting[number]  # the event is about to be reused
        if anchor is not None:
            anchor.users -= 1
        # The step's own anchor may not be complete (another stream ran ahead, or hangs), or be freed already.
        base = anchor if anchor and anchor.complete and not anchor.freed else self._kept[-1]
        apart_ns, error_ns = self._elapsed(base.event, event)
        device_ns = base.device_ns + apart_ns
        self._offset.observe(device_ns, not_before_ns, seen_ns, error_ns)
        self._free.append(event)
        return mark, base, device_ns, error_ns

    def _place(
        self, mark: _Mark, anchor: _Anchor, device_ns: int, error_ns: int, stamp: Stamp
    ) -> int:
        """Stamp one resolved event; return how far it can be from the truth."""
        if anchor.offset_ns is None:  # chosen when most is known, and kept from then on
            anchor.offset_ns = self._choose_offset(anchor.device_ns)
        # One stream runs in order, whatever a moved offset says.
        ns = max(device_ns + anchor.offset_ns, self._last_ns.get(mark[0], 0))
        self._last_ns[mark[0]] = ns
        if stamp(mark[4], mark[5], ns):
            self._stamped += 1
        else:
            self._overwritten += 1
        low, high = self._feasible(device_ns)
        placed_by = ns - device_ns
        return max(high - placed_by, placed_by - low) + error_ns

    def _feasible(self, device_ns: int) -> tuple[int, int]:
        interval = self._offset.feasible(device_ns)
        assert interval is not None, "an anchor is resolved before anything is placed"
        return interval

    def _elapsed(self, first: Any, second: Any) -> tuple[int, int]:
        """Return ns between two complete events, and the largest error of its rounding to float32."""
        ns = round(self._device.elapsed_ms(first, second) * 1e6)
        return ns, (abs(ns) >> 24) + 1

    def _free_anchors(self) -> None:
        """Give back the events of anchors that nothing pending refers to; the newest complete one always stays."""
        kept = []
        for anchor in self._kept[:-1]:
            if anchor.users:
                kept.append(anchor)
            else:
                anchor.freed = True
                self._free.append(anchor.event)
        self._kept = [*kept, self._kept[-1]]

"""Where the times of spans come from: the host clock, or events on the device.

In: marks from the recorder, Works from the tap. Out: times stamped into records, at once (host) or when the device has
got there (device). Neither ever waits for anything.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Protocol

from overlapwatch.clock import DeviceEventClock
from overlapwatch.hooks.hazard import EventPlan, EventPolicy
from overlapwatch.ring import Ring
from overlapwatch.vocabulary import RecordFlag

OnFinish = Callable[[int], None]
"""Called with the slot of a collective when its finish was seen."""


class Finish(Enum):
    """What is to be expected of a collective's finish."""

    COMING = "coming"  # it will be stamped
    NOT_SEEN = "not seen"  # not this time
    NEVER = "never"  # this kind of call on this backend never tells


class Times(Protocol):
    """Where times come from.

    Attributes:
        now: the host clock.
        on_host: whether spans are timed on the host; step boundaries then are too.
        stream: what a collective's record says of its stream: 0 on the host, 1 for a device stream of the backend's.
        within_phases: whether spans inside a forward or backward may be timed; False where events while communication
            is outstanding would remove overlap.
        on_finish: called when the finish of a collective was seen.
    """

    now: Callable[[], int]
    on_host: bool
    stream: int
    within_phases: bool
    on_finish: OnFinish | None

    def current_stream(self) -> int:
        """Return a number for the calling thread's current stream; 0 on the host."""

    def mark_start(self, slot: int) -> None:
        """The collective of this record is about to be issued on the current stream, which will carry it."""

    def mark(self, slot: int, field: str) -> None:
        """Store "now", as the device sees it, into a time field of a record: at once or later."""

    def mark_finish(self, slot: int, work: Any, *, synchronous: bool) -> Finish:
        """Arrange for the finish of a collective to be stamped, if that can be done."""

    def is_awaited(self) -> bool:
        """Whether a thread of the backend will yet call us, for which it needs the GIL."""

    def step_may_end(self, slot: int, at: int) -> None:
        """An optimizer has stepped, at `at` (host ns): if nothing follows, the step with this STEP record ends here."""

    def step_began(self) -> None:
        """A new step begins: anchor anew."""

    def poll(self) -> None:
        """On the drain thread: stamp what has become known."""

    def counts(self) -> Mapping[str, int]:
        """Return what the clock counted about itself."""

    def close(self) -> None:
        """On the drain thread, after the last poll: let go of what never came."""


class HostTimes:
    """Times from the host clock: stamped where the call is made, a finish in the future's callback.

    The callback runs on the backend's own thread and needs the GIL: while the main thread holds it the stamp is late
    (docs/performance.md says by how much). On gloo that is the only way to see a finish.
    """

    on_host = True
    stream = 0
    within_phases = True

    def __init__(self, now: Callable[[], int], ring: Ring) -> None:
        self.now = now
        self.on_finish: OnFinish | None = None
        self._stampers = {field: ring.stamper(field) for field in ("start", "finish")}
        self._finish = self._stampers["finish"]
        self._add_flags = ring.add_flags
        self._awaited: set[int] = set()  # slots; adding and discarding are atomic

    def current_stream(self) -> int:
        """There is none."""
        return 0

    def mark_start(self, slot: int) -> None:
        """Nothing to do: nobody on the host sees a collective begin."""

    def mark(self, slot: int, field: str) -> None:
        """Stamp now."""
        self._stampers[field](slot, self.now())

    def mark_finish(self, slot: int, work: Any, *, synchronous: bool) -> Finish:  # noqa: ARG002 - the protocol's
        """Have the finish stamped when the work's future completes; some backends have none for some calls."""
        try:
            future = work.get_future()
        except RuntimeError:  # "getFuture not implemented"
            return Finish.NEVER
        self._awaited.add(slot)
        future.add_done_callback(partial(self._done, slot))
        return Finish.COMING

    def _done(self, slot: int, future: Any) -> None:
        self._finish(slot, self.now())
        if self.on_finish is not None:
            self.on_finish(slot)
        try:
            future.value()
        except Exception:  # noqa: BLE001 - the collective's own error: it reaches the user where the work is waited for
            self._add_flags(slot, RecordFlag.FAILED)
        self._awaited.discard(slot)

    def is_awaited(self) -> bool:
        """Whether a backend thread will yet call us."""
        return bool(self._awaited)

    def step_may_end(self, slot: int, at: int) -> None:
        """Stamp the end: whoever reads the ring of a job that hangs after it sees a whole step."""
        self._finish(slot, at)

    def step_began(self) -> None:
        """Nothing to do: the host clock needs no anchor."""

    def poll(self) -> None:
        """Nothing to do: every time was stamped where it was taken."""

    def counts(self) -> Mapping[str, int]:
        """Nothing to tell."""
        return {}

    def close(self) -> None:
        """Nothing is held."""


class DeviceTimes:
    """Times from device events, placed on the host clock by a `DeviceEventClock`.

    A span's ends are events on the current stream. A collective that runs on the backend's own stream is watched from
    an observer stream of ours: it is made to wait for the collective (a device-side wait; the host goes on), and an
    event behind that wait is the finish. Under a policy that forbids events while communication is outstanding, the
    finish of a collective is unobservable.

    Args:
        now: the host clock.
        ring: where the times go.
        clock: the events.
        plan: which events may be recorded.
        on_stream: makes a stream current for a `with` block (`torch.cuda.stream`).
        observer: the observer stream; None when the plan has none.
    """

    on_host = False
    stream = 1

    def __init__(
        self,
        now: Callable[[], int],
        ring: Ring,
        clock: DeviceEventClock,
        plan: EventPlan,
        on_stream: Callable[[Any], Any],
        observer: Any,
    ) -> None:
        self.now = now
        self.on_finish: OnFinish | None = None
        self._stamp = ring.stamp
        self._clock = clock
        self._pairs = self.within_phases = plan.policy is EventPolicy.EVENT_PAIRS
        self._on_stream = on_stream
        self._observer = observer

    def current_stream(self) -> int:
        """Return the clock's number of the current stream."""
        return self._clock.stream()

    def mark_start(self, slot: int) -> None:
        """Record an event on the current stream. What it is recorded before includes waiting for the other ranks."""
        if self._pairs:
            self._clock.mark(slot, "start")

    def mark(self, slot: int, field: str) -> None:
        """Record an event on the current stream."""
        self._clock.mark(slot, field)

    def mark_finish(self, slot: int, work: Any, *, synchronous: bool) -> Finish:
        """Record the event behind the collective, without making compute or the host wait for it."""
        if not self._pairs:
            return Finish.NEVER
        if self._clock.capturing():  # waiting would pull the observer stream into the user's graph
            return Finish.NOT_SEEN
        if synchronous:  # it ran on the current stream
            self._clock.mark(slot, "finish")
            return Finish.COMING
        if self._observer is None:
            return Finish.NEVER
        self._clock.mark(slot, "ready")  # its inputs are complete when the current stream gets here
        try:
            future = work.get_future()
        except RuntimeError:
            return Finish.NEVER
        with self._on_stream(self._observer):
            future.wait()
            self._clock.mark(slot, "finish")
        return Finish.COMING

    def is_awaited(self) -> bool:
        """No thread calls us: events are asked for."""
        return False

    def step_may_end(self, slot: int, at: int) -> None:  # noqa: ARG002 - the protocol's
        """Mark the end of the step; a later optimizer's mark replaces this one."""
        self._clock.mark(slot, "finish")

    def step_began(self) -> None:
        """Anchor anew: elapsed times are float32."""
        self._clock.anchor()

    def poll(self) -> None:
        """Stamp the events that are complete."""
        self._clock.poll(self._stamp_and_tell)

    def _stamp_and_tell(self, slot: int, field: str, ns: int) -> bool:
        if field == "finish" and self.on_finish is not None:
            self.on_finish(slot)
        return self._stamp(slot, field, ns)

    def counts(self) -> Mapping[str, int]:
        """Return the clock's counts; the bounds are ns."""
        report = self._clock.report()
        return {
            f"device_clock_{name}": value
            for name in report.__slots__
            if isinstance(value := getattr(report, name), int)
        }

    def close(self) -> None:
        """Forget the events that never completed; they are counted."""
        self._clock.close()

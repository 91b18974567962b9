"""A device in simulated time: streams with queues, a drifting clock, float32 elapsed times, and errors where real ones err.

It has the methods of `overlapwatch.clock.Device`. What the event clock must never do raises: ask for the time between events
that are not complete, record while a graph is captured, or query outside `querying`, which would break another thread's capture.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

NEVER = 1 << 62


class SimulatedTime:
    """Host time in ns. Reading it takes a while, as on a real host, so that loops over it end."""

    def __init__(self, start_ns=5_000_000_000, read_ns=50):
        self.ns = start_ns
        self.read_ns = read_ns

    def now(self):
        self.ns += self.read_ns
        return self.ns

    def sleep(self, ns):
        self.ns += ns


@dataclass(eq=False)
class Stream:
    stream_id: int
    free_at: int = 0  # host ns at which everything queued so far is done


@dataclass(eq=False)
class Event:
    complete_at: int | None = None  # host ns
    recorded: int = 0  # how often


class SimulatedDevice:
    def __init__(self, time, *, drift_ppm=0, offset_ns=777_000_000_123, launch_ns=5_000, tick_ns=1):
        self.time = time
        self.drift_ppm, self.offset_ns = drift_ppm, offset_ns
        self.launch_ns, self.tick_ns = launch_ns, tick_ns
        self.capturing = False
        self.default = Stream(0)
        self._current = self.default
        self._numbers = {}
        self.events = []
        self._querying = False

    # -- what a test does with it --------------------------------------------------------------------

    def work(self, duration_ns, stream=None):
        """Queue a kernel."""
        stream = stream or self._current
        stream.free_at = max(stream.free_at, self.time.ns + self.launch_ns) + duration_ns

    def wait(self, stream, event):
        """`stream` does not go on before `event`."""
        stream.free_at = max(stream.free_at, event.complete_at)

    def hang(self, stream):
        stream.free_at = NEVER

    @contextmanager
    def on(self, stream):
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def device_ns(self, host_ns):
        """What the device's own clock says at a host time, exactly."""
        exact = host_ns + host_ns * self.drift_ppm // 1_000_000 + self.offset_ns
        return exact // self.tick_ns * self.tick_ns

    # -- the protocol --------------------------------------------------------------------------------

    def make_event(self):
        self.events.append(Event())
        return self.events[-1]

    def record(self, event, stream):
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        event.complete_at = max(stream.free_at, self.time.ns + self.launch_ns)
        stream.free_at = event.complete_at
        event.recorded += 1

    @contextmanager
    def querying(self):
        assert not self._querying
        self._querying = True
        try:
            yield
        finally:
            self._querying = False

    def query(self, event):
        if not self._querying:
            raise RuntimeError("a capture on another thread was invalidated")
        return self._complete(event)

    def _complete(self, event):
        return event.complete_at is not None and event.complete_at <= self.time.ns

    def elapsed_ms(self, first, second):
        if not (self._complete(first) and self._complete(second)):
            raise RuntimeError("device not ready: an event is not complete")
        ns = self.device_ns(second.complete_at) - self.device_ns(first.complete_at)
        return float(np.float32(ns / 1e6))

    def current_stream(self):
        return self._current

    def stream_number(self, stream):
        return self._numbers.setdefault(stream.stream_id, len(self._numbers) + 1)

    def is_capturing(self):
        return self.capturing

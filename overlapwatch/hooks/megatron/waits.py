"""Times the waits for communication that Megatron has in flight.

In: the handles that collectives return. Out: proxies that Megatron waits on instead, and WAIT records. A proxy passes
everything on; the wait itself is the handle's own.
"""

from typing import Any

from overlapwatch.hooks.megatron.owners import in_backward
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordKind


class Waits:
    """Records waits. On a device where timed events destroy overlap (see `hooks.hazard`) it records none."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded = recorder.times.within_phases

    @property
    def phase(self) -> int:
        """The phase in which this thread is."""
        return int(Phase.BACKWARD) if in_backward() else self._recorder.phase

    def begin(self, owner: int, kind: CollectiveKind, phase: int | None = None) -> int:
        """A wait begins; return its slot, -1 when it is not recorded."""
        recorder = self._recorder
        if not (recorder.recording and self._recorded):
            return -1
        at = self.phase if phase is None else phase
        return recorder.begin(RecordKind.WAIT, at, owner, kind)

    def end(self, slot: int) -> None:
        """The wait of this slot is over."""
        if slot >= 0:
            self._recorder.end(slot)

    def watch(
        self, handle: Any, owner: int, kind: CollectiveKind, phase: int | None = None
    ) -> "WatchedHandle":
        """Return a handle whose `wait()` is recorded."""
        return WatchedHandle(handle, self, owner, kind, phase)

    def guarded_begin(self, owner: int, kind: CollectiveKind, phase: int | None) -> int:
        """Begin, and keep a fault of ours from the caller."""
        try:
            return self.begin(owner, kind, phase)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("wait", error)
            return -1

    def guarded_end(self, slot: int) -> None:
        """End, and keep a fault of ours from the caller."""
        try:
            self.end(slot)
        except Exception as error:  # noqa: BLE001
            self._recorder.guard.trip("wait", error)


class WatchedHandle:
    """Stands in for a work handle; `wait` is timed, everything else is the handle's own."""

    __slots__ = ("_handle", "_kind", "_owner", "_phase", "_waits")

    def __init__(
        self, handle: Any, waits: Waits, owner: int, kind: CollectiveKind, phase: int | None
    ) -> None:
        self._handle = handle
        self._waits = waits
        self._owner = owner
        self._kind = kind
        self._phase = phase

    def wait(self, *args: Any, **options: Any) -> Any:
        """Wait as the handle does."""
        waits = self._waits
        slot = waits.guarded_begin(self._owner, self._kind, self._phase)
        try:
            return self._handle.wait(*args, **options)
        finally:
            waits.guarded_end(slot)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

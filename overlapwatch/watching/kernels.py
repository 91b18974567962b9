"""Short windows under PyTorch's profiler: what really ran in a step, to calibrate the marker-based compute lane.

In: step boundaries. Out: for every Nth step a `KernelWindow`: the union of its compute spans on the clock of the
records. On a GPU these are kernels; on the CPU, which launches none, operators (`kernel_events`). Threads that autograd
does not know (data loaders, gloo's own) are not in it.

    step N begins                        the profiler starts
    its (first) optimizer step is done   it stops; without an optimizer, where the next step begins
    next `take()`                        its events are read, on the drain thread

The steps in which these fall are flagged as disturbed. What remains on the training thread: 1 ms or so to start, 4 us
an event to stop (PyTorch builds its events there; on a GPU it also synchronises the device, there and nowhere else),
and 1 us an event for which the reading keeps the GIL at a stretch. PyTorch 2.13 prints a line at every start and stop.

A user's profiler has the way, always: no window opens while one is there, and one that is open when another profiler
comes is closed first and thrown away.

What it does not know: how the spans compare with the marks; that is `accounting.calibration`.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from overlapwatch.accounting.calibration import Calibration, calibrate
from overlapwatch.hooks import note_installed, note_removed
from overlapwatch.hooks.recorder import Recorder, log
from overlapwatch.timeline.intervals import Intervals
from overlapwatch.timeline.model import Lane, Timeline
from overlapwatch.vocabulary import Phase, StepFlag
from overlapwatch.watching.kernel_events import (
    ANCHOR,
    device_spans,
    host_spans,
    place_clock,
    read_events,
)
from overlapwatch.watching.other_profilers import OtherProfilers

FIRST_WINDOW = 12
"""No window while the job warms up."""
HOST_RULE = "operators and leaf autograd functions"
DEVICE_RULE = "kernels"
_ANCHORS = 4
_KEPT_STEPS = 16


@dataclass(frozen=True, slots=True, eq=False)
class KernelWindow:
    """What ran in one step.

    Args:
        step: its number.
        start_ns, end_ns: what the profiler covered. The step begins earlier, with what came before its first forward.
        compute: the spans, on the clock of the records.
        rule: what a span is, in words.
        events: how many the profiler kept.
        error_ns: how far the spans may lie off that clock.
    """

    step: int
    start_ns: int
    end_ns: int
    compute: Intervals
    rule: str
    events: int
    error_ns: int

    @property
    def lane(self) -> Lane:
        """The spans as a compute lane."""
        count = len(self.compute)
        return Lane(
            self.compute.start,
            self.compute.end,
            np.zeros(count, np.uint32),
            np.zeros(count, np.uint8),
        )


@dataclass(slots=True)
class _Window:
    """A window whose events have not been read."""

    step: int
    thread: int
    profiler: Any
    handle: Any  # of the optimizer hook that ends it
    start_ns: int
    end_ns: int = 0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class KernelWindows:
    """Opens and closes the windows. `on_boundary` is a boundary listener, behind the one that chooses shadow steps.

    Args:
        recorder: whose steps are flagged, and whose clock is used.
        every: a window in every Nth step; in the next one where that step is a shadow step.
        device: "cpu", or the type of the device whose kernels are looked for.
        first: no window before this step.
    """

    def __init__(
        self, recorder: Recorder, every: int, *, device: str = "cpu", first: int = FIRST_WINDOW
    ) -> None:
        self._recorder = recorder
        self._every = every
        self._device = device
        self._first = first
        self._due = self._costs_next = self._ended = False
        self._open: _Window | None = None
        self._unread: deque[_Window] = deque()
        self._told: set[str] = set()
        self.notes: deque[str] = deque(maxlen=16)
        self._counts = dict.fromkeys(("read", "skipped", "dropped"), 0)
        self._others = OtherProfilers(self._give_way)
        note_installed("kernel windows")

    # -- on the training thread --------------------------------------------------------------------------------

    def on_boundary(self, step: int) -> None:
        """A step has begun: end the window of the one before, and open one when it is time. Never raises."""
        try:
            if self._open is not None:
                if self._open.thread != threading.get_ident():
                    return  # only the thread that started a profiler can stop it
                self._end_window()
            if self._costs_next:
                self._costs_next = False
                self._recorder.flag_step(StepFlag.DISTURBED)
            self._due |= step >= self._first and step % self._every == 0
            if self._due and not self._ended and self._recorder.recording:
                self._due = False
                self._open_window(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._give_up(error)

    def _open_window(self, step: int) -> None:
        if self._others.present():
            self._counts["skipped"] += 1
            self._note("no kernel-level window while another profiler is there")
            return
        self._recorder.flag_step(StepFlag.DISTURBED)
        device = None if self._device == "cpu" else self._device
        profiler = torch.autograd.profiler.profile(use_device=device, use_kineto=True)
        with self._others.ours():
            profiler.__enter__()
        handle = register_optimizer_step_post_hook(self._optimizer_stepped)
        began = self._recorder.now()
        self._open = _Window(step, threading.get_ident(), profiler, handle, began)
        self._leave_anchors(self._open)

    def _end_window(self) -> None:
        window, self._open = self._open, None
        assert window is not None
        self._costs_next = True
        try:
            self._leave_anchors(window)
            window.end_ns = self._recorder.now()
        finally:
            self._stop(window)
        self._unread.append(window)

    def _leave_anchors(self, window: _Window) -> None:
        """Leave marks that the profiler stamps with its clock, between two readings of ours."""
        mark, now = _mark(), self._recorder.now
        times = []
        for _ in range(_ANCHORS):
            before = now()
            with mark(ANCHOR):
                pass
            times.append((before, now()))
        window.before += tuple(before for before, _ in times)
        window.after += tuple(after for _, after in times)

    def _stop(self, window: _Window) -> None:
        window.handle.remove()
        with self._others.ours():
            window.profiler.__exit__(None, None, None)

    def _optimizer_stepped(self, *_: Any) -> None:
        """The step is over, but its boundary may be minutes away, behind a validation, or never come."""
        recorder, window = self._recorder, self._open
        if window is None or window.thread != threading.get_ident():
            return
        try:
            if not recorder.on or recorder.step != window.step:
                self._throw_away("its step had no end")
            elif recorder.phase != Phase.BACKWARD:  # not an optimizer that runs inside the backward
                self._end_window()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._give_up(error)

    def _give_way(self) -> None:
        """Another profiler comes: ours is gone before it does."""
        self._throw_away("another profiler was started in it")

    def _throw_away(self, because: str) -> None:
        window = self._open
        # Only the thread that started a profiler can stop it; its next boundary or optimizer step will.
        if window is not None and window.thread == threading.get_ident():
            self._open = None
            self._drop(because)
            try:
                self._stop(window)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                self._give_up(error)

    def _drop(self, because: str) -> None:
        self._counts["dropped"] += 1
        self._note(f"a kernel-level window was thrown away: {because}")

    def _note(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.notes.append(text)

    def _give_up(self, error: BaseException) -> None:
        self._ended = True  # a window that is open ends at the next boundary
        text = f"no more kernel-level windows: {type(error).__name__}: {error}"
        self._note(text)
        log.warning("%s; training is not affected", text)
        log.debug("the fault", exc_info=error)

    # -- on the drain thread -----------------------------------------------------------------------------------

    def take(self) -> list[KernelWindow]:
        """Read the windows that ended since the last call. Never raises: one that cannot be read is dropped."""
        windows = []
        while self._unread:
            self._recorder.flag_step(StepFlag.DISTURBED)  # reading needs the GIL
            try:
                windows.append(self._read(self._unread.popleft()))
                self._counts["read"] += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                self._counts["dropped"] += 1
                self._give_up(error)
        return windows

    def _read(self, window: _Window) -> KernelWindow:
        on_device = self._device != "cpu"
        events = window.profiler.kineto_results.events()
        ran = read_events(events, on_device=on_device)
        before, after = (np.array(times, np.int64) for times in (window.before, window.after))
        place, error = place_clock(before, after, ran)
        spans = device_spans(ran) if on_device else host_spans(ran)
        return KernelWindow(
            window.step,
            window.start_ns,
            window.end_ns,
            Intervals(place(spans.start), place(spans.end)),
            DEVICE_RULE if on_device else HOST_RULE,
            len(events),
            error,
        )

    def counts(self) -> Mapping[str, int]:
        """Return how many windows were read, skipped for another profiler, and thrown away."""
        return {f"kernel_windows_{what}": count for what, count in self._counts.items()}

    # -- leaving -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End a running window, without a result, and leave PyTorch as it was. Safe to call twice."""
        self._ended = True
        self._throw_away("the watch was closed in it")
        self._others.remove()
        note_removed("kernel windows")


def _mark() -> Any:
    """Return the cheapest thing that leaves an event: a private one, or the public one that is ten times slower."""
    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)  # noqa: SLF001
    return fast or torch.autograd.profiler.record_function


class Calibrator:
    """Brings windows and the timelines of their steps together; either may come first. Lives on the drain thread."""

    def __init__(self, windows: KernelWindows) -> None:
        self._windows = windows
        self._waiting: dict[int, KernelWindow] = {}
        self._timelines: dict[int, Timeline] = {}
        self._compute_ns = {"marks": 0, "kernels": 0}

    def keep(self, timeline: Timeline) -> None:
        """Take in the timeline of one step that was summed up; only disturbed steps are kept, the latest few."""
        for step in timeline.steps:
            if step["flags"] & StepFlag.DISTURBED:
                self._timelines[int(step["step"])] = timeline
        _keep_latest(self._timelines)

    def poll(self) -> list[Calibration]:
        """Return the calibrations that have become possible."""
        for window in self._windows.take():
            self._waiting[window.step] = window
        _keep_latest(self._waiting)
        found = []
        for number in sorted(self._waiting.keys() & self._timelines.keys()):
            window, timeline = self._waiting.pop(number), self._timelines.pop(number)
            one = calibrate(timeline, window.lane, (window.start_ns, window.end_ns), window.rule)
            self._compute_ns["marks"] += one.marks.compute_ns
            self._compute_ns["kernels"] += one.kernels.compute_ns
            found.append(one)
        return found

    def sentences(self) -> list[str]:
        """Do what `poll` does; return its results, and what the windows have to say, in words for the log."""
        found = [one.sentence for one in self.poll()]
        while self._windows.notes:
            found.append(self._windows.notes.popleft())
        return found

    def counts(self) -> Mapping[str, int]:
        """Return the windows' counts, and the compute of all calibrated steps by either lane, ns."""
        sums = {f"calibrated_{lane}_compute_ns": ns for lane, ns in self._compute_ns.items()}
        return {**self._windows.counts(), **sums}


def _keep_latest(by_step: dict[int, Any]) -> None:
    while len(by_step) > _KEPT_STEPS:
        del by_step[min(by_step)]

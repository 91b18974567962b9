"""The thread that carries records out of the ring: into steps, through the accounting, to the log and the step lines.

In: ring, names, DDP's reports, step flags. Out: log frames, step lines, counters. It never touches the training
thread's state, holds no lock that a hook takes, and works in short pieces so that the GIL is free in between. A fault
in it turns the watch off, with one warning.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.summarize import summarize_step
from overlapwatch.accounting.tail import reduced_by_module
from overlapwatch.hooks.recorder import BackwardReport, FinishBound, Recorder, log
from overlapwatch.log.frames import Clock, ClockPair, Counters, Events, Gradients, Names, Summaries
from overlapwatch.log.sinks import Standing, StepSinks
from overlapwatch.log.writer import LogWriter
from overlapwatch.reports.live import step_line
from overlapwatch.reports.words import in_flight_sentence
from overlapwatch.ring import now_pair
from overlapwatch.settings import Settings
from overlapwatch.timeline.model import Origin
from overlapwatch.timeline.records import from_records, join_records
from overlapwatch.vocabulary import (
    RECORD,
    SUMMARY,
    Name,
    NameKind,
    RecordKind,
    StepFlag,
)
from overlapwatch.watching.assemble import Assembler, EndedStep
from overlapwatch.watching.complete import Completer
from overlapwatch.watching.keep import Keeper
from overlapwatch.watching.kernels import Calibrator

if TYPE_CHECKING:
    from overlapwatch.watching.across import AcrossRanks

FLUSH_NS = 1_000_000_000
LAST_FINISHES_NS = 250_000_000
COUNTERS_NS = 10_000_000_000


@dataclass(slots=True)
class Tables:
    """The names known so far, by id."""

    names: dict[int, Name] = field(default_factory=dict)
    groups: dict[int, Name] = field(default_factory=dict)

    def add(self, new: list[Name]) -> None:
        """Take in names as `Names.take_new` gives them."""
        for name in new:
            (self.groups if name.kind is NameKind.GROUP else self.names)[name.id] = name


class Drain:
    """Owns everything that happens to a record after it was written.

    Args:
        recorder: whose ring, names, reports and flags are drained.
        settings: how often, what is kept.
        origin: what the summaries' timelines say they come from.
        writer: the log, or None without one.
        sinks: where step lines go.
        sample: hardware counters, by name.
        calibrator: compares the steps that ran under kernel-level windows with their marks.
    """

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        origin: Origin,
        writer: LogWriter | None,
        sinks: StepSinks,
        *,
        sample: Callable[[], Mapping[str, int]],
        calibrator: Calibrator | None = None,
    ) -> None:
        self._recorder = recorder
        self._settings = settings
        self._origin = origin
        self._writer = writer
        self._sinks = sinks
        self._sample = sample
        self._calibrator = calibrator
        self._assembler = Assembler(recorder.ring)
        self._keeper = Keeper(settings.keep_first, settings.keep_every)
        self._tables = Tables()
        self._flags: dict[int, int] = {}
        self._reports: dict[int, list[BackwardReport]] = {}
        self._bounds: dict[int, list[FinishBound]] = {}
        self._completer = Completer(recorder.group_workers, on_host=recorder.times.on_host)
        self._unwritten: list[np.void] = []
        self._flushed_ns = self._counted_ns = recorder.now()
        self._warned_of: set[int] = set()
        self._spent_ns = 0
        self._reaching_in = np.empty(0, RECORD)  # spans of earlier steps that reach into this one
        self._kept_previous = False
        self.summaries: deque[np.void] = deque(maxlen=8192)
        self.steps = 0
        self.kept = 0
        self.notes: deque[str] = deque(maxlen=64)
        self.each_turn: list[Callable[[], None]] = []
        self.now_and_then: list[Callable[[], None]] = []  # called at each flush
        self.across: AcrossRanks | None = None
        self._problem_told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overlapwatch-drain", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Let the thread finish everything; say whether it did in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        interval = self._settings.drain_ms / 1000
        if not self._recorder.times.on_host:
            interval = min(
                interval, _DEVICE_POLL_S
            )  # often, so that device times are placed closely
        try:
            while not self._stop.wait(interval):
                self.turn()
            self._hear_the_last_finishes()
            self.turn(everything=True)
            self._recorder.times.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("drain thread", error)
            self._save_what_was_summed_up()

    def _save_what_was_summed_up(self) -> None:
        """After a fault of this thread: the log gets the steps so far, and why it ends. Unless the fault is there."""
        try:
            self._flush(self._recorder.now())
        except Exception as error:  # noqa: BLE001 - the first fault has been told
            log.debug("nor could the log be written", exc_info=error)

    def _hear_the_last_finishes(self) -> None:
        """A finish is told on a backend thread, which needs the GIL: that may be after the wait for it is over."""
        deadline = self._recorder.now() + LAST_FINISHES_NS
        self.turn()
        while len(self._assembler.in_flight()) and self._recorder.now() < deadline:
            time.sleep(0.002)

    def turn(self, *, everything: bool = False) -> None:
        """Do one round: everything that is ready now. `everything`: the job is over, wait for nothing."""
        began = time.thread_time_ns()
        now = self._recorder.now()
        self._recorder.times.poll()
        self._take_side_channels()
        for step in self._assembler.poll(now, everything=everything):
            self._take_side_channels()
            self._sum_up(step)
        if self._calibrator is not None:
            self.notes.extend(self._calibrator.sentences())
        for action in self.each_turn:
            action()
        if everything or now - self._flushed_ns > FLUSH_NS:
            self._flush(now)
            self._look_for_hangs(now)
            if self._sinks.metrics:
                self._sinks.standing(self._standing(now))
            for action in self.now_and_then:
                action()
        if self._writer is not None and (everything or now - self._counted_ns > COUNTERS_NS):
            self._counted_ns = now
            self._writer.write(Counters(now, self.counters()))
            self._writer.write(Clock(ClockPair(*now_pair())))
        self._spent_ns += time.thread_time_ns() - began

    def _take_side_channels(self) -> None:
        """Names, step flags and DDP's reports: appended by hooks before the records that need them are read."""
        new = self._recorder.names.take_new()
        if new:
            self._tables.add(new)
            if self._writer is not None:
                self._writer.write(Names(tuple(new)))
                self._writer.flush()  # at once: a killed job's ring is unreadable without its names
        flags = self._recorder.step_flags
        while flags:
            step, more = flags.popleft()
            self._flags[step] = self._flags.get(step, 0) | more
        reports = self._recorder.backward_reports
        while reports:
            report = reports.popleft()
            self._reports.setdefault(report.step, []).append(report)
        bounds = self._recorder.finish_bounds
        while bounds:
            bound = bounds.popleft()
            self._bounds.setdefault(bound.step, []).append(bound)

    # -- one step ----------------------------------------------------------------------------------------------

    def _sum_up(self, step: EndedStep) -> None:
        flags = self._flags.pop(step.number, 0) | (StepFlag.PARTIAL if step.overwritten else 0)
        gradients = self._completer.complete(
            step, self._reports.pop(step.number, ()), self._bounds.pop(step.number, ())
        )
        records = step.records
        if not (records["kind"] == _STEP).any() or (flags & StepFlag.PARTIAL and len(records) == 1):
            return  # the step that a close found just begun, or one whose own record was lost
        reaching_in = self._reaching_in
        around = join_records([reaching_in, records]) if len(reaching_in) else records
        timeline = from_records(
            around,
            origin=self._origin,
            gradients=gradients,
            names=self._tables.names,
            groups=self._tables.groups,
            step_flags={step.number: flags},
        )
        summary = summarize_step(timeline, timeline.steps[0])
        if self._calibrator is not None:
            self._calibrator.keep(timeline)
        if summary["unfinished"]:
            summary["flags"] |= StepFlag.UNFINISHED
        summary["flags"] = self._keeper.judge(summary)
        kept = bool(summary["flags"] & StepFlag.EVENTS_KEPT)
        if kept and not self._kept_previous:
            records = around  # the log would not know the spans that reach in otherwise
        self._kept_previous = kept
        self._reaching_in = _reaching_beyond(around, int(summary["end_ns"]))
        self.steps += 1
        self.summaries.append(summary)
        self._unwritten.append(summary)
        if self._writer is not None and kept:
            self.kept += 1
            self._writer.write(Events(step.number, step.number, int(summary["flags"]), records))
            every = self._settings.gradients_every
            if every and step.number % every == 0 and len(gradients):
                self._writer.write(Gradients(gradients))
        its_turn = step.number % self._settings.line_every == 0 or summary["flags"] & StepFlag.SLOW
        line = None
        if its_turn and self._sinks.lines:
            unit = "module" if reduced_by_module(timeline) else "bucket"
            line = step_line(summary, unit)
            if self.across is not None:
                line += self.across.words(step.number)
        self._sinks.step(summary, line)

    # -- what is written now and then --------------------------------------------------------------------------

    def _flush(self, now: int) -> None:
        self._flushed_ns = now
        if self._writer is not None:
            while self.notes:
                self._writer.note(self.notes.popleft())
            if self._unwritten:
                self._writer.write(Summaries(np.array(self._unwritten, SUMMARY)))
            self._writer.flush()
            if self._writer.problem and not self._problem_told:
                self._problem_told = True
                log.warning("%s", self._writer.problem)
        self._unwritten.clear()

    def _look_for_hangs(self, now: int) -> None:
        limit = self._settings.hang_seconds * 1_000_000_000
        for record in self._assembler.in_flight():
            key = int(record["launch"])
            if now - key > limit and key not in self._warned_of:
                self._warned_of.add(key)
                text = in_flight_sentence(record, self._tables.names, self._tables.groups, now)
                log.warning("rank %s: %s", self._origin.rank, text)
                if self._writer is not None:
                    self._writer.note(text)

    def _standing(self, now: int) -> Standing:
        launches = self._assembler.in_flight()["launch"]
        return Standing(
            in_flight=len(launches),
            oldest_ns=now - int(launches.min()) if len(launches) else None,
            records_lost=self._assembler.lost,
            records_late=self._assembler.late,
            drain_cpu_ns=self._spent_ns,
        )

    def counters(self) -> dict[str, int]:
        """Return what the watch knows about itself, and the hardware counters where there are any."""
        return {
            "steps": self.steps,
            "steps_with_events": self.kept,
            "records_lost": self._assembler.lost,
            "records_late": self._assembler.late,
            "drain_cpu_ns": self._spent_ns,
            **self._recorder.times.counts(),
            **(self._calibrator.counts() if self._calibrator else {}),
            **self._sample(),
        }


def _reaching_beyond(records: NDArray[np.void], end_ns: int) -> NDArray[np.void]:
    """Return the spans that go on after a step's end: the next step's window holds a part of them."""
    beyond = (records["finish"] > end_ns) & (records["kind"] != _STEP)
    return np.asarray(records[beyond][-_MOST_REACHING_IN:])


_MOST_REACHING_IN = 1024
_STEP = int(RecordKind.STEP)  # enum arithmetic costs a microsecond each time
_DEVICE_POLL_S = 0.01

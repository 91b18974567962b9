"""One watch: the hooks, the ring, the drain and the log of one process, put together and taken apart again.

In: the parts of models to watch, by kind, and settings. Out: the `Watch` that the user holds. One process has at most
one; a second `watch()` adds its parts to it.
"""

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from overlapwatch.accounting.shadow import shadow_cost
from overlapwatch.hooks import note_installed, note_removed
from overlapwatch.hooks.c10d import CollectiveTap
from overlapwatch.hooks.instrument import Context, Instrument, Kind
from overlapwatch.hooks.knobs import Knob, Tunable
from overlapwatch.hooks.names import Names
from overlapwatch.hooks.nvml import NullCounters, make_counters
from overlapwatch.hooks.nvtx import make_ranges
from overlapwatch.hooks.recorder import Guard, Recorder, log
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.log.sinks import StepSinks, open_sinks
from overlapwatch.log.writer import LogWriter
from overlapwatch.metrics import RunOfRank, makers
from overlapwatch.reports.live import closing_lines
from overlapwatch.ring import Ring, default_directories
from overlapwatch.ring.abandoned import remove_abandoned
from overlapwatch.settings import Settings
from overlapwatch.timeline.model import Origin
from overlapwatch.vocabulary import SUMMARY, StepFlag
from overlapwatch.watching.about import agree_on_run_id, header
from overlapwatch.watching.devices import choose_times
from overlapwatch.watching.drain import Drain
from overlapwatch.watching.kernels import Calibrator, KernelWindows
from overlapwatch.watching.sweep import Host

FIRST_SHADOW = 12
"""No shadow steps while the job warms up."""


class Watch:
    """What `overlapwatch.watch()` returns. Training needs nothing of it; `close()` is called at exit if you do not.

    Attributes:
        log_path: this rank's log, or None.
        settings: the settings in force.
    """

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        facts: Mapping[str, str] | None = None,
        split: int | None = None,
    ) -> None:
        self.settings = settings
        self._facts = facts or {}
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mode = "hook" if settings.mode == "hook" else "passive"
        self.pid = os.getpid()
        self._closed = False
        self._before_close: list[Callable[[], None]] = []
        run_id = agree_on_run_id()
        self._sinks = self._make_sinks(run_id)  # before all else, since it may refuse a setting
        self.log_path = (
            settings.log_dir / f"rank{self.rank}-{run_id}.owlog" if settings.log_dir else None
        )
        self._guard = Guard()
        directories = default_directories(settings.ring_dir)
        remove_abandoned(directories)
        self._ring, problems = Ring.create(
            f"{run_id}-rank{self.rank}-{self.pid}.owring",
            settings.ring_slots,
            directories,
            {"run_id": run_id, "rank": self.rank, "pid": self.pid, "log": str(self.log_path or "")},
        )
        if problems:
            nowhere = (
                "" if self._ring.path else "; it is private memory, which nobody else can read"
            )
            log.warning("%s%s", "; ".join(problems), nowhere)
        self._names = Names()
        chosen = choose_times(device, settings, self._ring, split=split)
        self._device = chosen
        self._recorder = Recorder(self._ring, self._names, chosen.times, self._guard)
        self._install_ranges(on_device=device.type != "cpu")
        self._counters = self._find_counters(device)
        self._writer = self._open_log(run_id)
        origin = Origin("owlog", str(self.log_path or ""), self.rank, self.world, chosen.device)
        self._kernels = (
            KernelWindows(self._recorder, settings.kernels_every, device=device.type)
            if settings.kernels_every
            else None
        )
        self._drain = Drain(
            self._recorder,
            settings,
            origin,
            self._writer,
            self._sinks,
            sample=self._counters.sample,
            calibrator=Calibrator(self._kernels) if self._kernels else None,
        )
        self._tell_late_ranks(run_id)
        self._guard.call_when_tripped(self._stopped)
        self._recorder.boundary_listeners.append(self._choose_shadow)
        if self._kernels is not None:
            self._recorder.boundary_listeners.append(self._kernels.on_boundary)
        # The hooks come last: nothing is installed if something above fails.
        self._tap: CollectiveTap | None = None
        self._instruments: dict[str, Instrument] = {}
        self._boundaries = StepBoundaries(
            self._recorder, lambda p: any(one.holds(p) for one in self._instruments.values())
        )

    def _install_ranges(self, *, on_device: bool) -> None:
        wanted = self.settings.nvtx == "on" or (self.settings.nvtx == "auto" and on_device)
        ranges = make_ranges(wanted)
        if ranges.active:
            self._recorder.ranges = ranges
            self._device.times.on_finish = self._recorder.range_ended
        elif self.settings.nvtx == "on":
            log.warning("no NVTX ranges: %s", ranges.because)

    def _find_counters(self, device: torch.device) -> NullCounters:
        if self.settings.nvml == "off" or (self.settings.nvml == "auto" and device.type != "cuda"):
            return NullCounters("not asked for")
        uuid = None
        if device.type == "cuda":
            uuid = str(torch.cuda.get_device_properties(device).uuid)
        counters = make_counters(uuid)
        for note in counters.notes():
            log.warning("%s", note)
        return counters

    def _open_log(self, run_id: str) -> LogWriter | None:
        if self.log_path is None:
            return None
        ring = str(self._ring.path or "")
        first = header(
            self.settings,
            rank=self.rank,
            world=self.world,
            run_id=run_id,
            mode=self.mode,
            chosen=self._device,
            ring=ring,
            facts=self._facts,
        )
        return LogWriter.to_file(
            self.log_path, first, max_bytes=self.settings.max_log_mb * 1_000_000
        )

    def _make_sinks(self, run_id: str) -> StepSinks:
        settings = self.settings
        run = RunOfRank(
            rank=self.rank,
            local_rank=int(os.environ.get("LOCAL_RANK", self.rank)),
            world=self.world,
            run_id=run_id,
        )
        more = makers(run, settings.sink_ranks)
        return open_sinks(settings.sinks, self.rank, ranks=settings.sink_ranks, more=more)

    def _tell_late_ranks(self, run_id: str) -> None:
        if self.rank != 0 or self.settings.log_dir is None or not self._sinks.lines:
            return
        from overlapwatch.watching.across import (  # noqa: PLC0415 - slow to import, for one rank
            AcrossRanks,
            effective_every,
        )

        every = effective_every(self.settings.ranks_every, self.world)
        if every:
            self._drain.across = AcrossRanks(self.settings.log_dir, run_id, self.world, every)
            self._drain.now_and_then.append(self._drain.across.poll)

    def _stopped(self, reason: str) -> None:
        self._drain.notes.append(f"the watch turned itself off: {reason}")

    # -- attaching ---------------------------------------------------------------------------------------------

    def add(self, found: list[tuple[Kind, str, Any]]) -> None:
        """Watch these (kind, name, part) too; those already watched are left alone."""
        tap = self._see_collectives_of(found)
        fresh = [
            one
            for one in found
            if one[0].name not in self._instruments
            or not self._instruments[one[0].name].knows(one[2])
        ]
        several = len(fresh) + self._watched > 1
        for kind, name, part in fresh:
            instrument = self._instruments.get(kind.name)
            if instrument is None:
                context = Context(self._recorder, self._boundaries, tap, self.mode)
                instrument = self._instruments[kind.name] = kind.make(context)
            instrument.add(part, (name or f"model {self._watched}") if several else "")

    @property
    def _watched(self) -> int:
        return sum(one.count for one in self._instruments.values())

    def _see_collectives_of(self, found: list[tuple[Kind, str, Any]]) -> CollectiveTap:
        if self._tap is None:
            kinds = frozenset(kind.device(part).type for kind, _, part in found)
            self._tap = CollectiveTap(self._recorder, kinds)
            self._drain.now_and_then.append(self._tap.held.let_go_of_destroyed)
        return self._tap

    def start(self) -> None:
        """Begin: the drain thread runs, the process's end will close the watch."""
        note_installed("watch")
        atexit.register(self._at_exit)
        self._sinks.open()
        self._say([f"overlapwatch: {place}" for place in self._sinks.places])
        self._drain.start()

    def _choose_shadow(self, step: int) -> None:
        every = self.settings.shadow_every
        shadow = bool(every) and step >= FIRST_SHADOW and step % every == every - 1
        self._recorder.recording = self._recorder.on and not shadow
        if shadow:
            self._recorder.flag_step(StepFlag.SHADOW)

    # -- the user's side ---------------------------------------------------------------------------------------

    def step(self) -> None:
        """Say that a training step ends here. Only for loops whose steps do not end with an optimizer step."""
        if not self._closed and self._recorder.on:
            self._boundaries.explicit()

    @property
    def active(self) -> bool:
        """Whether it is still watching."""
        return not self._closed and self._recorder.on

    @property
    def summaries(self) -> Any:
        """SUMMARY rows of the latest steps (at most 8,192), oldest first."""
        return np.array(list(self._drain.summaries), SUMMARY)

    def close(self) -> None:
        """Stop watching: every hook is out, the log is ended, the model is as it was. Safe to call twice."""
        self._close(at_exit=False)

    def _close(self, *, at_exit: bool) -> None:
        if self._closed or os.getpid() != self.pid:
            return
        self._closed = True
        for action in self._before_close:
            self._attempt(action)
        atexit.unregister(self._at_exit)
        if (
            self._kernels is not None
        ):  # first, so that the drain's last turn reads a window that has just ended
            self._attempt(self._kernels.close)
        self._attempt(self._boundaries.remove)
        self._recorder.on = self._recorder.recording = False
        for instrument in reversed(self._instruments.values()):
            self._attempt(partial(instrument.remove, at_exit=at_exit))
        if self._tap is not None:
            self._attempt(self._tap.remove)
        done = self._drain.stop()
        self._attempt(self._end_outputs)
        self._attempt(lambda: self._ring.close(remove=done))
        if self._tap is not None:  # after the model: the last reference to a group is dropped here
            self._attempt(self._tap.held.close)
        note_removed("watch")

    def sweep_host(self) -> Host:
        """Return what a sweep uses of this watch. For `overlapwatch.sweep()`."""
        return Host(
            rank=self.rank,
            world=self.world,
            recorder=self._recorder,
            summaries=lambda: self.summaries,
            note=self._drain.notes.append,
            say=self._say,
            each_turn=self._drain.each_turn,
            before_close=self._before_close,
        )

    def knobs(self) -> dict[str, Knob]:
        """Return the settings of the watched model that can be changed while it trains, by name.

        Raises:
            ConfigurationError: one of them could not be put back as it was.
        """
        found: dict[str, Knob] = {}
        for instrument in self._instruments.values():
            if isinstance(instrument, Tunable):
                found |= instrument.knobs()
        return found

    def _attempt(self, action: Callable[[], object]) -> None:
        """Do one part of closing; a fault in it neither fails the job nor keeps the other parts from being done."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._guard.trip("close", error)

    remove = close

    def _at_exit(self) -> None:
        self._close(at_exit=True)

    def _end_outputs(self) -> None:
        counters = self._drain.counters()
        if self._writer is not None:
            self._writer.close("closed", counters)
        self._say(closing_lines(self.log_path, shadow_cost(self.summaries)))
        self._sinks.close()
        self._counters.close()
        if self._recorder.ranges is not None:
            self._recorder.ranges.close()

    def _say(self, lines: list[str]) -> None:
        for name in self._sinks.streams if lines else ():
            print(*lines, sep="\n", file=getattr(sys, name), flush=True)

    def __enter__(self) -> "Watch":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class NullWatch:
    """What `watch()` returns when it is switched off: the same names, and nothing happens."""

    log_path: Path | None = None
    active = False
    mode = "off"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def summaries(self) -> Any:
        """No steps."""
        return np.empty(0, SUMMARY)

    def step(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    remove = close

    def __enter__(self) -> "NullWatch":  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

"""Tries settings in turn inside the running job, and says which is faster.

In: a watch and values for its knobs. Out: a `Sweep`, which does everything at step boundaries: the user's loop does not
change. Data order and loss go on as they would; what a change of each setting does to the last bits is said beside the
table.

    base | a | b        round 1: each setting for `block` steps, after the steps that a change disturbs
    b | a | base        round 2, in the opposite order
    ...                 a setting that is clearly worse is left out
    base                until the judgement is in
    the best            from a step on that all ranks agree on (apply="best")

Steps that a change disturbs are flagged and stay out of all statistics. On an error the setting before comes back, the
sweep ends and says so.
"""

import hashlib
import itertools
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from overlapwatch.compare.arms import Block, SweepResult, clearly_worse, judge, order_of_round
from overlapwatch.compare.statistics import statistics_library
from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.knobs import Knob
from overlapwatch.hooks.recorder import Recorder, log
from overlapwatch.vocabulary import SWEPT, StepFlag
from overlapwatch.watching.sweep_agreement import Agreement, Decision, NoSweepError

PATIENCE_S = 120.0
"""How long rank 0 waits for the others to call `sweep()`; training goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a sweep uses of its watch.

    Args:
        rank, world: of the job.
        recorder: its step number and boundaries.
        summaries: returns the SUMMARY rows so far.
        note: puts a sentence into the log.
        say: prints lines.
        each_turn: called some times a second on the drain thread.
        before_close: called when the watch is closed, before anything of it is taken out.
    """

    rank: int
    world: int
    recorder: Recorder
    summaries: Callable[[], NDArray[np.void]]
    note: Callable[[str], None]
    say: Callable[[list[str]], None]
    each_turn: list[Callable[[], None]]
    before_close: list[Callable[[], None]]


Arm = Mapping[str, Any]
_numbers = itertools.count(1)


class State(Enum):
    """How far a sweep has come."""

    AGREEING = "agreeing"
    TRYING = "trying"
    JUDGING = "judging"
    DONE = "done"


def make_arms(
    knobs: Mapping[str, Knob], values: Mapping[str, Sequence[Any]], *, grid: bool
) -> list[Arm]:
    """Return the settings to try, the first one being the job as it is.

    Raises:
        ConfigurationError: a setting that this model does not have, no values, or a value that makes no sense.
    """
    for name, several in values.items():
        if name not in knobs:
            has = ", ".join(knobs) or "none"
            raise ConfigurationError(
                f"this model has no setting {name} that can be swept; it has: {has}"
            )
        if isinstance(several, (str, bytes)) or not isinstance(several, Sequence) or not several:
            raise ConfigurationError(f"{name}: give a list of values to try, not {several!r}")
        for value in several:
            knobs[name].check(value)
    if not values:
        raise ConfigurationError(
            f"name a setting and its values, as in sweep(watch, {next(iter(knobs), 'x')}=[...])"
        )
    if grid:
        combined = itertools.product(*values.values())
        tried: list[Arm] = [dict(zip(values, chosen, strict=True)) for chosen in combined]
    else:
        tried = [{name: value} for name, several in values.items() for value in several]
    return [{}, *tried]


class Sweep:
    """One sweep. `result` is there when it is done; `stop()` ends it early. Made by `overlapwatch.sweep()`.

    Attributes:
        state: how far it has come.
        because: why it ended before its time, "" when it did not.
        result: the judgement, so far or final; None before the first.
        names: of the settings, the first being the job as it was.
    """

    def __init__(
        self,
        host: Host,
        knobs: Mapping[str, Knob],
        arms: Sequence[Arm],
        *,
        rounds: int,
        block: int,
        apply: Literal["best", "original"],
        stop_file: Path | None,
        stop_signal: int | None,
    ) -> None:
        statistics_library()  # here, where a missing library is the user's to see
        self.state = State.AGREEING
        self.because = ""
        self.result: SweepResult | None = None
        self._host = host
        self._recorder = host.recorder
        used = {name for arm in arms for name in arm}
        self._knobs = {name: knob for name, knob in knobs.items() if name in used}
        self._arms = arms
        self.names = ["as it was", *(self._title(arm) for arm in arms[1:])]
        self._rounds, self._block, self._apply = rounds, block, apply
        self._warm_up = max(knob.warm_up for knob in self._knobs.values())
        self._stop_file = stop_file
        self._stop_wanted = False
        self._current = 0  # the setting in force
        self._dropped: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._blocks: list[Block] = []
        self._judged = 0
        self._last_step = 0
        self._round = -1
        self._queue: list[int] = []
        self._block_number = 0
        self._first_counted = self._ends_after = 0
        self._began_s = time.monotonic()
        self._gathered = self._decided = False
        self._ready: str | None = None  # rank 0: what `Agreement.gathered` said last
        self._to_keep: int | None = None  # rank 0: the setting to keep
        asked = json.dumps([list(map(repr, arms)), rounds, block, apply], sort_keys=True)
        digest = hashlib.sha256(asked.encode()).hexdigest()
        store = dist.PrefixStore(
            f"overlapwatch/sweep/{next(_numbers)}",
            dist.distributed_c10d._get_default_store(),  # noqa: SLF001
        )
        self._agreement = Agreement(store, host.rank, host.world, digest)
        self._agreement.announce()
        if stop_signal is not None and host.rank == 0:
            signal.signal(stop_signal, lambda *_: self.stop())
        self._recorder.boundary_listeners.append(self._on_boundary)
        host.each_turn.append(self._turn)
        host.before_close.append(self._abandon)

    # -- the user's side -----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self.state is State.DONE

    def stop(self) -> None:
        """End it early, on all ranks, within two blocks; only rank 0's call counts."""
        self._stop_wanted = True

    def table(self) -> str:
        """Return the table of what was measured so far, as text."""
        from overlapwatch.reports.sweep import table_text  # noqa: PLC0415 - Rich is slow to import

        results = [knob.results for knob in self._knobs.values()]
        return table_text(self.result, self.names, self.because, results)

    # -- between two steps, on the training thread ---------------------------------------------------------------

    def _on_boundary(self, step: int) -> None:
        """A step begins. A fault of the sweep ends the sweep, not the watch and not the job."""
        if self.state is State.DONE:
            return
        try:
            self._last_step = step - 1
            if self.state is State.AGREEING:
                if self._ready is not None:
                    self._agreement.begin(step, self._ready)
                    self._ready = None
                told = self._agreement.begins_at()
                if told is not None and step >= told[0]:
                    self._begin(step, because_not=told[1])
            elif self.state is State.TRYING:
                if step < self._first_counted:
                    self._recorder.flag_step(StepFlag.DISTURBED)
                elif step > self._ends_after:
                    self._block_over()
                    self._next_block(step)
            else:
                self._keep_when_told(step)
        except NoSweepError as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._give_up(error)

    def _begin(self, step: int, *, because_not: str) -> None:
        if because_not:  # on all ranks in the same step: a loop may end when the sweep is over
            self._end(because_not)
        else:
            self.state = State.TRYING
            self._next_block(step)

    def _block_over(self) -> None:
        self._blocks.append(
            Block(self._current, self._round, self._first_counted, self._ends_after)
        )
        peak = _peak_memory()
        if peak is not None:
            self._memory[self._current] = max(peak, self._memory.get(self._current, 0))

    def _next_block(self, step: int) -> None:
        """Begin the next block with this step, or end the trying."""
        if self._block_number:
            decision = self._agreement.decision(self._block_number)
            for arm in decision.dropped:
                self._dropped.setdefault(arm, self._round)
            if decision.stop:
                self._stop_trying(step, "stopped as asked")
                return
        self._queue = [arm for arm in self._queue if arm not in self._dropped]
        if not self._queue:
            self._round += 1
            left = [arm for arm in range(len(self._arms)) if arm not in self._dropped]
            if self._round >= self._rounds or len(left) == 1:
                self._stop_trying(step, "")
                return
            self._queue = order_of_round(self._round, left)
        self._block_number += 1
        if self._host.rank == 0:
            worse = clearly_worse(self.result) if self.result is not None else []
            self._agreement.decide(self._block_number, Decision(tuple(worse), self._stop_wanted))
        changed = self._change_to(self._queue.pop(0), step)
        self._first_counted = step + (self._warm_up if changed else 0)
        self._ends_after = self._first_counted + self._block - 1
        if changed:
            self._recorder.flag_step(StepFlag.DISTURBED)
        _reset_peak_memory()

    def _change_to(self, arm: int, step: int) -> bool:
        """Bring a setting into force; say whether anything changed."""
        if arm == self._current:
            return False
        self._set(self._arms[self._current], self._arms[arm])
        self._current = arm
        self._host.note(f"{SWEPT}{self.names[arm]} from step {step} on")
        return True

    def _set(self, before: Arm, after: Arm) -> None:
        for name in before.keys() - after.keys():
            self._knobs[name].restore()
        for name, value in after.items():
            if name not in before or before[name] != value:
                self._knobs[name].apply(value)

    def _stop_trying(self, step: int, why: str) -> None:
        self.because = why
        self.state = State.JUDGING
        if self._change_to(0, step):
            self._recorder.flag_step(StepFlag.DISTURBED)

    def _keep_when_told(self, step: int) -> None:
        if self._to_keep is not None:
            self._agreement.keep(self._to_keep, step)
            self._to_keep = None
        told = self._agreement.kept()
        if told is None:
            return
        arm, at = told
        if step >= at:
            if self._change_to(arm, step):
                self._recorder.flag_step(StepFlag.DISTURBED)
            self._end(self.because)

    def _give_up(self, error: Exception) -> None:
        """A setting could not be brought into force: the one before is, or is brought back."""
        why = f"{type(error).__name__}: {error}"
        try:
            for knob in self._knobs.values():
                knob.restore()
        except Exception as second:  # noqa: BLE001 - the first one is what the user needs
            why += f"; nor could the original setting be restored ({second})"
        self._current = 0
        self._end(why)

    # -- on the drain thread -------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Judge what is new; on rank 0, decide."""
        if self.state is State.DONE:
            return
        if self.state is State.AGREEING:
            if self._host.rank == 0 and not self._gathered:
                late = time.monotonic() - self._began_s > PATIENCE_S
                self._ready = self._agreement.gathered(patience_over=late)
                self._gathered = self._ready is not None
            return
        self._stop_wanted |= self._stop_file is not None and self._stop_file.exists()
        if len(self._blocks) == self._judged and self.state is State.TRYING:
            return
        rows = self._host.summaries()
        newest = int(rows["step"].max()) if len(rows) else 0
        blocks = [one for one in self._blocks if one.last <= newest]
        if len(blocks) > self._judged:
            self._judge(rows, blocks)
        over = self.state is State.JUDGING and len(blocks) == len(self._blocks)
        if over and self._host.rank == 0 and not self._decided:
            self._decided = True
            best = self.result.best if self.result is not None and self._apply == "best" else 0
            self._to_keep = best

    def _judge(self, rows: NDArray[np.void], blocks: list[Block]) -> None:
        self._judged = len(blocks)
        self.result = judge(rows, blocks, self.names, memory=self._memory, dropped=self._dropped)

    # -- the end -------------------------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """The watch closes: put the original setting back, and tell what there is."""
        if self.state is State.DONE:
            return
        # Without a process group the job is over: a new reducer could not be made, and nobody would use it.
        if self._current != 0 and dist.is_initialized():
            self._set(self._arms[self._current], self._arms[0])
            self._current = 0
        rows = self._host.summaries()
        if len(rows):
            self._judge(rows, list(self._blocks))
        self._end("the watch was closed before the sweep was over")

    def _end(self, because: str) -> None:
        self.because = because
        self.state = State.DONE
        kept = self.names[self._current]
        self._host.note(f"{SWEPT}over{', ' + because if because else ''}; {kept} is in force")
        if self._host.rank == 0:
            self._host.say([self.table(), f"in force: {kept}"])
            if because:
                log.warning("the sweep ended early: %s", because)

    def _title(self, arm: Arm) -> str:
        return ", ".join(f"{name} {self._knobs[name].title(value)}" for name, value in arm.items())


def _peak_memory() -> int | None:
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def _reset_peak_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()

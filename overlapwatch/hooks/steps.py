"""Finds step boundaries and optimizer spans without the user's help.

In: PyTorch's global optimizer-step hooks, and the first training forward after them. Out: STEP and PHASE(optimizer)
records. A step ends where the last optimizer step before the next training forward ended; so the steps tile the time,
data loading belongs to the step it feeds, and two optimizers stepping in a row do not make two steps. Only optimizers
that hold a watched parameter count. `explicit()` hands the boundaries to the user (`watch.step()`), for good.

A skipped optimizer step (a gradient scaler that met an infinity) is not seen: that step and the next are told as one.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.recorder import Recorder, log
from overlapwatch.vocabulary import NameKind, Phase, RecordKind, StepFlag

_FORWARDS_WITHOUT_A_STEP = 256
"""More than anybody accumulates without meaning to."""


class StepBoundaries:
    """Installs the optimizer hooks; `training_forward_begins` is called by the model's instrument."""

    def __init__(self, recorder: Recorder, is_watched: Callable[[torch.Tensor], bool]) -> None:
        self._recorder = recorder
        self._is_watched = is_watched
        self._relevant: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        self._explicit = False
        self._forwards = 0  # since the last boundary
        self._backwards = False  # one has ended since then
        self._ended_at = 0
        self._inside: torch.optim.Optimizer | None = None
        self._interrupted = (
            False  # a forward began inside: a closure ran the model, or the step raised
        )
        self._slot = -1
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        recorder.open_step(recorder.now())

    def training_forward_begins(self, *, whole: bool = True) -> None:
        """A forward pass with gradients begins: if an optimizer has stepped since, a new step has begun.

        Args:
            whole: it is the model's, not that of a module in it, of which a step may have any number.
        """
        if self._inside is not None:
            self._interrupted = True
            self._end_span()
        if self._ended_at and not self._explicit:
            self._turn_over(self._ended_at)
        self._forwards += whole
        if whole and self._forwards == _FORWARDS_WITHOUT_A_STEP:
            log.warning(
                "no step has ended in %d forward passes: if the optimizer works without Optimizer.step() (fused into "
                "DDP, say), call watch.step() at the end of each step",
                self._forwards,
            )

    def iteration_begins(self) -> None:
        """The training loop says that it begins anew: a new step has begun, even if no optimizer was seen to step."""
        if self._explicit:
            return
        if self._ended_at:
            self._turn_over(self._ended_at)
        elif self._backwards:
            self._turn_over(self._recorder.now())

    @property
    def optimizer_has_stepped(self) -> bool:
        """Whether the running step seems to have ended: nothing but the next one's begin would say so for sure."""
        return bool(self._ended_at)

    def optimizer_goes_on(self) -> None:
        """What the optimizer does after its step has ended now: the step ends here, if it has ended."""
        if self._ended_at:
            self._ended_at = self._recorder.now()
            self._recorder.step_may_end(self._ended_at)

    def backward_ended(self) -> None:
        """Gradients are synchronised: an optimizer that ran inside the backward cannot have ended the step earlier."""
        self._backwards = True
        if self._ended_at:
            self._ended_at = self._recorder.now()
        if self._inside is not None and self._interrupted and self._recorder.recording:
            self._begin_span(self._owner(self._inside))  # the closure is over

    @not_compiled
    def explicit(self) -> None:
        """The user says: a step ends here."""
        self._explicit = True
        self._turn_over(self._recorder.now())

    def _turn_over(self, end: int) -> None:
        self._recorder.close_step(end)
        self._ended_at = 0
        self._forwards = 0
        self._backwards = False
        self._recorder.open_step(end)

    def forget_relevance(self) -> None:
        """Another model is watched now: look at each optimizer again."""
        self._relevant.clear()

    def _owner(self, optimizer: torch.optim.Optimizer) -> int:
        known = self._relevant.get(optimizer)
        if known is None:
            watched = any(
                self._is_watched(p) for group in optimizer.param_groups for p in group["params"]
            )
            known = (
                self._recorder.names.intern(NameKind.OPTIMIZER, type(optimizer).__name__)
                if watched
                else 0
            )
            self._relevant[optimizer] = known
        return known

    def _begin_span(self, owner: int) -> None:
        # Inside a backward (a fused optimizer) the backward span goes on: the phase is not changed.
        if self._recorder.phase != Phase.BACKWARD:
            self._recorder.phase = Phase.OPTIMIZER
        self._slot = self._recorder.begin(RecordKind.PHASE, Phase.OPTIMIZER, owner)

    def _end_span(self) -> None:
        if self._slot >= 0:
            self._recorder.end(self._slot)
            self._slot = -1
        if self._recorder.phase == Phase.OPTIMIZER:
            self._recorder.phase = Phase.OTHER

    @not_compiled
    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        recorder = self._recorder
        # An optimizer may drive another one: the outer one counts.
        if not recorder.on or (self._inside is not None and not self._interrupted):
            return
        try:
            owner = self._owner(optimizer)
            if not owner:
                return
            self._end_span()
            self._inside, self._interrupted = optimizer, False
            if recorder.recording:
                self._begin_span(owner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("optimizer hook", error)

    @not_compiled
    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._inside is not optimizer:
            return
        self._inside, self._interrupted = None, False
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            self._end_span()
            # After the span, so that no part of it falls into the next step.
            self._ended_at = recorder.now()
            recorder.step_may_end(self._ended_at)
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("optimizer hook", error)

    def remove(self) -> None:
        """Take the hooks out and end the running step."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._recorder.on:
            if not self._ended_at:
                self._recorder.flag_step(StepFlag.PARTIAL)
            self._recorder.close_step(self._ended_at or self._recorder.now())

"""Finds where a backward pass begins, where its last gradient is computed, and where it is over.

In: the output of a forward, whose gradients are the first to arrive. Out: a PHASE record, and calls to whoever watches
the model. No backward is wrapped: all of it is found by hooks on the thread that called `backward()`.

    tensor hook on the output     → a gradient arrives: a backward begins, unless it is another output of the same one
    engine callback, queued then  → the last gradient is computed. What the model's wrapper does at the end (wait for
                                    what it sends) is already queued behind this
    engine callback, queued then  → that is over too

Callbacks of a backward that raised are never called; those of one that another has overtaken do nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.vocabulary import Phase, RecordKind, StepFlag


def follow(output: Any, gradient_arrives: Callable[[torch.Tensor], None]) -> None:
    """Have a hook called for the first gradients of a backward through the tensors of a forward's output."""
    for tensor in tree_leaves(output):
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            tensor.register_hook(gradient_arrives)


def graph_task() -> int:
    """Return the number of the backward that this thread runs; -1 when it runs none."""
    task: int = torch._C._current_graph_task_id()  # noqa: SLF001
    return task


class BackwardSpan:
    """The backward of one model, one at a time.

    Args:
        recorder: where its span is written.
        where: what its faults are told as.
        ended: called when it is over.
        computed: called when its last gradient is computed, before what the wrapper does at the end; None where that
            makes no difference, and `ended` is called then.
    """

    def __init__(
        self,
        recorder: Recorder,
        where: str,
        ended: Callable[[], None],
        computed: Callable[[], None] | None = None,
    ) -> None:
        self._recorder, self._where = recorder, where
        self._computed, self._ended = computed, ended
        self.task = -1
        self._slot = -1
        self._in_step = (0, 0)

    def is_new(self) -> bool:
        """Whether the gradient that arrives now is not the running backward's."""
        return graph_task() != self.task

    def begin(self, owner: int, *, reduces: bool = True) -> None:
        """A backward begins now.

        Args:
            owner: id of a Name.
            reduces: whether its gradients are reduced, as far as that is known.
        """
        recorder = self._recorder
        self.task = task = graph_task()
        step, count = self._in_step
        self._in_step = (recorder.step, count + 1 if step == recorder.step else 1)
        if self._in_step[1] == 2 or not reduces:
            recorder.flag_step(StepFlag.ACCUMULATING)
        recorder.phase = Phase.BACKWARD
        self._slot = -1
        if recorder.recording:
            self._slot = recorder.begin(RecordKind.PHASE, Phase.BACKWARD, owner)
        call_at_end(partial(self._on_computed, task))

    @not_compiled
    def _on_computed(self, task: int) -> None:
        recorder = self._recorder
        if not recorder.on or task != self.task:
            return
        try:
            if self._slot >= 0:
                recorder.end(self._slot)
                self._slot = -1
            if self._computed is not None:
                self._computed()
                call_at_end(partial(self._on_ended, task))
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip(self._where, error)
            return
        self._on_ended(task)

    @not_compiled
    def _on_ended(self, task: int) -> None:
        recorder = self._recorder
        if not recorder.on or task != self.task:
            return
        try:
            self.task = -1
            self._ended()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip(self._where, error)


def call_at_end(callback: Callable[[], None]) -> None:
    """Have the running backward call this when it has computed all gradients, after what was queued before."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # noqa: SLF001

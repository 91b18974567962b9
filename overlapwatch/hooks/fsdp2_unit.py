"""One unit of FSDP2, which is one call of `fully_shard`: when its forward and backward need its parameters.

In: the calls of a module's hooks and of what FSDP runs round its forward and backward. Out: who is at work (the cause
of a prefetch), and where compute arrives and goes on, told to the unit's groups (`fsdp2_groups`).

Where we stand, and why there:

    forward pre-hooks before and behind FSDP's   a module's pre-forward: what it gathers is on demand, what it gathers
                                                 for others is a prefetch
    forward hook behind FSDP's                   the module may have been resharded
    `state._pre_backward`, on the object         the same for the backward. A tensor hook would be public, but would
                                                 miss outputs that FSDP casts, or registers hooks for elsewhere
    `state._pre_forward`, `_post_forward`        called only through `register_fsdp_forward_method`
    `group.post_backward`, on the object         gradients are complete; behind it, the module was resharded
    communicators, copies                        see `fsdp2_comm`, `fsdp2_copies`
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.fsdp2_comm import StandIns
from overlapwatch.hooks.fsdp2_groups import Stage, WatchedGroup
from overlapwatch.hooks.fsdp2_layout import Unit
from overlapwatch.vocabulary import Phase


class Spans(Protocol):
    """Who keeps the forward and backward spans of whole models."""

    def forward_begins(self, who: Any) -> None:
        """A forward begins, unless one is running."""

    def forward_ends(self, who: Any) -> None:
        """The forward of `who` has returned."""

    def backward_begins(self, who: Any) -> None:
        """A backward begins, unless one is running."""


class WatchedUnit:
    """One unit: its hooks, and its groups.

    Attributes:
        whole: whether this is what the user passed to `watch()`.
        owner: id of its MODULE Name.
        part: the model that was passed, with this unit in it.
    """

    whole = False

    def __init__(self, unit: Unit, stage: Stage, spans: Spans) -> None:
        self.unit = unit
        self.owner = unit.owner
        self.units = [self]
        self._spans, self._stage = spans, stage
        self._recorder = stage.recorder
        self.groups = [WatchedGroup(one, unit.owner, self._stage) for one in unit.groups]
        self.part: Any = None
        self._undo: list[Callable[[], object]] = []
        self._stand_ins: list[StandIns] = []

    def install(self) -> None:
        """Put the hooks in."""
        for module in self.unit.modules:
            self._undo += [
                module.register_forward_pre_hook(self._before_forward, prepend=True).remove,
                module.register_forward_pre_hook(self._fetched).remove,
                module.register_forward_hook(self._after_forward).remove,
            ]
        state = self.unit.state
        self._stand_before(state, "_pre_forward", self._method_pre_forward)
        self._stand_before(state, "_post_forward", self._method_post_forward)
        self._stand_before(state, "_pre_backward", self._pre_backward)
        public = self.unit.modules[0] if len(self.groups) == 1 else None
        for one in self.groups:
            self._stand_before(one.group.raw, "post_backward", one.post_backward)
            self._stand_ins.append(StandIns(public, one.group.raw, one.gather, one.scatter))
            self._undo.append(self._stand_ins[-1].give_back)

    def _stand_before(self, holder: Any, name: str, ours: Callable[..., Any]) -> None:
        kept = vars(holder).get(name)  # somebody else may stand there already
        holder.__dict__[name] = partial(ours, getattr(holder, name))
        # Not undone by putting `kept` back where somebody has since stood in front of us: then we stay, and do nothing.
        self._undo.append(partial(_leave, holder, name, holder.__dict__[name], kept))

    def check_communicators(self) -> None:
        """Stand in front of communicators that the user has set since."""
        for one in self._stand_ins:
            one.take_over()

    # -- forward -----------------------------------------------------------------------------------------------

    @not_compiled
    def _before_forward(self, module: Any, _args: Any) -> None:
        if not self._recorder.on:
            return
        try:
            inside = torch._C._current_graph_task_id() != -1  # noqa: SLF001
            if not inside:
                self._spans.forward_begins(self)
            self._fetch()
            if not self._stage.spans:
                return
            if inside:  # a checkpoint runs it again: as a rule the parameters are there
                self._arrive(Phase.BACKWARD, [g for g in self.groups if not g.group.unsharded])
            elif self._is_first(module):
                self._arrive(Phase.FORWARD, self.groups)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 forward hook", error)

    def _is_first(self, module: Any) -> bool:
        """Whether the forward of modules that were wrapped together begins with this one: they share one gather."""
        seen, number = self.unit.seen, id(module)
        first = not seen or number in seen
        if first:
            seen.clear()
        seen.add(number)
        if len(seen) == len(self.unit.modules):
            seen.clear()
        return first

    def _fetch(self) -> None:
        self._stage.fetching.append(self.owner)
        self._stage.compute_stream = self._recorder.times.current_stream()

    def _arrive(self, phase: Phase, groups: list[WatchedGroup]) -> None:
        at = self._recorder.now()
        for one in groups:
            one.arrive(phase, at)

    @not_compiled
    def _fetched(self, _module: Any = None, _args: Any = None) -> None:
        if not self._recorder.on:
            return
        try:
            fetching = self._stage.fetching
            while fetching and fetching.pop() != self.owner:
                pass
            for one in self.groups:
                one.settled()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 hook", error)

    @not_compiled
    def _after_forward(self, _module: Any, _args: Any, _output: Any) -> None:
        if not self._recorder.on:
            return
        try:
            if torch._C._current_graph_task_id() == -1:  # noqa: SLF001
                for one in self.groups:
                    one.release()
                self._spans.forward_ends(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 forward hook", error)

    @not_compiled
    def _method_pre_forward(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        self._before_forward(module, None)
        try:
            return original(module, *args, **kwargs)
        finally:
            self._fetched()

    @not_compiled
    def _method_post_forward(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(module, *args, **kwargs)
        self._after_forward(module, None, None)
        return output

    # -- backward ----------------------------------------------------------------------------------------------

    @not_compiled
    def _pre_backward(self, original: Any, *args: Any) -> Any:
        if not self._recorder.on:
            return original(*args)
        self._before_backward()
        try:
            return original(*args)
        finally:
            self._fetched()

    def _before_backward(self) -> None:
        try:
            self._spans.backward_begins(self)
            self._fetch()
            if not self.unit.in_backward:  # otherwise another of its outputs
                self.unit.in_backward = True
                if self._stage.spans:
                    self._arrive(Phase.BACKWARD, self.groups)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 backward hook", error)

    def backward_over(self) -> None:
        """The backward is over, and FSDP has cleaned up."""
        self.unit.in_backward = False
        for one in self.groups:
            one.backward_over()

    def remove(self) -> None:
        """Leave the unit as it was."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._stand_ins.clear()


def _leave(holder: Any, name: str, ours: Any, kept: Any) -> None:
    if vars(holder).get(name) is not ours:
        return
    if kept is None:
        del holder.__dict__[name]
    else:
        holder.__dict__[name] = kept

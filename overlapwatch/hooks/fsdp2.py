"""Watches FSDP2 models: which module needs its parameters when, who prefetches, and the forward and backward spans.

In: models with modules in them that `fully_shard` has wrapped, at the root or only further in. Out: PHASE, WAIT, COPY
and HELD records, and claims on the collectives that the tap sees. Nothing of the arithmetic is ours: communicators and
methods that we stand in front of call what was there, with what they were given.

What happens in each module is seen by `fsdp2_unit`, in each of its parameter groups by `fsdp2_groups`. Here are the
spans of whole models, and what all share.

The spans of a backward are found by `backward`: FSDP's final callback lies between the last gradient and the end, so
that is what is waited for there.
"""

from typing import Any

import torch

from overlapwatch.hooks.backward import BackwardSpan, follow, graph_task
from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.fsdp2_copies import CopyTap
from overlapwatch.hooks.fsdp2_groups import Stage
from overlapwatch.hooks.fsdp2_layout import missing_in, name_of, read_units
from overlapwatch.hooks.fsdp2_unit import WatchedUnit
from overlapwatch.hooks.instrument import Context
from overlapwatch.hooks.recorder import log
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase, RecordKind

_COLLECTIVES = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)


class WatchedPart:
    """One model that was passed to `watch()`."""

    whole = True

    def __init__(self, model: torch.nn.Module, label: str, instrument: "Fsdp2Instrument") -> None:
        self.model = model
        self.units: list[WatchedUnit] = []
        self._instrument = instrument
        self._recorder = instrument.stage.recorder
        names = self._recorder.names
        for unit in read_units(model, label, names):
            known = instrument.watched_unit(unit.state)
            self.units.append(known or WatchedUnit(unit, instrument.stage, instrument))
        inside = getattr(model, "_orig_mod", model)
        root = [one.owner for one in self.units if inside in one.unit.modules]
        self.owner = root[0] if root else names.intern(NameKind.MODULE, label or name_of(model))
        self._handles: list[Any] = []

    def install(self) -> None:
        """Put the hooks in: the units' first, so that ours are outside of theirs."""
        for one in self.units:
            if one.part is None:
                one.part = self
                one.install()
        self._handles += [
            self.model.register_forward_pre_hook(self._before_forward, prepend=True),
            self.model.register_forward_hook(self._after_forward),
        ]

    @not_compiled
    def _before_forward(self, _module: Any, _args: Any) -> None:
        if not self._recorder.on:
            return
        try:
            if graph_task() == -1:
                self._instrument.forward_begins(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 forward hook", error)

    @not_compiled
    def _after_forward(self, _module: Any, _args: Any, output: Any) -> None:
        if not self._recorder.on:
            return
        try:
            if graph_task() != -1:
                return
            self._instrument.forward_ends(self)
            if torch.is_grad_enabled():
                follow(output, self._backward_begins)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 forward hook", error)

    @not_compiled
    def _backward_begins(self, _gradient: torch.Tensor) -> None:
        if not self._recorder.on:
            return
        try:
            self._instrument.backward_begins(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 backward hook", error)

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Fsdp2Instrument:
    """All watched FSDP2 models of the process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._recorder, self._boundaries = context.recorder, context.boundaries
        self.stage = Stage(context.recorder)
        self.parts: list[WatchedPart] = []
        self._units: dict[int, WatchedUnit] = {}
        self._held: set[int] = set()
        self._copies = CopyTap(context.recorder, self.stage)
        self._forward: WatchedPart | WatchedUnit | None = None  # who opened the forward span
        self._forward_slot = -1
        self._forwards = 0
        self._backward: WatchedPart | WatchedUnit | None = None
        self._reduces = False
        self._wait_slot = -1
        self._span = BackwardSpan(
            context.recorder, "FSDP2 backward hook", self._backward_ended, self._compute_ended
        )
        context.tap.claims.append(self.stage.claim)

    # -- attaching ---------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many models are watched."""
        return len(self.parts)

    def knows(self, part: torch.nn.Module) -> bool:
        """Whether this model is watched already."""
        return any(one.model is part for one in self.parts)

    def watched_unit(self, state: Any) -> WatchedUnit | None:
        """Return the unit of this state, if it is watched already as a part of another model."""
        return self._units.get(id(state))

    def add(self, part: torch.nn.Module, label: str) -> None:
        """Watch one more model."""
        watched = WatchedPart(part, label, self)
        missing = sorted({name for one in watched.units for name in missing_in(one.unit.state)})
        if missing:
            raise RuntimeError(
                f"PyTorch {torch.__version__} does not have what FSDP2 is watched by: {', '.join(missing)}"
            )
        self.parts.append(watched)
        for one in watched.units:
            self._units[id(one.unit.state)] = one
        self._forwards = 0
        self._context.tap.install()
        for kind in sorted({one.unit.device.type for one in watched.units}):
            unseen = self._copies.install(kind)
            if unseen:
                log.warning(
                    "PyTorch %s does not show these copies of FSDP2, so waits end a little late: %s",
                    torch.__version__,
                    ", ".join(unseen),
                )
        watched.install()
        self._note_parameters()
        ranges = self._recorder.ranges
        if ranges is not None:
            for group in (one.group for unit in watched.units for one in unit.groups):
                ranges.name_module(group.owner, group.text, *_COLLECTIVES)

    def _note_parameters(self) -> None:
        for one in self._units.values():
            for group in one.unit.groups:
                self._held.update(id(parameter) for parameter in group.parameters())
        self._boundaries.forget_relevance()

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether a watched model has this parameter."""
        return id(parameter) in self._held

    def remove(self, *, at_exit: bool) -> None:  # noqa: ARG002 - the protocol's: nothing here needs a process group
        """Leave every model as it was."""
        for leave in (
            *(one.remove for one in self.parts),
            *(one.remove for one in self._units.values()),
            self._copies.remove,
        ):
            try:
                leave()
            except Exception as error:  # noqa: BLE001, PERF203 - the others still have to leave
                self._recorder.guard.trip("close", error)
        self.parts.clear()
        self._units.clear()
        self.stage.buffers.clear()

    # -- forward -----------------------------------------------------------------------------------------------

    def forward_begins(self, who: WatchedPart | WatchedUnit) -> None:
        """A forward begins, of a model or of a module that is run by itself; nothing when it is inside another one."""
        if (
            self._forward is not None
            and self._forward is not who
            and not (who.whole and not self._forward.whole)
        ):
            return
        self.stage.fetching.clear()  # a forward that raised left its modules there
        recorder = self._recorder
        self._forward = who
        if (
            self._forwards < _FORWARDS_TO_SETTLE
        ):  # FSDP replaces parameters that were moved since it wrapped them
            self._forwards += 1
            self._note_parameters()
        for unit in who.units:
            unit.check_communicators()
        if torch.is_grad_enabled():
            self._boundaries.training_forward_begins(whole=who.whole)
        self._forward_slot = -1
        if recorder.recording:
            recorder.phase = Phase.FORWARD
            self._forward_slot = recorder.begin(RecordKind.PHASE, Phase.FORWARD, who.owner)

    def forward_ends(self, who: WatchedPart | WatchedUnit) -> None:
        """The forward of `who` has returned."""
        if self._forward is not who:
            return
        self._forward = None
        if self._forward_slot >= 0:
            self._recorder.end(self._forward_slot)
            self._forward_slot = -1
        self._recorder.phase = Phase.OTHER
        for unit in who.units:
            unit.unit.seen.clear()

    # -- backward ----------------------------------------------------------------------------------------------

    def backward_begins(self, who: WatchedPart | WatchedUnit) -> None:
        """A gradient has arrived at a model or unit; a backward begins unless one is running."""
        span = self._span
        if graph_task() == -1 or not span.is_new():
            return
        if span.task != -1 and not who.whole:  # a checkpoint's backward inside the backward
            return
        part = who if isinstance(who, WatchedPart) else who.part
        self._backward = part or who
        self._forward = None
        self.stage.fetching.clear()
        self._reduces = self._will_reduce(self._backward)
        self._wait_slot = -1
        span.begin(self._backward.owner, reduces=self._reduces)

    def _will_reduce(self, who: WatchedPart | WatchedUnit) -> bool:
        return any(group.group.reduces for unit in who.units for group in unit.groups)

    def _compute_ended(self) -> None:
        recorder = self._recorder
        if self._reduces and recorder.recording and self._backward is not None:
            self._wait_slot = recorder.begin(
                RecordKind.WAIT,
                Phase.BACKWARD,
                self._backward.owner,
                CollectiveKind.REDUCE_SCATTER,
            )

    def _backward_ended(self) -> None:
        if self._wait_slot >= 0:
            self._recorder.end(self._wait_slot)
        self.stage.fetching.clear()
        for unit in self._backward.units if self._backward is not None else ():
            unit.backward_over()
        self.stage.forget_unused_buffers()
        self._recorder.phase = Phase.OTHER
        self._boundaries.backward_ended()


_FORWARDS_TO_SETTLE = 2

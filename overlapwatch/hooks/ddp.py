"""Watches DDP modules: forward, backward and waiting spans, and which collective is which bucket.

In: DDP modules, through public module hooks and one autograd hook a step. Out: PHASE and WAIT records, bucket ids for
the collectives that the tap or the communication hook sees, and DDP's own per-parameter ready times for the drain.

The spans of a backward are found without touching DDP (see `backward`): its own callback, in which it waits for its
buckets, lies between the last gradient and the end. Under a reentrant checkpoint DDP waits in the backward inside the
backward, in which its last bucket was launched: there the wait is found by callbacks queued at that launch.

Passive mode registers no communication hook and leaves the arithmetic alone. See `ddp_comm_hook` for the other mode.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.hooks.backward import BackwardSpan, call_at_end, follow, graph_task
from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.ddp_layout import Layout, Stage, parameters_of, read_layout
from overlapwatch.hooks.recorder import NEVER_NS, BackwardReport, Recorder, log
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.vocabulary import (
    CollectiveKind,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)

_SHADOWED = ("__getstate__", "register_comm_hook", "_register_builtin_comm_hook", "join_hook")
"""Methods of DDP in front of which a watch puts attributes of the module."""


_BACKWARD = int(Phase.BACKWARD)


class DdpModule:
    """One watched DDP module: its hooks, its layout, and how far the running backward has come."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        index: int,
        label: str,
        recorder: Recorder,
        boundaries: StepBoundaries,
        running: "list[DdpModule]",
    ) -> None:
        self.ddp: Any = ddp
        self.index = index
        self.label = label
        self._prefix = f"{label}: " if label else ""
        self._recorder = recorder
        # On the host DDP's own statistics tell when a bucket was ready, later; on a device an event does.
        self._told_later = int(RecordFlag.READY_ESTIMATED) if recorder.times.on_host else 0
        self._boundaries = boundaries
        self._running = running
        self.owner = recorder.names.intern(NameKind.MODULE, label or type(ddp.module).__name__)
        named = parameters_of(ddp)
        self.parameters = [p for _, p in named]
        self.parameter_ids = tuple(
            recorder.names.intern(
                NameKind.PARAMETER,
                self._prefix + n,
                (),
                p.numel(),
                p.numel() * p.element_size(),
                str(p.dtype).removeprefix("torch."),
            )
            for n, p in named
        )
        self.layout: Layout = self._read_layout()
        self.group: Any = ddp.process_group
        self.launched: list[tuple[int, int, tuple[int, ...]]] = []
        self.next_bucket = 0
        self.in_hook = False  # a user's hook is running for the bucket whose turn it is
        self.future_recorded = (
            False  # hook mode: a finish is that of the future which DDP waits for
        )
        self._forward_slot = -1
        self._forward_began = self._forward_returned = 0
        self._will_sync = False
        self._wait_slot = self._inner_wait_slot = -1
        self._backward = BackwardSpan(
            recorder, "backward hook", self._backward_ended, self._compute_ended
        )
        self._handles = [
            ddp.register_forward_pre_hook(self._before_forward),
            ddp.register_forward_hook(self._after_forward),
        ]
        # Looked up on the object by both `pickle` and `copy`. Without it a watched DDP module could not be copied.
        ddp.__dict__["__getstate__"] = self._state_without_us

    def _state_without_us(self) -> dict[str, Any]:
        """Return what DDP's own `__getstate__` would, had nobody watched."""
        plain: Any = type(self.ddp)
        state: dict[str, Any] = plain.__getstate__(self.ddp)
        for name in _SHADOWED:
            state.pop(name, None)
        for hooks, handle in zip(
            ("_forward_pre_hooks", "_forward_hooks"), self._handles, strict=True
        ):
            state[hooks] = type(state[hooks])(
                (number, hook) for number, hook in state[hooks].items() if number != handle.id
            )
        return state

    # -- forward -----------------------------------------------------------------------------------------------

    @not_compiled
    def _before_forward(self, _module: Any, _args: Any) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            if torch.is_grad_enabled():
                self._boundaries.training_forward_begins()
            self._forward_began = recorder.now()
            if recorder.recording:
                recorder.phase = Phase.FORWARD
                self._forward_slot = recorder.begin(RecordKind.PHASE, Phase.FORWARD, self.owner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("forward hook", error)

    @not_compiled
    def _after_forward(self, _module: Any, _args: Any, output: Any) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            self._forward_returned = recorder.now()
            if self._forward_slot >= 0:
                recorder.end(self._forward_slot)
                self._forward_slot = -1
            recorder.phase = Phase.OTHER
            if not torch.is_grad_enabled():
                return
            self._will_sync = bool(self.ddp.require_backward_grad_sync)
            self._notice_rebuild()
            follow(output, self._backward_begins)
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("forward hook", error)

    def _statistics(self) -> list[int]:
        """Return DDP's own ready times; [] where this PyTorch does not keep them."""
        tell = getattr(self.ddp.reducer, "get_backward_stats", None)
        return tell() if tell is not None else []

    def _read_layout(self) -> Layout:
        try:
            layout = read_layout(
                self.ddp, self._prefix, self.parameter_ids, self.parameters, self._recorder.names
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning(
                "this PyTorch does not tell DDP's buckets as expected (%s: %s): buckets go without names",
                type(error).__name__,
                error,
            )
            layout = Layout((), Stage.FINAL)
        self._name_ranges(layout)
        return layout

    def _name_ranges(self, layout: Layout) -> None:
        ranges = self._recorder.ranges
        if ranges is not None:
            for place, bucket in enumerate(layout.buckets):
                ranges.name_bucket(
                    bucket.id, f"{self._prefix}bucket {place}", CollectiveKind.ALL_REDUCE
                )

    def rebuilt_buckets(self) -> list[list[int]]:
        """Return the parameter indices of each bucket, once DDP has laid them out for good; [] before."""
        if self.layout.stage is not Stage.FINAL:
            return []
        place = {number: index for index, number in enumerate(self.parameter_ids)}
        return [[place[number] for number in bucket.members] for bucket in self.layout.buckets]

    def reset_layout(self) -> None:
        """The reducer was replaced: its buckets are laid out anew."""
        self.layout = self._read_layout()

    def _notice_rebuild(self) -> None:
        """DDP rebuilds its buckets at the beginning of a forward: see it here, before the backward uses them."""
        if self.layout.stage is Stage.FINAL:
            return
        if not getattr(self.ddp, "_has_rebuilt_buckets", False):
            self._recorder.flag_step(StepFlag.UNBUCKETED)
            return
        if self.layout.stage is Stage.FIRST:
            self._recorder.flag_step(StepFlag.REBUILT)
        self.layout = self._read_layout()

    # -- backward ----------------------------------------------------------------------------------------------

    @not_compiled
    def _backward_begins(self, _gradient: torch.Tensor) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            if not self._backward.is_new():
                return
            if self in self._running:  # the last backward raised before its callbacks ran
                self._running.remove(self)
            self._running.append(self)
            self.next_bucket = 0
            self.launched = []
            self.in_hook = False
            self._backward.begin(self.owner, reduces=self._will_sync)
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("backward hook", error)

    def _compute_ended(self) -> None:
        self._wait_slot = -1
        if self._will_sync:
            # Also in a shadow step: the exposed wait is what compares a step with and without recording.
            self._wait_slot = self._recorder.begin(RecordKind.WAIT, Phase.BACKWARD, self.owner)

    def _backward_ended(self) -> None:
        recorder = self._recorder
        if self._wait_slot >= 0:
            recorder.end(self._wait_slot)
        self._running.remove(self)
        if not self._running:
            recorder.phase = Phase.OTHER
        self._boundaries.backward_ended()
        launched = self.launched
        self.launched = []  # `Join` launches buckets outside a backward too
        if launched and self._will_sync:
            recorder.backward_reports.append(
                BackwardReport(
                    recorder.step,
                    self.index,
                    self._statistics(),
                    self._forward_began,
                    self._forward_returned,
                    recorder.now() if self._ddp_waits_for_all() else NEVER_NS,
                    self.parameter_ids,
                    launched,
                )
            )

    def _ddp_waits_for_all(self) -> bool:
        """Whether what was recorded is over when DDP's wait is: DDP waits for what a user's hook returned, no more."""
        return self.future_recorded or not self.ddp._comm_hooks  # noqa: SLF001

    # -- buckets -----------------------------------------------------------------------------------------------

    def expects(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor can be the next bucket: buckets are launched strictly in order, and sizes are known."""
        buckets = self.layout.buckets
        if self.in_hook:
            return True
        if self.next_bucket >= len(buckets):
            return False
        bucket = buckets[self.next_bucket]
        if bucket.elements:  # a compressing hook changes the dtype, not the number of elements
            return (
                tensor.numel() == bucket.elements
                and tensor.is_floating_point() | tensor.is_complex()
            )
        return tensor.numel() * tensor.element_size() == bucket.size

    @property
    def bucket(self) -> int:
        """Id of the bucket whose turn it is; 0 when all have been launched."""
        buckets = self.layout.buckets
        return buckets[self.next_bucket].id if self.next_bucket < len(buckets) else 0

    own_stream = tells_finish = False  # DDP's collectives are asynchronous

    def describe(self) -> tuple[int, int, int]:
        """Say of the bucket whose turn it is what its record needs: (owner, cause, flags)."""
        return self.bucket, 0, self._told_later

    def take(self, slot: int, launch: int) -> None:
        """The bucket whose turn it is was launched, in this record."""
        if self.next_bucket < len(self.layout.buckets):
            self.launched.append((slot, launch, self.layout.buckets[self.next_bucket].members))
            self.next_bucket += 1
            if self.next_bucket == len(self.layout.buckets):
                self._all_launched()

    def untold(self, slot: int) -> None:
        """Nothing was promised."""

    def _all_launched(self) -> None:
        """DDP now queues the callback in which it waits; in a reentrant checkpoint that is in the inner backward."""
        if self._backward.task != -1 and graph_task() not in (-1, self._backward.task):
            call_at_end(self._inner_wait_begins)

    @not_compiled
    def _inner_wait_begins(self) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            self._inner_wait_slot = recorder.begin(RecordKind.WAIT, Phase.BACKWARD, self.owner)
            call_at_end(self._inner_wait_ends)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("backward hook", error)

    @not_compiled
    def _inner_wait_ends(self) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            recorder.end(self._inner_wait_slot)
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("backward hook", error)

    def remove(self) -> None:
        """Take all hooks out of the module."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.ddp.__dict__.pop("__getstate__", None)


class DdpInstrument:
    """All watched DDP modules of the process."""

    def __init__(self, recorder: Recorder, boundaries: StepBoundaries) -> None:
        self._recorder = recorder
        self._boundaries = boundaries
        self.modules: list[DdpModule] = []
        self._running: list[DdpModule] = []
        self._held: set[int] = set()

    def add(self, ddp: DistributedDataParallel, label: str) -> DdpModule:
        """Watch one more module. `label` goes before its buckets' names."""
        module = DdpModule(
            ddp, len(self.modules), label, self._recorder, self._boundaries, self._running
        )
        self.modules.append(module)
        self._held.update(id(p) for p in module.parameters)
        self._boundaries.forget_relevance()
        return module

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether a watched module has this parameter."""
        return id(parameter) in self._held

    def claim(self, kind: CollectiveKind, group: Any, tensors: Any) -> "DdpModule | None":
        """Return the module whose next bucket this all-reduce is, if one is in its backward and expects it."""
        if kind is CollectiveKind.ALL_REDUCE and self._recorder.phase == _BACKWARD:
            for module in self._running:
                if module.group is group and module.expects(tensors[0]):
                    return module
        return None

    def remove(self) -> None:
        """Leave every module as it was."""
        for module in self.modules:
            module.remove()
        self.modules.clear()
        self._running.clear()


def world_of(ddp: DistributedDataParallel) -> int:
    """Number of ranks that reduce this module's gradients."""
    return dist.get_world_size(ddp.process_group)

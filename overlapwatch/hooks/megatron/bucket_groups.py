"""Watches one of Megatron's bucket groups: its gradients become ready, are sent and waited for; its parameters return.

In: a `_ParamAndGradBucketGroup`. Out: claims for the collectives that the tap sees, WAIT records, and a report of when
each gradient was ready. Megatron calls the methods below through the group itself, so an attribute of the instance
stands before each; taking it out again leaves the group as it was. Signatures have grown over the releases: arguments
are passed on as they come.

    register_grad_ready   → a gradient is ready; the last one before the launch gates the group
    start_grad_sync       → launch      finish_grad_sync    → who needs the gradients waits for them
    start_param_sync      → launch      finish_param_sync   → a module needs its parameters, and the next group's
                                                              gathering is launched ahead of its use

What Megatron launches and what it waits for depends on its options, read at each call since they may change.
"""

from collections.abc import Callable
from typing import Any

import torch

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.megatron.owners import Claim, Owners, in_backward
from overlapwatch.hooks.megatron.patches import Patches
from overlapwatch.hooks.megatron.waits import Waits
from overlapwatch.hooks.names import Names
from overlapwatch.hooks.recorder import BackwardReport, Recorder
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase, RecordFlag, StepFlag

_PREFETCHED = int(RecordFlag.PREFETCHED)
_AG, _AR, _RS = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
)


class BucketGroup:
    """One watched group.

    Args:
        group: Megatron's.
        label: what it is called: "bucket group 0".
        parameters: parameter -> id of its Name.
        index: number of the group among all watched ones.
        recorder, owners, waits: where things are written.
        between_steps: whether an optimizer has stepped since the iteration began.
    """

    def __init__(
        self,
        group: Any,
        label: str,
        parameters: dict[torch.Tensor, int],
        index: int,
        recorder: Recorder,
        owners: Owners,
        waits: Waits,
        between_steps: Callable[[], bool],
    ) -> None:
        self.group = group
        self._index = index
        self._recorder, self._owners, self._waits = recorder, owners, waits
        self._between_steps = between_steps
        self._ids = {p: parameters.get(p, 0) for b in group.buckets for p in b.params_list}
        self.gradients = _name(
            recorder.names, NameKind.BUCKET, label, self._ids, group, "grad_data"
        )
        self.parameters = _name(
            recorder.names, NameKind.MODULE, f"{label}, parameters", self._ids, group, "param_data"
        )
        if recorder.ranges is not None:
            kind = _RS if group.ddp_config.use_distributed_optimizer else _AR
            recorder.ranges.name_bucket(self.gradients, label, kind)
        self._ready: dict[torch.Tensor, int] = {}
        self._last: torch.Tensor | None = None
        self._launched: list[tuple[int, int]] = []
        self._seen_a_batch = False
        self._gradient_claim = Claim(self.gradients, taken=self._took_gradients)
        self._parameter_claim = Claim(self.parameters, taken=self._took_parameters)
        self._blocking = False
        self._blocked = -1
        self._patches = Patches()
        for name, wrap in (
            ("register_grad_ready", self._wrap_ready),
            ("start_grad_sync", self._wrap_start_gradients),
            ("finish_grad_sync", self._wrap_finish_gradients),
            ("start_param_sync", self._wrap_start_parameters),
            ("finish_param_sync", self._wrap_finish_parameters),
        ):
            self._patches.add(group, name, wrap)

    def remove(self) -> None:
        """Leave the group as it was. A handle that it holds goes on waiting through us, which is harmless."""
        self._patches.undo()

    @property
    def _instances(self) -> bool:
        """Whether the optimizer has several instances: then Megatron keeps no handle, and a stream of its own."""
        config = self.group.ddp_config
        return getattr(config, "num_distributed_optimizer_instances", 1) > 1

    # -- gradients ---------------------------------------------------------------------------------------------

    def _wrap_ready(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, ready = self._recorder, self._ready

        @not_compiled
        def register_grad_ready(parameter: torch.Tensor, *args: Any, **options: Any) -> Any:
            # Called in every backward of a step, the last of which counts: later calls replace earlier ones.
            if recorder.recording:
                ready[parameter] = recorder.now()
                self._last = parameter
            return original(parameter, *args, **options)

        return register_grad_ready

    def _wrap_start_gradients(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, owners, claim = self._recorder, self._owners, self._gradient_claim

        @not_compiled
        def start_grad_sync(*args: Any, **options: Any) -> Any:
            group = self.group
            if not recorder.recording or (
                # Called again after the schedule has launched it already: Megatron does nothing.
                getattr(group, "is_first_batch", False) and group.grad_reduce_handle is not None
            ):
                return original(*args, **options)
            phase = recorder.phase
            try:
                claim.cause = 0 if self._last is None else self._ids.get(self._last, 0)
                claim.own_stream = self._instances and group.ddp_config.overlap_grad_reduce
                self._blocking = not group.ddp_config.overlap_grad_reduce
                claim.tells_finish = self._blocking and recorder.times.on_host
                owners.push(claim)
                recorder.phase = Phase.BACKWARD  # wherever it is sent from, it belongs to backward
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                recorder.guard.trip("start of a gradient reduction", error)
            try:
                return original(*args, **options)
            finally:
                recorder.phase = phase
                owners.pop(claim)
                self._started_gradients()

        return start_grad_sync

    def _took_gradients(self, slot: int, at: int) -> None:
        self._launched.append((slot, at))
        if self._blocking and self._blocked < 0:
            self._blocked = self._waits.begin(self.gradients, self._kind, Phase.BACKWARD)

    @property
    def _kind(self) -> CollectiveKind:
        return _RS if self.group.ddp_config.use_distributed_optimizer else _AR

    def _started_gradients(self) -> None:
        recorder = self._recorder
        if not recorder.recording:
            return
        try:
            group = self.group
            handle = group.grad_reduce_handle
            if handle is not None:
                # The accumulating handle also adds up what came: only the communication in it is waited for.
                inner = getattr(handle, "all_to_all_handle", None)
                if inner is not None:
                    handle.all_to_all_handle = self._waits.watch(
                        inner, self.gradients, CollectiveKind.ALL_TO_ALL
                    )
                else:
                    group.grad_reduce_handle = self._waits.watch(
                        handle, self.gradients, self._kind, Phase.BACKWARD
                    )
            elif self._blocking and recorder.times.on_host:
                self._gradient_claim.returned(recorder)
            self._waits.end(self._blocked)
            self._blocked, self._blocking = -1, False
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("start of a gradient reduction", error)

    def _wrap_finish_gradients(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @not_compiled
        def finish_grad_sync(*args: Any, **options: Any) -> Any:
            if not recorder.recording:
                return original(*args, **options)
            slot = -1
            try:
                self._note_first_batch()
                if self._instances and self.group.ddp_config.overlap_grad_reduce:
                    slot = self._waits.begin(self.gradients, self._kind, Phase.BACKWARD)
            except Exception as error:  # noqa: BLE001
                recorder.guard.trip("end of a gradient reduction", error)
            try:
                return original(*args, **options)
            finally:
                try:
                    self._waits.end(slot)
                    self._report()
                except Exception as error:  # noqa: BLE001
                    recorder.guard.trip("end of a gradient reduction", error)

        return finish_grad_sync

    def _note_first_batch(self) -> None:
        """From 0.16 on Megatron counts gradients in the first batch, and sends nothing before its end."""
        group = self.group
        first = getattr(group, "is_first_batch", False) and group.grad_reduce_handle is None
        if first and not self._seen_a_batch and group.ddp_config.overlap_grad_reduce:
            self._recorder.flag_step(StepFlag.FIRST_BATCH)
        self._seen_a_batch = True

    def _report(self) -> None:
        launched, self._launched = self._launched, []
        ready = dict(self._ready)
        self._ready.clear()
        self._last = None
        if not launched:
            return
        recorder = self._recorder
        base = min(ready.values(), default=launched[0][1]) - 1
        members = tuple(self._ids.values())
        recorder.backward_reports.append(
            BackwardReport(
                recorder.step,
                self._index,
                [ready[p] - base if p in ready else 0 for p in self._ids],
                base,
                base,
                recorder.now(),
                members,
                [(slot, at, members) for slot, at in launched],
            )
        )

    # -- parameters --------------------------------------------------------------------------------------------

    def _wrap_start_parameters(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, owners, claim = self._recorder, self._owners, self._parameter_claim

        @not_compiled
        def start_param_sync(*args: Any, **options: Any) -> Any:
            group = self.group
            if not recorder.recording or group.param_gather_handle is not None:
                return original(*args, **options)  # with a handle it can only wait, which is timed
            phase = recorder.phase
            try:
                by = owners.gathering
                claim.cause = by if by != self.parameters else 0
                claim.flags = _PREFETCHED if claim.cause else 0
                forced = bool(options.get("force_sync", args[0] if args else False))
                self._blocking = forced or not group.ddp_config.overlap_param_gather
                owners.push(claim)
                if recorder.phase == Phase.OTHER and not in_backward():
                    recorder.phase = Phase.OPTIMIZER if self._between_steps() else Phase.FORWARD
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                recorder.guard.trip("start of a parameter gathering", error)
            try:
                return original(*args, **options)
            finally:
                self._started_parameters()
                recorder.phase = phase
                owners.pop(claim)

        return start_param_sync

    def _took_parameters(self, _slot: int, _at: int) -> None:
        if self._blocking and self._blocked < 0:
            self._blocked = self._waits.begin(self.parameters, _AG)

    def _started_parameters(self) -> None:
        recorder = self._recorder
        if not recorder.recording:
            return
        try:
            handle = self.group.param_gather_handle
            if handle is not None:
                self.group.param_gather_handle = self._waits.watch(handle, self.parameters, _AG)
            self._waits.end(self._blocked)
            self._blocked, self._blocking = -1, False
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("start of a parameter gathering", error)

    def _wrap_finish_parameters(self, original: Callable[..., Any]) -> Callable[..., Any]:
        owners, recorder = self._owners, self._recorder

        @not_compiled
        def finish_param_sync(*args: Any, **options: Any) -> Any:
            group = self.group
            # Called for each parameter of each module; nearly always everything has been done already.
            if not recorder.recording or (
                group.param_gather_handle is None and group.param_gather_dispatched
            ):
                return original(*args, **options)
            outer, owners.gathering = owners.gathering, self.parameters
            try:
                return original(*args, **options)
            finally:
                owners.gathering = outer

        return finish_param_sync


def _name(
    names: Names,
    kind: NameKind,
    text: str,
    members: dict[torch.Tensor, int],
    group: Any,
    field: str,
) -> int:
    """Name the buffers of a group: what its collectives carry, padding included."""
    buffers = [data for b in group.buckets if (data := getattr(b, field, None)) is not None]
    elements = sum(data.numel() for data in buffers)
    size = sum(data.numel() * data.element_size() for data in buffers)
    dtypes = sorted({str(data.dtype).removeprefix("torch.") for data in buffers})
    return names.intern(kind, text, tuple(members.values()), elements, size, " and ".join(dtypes))

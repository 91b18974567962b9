"""Watches one model chunk: its forward and backward spans, its bucket groups, and where an iteration begins.

In: a chunk that Megatron wrapped. Out: PHASE records, step boundaries, and a `BucketGroup` for each of Megatron's.

    forward hooks of the wrapper      → forward begins and ends
    its output (see `backward`)       → backward begins, and ends with its last gradient
    `zero_grad_buffer` of the wrapper → an iteration begins. Pipeline stages communicate before their first forward, so
                                        a step must not wait for that to begin; and this is seen even where the
                                        optimizer is not (a step skipped for an overflow, weights kept elsewhere)
"""

from collections.abc import Callable
from typing import Any

import torch

from overlapwatch.hooks.backward import BackwardSpan, follow
from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.instrument import Context
from overlapwatch.hooks.megatron.bucket_groups import BucketGroup
from overlapwatch.hooks.megatron.detect import Chunk
from overlapwatch.hooks.megatron.owners import Claim, Owners, in_backward
from overlapwatch.hooks.megatron.patches import Patches
from overlapwatch.hooks.megatron.regroup import LISTS
from overlapwatch.hooks.megatron.waits import Waits
from overlapwatch.vocabulary import NameKind, Phase, RecordKind


class WatchedChunk:
    """One watched chunk.

    Args:
        chunk: what was found.
        label: goes before the names of its buckets and modules; "" when it is the only one.
        groups: how many bucket groups the chunks before it have.
        context: where things are written.
        owners, waits: shared by all chunks.
    """

    def __init__(
        self,
        chunk: Chunk,
        label: str,
        groups: int,
        context: Context,
        owners: Owners,
        waits: Waits,
    ) -> None:
        self.chunk = chunk
        self._recorder, self._boundaries = context.recorder, context.boundaries
        self._owners = owners
        self.prefix = f"{label}: " if label else ""
        names = context.recorder.names
        model = _unwrapped(chunk.module)
        self.model = model
        self.owner = names.intern(NameKind.MODULE, self.prefix + type(model).__name__)
        self.claim = Claim(names.intern(NameKind.LAYER, self.prefix + type(model).__name__))
        self.names: dict[torch.nn.Module, str] = {
            module: self.prefix + (name or type(model).__name__)
            for name, module in model.named_modules()
        }
        self._parameters: dict[torch.Tensor, int] = {
            parameter: names.intern(
                NameKind.PARAMETER,
                self.prefix + name,
                (),
                parameter.numel(),
                parameter.numel() * parameter.element_size(),
                str(parameter.dtype).removeprefix("torch."),
            )
            for name, parameter in model.named_parameters()
        }
        self._ids = {id(parameter) for parameter in self._parameters}
        self._storages = _storages(chunk, self._parameters)
        self._forward_slot = -1
        self._backward = BackwardSpan(context.recorder, "backward hook", self._backward_ended)
        self._patches = Patches()
        self._patches.add(chunk.module, "zero_grad_buffer", self._wrap_zero)
        self._patches.add(chunk.module, "start_param_sync", self._wrap_gather)
        self._waits = waits
        self._first_group = groups
        self._built_in = _numbers(chunk)
        self.groups: list[BucketGroup] = []
        self.follow_groups()
        self._handles = [
            chunk.module.register_forward_pre_hook(self._before_forward),
            chunk.module.register_forward_hook(self._after_forward, always_call=True),
        ]

    def follow_groups(self) -> None:
        """Watch the bucket groups that the chunk has now: those it had before and has no more are left as they were."""
        watched = {id(one.group): one for one in self.groups}
        self.groups = []
        for number, (group, text) in enumerate(_labelled(self.chunk, self._built_in)):
            known = watched.pop(id(group), None)
            self.groups.append(
                known
                or BucketGroup(
                    group,
                    self.prefix + text,
                    self._parameters,
                    self._first_group + number,
                    self._recorder,
                    self._owners,
                    self._waits,
                    lambda: self._boundaries.optimizer_has_stepped,
                )
            )
        for gone in watched.values():
            gone.remove()

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether an optimizer that steps this tensor steps the chunk: it, a piece of a buffer, or its main copy."""
        if id(parameter) in self._ids or _storage(parameter) in self._storages:
            return True
        return any(getattr(own, "main_param", None) is parameter for own in self._parameters)

    # -- steps -------------------------------------------------------------------------------------------------

    def _wrap_zero(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @not_compiled
        def zero_grad_buffer(*args: Any, **options: Any) -> Any:
            if recorder.on:
                try:
                    self._boundaries.iteration_begins()
                except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                    recorder.guard.trip("beginning of an iteration", error)
            return original(*args, **options)

        return zero_grad_buffer

    def _wrap_gather(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The optimizer ends with gathering the parameters, when that is not overlapped with the forward."""
        recorder = self._recorder

        @not_compiled
        def start_param_sync(*args: Any, **options: Any) -> Any:
            try:
                return original(*args, **options)
            finally:
                if recorder.on:
                    try:
                        self._boundaries.optimizer_goes_on()
                    except Exception as error:  # noqa: BLE001
                        recorder.guard.trip("end of the optimizer", error)

        return start_param_sync

    # -- forward -----------------------------------------------------------------------------------------------

    @not_compiled
    def _before_forward(self, _module: Any, _args: Any) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            if torch.is_grad_enabled() and not in_backward():
                self._boundaries.training_forward_begins(whole=False)
            if recorder.recording:
                self._owners.clear()
                self._owners.push(self.claim)
                recorder.phase = Phase.FORWARD
                self._forward_slot = recorder.begin(RecordKind.PHASE, Phase.FORWARD, self.owner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("forward hook", error)

    @not_compiled
    def _after_forward(self, _module: Any, _args: Any, output: Any) -> None:
        recorder = self._recorder
        try:
            self._owners.pop(self.claim)
            if self._forward_slot >= 0:
                recorder.end(self._forward_slot)
                self._forward_slot = -1
                recorder.phase = Phase.OTHER
            if not recorder.on or not torch.is_grad_enabled():
                return
            follow(output, self._backward_begins)
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("forward hook", error)

    # -- backward ----------------------------------------------------------------------------------------------

    @not_compiled
    def _backward_begins(self, _gradient: torch.Tensor) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        try:
            if self._backward.is_new():
                self._backward.begin(self.owner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("backward hook", error)

    def _backward_ended(self) -> None:
        self._recorder.phase = Phase.OTHER
        self._boundaries.backward_ended()

    def remove(self) -> None:
        """Leave the chunk as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for group in self.groups:
            group.remove()
        self._patches.undo()


def _unwrapped(wrapper: Any) -> torch.nn.Module:
    """Return what Megatron wrapped: through its wrapper, and through Float16Module."""
    model = wrapper.module
    while isinstance(getattr(model, "module", None), torch.nn.Module):
        model = model.module
    return model  # type: ignore[no-any-return]


def _numbers(chunk: Chunk) -> dict[torch.Tensor, int]:
    """Return, by parameter, the number of the group that Megatron put it in; dense and expert ones each from 0."""
    return {
        parameter: number
        for name in LISTS
        for number, group in enumerate(getattr(chunk.module, name, ()))
        for parameter in group.params
    }


def _labelled(chunk: Chunk, built_in: dict[torch.Tensor, int]) -> list[tuple[Any, str]]:
    """Return each bucket group with what it is called: "bucket group 2", "expert bucket groups 0 to 1" (merged)."""
    named = []
    for name, word in zip(LISTS, ("bucket group", "expert bucket group"), strict=True):
        for group in getattr(chunk.module, name, ()):
            numbers = sorted({built_in[parameter] for parameter in group.params})
            first, last = numbers[0], numbers[-1]
            text = f"{word} {first}" if first == last else f"{word}s {first} to {last}"
            named.append((group, text))
    return named


def _storages(chunk: Chunk, parameters: dict[torch.Tensor, int]) -> set[int]:
    """Return the memory of the parameters: an optimizer may step a shard of a buffer rather than a parameter."""
    tensors = list(parameters)
    for group in chunk.bucket_groups:
        tensors += [bucket.param_data for bucket in group.buckets if bucket.param_data is not None]
    return {_storage(tensor) for tensor in tensors} - {0}


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (
        RuntimeError,
        NotImplementedError,
    ):  # a tensor without memory, or a subclass that hides it
        return 0

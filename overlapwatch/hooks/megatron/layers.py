"""Whose the collectives of tensor, sequence and context parallelism are, and who waits for those in flight.

In: the chunk's modules that communicate. Out: claims by layer, WAIT records.

A forward hook before and after each of these modules pushes its claim and tags the autograd nodes it made, so that the
collectives of its backward are its own too. Which collectives are asynchronous is Megatron's business: the functions
through which the linear layers call them are replaced by ones that return watched handles. They are globals of
Megatron's modules (or, in one case, of torch.distributed while a backward of such a layer runs), shared by the process.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.megatron.owners import Claim, Owners
from overlapwatch.hooks.megatron.patches import Patches
from overlapwatch.hooks.megatron.waits import Waits
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.vocabulary import CollectiveKind, NameKind

COMMUNICATING = frozenset(
    {
        "ColumnParallelLinear",
        "RowParallelLinear",
        "VocabParallelEmbedding",
        "LanguageModelEmbedding",
        "MoELayer",
        "SharedExpertMLP",
        "TELinear",
        "TEColumnParallelLinear",
        "TERowParallelLinear",
        "TELayerNormColumnParallelLinear",
        "TEDotProductAttention",
        "DotProductAttention",
        "MultiLatentAttention",
        "DSAttention",
        "DSAIndexer",
        "MambaMixer",
        "GatedDeltaNet",
    }
)
"""Classes, by name, whose modules launch collectives of their own."""

_FUNCTIONS = {
    "dist_all_gather_func": CollectiveKind.ALL_GATHER,
    "dist_reduce_scatter_func": CollectiveKind.REDUCE_SCATTER,
}
_MODULES = (
    "megatron.core.tensor_parallel.layers",
    "megatron.core.tensor_parallel.mappings",
    "megatron.core.tensor_parallel.utils",
)
_LINEAR = (
    "LinearWithGradAccumulationAndAsyncCommunication",
    "LinearWithFrozenWeight",
)


class Layers:
    """The communicating modules of all chunks, and the process-wide replacements."""

    def __init__(self, recorder: Recorder, owners: Owners, waits: Waits) -> None:
        self._recorder, self._owners, self._waits = recorder, owners, waits
        self._handles: list[Any] = []
        self._patches = Patches()
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._open = 0  # backwards of linear layers that run
        for name in _MODULES:
            module = sys.modules.get(name)
            for function, kind in _FUNCTIONS.items():
                self._patches.add(module, function, functools.partial(self._wrap, kind))
        layers = sys.modules.get(_MODULES[0])
        for name in _LINEAR:
            self._patches.add(getattr(layers, name, None), "backward", self._wrap_backward)

    def add(self, names: dict[torch.nn.Module, str]) -> None:
        """Watch the communicating ones of these modules."""
        for module, text in names.items():
            if COMMUNICATING.isdisjoint(cls.__name__ for cls in type(module).__mro__):
                continue
            claim = Claim(self._recorder.names.intern(NameKind.LAYER, text))
            self._handles += [
                module.register_forward_pre_hook(functools.partial(self._before, claim)),
                module.register_forward_hook(
                    functools.partial(self._after, claim), always_call=True, with_kwargs=True
                ),
            ]

    def remove(self) -> None:
        """Take everything out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.undo()

    # -- modules -----------------------------------------------------------------------------------------------

    @not_compiled
    def _before(self, claim: Claim, _module: Any, _args: Any) -> None:
        recorder = self._recorder
        if recorder.recording:
            try:
                self._owners.push(claim)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                recorder.guard.trip("forward hook of a layer", error)

    @not_compiled
    def _after(self, claim: Claim, _module: Any, args: Any, options: Any, output: Any) -> None:
        recorder = self._recorder
        try:
            self._owners.pop(claim)
            if recorder.recording and torch.is_grad_enabled():
                outputs = output if isinstance(output, tuple) else (output,)
                self._owners.tag(claim, outputs, (*args, *options.values()))
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("forward hook of a layer", error)

    # -- functions ---------------------------------------------------------------------------------------------

    def _wrap(self, kind: CollectiveKind, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder
        # Gloo tells no finish of a reduce-scatter; that of a synchronous one is when the call returns.
        tells = kind is CollectiveKind.REDUCE_SCATTER and recorder.times.on_host

        @not_compiled
        @functools.wraps(original)
        def collective(*args: Any, **options: Any) -> Any:
            if not recorder.recording:
                return original(*args, **options)
            if tells and not options.get("async_op"):
                return self._synchronously(original, args, options)
            result = original(*args, **options)
            return result if result is None else self._watched(result, kind)

        return collective

    def _synchronously(
        self, original: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        recorder, owners = self._recorder, self._owners
        claim: Claim | None = None
        try:
            current = owners.current
            claim = Claim(0 if current is None else current.owner, tells_finish=True)
            owners.push(claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("collective of a layer", error)
        try:
            result = original(*args, **options)
        finally:
            if claim is not None:
                owners.pop(claim)
        try:
            if claim is not None:
                claim.returned(recorder)
        except Exception as error:  # noqa: BLE001
            recorder.guard.trip("collective of a layer", error)
        return result

    def _watched(self, handle: Any, kind: CollectiveKind) -> Any:
        try:
            current = self._owners.current
            return self._waits.watch(handle, 0 if current is None else current.owner, kind)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("collective of a layer", error)
            return handle

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Without sequence parallelism the input gradient is reduced by a function of torch.distributed."""
        recorder = self._recorder

        @not_compiled
        @functools.wraps(original)
        def backward(context: Any, *gradients: Any) -> Any:
            if not recorder.recording or not getattr(context, "allreduce_dgrad", False):
                return original(context, *gradients)
            with self._all_reduce_replaced():
                return original(context, *gradients)

        return backward

    @contextlib.contextmanager
    def _all_reduce_replaced(self) -> Iterator[None]:
        """Watch the all-reduces of this thread. In place only meanwhile, so that nothing else meets it."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._all_reduce = dist.all_reduce
                dist.all_reduce = self._watched_all_reduce
        self._inside.yes = True
        try:
            yield
        finally:
            self._inside.yes = False
            with self._lock:
                self._open -= 1
                if self._open == 0 and dist.all_reduce == self._watched_all_reduce:
                    dist.all_reduce = self._all_reduce

    def _watched_all_reduce(self, *args: Any, **options: Any) -> Any:
        result = self._all_reduce(*args, **options)
        if result is None or not getattr(self._inside, "yes", False):
            return result
        return self._watched(result, CollectiveKind.ALL_REDUCE)

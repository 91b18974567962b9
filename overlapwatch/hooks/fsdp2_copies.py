"""Sees the copies round FSDP2's collectives where PyTorch dispatches them, as the tap sees the collectives.

In: calls of `torch.ops.fsdp.*`. Out: calls of a listener before and after each, on the stream on which the copy runs.
The calls themselves are passed on unchanged.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from overlapwatch.hooks.c10d import autograd_key
from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.recorder import Recorder


class Listener(Protocol):
    """Is asked before each copy; returns the slot of a span to end behind it, or -1."""

    def gather_copy_in(self, args: tuple[Any, ...]) -> int:
        """Shards are about to be copied into the buffer of an all-gather."""

    def gather_copy_out(self, args: tuple[Any, ...]) -> int:
        """Parameters are about to be copied out of the buffer of an all-gather."""

    def scatter_copy_in(self, args: tuple[Any, ...]) -> int:
        """Gradients are about to be copied into the buffer of a reduce-scatter."""


class CopyTap:
    """Installs and removes the kernels."""

    def __init__(self, recorder: Recorder, listener: Listener) -> None:
        self._recorder = recorder
        self._asks = {
            "all_gather_copy_in": listener.gather_copy_in,
            "split_with_sizes_copy": listener.gather_copy_out,
            "chunk_cat": listener.scatter_copy_in,
        }
        self._library: torch.library.Library | None = None
        self._keys: set[str] = set()

    def install(self, device_type: str) -> list[str]:
        """Register the kernels for a device; return the copies that this PyTorch does not show."""
        key = autograd_key(device_type)
        missing = [name for name in self._asks if not hasattr(torch.ops.fsdp, name)]
        if key in self._keys:
            return missing
        self._keys.add(key)
        if self._library is None:
            self._library = torch.library.Library("fsdp", "IMPL")
        for name, ask in self._asks.items():
            if name not in missing:
                self._library.impl(name, self._kernel(name, ask), key, with_keyset=True)
        return missing

    def _kernel(self, name: str, ask: Callable[[tuple[Any, ...]], int]) -> Callable[..., Any]:
        redispatch = getattr(torch.ops.fsdp, name).default.redispatch
        below = torch._C._after_autograd_keyset  # noqa: SLF001
        recorder = self._recorder

        @not_compiled
        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.on:
                return redispatch(keyset & below, *args, **kwargs)
            slot = -1
            try:
                slot = ask(args)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                recorder.guard.trip(f"recording {name}", error)
            result = redispatch(keyset & below, *args, **kwargs)
            if slot >= 0:
                try:
                    recorder.end(slot)
                except Exception as error:  # noqa: BLE001
                    recorder.guard.trip(f"recording {name}", error)
            return result

        return kernel

    def remove(self) -> None:
        """Take the kernels out: the dispatcher is as it was."""
        if self._library is not None:
            self._library._destroy()  # noqa: SLF001 - the only way to unregister before garbage collection
            self._library = None
        self._keys.clear()

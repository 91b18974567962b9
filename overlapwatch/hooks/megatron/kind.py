"""Megatron-Core as a kind of model to watch (see `hooks.instrument`).

In: whatever was passed to `watch()`. Out: its Megatron chunks. Everything else of this folder is imported when the
first chunk is found: who does not use Megatron pays for a few dictionary lookups.
"""

from typing import Any

import torch

from overlapwatch.hooks.instrument import Context, Instrument, Kind, first_device
from overlapwatch.hooks.megatron.detect import Chunk, Wrapper, find_megatron


def _find(model: Any) -> list[tuple[str, Any]]:
    # Megatron's wrapper of PyTorch's FSDP2 holds FSDP2 modules: they are watched as such.
    chunks = [one for one in find_megatron(model) if one.wrapper is not Wrapper.TORCH_FSDP2]
    return [(f"chunk {one.number}", one) for one in chunks]


def _nothing_to_say(_model: Any) -> str:
    return ""


def _device(part: Chunk) -> torch.device:
    return first_device(part.module)


def _make(context: Context) -> Instrument:
    from overlapwatch.hooks.megatron.instrument import MegatronInstrument  # noqa: PLC0415

    return MegatronInstrument(context)


def _facts(parts: list[Any]) -> dict[str, str]:
    if not parts:
        return {}
    from overlapwatch.hooks.megatron.options import facts  # noqa: PLC0415

    return facts(parts)


def _split(parts: list[Any]) -> int | None:
    sizes = [
        size
        for part in parts
        for name in ("tensor_model_parallel_size", "context_parallel_size")
        if isinstance(size := getattr(getattr(part.module, "config", None), name, None), int)
    ]
    return max(sizes, default=None)


MEGATRON = Kind("Megatron-Core", _find, _nothing_to_say, _device, _make, _facts, _split)

"""Finds what Megatron-Core wrapped, without importing Megatron.

In: a model, or a list of model chunks as Megatron's `get_model` returns it. Out: the wrapped chunks with the kind of
wrapper. A class that no module has been loaded for cannot have instances, so `sys.modules` is all that is looked at;
where Megatron is not in use this costs a few dictionary lookups.
"""

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class Wrapper(Enum):
    """Which of Megatron's wrappers; the value is the word in reports."""

    DDP = "megatron-ddp"
    FSDP = "megatron-fsdp"
    TORCH_FSDP2 = "megatron torch-fsdp2"


# Where each release has had the class; custom_fsdp is what Megatron-FSDP was called up to 0.13. It is a package of its
# own too, and Megatron-Core brings a copy that it wraps once more.
_CLASSES = (
    (Wrapper.DDP, "megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"),
    (
        Wrapper.FSDP,
        "megatron.core.distributed.fsdp.mcore_fsdp_adapter",
        "FullyShardedDataParallel",
    ),
    (
        Wrapper.FSDP,
        "megatron.core.distributed.custom_fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel",
    ),
    (Wrapper.FSDP, "megatron_fsdp.megatron_fsdp", "MegatronFSDP"),
    (
        Wrapper.FSDP,
        "megatron.core.distributed.fsdp.src.megatron_fsdp.megatron_fsdp",
        "MegatronFSDP",
    ),
    (
        Wrapper.TORCH_FSDP2,
        "megatron.core.distributed.torch_fully_sharded_data_parallel",
        "TorchFullyShardedDataParallel",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One model chunk that Megatron wrapped.

    Args:
        number: its place among the chunks given; more than one under interleaved pipelining.
        module: the wrapper.
        wrapper: which one it is.
    """

    number: int
    module: Any
    wrapper: Wrapper

    @property
    def bucket_groups(self) -> list[Any]:
        """Megatron's bucket groups, dense parameters first; none for the other wrappers."""
        groups = list(getattr(self.module, "bucket_groups", ()))
        return groups + list(getattr(self.module, "expert_parallel_bucket_groups", ()))


def find_megatron(model: Any) -> list[Chunk]:
    """Return the wrapped chunks in a model or a list of them, in order; [] where Megatron has no part."""
    kinds = _loaded()
    if not kinds:
        return []
    found: list[Chunk] = []
    for one in model if isinstance(model, (list, tuple)) else [model]:
        if not isinstance(one, torch.nn.Module):
            continue
        for module in one.modules():
            wrapper = next((kind for cls, kind in kinds if isinstance(module, cls)), None)
            if wrapper is not None:
                found.append(Chunk(len(found), module, wrapper))
                break  # what it wraps is not wrapped again
    return found


def _loaded() -> list[tuple[type, Wrapper]]:
    """Return the wrapper classes of the modules that are loaded."""
    classes = []
    for wrapper, module, name in _CLASSES:
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type):
            classes.append((cls, wrapper))
    return classes

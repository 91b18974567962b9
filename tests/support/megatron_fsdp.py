"""Megatron-FSDP on CPUs and gloo: more of the pretence that `examples/megatron/cpu_compat.py` begins.

In: a model and its configuration. Out: the model in Megatron's `FullyShardedDataParallel`, sharded in full, and an
optimizer that knows about the shards. Everything that communicates is Megatron's own.
"""

import importlib
import sys
import types
from typing import Any

import torch

_PACKAGE = "megatron.core.distributed.fsdp.src.megatron_fsdp"
_ADAPTER = "megatron.core.distributed.fsdp.mcore_fsdp_adapter"
_MODULES = (
    "fully_shard",
    "megatron_fsdp",
    "mixed_precision",
    "param_and_grad_buffer",
    "uneven_dtensor",
    "utils",
)


class _Torch(types.ModuleType):
    """torch, but for devices: `cuda:...` is the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(*words: Any) -> torch.device:
        return torch.device("cpu") if str(words[0]).startswith("cuda") else torch.device(*words)


class _Mesh:
    """What the adapter makes a mesh with; its ranks are on the CPU."""

    @staticmethod
    def from_group(group: Any, device_type: str, **options: Any) -> Any:
        return torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu", **options)


def _pretend() -> None:
    for name in _MODULES:
        importlib.import_module(f"{_PACKAGE}.{name}").torch = _Torch("torch")  # type: ignore[attr-defined]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    adapter: Any = importlib.import_module(_ADAPTER)
    adapter.DeviceMesh = _Mesh
    stream = sys.modules["cpu_compat"]._Stream
    stream.wait = lambda *_: None
    stream.query = lambda *_: True


def wrap(config: Any, options: dict[str, Any], model: torch.nn.Module) -> tuple[Any, Any]:
    """Return (wrapped model, optimizer).

    Args:
        config: Megatron's TransformerConfig.
        options: of its DistributedDataParallelConfig.
        model: to shard, one TransformerLayer at a time.
    """
    _pretend()
    from megatron.core.distributed import DistributedDataParallelConfig

    shard = importlib.import_module(f"{_PACKAGE}.fully_shard")
    wrapped = importlib.import_module(_ADAPTER).FullyShardedDataParallel(
        config,
        DistributedDataParallelConfig(
            **options,
            use_megatron_fsdp=True,
            data_parallel_sharding_strategy="optim_grads_params",
            gradient_reduce_div_fusion=False,  # gloo cannot multiply while it adds
        ),
        model,
        device=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    return wrapped, shard.fully_shard_optimizer(optimizer) or optimizer

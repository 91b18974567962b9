"""COMPATIBILITY SHIM, for this example on a machine without a GPU only: lets megatron-core run on CPUs with gloo.

megatron-core asks CUDA for its device, its random state and its streams wherever it is. `pretend()` answers those
questions with the CPU, and does no more; it belongs to the example, not to overlapwatch, which needs none of it and
never imports it. On GPUs it is not called.
"""

import importlib
from typing import Any

import torch


class _Stream:
    """What megatron-core does with a stream, on a device that has none."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _other: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or self

    def record(self, _stream: Any = None) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def pretend() -> None:
    """Answer megatron-core's questions about CUDA with the CPU."""
    cpu, only = torch.device("cpu"), _Stream()
    answers: dict[str, Any] = {
        "current_device": lambda: cpu,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "manual_seed": lambda *_, **__: None,
        "synchronize": lambda *_, **__: None,
        "empty_cache": lambda: None,
        "Stream": _Stream,
        "Event": _Stream,
        "stream": lambda _stream: only,
        "current_stream": lambda *_: only,
        "default_stream": lambda *_: only,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.random.get_rng_state = answers["get_rng_state"]
    for name in ("tensor", "zeros", "ones", "empty"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    # The distributed optimizer recognises a parameter by this string.
    tell = torch.Tensor.type
    torch.Tensor.type = lambda self, *args, **more: (  # type: ignore[method-assign, assignment]
        tell(self, *args, **more) if args else tell(self).replace("torch.", "torch.cuda.")
    )


def _on_cpu(make: Any) -> Any:
    def made(*args: Any, **more: Any) -> Any:
        if str(more.get("device", "")).startswith("cuda"):
            more["device"] = "cpu"
        return make(*args, **more)

    return made


def repair_experts() -> None:
    """Mend two places of the mixture of experts that fail without a GPU or without Transformer Engine."""
    utils = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    dispatcher = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None

    def to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ARG001, FBT001, FBT002
        return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    for module in (utils, dispatcher):
        if hasattr(module, "maybe_move_tensor_to_cpu"):
            module.maybe_move_tensor_to_cpu = to_cpu

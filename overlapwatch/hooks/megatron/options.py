"""The options of Megatron-Core that decide overlap, as they are in force, in words.

In: model chunks that Megatron wrapped. Out: facts (name -> value, all text) that go into the log beside the environment
variables, for the report to hold against what was measured. Option names are Megatron's. What a release does not have
is left out. Sizes of buckets are told as Megatron counts them (elements) and in bytes; what is given and what is in
force may differ, and both are told.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from overlapwatch.hooks.megatron.detect import Chunk

PREFIX = "megatron "
"""Before the name of each fact."""

_OF_DATA_PARALLEL = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "align_param_gather",
    "use_distributed_optimizer",
    "num_distributed_optimizer_instances",
    "reduce_scatter_with_fp32_accumulation",
    "average_in_collective",
    "grad_reduce_in_fp32",
    "fp8_param_gather",
    "pad_buckets_for_high_nccl_busbw",
    "nccl_ub",
    "delay_wgrad_compute",
    "data_parallel_sharding_strategy",
)
_OF_MODEL = (
    "tensor_model_parallel_size",
    "sequence_parallel",
    "tp_comm_overlap",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "overlap_p2p_comm",
    "batch_p2p_comm",
    "context_parallel_size",
    "cp_comm_type",
    "expert_model_parallel_size",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_enable_deepep",
    "overlap_moe_expert_parallel_comm",
    "moe_shared_expert_overlap",
    "defer_embedding_wgrad_compute",
    "gradient_accumulation_fusion",
    "recompute_granularity",
    "cuda_graph_impl",
    "cuda_graph_scope",
    "enable_cuda_graph",
)


def facts(chunks: Sequence[Chunk]) -> dict[str, str]:
    """Return what is to be told of these chunks; {} of none."""
    if not chunks:
        return {}
    first = chunks[0].module
    told: dict[str, str] = {"version": _version(), "wrapper": chunks[0].wrapper.value}
    for source, names in (
        (getattr(first, "ddp_config", None), _OF_DATA_PARALLEL),
        (getattr(first, "config", None), _OF_MODEL),
    ):
        told |= {
            n: _word(getattr(source, n)) for n in names if getattr(source, n, None) is not None
        }
    told |= _bucket_sizes(chunks)
    return {PREFIX + name: value for name, value in told.items() if value}


def _version() -> str:
    package = sys.modules.get("megatron.core") or sys.modules.get("megatron_fsdp")
    return str(getattr(package, "__version__", ""))


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(getattr(one, "name", one)) for one in value)
    return str(getattr(value, "name", value))


def _bucket_sizes(chunks: Sequence[Chunk]) -> dict[str, str]:
    """Return the limit that was given, the one in force, and the bucket groups that came of it."""
    told: dict[str, str] = {}
    config = getattr(chunks[0].module, "ddp_config", None)
    if config is not None and hasattr(config, "bucket_size"):
        given = config.bucket_size
        told["bucket_size"] = "none" if given is None else str(given)
        if given is not None and type(given) is not int:
            told["bucket_size type"] = type(given).__name__
    for chunk in chunks:
        groups = chunk.bucket_groups
        if not groups:
            continue
        where = f" of chunk {chunk.number}" if len(chunks) > 1 else ""
        limit = getattr(chunk.module, "bucket_size", None)
        told[f"bucket_size in force{where}"] = "none" if limit is None else str(int(limit))
        told[f"bucket groups{where}"] = str(len(groups))
        told[f"bucket elements{where}"] = _joined(_elements(group) for group in groups)
        told[f"bucket bytes{where}"] = _joined(_bytes(group) for group in groups)
        stage = _pipeline_rank(chunk.module)
        if stage is not None:
            told["pipeline rank"] = str(stage)
    return told


_FEW = 64
"""Bucket groups told one by one."""


def _joined(numbers: Iterable[int]) -> str:
    every = [str(number) for number in numbers]
    return " ".join(every[:_FEW]) + (" ..." if len(every) > _FEW else "")


def _elements(group: Any) -> int:
    return sum(bucket.grad_data.numel() for bucket in group.buckets)


def _bytes(group: Any) -> int:
    return sum(b.grad_data.numel() * b.grad_data.element_size() for b in group.buckets)


def _pipeline_rank(module: Any) -> int | None:
    """Return this rank's place in the pipeline, where Megatron says it."""
    group: Any = getattr(module, "pp_group", None)
    if isinstance(group, list):
        group = group[0] if group else None
    if group is not None:
        return int(group.rank())
    state = sys.modules.get("megatron.core.parallel_state")
    tell = getattr(state, "get_pipeline_model_parallel_rank", None)
    return int(tell()) if tell is not None else None

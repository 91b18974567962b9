"""Small trainings with the real megatron-core on CPUs and gloo, as functions of a layout.

In: a `Layout` (parallel sizes, options). Out: a `Trained`: the losses and a hash of every bit of the parameters. Runs
inside a rank: the process group must exist. Everything is drawn from fixed seeds, so two runs of one layout agree to
the last bit.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SHIM = Path(__file__).parents[2] / "examples" / "megatron" / "cpu_compat.py"
VOCABULARY, CONTEXT = 64, 16


@dataclass(frozen=True)
class Layout:
    """How a training is spread, and with which options."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int | None = None
    expert: int = 1
    context: int = 1  # parts of a sequence; the model is then one of Mamba layers
    sequence_parallel: bool = False
    fsdp: bool = False  # Megatron's own, everything sharded
    distributed_optimizer: bool = False
    overlap_gradients: bool = True
    overlap_parameters: bool = False
    bucket_size: Any = 6_000
    experts: int = 0
    microbatches: int = 2
    layers: int = 2
    width: int = 32
    recompute: bool = False
    steps: int = 4
    changes: dict[str, Any] = field(default_factory=dict)  # of the TransformerConfig


@dataclass
class Trained:
    """What came of it."""

    losses: list[str]
    digest: str
    chunks: list[Any]


def pretend() -> None:
    """Load the example's shim and put it in place."""
    spec = importlib.util.spec_from_file_location("cpu_compat", SHIM)
    assert spec is not None
    assert spec.loader is not None
    shim = importlib.util.module_from_spec(spec)
    sys.modules["cpu_compat"] = shim
    spec.loader.exec_module(shim)
    shim.pretend()


def known(call: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return those options that this release's `call` takes."""
    return {n: v for n, v in options.items() if n in inspect.signature(call).parameters}


class _Norm(torch.nn.LayerNorm):
    """A layer norm that says of its parameters that sequence parallelism splits their inputs."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def build(layout: Layout) -> tuple[list[Any], Any, Any]:
    """Return (wrapped model chunks, optimizer, TransformerConfig)."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual,
        expert_model_parallel_size=layout.expert,
        context_parallel_size=layout.context,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(7)
    torch.manual_seed(7)
    options: dict[str, Any] = {
        "num_layers": layout.layers,
        "hidden_size": layout.width,
        "num_attention_heads": 4,
        "use_cpu_initialization": True,
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "virtual_pipeline_model_parallel_size": layout.virtual,
        "expert_model_parallel_size": layout.expert,
        "context_parallel_size": layout.context,
        "sequence_parallel": layout.sequence_parallel,
        "pipeline_dtype": torch.float32,
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "deallocate_pipeline_outputs": False,
        "batch_p2p_comm": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if layout.experts:
        options |= {
            "num_moe_experts": layout.experts,
            "moe_router_topk": 2,
            "moe_token_dispatcher_type": "alltoall",
            "add_bias_linear": False,
        }
        sys.modules["cpu_compat"].repair_experts()
    if layout.context > 1:
        options |= {
            "mamba_head_dim": 8,
            "mamba_state_dim": 8,
            "mamba_num_groups": 4,
            "add_bias_linear": False,
        }
    if layout.recompute:
        options |= {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    config = TransformerConfig(**known(TransformerConfig, **(options | layout.changes)))
    make_spec = gpt_layer_specs.get_gpt_layer_local_spec
    spec = make_spec(layout.experts, False) if layout.experts else make_spec()
    if layout.sequence_parallel:
        parts = spec.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = _Norm
        spec = TransformerBlockSubmodules([spec] * layout.layers, layer_norm=_Norm)
    chunks = []
    wrap: dict[str, Any] = {
        "overlap_grad_reduce": layout.overlap_gradients,
        "overlap_param_gather": layout.overlap_parameters,
        "use_distributed_optimizer": layout.distributed_optimizer,
        "bucket_size": layout.bucket_size,
        "grad_reduce_in_fp32": True,
        "check_for_nan_in_grad": False,
    }
    wrap_config = DistributedDataParallelConfig(**wrap)
    for number in range(layout.virtual or 1):
        stage: dict[str, Any] = {}
        if layout.virtual:
            parallel_state.set_virtual_pipeline_model_parallel_rank(number)
            if "vp_stage" in inspect.signature(parallel_state.is_pipeline_first_stage).parameters:
                stage = {"ignore_virtual": False, "vp_stage": number}
        more = {"vp_stage": number} if layout.virtual else {}
        shared = {
            "config": config,
            "vocab_size": VOCABULARY,
            "max_sequence_length": CONTEXT,
            "pre_process": parallel_state.is_pipeline_first_stage(**stage),
            "post_process": parallel_state.is_pipeline_last_stage(**stage),
            "share_embeddings_and_output_weights": False,
        }
        if layout.context > 1:
            model = _mamba(shared, layout.layers)
        else:
            model = GPTModel(
                transformer_layer_spec=spec, **shared, **known(GPTModel.__init__, **more)
            )
        model.model_type = _model_type()
        if layout.fsdp:
            from tests.support import megatron_fsdp

            wrapped, sharded = megatron_fsdp.wrap(config, wrap, model)
            config.no_sync_func = wrapped.no_sync
            return [wrapped], sharded, config
        chunks.append(
            DistributedDataParallel(config, wrap_config, model, disable_bucketing=number > 0)
        )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-2,
            use_distributed_optimizer=layout.distributed_optimizer,
            **known(OptimizerConfig, overlap_param_gather=layout.overlap_parameters),
            clip_grad=1.0,
        ),
        chunks,
    )
    from megatron.core.distributed import finalize_model_grads

    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = (
        [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    )
    if not layout.overlap_gradients:
        config.no_sync_func = None
    config.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer, config


def _mamba(shared: dict[str, Any], layers: int) -> Any:
    from megatron.core.models.mamba import MambaModel

    from tests.support.megatron_mamba import mamba_spec

    return MambaModel(mamba_stack_spec=mamba_spec(), hybrid_override_pattern="M" * layers, **shared)


def _model_type() -> Any:
    from megatron.core.enums import ModelType

    return ModelType.encoder_or_decoder


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and labels, `[2, CONTEXT]`, for ever."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(VOCABULARY, (2, CONTEXT + 1), generator=draw)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def forward_step(source: Iterator[Any], model: Any) -> tuple[Any, Any]:
    """One microbatch, as `get_forward_backward_func` asks for it."""
    tokens, labels = next(source)
    positions = torch.arange(CONTEXT).expand_as(tokens)
    tokens, labels, positions = (_of_this_rank(one) for one in (tokens, labels, positions))
    mask = torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
    output = model(tokens, positions, mask, labels=labels)

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.mean()
        return loss, {"loss": loss.detach().clone()}

    return output, loss_of


def _of_this_rank(sequence: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `[batch, length]`: one piece from the front and its counterpart from the back."""
    from megatron.core import parallel_state

    ranks = parallel_state.get_context_parallel_world_size()
    if ranks == 1:
        return sequence
    rank = parallel_state.get_context_parallel_rank()
    pieces = sequence.chunk(2 * ranks, dim=1)
    return torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]], dim=1)


def train(
    layout: Layout,
    attach: Callable[[list[Any]], Any] = lambda _chunks: contextlib.nullcontext(),
    each_step: Callable[[int], object] = lambda _step: None,
) -> Trained:
    """Train for some steps; `attach(chunks)` is called before the first and its result is a context manager.

    What `each_step` returns True after is the last one.
    """
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    try:
        chunks, optimizer, _config = build(layout)
        run = get_forward_backward_func()
        seed = 100 + parallel_state.get_data_parallel_rank()
        sources = [batches(seed) for _ in chunks]
        losses = []
        with attach(chunks):
            for step in range(layout.steps):
                for chunk in chunks:
                    chunk.zero_grad_buffer()
                optimizer.zero_grad()
                told = run(
                    forward_step_func=forward_step,
                    data_iterator=sources if len(chunks) > 1 else sources[0],
                    model=chunks if len(chunks) > 1 else chunks[0],
                    num_microbatches=layout.microbatches,
                    seq_length=CONTEXT,
                    micro_batch_size=2,
                    forward_only=False,
                )
                optimizer.step()
                losses += [float(one["loss"]).hex() for one in told]
                if each_step(step) is True:
                    break
            if (
                layout.overlap_parameters and not layout.fsdp
            ):  # the parameters of the last step are gathered
                for chunk in chunks:
                    chunk.start_param_sync(force_sync=True)
        return Trained(losses, digest(chunks), chunks)
    finally:
        parallel_state.destroy_model_parallel()


def digest(chunks: list[Any]) -> str:
    """Return a hash of every bit of the parameters."""
    total = hashlib.sha256()
    for chunk in chunks:
        for parameter in chunk.parameters():
            own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            total.update(own.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


LAYOUTS = {
    "dp-distopt": Layout(distributed_optimizer=True, overlap_parameters=True),
    "dp": Layout(),
    "dp-no-overlap": Layout(distributed_optimizer=True, overlap_gradients=False),
    "tp": Layout(tensor=2),
    "tp-sp": Layout(tensor=2, sequence_parallel=True),
    "pp": Layout(pipeline=2, microbatches=4),
    "vpp": Layout(
        pipeline=2,
        virtual=2,
        layers=4,
        microbatches=4,
        distributed_optimizer=True,
        overlap_parameters=True,
        changes={"overlap_p2p_comm": True},
    ),
    "ep": Layout(expert=2, experts=4),
    "cp": Layout(context=2),
    "fsdp": Layout(fsdp=True, overlap_parameters=True, microbatches=1),
    "recompute": Layout(tensor=2, sequence_parallel=True, recompute=True),
}


def init() -> None:
    """Make the process group of a rank, and keep Megatron's import from taking seconds.

    It decorates functions with torch.compile, none of which runs on a CPU here, and imports wandb where that is installed.
    """
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.modules.setdefault("wandb", None)  # type: ignore[arg-type]
    dist.init_process_group("gloo")
    pretend()

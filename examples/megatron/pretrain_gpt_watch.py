"""Train a small GPT on real English with Megatron-Core, on CPUs (gloo) or GPUs (nccl), and watch its communication.

    torchrun --standalone --nproc-per-node 4 examples/megatron/pretrain_gpt_watch.py --tensor 2 --log-dir runs/megatron

Tensor times data parallel is the number of processes: here 2 times 2. The text is Python's own manual (the standard
library's help topics), read byte by byte. The training is megatron-core's own: its model, its wrapper, its schedule,
its optimizer. The watch is one line in `main`.
"""

import argparse
import inspect
import os
import pydoc_data.topics
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch import Tensor

import overlapwatch

CONTEXT = 64  # bytes that the model sees at once
VOCABULARY = 256  # a token is a byte


class Text:
    """Random passages of the manual; the ranks of one data-parallel replica draw the same."""

    def __init__(self, batch: int, seed: int, device: torch.device) -> None:
        manual = "\n".join(pydoc_data.topics.topics.values()).encode()
        self.data = torch.frombuffer(bytearray(manual), dtype=torch.uint8)
        self.batch = batch
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens and the bytes that follow them, each `[batch, CONTEXT]`."""
        while True:
            last = len(self.data) - CONTEXT - 1
            starts = torch.randint(last, (self.batch, 1), generator=self.generator)
            passages = self.data[starts + torch.arange(CONTEXT + 1)].long().to(self.device)
            yield passages[:, :-1].contiguous(), passages[:, 1:].contiguous()


def forward_step(
    text: Iterator[tuple[Tensor, Tensor]], model: Any
) -> tuple[Tensor, Callable[..., Any]]:
    """One micro-batch, as Megatron's schedules ask for it."""
    tokens, targets = next(text)
    positions = torch.arange(CONTEXT, device=tokens.device).expand_as(tokens)
    hidden = torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.bool, device=tokens.device).triu(1)

    def loss_of(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = losses.mean()
        return loss, {"loss": loss.detach().clone()}  # the schedule divides the first in place

    return model(tokens, positions, hidden, labels=targets), loss_of


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT with Megatron-Core, watched.")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4, help="passages per micro-batch")
    parser.add_argument("--micro-batches", type=int, default=2, help="per step and replica")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 4")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share each layer")
    parser.add_argument(
        "--experts", type=int, default=0, help="experts per layer; 0: a dense model"
    )
    parser.add_argument(
        "--expert-parallel", type=int, default=1, help="ranks that share the experts"
    )
    parser.add_argument(
        "--bucket-size",
        type=int,
        default=100_000,
        help="parameters (not bytes) per gradient bucket",
    )
    parser.add_argument(
        "--distributed-optimizer",
        action="store_true",
        help="reduce-scatter and all-gather instead of all-reduce",
    )
    parser.add_argument("--no-overlap", action="store_true", help="send gradients after backward")
    parser.add_argument("--log-dir", default="runs/megatron", help="where the watch writes its log")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        import cpu_compat  # noqa: PLC0415 - a shim that only a machine without GPU needs

        cpu_compat.pretend()
        if args.experts:
            cpu_compat.repair_experts()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(minutes=5))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor, expert_model_parallel_size=args.expert_parallel
    )
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    torch.manual_seed(0)

    experts: dict[str, Any] = (
        {"num_moe_experts": args.experts, "add_bias_linear": False} if args.experts else {}
    )
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=4,
        tensor_model_parallel_size=args.tensor,
        expert_model_parallel_size=args.expert_parallel,
        moe_token_dispatcher_type="alltoall",
        use_cpu_initialization=not on_gpu,
        gradient_accumulation_fusion=False,  # this and the next need kernels of Apex
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **experts,
    )
    spec = (
        get_gpt_layer_local_spec(args.experts, moe_grouped_gemm=False)
        if args.experts
        else get_gpt_layer_local_spec()
    )
    net = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=VOCABULARY,
        max_sequence_length=CONTEXT,
    ).to(device)
    net.model_type = ModelType.encoder_or_decoder
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            overlap_grad_reduce=not args.no_overlap,
            overlap_param_gather=args.distributed_optimizer and not args.no_overlap,
            use_distributed_optimizer=args.distributed_optimizer,
            bucket_size=args.bucket_size,
        ),
        net,
    )
    overlapwatch.watch(model, log_dir=args.log_dir)  # that is all

    options: dict[str, Any] = {
        "optimizer": "adam",
        "lr": 1e-3,
        "use_distributed_optimizer": args.distributed_optimizer,
        "overlap_param_gather": args.distributed_optimizer and not args.no_overlap,
    }
    known = inspect.signature(OptimizerConfig).parameters  # not every release has all of them
    optimizer = get_megatron_optimizer(
        OptimizerConfig(**{name: value for name, value in options.items() if name in known}),
        [model],
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if not args.no_overlap:
        config.no_sync_func = model.no_sync
    text = iter(Text(args.batch, seed=1 + parallel_state.get_data_parallel_rank(), device=device))
    forward_and_backward = get_forward_backward_func()
    losses: list[float] = []
    for step in range(1, args.steps + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        told = forward_and_backward(
            forward_step_func=forward_step,
            data_iterator=text,
            model=model,
            num_microbatches=args.micro_batches,
            seq_length=CONTEXT,
            micro_batch_size=args.batch,
            forward_only=False,
        )
        optimizer.step()
        losses.append(sum(float(one["loss"]) for one in told) / len(told))
        if dist.get_rank() == 0 and (step == 1 or step % 10 == 0):
            print(f"loss {sum(losses[-10:]) / len(losses[-10:]):.3f} at step {step}", flush=True)
    if dist.get_rank() == 0:
        print(f"final loss {losses[-1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

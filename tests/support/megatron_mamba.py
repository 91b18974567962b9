"""Megatron's Mamba mixer on a CPU: the one layer whose context parallelism needs no Transformer Engine.

In: nothing. Out: `mamba_spec()`, a stack of Megatron's own Mamba layers made of its own linear layers. What is missing
without a GPU is one fused kernel of the package mamba_ssm: `scan` computes the same in PyTorch. The mixer, its exchanges
between the ranks of a sequence and their backward are Megatron's. Some releases import kernels for inference beside it,
which need triton; without it a module that only has their names stands in.
"""

import importlib.util
import sys
import types
from typing import Any

import torch
from torch.nn import functional

_INFERENCE = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"


def scan(
    zxbcdt: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    decay: torch.Tensor,
    *,
    D: torch.Tensor,
    headdim: int,
    ngroups: int,
    **_: Any,
) -> torch.Tensor:
    """Convolve, scan and gate, as `mamba_split_conv1d_scan_combined` does.

    Args:
        zxbcdt: `[batch, length, z + x + B + C + dt]`, z and x of heads * headdim, B and C of ngroups * state each.
        weight, bias: of the depthwise convolution over x, B and C: `[channels, width]`, `[channels]`.
        dt_bias, decay, D: `[heads]` each.
        headdim, ngroups: sizes.

    Returns:
        `[batch, length, heads * headdim]`.
    """
    batch, length, _size = zxbcdt.shape
    heads = len(decay)
    inner = heads * headdim
    z, xbc, dt = zxbcdt.split([inner, weight.shape[0], heads], dim=-1)
    padded = functional.pad(xbc.transpose(1, 2), (weight.shape[1] - 1, 0))
    xbc = functional.silu(functional.conv1d(padded, weight[:, None], bias, groups=len(weight)))
    state = (weight.shape[0] - inner) // (2 * ngroups)
    x, b, c = xbc.transpose(1, 2).split([inner, ngroups * state, ngroups * state], dim=-1)
    x = x.reshape(batch, length, heads, headdim)
    repeat = heads // ngroups
    b = b.reshape(batch, length, ngroups, state).repeat_interleave(repeat, dim=2)
    c = c.reshape(batch, length, ngroups, state).repeat_interleave(repeat, dim=2)
    dt = functional.softplus(dt + dt_bias)
    faded = (dt * decay).cumsum(1)  # [batch, length, heads]
    between = faded[:, :, None] - faded[:, None]  # from step j (third) to step i (second)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()[None, :, :, None]
    kept = between.masked_fill(~earlier, -torch.inf).exp()
    mixed = torch.einsum("bihn,bjhn->bijh", c, b) * kept * dt[:, None]
    y = torch.einsum("bijh,bjhp->bihp", mixed, x) + x * D[:, None]
    return y.reshape(batch, length, inner) * functional.silu(z)


def mamba_spec() -> Any:
    """Return the spec of a stack of Mamba layers that needs neither Transformer Engine nor mamba_ssm."""
    if importlib.util.find_spec("triton") is None:
        kernels: Any = types.ModuleType(_INFERENCE)
        kernels.__getattr__ = lambda _name: None
        sys.modules.setdefault(_INFERENCE, kernels)
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.ssm import mamba_mixer
    from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    mamba_mixer.HAVE_MAMBA_SSM = True
    mamba_mixer.mamba_split_conv1d_scan_combined = scan
    mixer = ModuleSpec(
        module=mamba_mixer.MambaMixer,
        params={"rmsnorm": False, "expand": 2},
        submodules=mamba_mixer.MambaMixerSubmodules(
            in_proj=ColumnParallelLinear, out_proj=RowParallelLinear
        ),
    )
    layer = ModuleSpec(
        module=MambaLayer,
        submodules=MambaLayerSubmodules(mixer=mixer, mamba_bda=get_bias_dropout_add),
    )
    return ModuleSpec(
        module=MambaStack,
        params={"post_layer_norm": False},
        submodules=MambaStackSubmodules(mamba_layer=layer),
    )

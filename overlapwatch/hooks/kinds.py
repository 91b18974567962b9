"""The kinds of models that can be watched, in the order in which they are looked for."""

from overlapwatch.hooks.ddp_attach import DDP
from overlapwatch.hooks.fsdp2_attach import FSDP2
from overlapwatch.hooks.instrument import Kind
from overlapwatch.hooks.megatron.kind import MEGATRON

KINDS: tuple[Kind, ...] = (
    MEGATRON,
    DDP,
    FSDP2,
)

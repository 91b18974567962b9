"""FSDP2 as a kind of model to watch: finds the models, and says what cannot be watched, or is wrapped by halves.

In: what the user passed to `watch()`. Out: the models with modules in them that `fully_shard` has wrapped, or one
sentence.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.ddp_layout import plain_name
from overlapwatch.hooks.fsdp2 import Fsdp2Instrument
from overlapwatch.hooks.fsdp2_knobs import fsdp2_knobs
from overlapwatch.hooks.fsdp2_layout import device_of, wrapped_modules
from overlapwatch.hooks.instrument import Context, Kind, models_in
from overlapwatch.hooks.knobs import Knob
from overlapwatch.hooks.recorder import log

OLDEST = (2, 9)
"""The first release in which a communicator can be set by a public method."""


class Fsdp2Attach(Fsdp2Instrument):
    """The instrument, with a look at what it is given."""

    def __init__(self, context: Context) -> None:
        if context.mode == "hook":
            raise ConfigurationError(
                "mode='hook' is a communication hook of DDP, which an FSDP2 model does not have: leave `mode` out"
            )
        super().__init__(context)

    def add(self, part: torch.nn.Module, label: str) -> None:
        """Watch one more model; say what of it is not wrapped."""
        super().add(part, label)
        outside, trainable = self._not_wrapped(part)
        if outside:
            few = ", ".join(outside[:3]) + (", ..." if len(outside) > 3 else "")
            log.warning(
                "%d of %d trainable parameters are in no module that fully_shard() has wrapped (%s): FSDP2 neither "
                "shards them nor reduces their gradients; unless that is meant, call fully_shard() on the model too",
                len(outside),
                trainable,
                few,
            )

    def knobs(self) -> Mapping[str, Knob]:
        """Return what can be changed while the job runs."""
        return fsdp2_knobs([(one.model, [unit.unit for unit in one.units]) for one in self.parts])

    def _not_wrapped(self, part: torch.nn.Module) -> tuple[list[str], int]:
        within_ddp = {
            id(p)
            for module in part.modules()
            if isinstance(module, DistributedDataParallel)
            for p in module.parameters()
        }
        managed = {
            (id(where.module), where.param_name)
            for one in self.parts[-1].units
            for group in one.groups
            for parameter in group.group.raw.fsdp_params
            for where in (parameter._module_info,)  # noqa: SLF001
        }
        shared = {
            id(p) for one in self.parts[-1].units for g in one.groups for p in g.group.parameters()
        }
        outside, trainable = [], 0
        for prefix, module in part.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    continue
                trainable += 1
                known = (id(module), name) in managed or id(parameter) in shared
                if not known and id(parameter) not in within_ddp:
                    outside.append(plain_name(f"{prefix}.{name}" if prefix else name))
        return outside, trainable


def find_fsdp2(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Return (name, model) of each model that holds a module wrapped by `fully_shard`."""
    return [(prefix, one) for prefix, one in models_in(model) if wrapped_modules(one)]


def why_not(model: Any) -> str:
    """Say in one sentence why an FSDP model cannot be watched; "" where nothing is wrong."""
    if find_fsdp2(model):
        version = re.match(r"(\d+)\.(\d+)", torch.__version__)
        if version is not None and tuple(int(part) for part in version.groups()) < OLDEST:
            return (
                f"watching FSDP2 needs PyTorch 2.9 or newer, where its communicators can be set, and this is "
                f"{torch.__version__}: upgrade PyTorch, or run without watch()"
            )
        return ""
    for _, one in models_in(model):
        kinds = {kind for module in one.modules() for kind in type(module).__mro__[:-1]}
        names = {kind.__name__ for kind in kinds}
        # Megatron-FSDP's wrapper has the name of FSDP1's.
        ours = {kind.__name__ for kind in kinds if not kind.__module__.startswith("megatron")}
        if "FullyShardedDataParallel" in ours and "DistributedDataParallel" not in names:
            return (
                "the model is wrapped by FSDP1 (FullyShardedDataParallel), which cannot be watched: wrap it with "
                "torch.distributed.fsdp.fully_shard() instead (FSDP2), module by module, and pass that"
            )
    return ""


FSDP2 = Kind("FSDP2", find_fsdp2, why_not, device_of, Fsdp2Attach)

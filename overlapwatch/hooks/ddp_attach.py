"""DDP as a kind of model to watch: finds its modules and attaches to them in the mode that was asked for.

In: DDP modules. Out: an instrument that owns the attached ones and what leaves each as it was.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.ddp import DdpInstrument
from overlapwatch.hooks.ddp_comm_hook import CommHookMode, LaterHooks
from overlapwatch.hooks.instrument import Context, Kind, first_device
from overlapwatch.hooks.knobs import BucketCapKnob, Knob
from overlapwatch.hooks.recorder import log


class DdpAttach:
    """Attaches to DDP modules, passively or through the communication hook."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._modules = DdpInstrument(context.recorder, context.boundaries)
        self._removals: list[Callable[[], None]] = []
        if context.mode != "hook":
            context.tap.claims.append(self._modules.claim)

    @property
    def count(self) -> int:
        """How many modules are watched."""
        return len(self._modules.modules)

    def knows(self, part: DistributedDataParallel) -> bool:
        """Whether this module is watched already."""
        return any(module.ddp is part for module in self._modules.modules)

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether a watched module has this parameter."""
        return self._modules.holds(parameter)

    def add(self, part: DistributedDataParallel, label: str) -> None:
        """Watch one more module."""
        context = self._context
        module = self._modules.add(part, label)
        if context.mode == "hook":
            group = context.tap.facts(module.group).id
            self._removals.append(CommHookMode(module, context.recorder, group).remove)
        else:
            context.tap.install()
            self._removals.append(LaterHooks(module, context.recorder).remove)
        if getattr(part, "_use_python_reducer", False):
            log.warning(
                "this DDP module reduces its gradients inside the compiled backward (optimize_ddp='python_reducer'), "
                "where no bucket can be seen: its overlap is not known"
            )

    def knobs(self) -> Mapping[str, Knob]:
        """Return what can be changed while the job runs.

        Raises:
            ConfigurationError: it could not be put back as it was.
        """
        if self._context.mode == "hook":
            raise ConfigurationError(
                "bucket_cap_mb cannot be swept in mode='hook': use mode='passive'"
            )
        return {BucketCapKnob.name: BucketCapKnob(self._modules.modules)}

    def remove(self, *, at_exit: bool) -> None:
        """Leave every module as it was; at exit without a new reducer, which would need a process group."""
        guard = self._context.recorder.guard
        removals = [] if at_exit else self._removals[::-1]
        for remove in (*removals, self._modules.remove):
            try:
                remove()
            except Exception as error:  # noqa: BLE001, PERF203 - the others still have to leave
                guard.trip("close", error)
        self._removals.clear()


def find_ddp(model: Any) -> list[tuple[str, DistributedDataParallel]]:
    """Return the (name, module) of every DDP module in a model, a compiled model, or a list of them."""
    models = model if isinstance(model, (list, tuple)) else [model]
    found: list[tuple[str, DistributedDataParallel]] = []
    for number, one in enumerate(models):
        if not isinstance(one, torch.nn.Module):
            continue
        prefix = f"{number}" if len(models) > 1 else ""
        for name, module in one.named_modules():
            if isinstance(module, DistributedDataParallel) and all(
                module is not known for _, known in found
            ):
                plain = name.removeprefix("_orig_mod").strip(".")
                found.append((".".join(part for part in (prefix, plain) if part), module))
    return found


def _nothing_to_say(_model: Any) -> str:
    return ""


DDP = Kind("DistributedDataParallel", find_ddp, _nothing_to_say, first_device, DdpAttach)

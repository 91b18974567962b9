"""Settings of an FSDP2 model that can be changed between two steps.

In: watched units. Out: knobs for how far ahead parameters are gathered, in forward and in backward, and for whether
they are given back after forward. All take effect in the next step and change when parameters are gathered, not what is
computed: results keep their bits.

"The next" modules are the wrapped ones in the order in which the model names them, which is the order in which most
models run them; where a model runs them otherwise, the report names prefetches that came too early. The outermost
module gathers what no other does and is left alone.
"""

from collections.abc import Sequence
from typing import Any

import torch

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.fsdp2_layout import Unit
from overlapwatch.hooks.knobs import Knob

_SAME_BITS = "results keep their bits: only when parameters are gathered and given back changes"


def fsdp2_knobs(models: Sequence[tuple[torch.nn.Module, Sequence[Unit]]]) -> dict[str, Knob]:
    """Return the knobs of some models, by name; none where nothing but the outermost modules is wrapped.

    Args:
        models: each with its units, in the order of the model's modules.
    """
    chains = []
    for model, units in models:
        outermost = getattr(model, "_orig_mod", model)
        chain = [unit for unit in units if unit.groups and outermost not in unit.modules]
        if chain:
            chains.append(chain)
    if not chains:
        return {}
    knobs: tuple[Knob, ...] = (
        PrefetchKnob(chains, backward=False),
        PrefetchKnob(chains, backward=True),
        ReshardKnob([unit for chain in chains for unit in chain]),
    )
    return {knob.name: knob for knob in knobs}


class PrefetchKnob:
    """How many modules ahead are gathered, explicitly, when a module's own parameters have arrived."""

    warm_up = 2
    results = _SAME_BITS

    def __init__(self, chains: Sequence[Sequence[Unit]], *, backward: bool) -> None:
        self.name = "backward_prefetch" if backward else "forward_prefetch"
        self._attribute = f"_states_to_{self.name}"
        self._chains = [chain[::-1] if backward else chain for chain in chains]
        self._setter = f"set_modules_to_{self.name}"
        self._before = [
            (unit.state, list(getattr(unit.state, self._attribute)))
            for chain in chains
            for unit in chain
        ]

    def check(self, value: Any) -> None:
        """A number of modules; 0 is PyTorch's default."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigurationError(
                f"{self.name}={value!r}: it is a number of modules, 0 for PyTorch's default"
            )

    def title(self, value: Any) -> str:
        """Write a number of modules."""
        return f"{value} ahead" if value else "PyTorch's default"

    def apply(self, value: Any) -> None:
        """Have each module gather the next ones."""
        for chain in self._chains:
            for place, unit in enumerate(chain):
                ahead = [later.modules[0] for later in chain[place + 1 : place + 1 + value]]
                getattr(unit.modules[0], self._setter)(ahead)

    def restore(self) -> None:
        """Put back the user's lists."""
        for state, listed in self._before:
            setattr(state, self._attribute, list(listed))


class ReshardKnob:
    """Whether a module's unsharded parameters are given back after its forward (True), or kept for backward."""

    name = "reshard_after_forward"
    warm_up = 2
    results = _SAME_BITS

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self._before = [
            (
                unit.state,
                getattr(unit.state, "_auto_reshard_after_forward", None),
                [(group.raw, group.raw.post_forward_mesh_info) for group in unit.groups],
            )
            for unit in units
        ]

    def check(self, value: Any) -> None:
        """True or False."""
        if not isinstance(value, bool):
            raise ConfigurationError(f"{self.name}={value!r}: it is True or False")

    def title(self, value: Any) -> str:
        """Write the choice."""
        return str(value)

    def apply(self, value: Any) -> None:
        """Set it for each module by itself: set for all inside it, the outermost would change too."""
        for unit in self._units:
            module: Any = unit.modules[0]
            module.set_reshard_after_forward(value, recurse=False)

    def restore(self) -> None:
        """Put back what each module had, numbers of ranks included."""
        for state, auto, groups in self._before:
            if auto is not None:
                state._auto_reshard_after_forward = auto  # noqa: SLF001 - has no public getter
            for raw, mesh in groups:
                raw.post_forward_mesh_info = mesh

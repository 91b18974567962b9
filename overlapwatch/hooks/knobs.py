"""Settings that can be changed in a running job, between two steps, and put back.

In: watched modules. Out: `Knob`s, one a setting. A knob changes the job on this rank; that all ranks do it before the
same forward is the business of whoever turns it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.ddp import DdpModule
from overlapwatch.hooks.ddp_reducer import read_cap, replace_reducer, set_cap, write_cap


class Knob(Protocol):
    """One setting.

    Attributes:
        name: as the user gives it to `sweep()`.
        warm_up: steps after a change that do not count.
        results: what a change does to the results of training, in words.
    """

    name: str
    warm_up: int
    results: str

    def check(self, value: Any) -> None:
        """Raise ConfigurationError, one sentence, when the value makes no sense."""

    def title(self, value: Any) -> str:
        """Write a value."""

    def apply(self, value: Any) -> None:
        """Change the setting. On an error the old one is still in force."""

    def restore(self) -> None:
        """Put back what was there before the first change."""


@runtime_checkable
class Tunable(Protocol):
    """An instrument whose parts have settings that can be changed between two steps."""

    def knobs(self) -> Mapping[str, Knob]:
        """Return them by name.

        Raises:
            ConfigurationError: one of them could not be put back as it was.
        """


class BucketCapKnob:
    """DDP's `bucket_cap_mb`, through a new reducer in place: parameters, optimizer state and hooks stay."""

    name = "bucket_cap_mb"
    results = (
        "a change keeps the mathematics; with more than two ranks the order in which values are added, and so the last "
        "bits, may differ between caps"
    )

    def __init__(self, modules: Sequence[DdpModule]) -> None:
        for module in modules:
            _refuse_what_cannot_be_moved(module.ddp)
        self._modules = modules
        self._before = [read_cap(module.ddp) for module in modules]
        # One whole-model bucket, then the rebuild; a static graph needs one more step.
        self.warm_up = 4 if any(module.ddp.static_graph for module in modules) else 3

    def check(self, value: Any) -> None:
        """A cap is a positive number of MiB, or None for DDP's default."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and value > 0):
            raise ConfigurationError(f"bucket_cap_mb={value!r}: a cap is a positive number of MiB")

    def title(self, value: Any) -> str:
        """Write a cap."""
        return "DDP's default" if value is None else f"{value:g} MiB"

    def apply(self, value: Any) -> None:
        """Lay the buckets out anew with this cap."""
        self._turn([lambda ddp: set_cap(ddp, value)] * len(self._modules))

    def restore(self) -> None:
        """Lay the buckets out anew as the user had them."""
        self._turn([lambda ddp, cap=cap: write_cap(ddp, cap) for cap in self._before])

    def _turn(self, changes: Sequence[Any]) -> None:
        for module, change in zip(self._modules, changes, strict=True):
            ddp = module.ddp
            old = read_cap(ddp)
            try:
                change(ddp)
                _with_new_reducer(ddp)
            except Exception:
                write_cap(ddp, old)
                _with_new_reducer(ddp)
                raise
            finally:
                module.reset_layout()


def _with_new_reducer(ddp: Any) -> None:
    replace_reducer(ddp)
    for hook, state in ddp._comm_hooks:  # noqa: SLF001 - what the user registered
        dist._register_comm_hook(ddp.reducer, state, hook)  # noqa: SLF001


def _refuse_what_cannot_be_moved(ddp: Any) -> None:
    """Raise for a communication hook that a new reducer cannot take over."""
    hooks = list(ddp._comm_hooks)  # noqa: SLF001
    said = ddp._get_ddp_logging_data().get("comm_hook", "")  # noqa: SLF001
    if said and not hooks:
        raise ConfigurationError(
            f"bucket_cap_mb cannot be swept: this DDP module has the built-in communication hook {said}, which a new "
            "reducer cannot take over"
        )
    for hook, state in hooks:
        if state is not None and not isinstance(state, dist.ProcessGroup):
            name = getattr(hook, "__name__", type(hook).__name__)
            raise ConfigurationError(
                f"bucket_cap_mb cannot be swept: the communication hook {name} keeps a state, which may belong to the "
                "buckets as they are"
            )

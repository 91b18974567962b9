"""What every way of watching a model has in common: the protocol between `watch()` and the instruments.

In: a model that the user passed to `watch()`. Out: records, written through the `Context` that an instrument is given.
One framework (DDP, FSDP2, ...) is one `Kind`; what watches its models in this process is one `Instrument`. To plug in a
new one, write a module with a `Kind` in it and add that to the tuple in `hooks/kinds.py`; nothing else changes.

    Kind.find(model)        → [(name, part), ...]: the parts of a model that this kind watches. It must not import the
                              framework: a model of it exists only where it has been imported (see `sys.modules`).
    Kind.why_not(model)     → one sentence when the model is of this kind and cannot be watched; raised to the user
    Kind.device(part)       → where the part's collectives run
    Kind.make(context)      → the instrument, made when the first part of its kind is added

    Instrument.add(part, label)        watch one more part; a label tells parts apart when there are several
    Instrument.holds(parameter)        whether an optimizer with this parameter steps a watched model
    Instrument.claim(kind, group, tensors)
                                       asked for each collective that the tap sees: whose is it?
    Instrument.remove(at_exit=...)     leave everything as it was; at exit the process group may be gone already

The tap (`hooks/c10d.py`) is the one place where collectives are recorded; an instrument says whose they are. It calls
`context.tap.install()` when it wants collectives to be seen, and appends its `claim` to `context.tap.claims`. A claim
runs on the hot path: it returns None at once where nothing is expected. All hooks of an instrument do nothing while
`recorder.on` is False, write nothing while `recorder.recording` is (a shadow step), are marked `not_compiled`, and hand
whatever they raise to `recorder.guard.trip(where, error)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from overlapwatch.hooks.c10d import Claim, Claimant, CollectiveTap
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.hooks.steps import StepBoundaries

__all__ = ["Claim", "Claimant", "Context", "Instrument", "Kind"]


@dataclass(frozen=True, slots=True)
class Context:
    """What an instrument works with.

    Args:
        recorder: where spans are written; the current step and phase.
        boundaries: told when a training forward begins and when a backward has ended.
        tap: sees the collectives.
        mode: "passive" or "hook"; the second is DDP's business only.
    """

    recorder: Recorder
    boundaries: StepBoundaries
    tap: CollectiveTap
    mode: str


class Instrument(Protocol):
    """Watches all parts of one kind in this process."""

    @property
    def count(self) -> int:
        """How many parts are watched."""

    def knows(self, part: Any) -> bool:
        """Whether this part is watched already."""

    def add(self, part: Any, label: str) -> None:
        """Watch one more part.

        Raises:
            ConfigurationError: it cannot be watched; one sentence says what to do.
        """

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether a watched part has this parameter."""

    def remove(self, *, at_exit: bool) -> None:
        """Take every hook out. `at_exit`: the model goes with the process, so nothing has to work afterwards."""


def no_facts(_parts: list[Any]) -> dict[str, str]:
    """Return nothing to tell."""
    return {}


def not_split(_parts: list[Any]) -> int | None:
    """Return that it is not known over how many ranks a layer is split."""
    return None


@dataclass(frozen=True, slots=True)
class Kind:
    """One framework whose models can be watched.

    Args:
        name: as users spell it.
        find: model → (name inside the model, part) of each part to watch; [] when there is none.
        why_not: model → one sentence why what is there of this kind cannot be watched; "" when there is nothing to say.
        device: part → where its collectives run.
        make: makes the instrument.
        facts: parts → options of the framework that decide overlap, name → value in words; they go into the log.
        split: parts → over how many ranks a layer or a sequence is split (tensor or context parallelism); None where
            that is not known.
    """

    name: str
    find: Callable[[Any], list[tuple[str, Any]]]
    why_not: Callable[[Any], str]
    device: Callable[[Any], torch.device]
    make: Callable[[Context], Instrument]
    facts: Callable[[list[Any]], dict[str, str]] = no_facts
    split: Callable[[list[Any]], int | None] = not_split


def models_in(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Return (prefix, module) of what was passed: a model, or a list of them numbered from 0; only what is a module."""
    models = model if isinstance(model, (list, tuple)) else [model]
    several = len(models) > 1
    return [
        (str(number) if several else "", one)
        for number, one in enumerate(models)
        if isinstance(one, torch.nn.Module)
    ]


def first_device(module: torch.nn.Module) -> torch.device:
    """Return the device of the first parameter; a model without parameters counts as one on the CPU."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))

"""What is told of FSDP2's settings: one forecast a setting, and which of them are worth having.

In: numbers of simulated and recorded steps. Out: frozen results with `checks()` and `to_dict()`.

A setting is worth having unless another one holds no more memory and has a step that is shorter by more than the
model's error, or holds less memory and has a step that is not longer by more than that:

| step, ms | memory, MB | worth having, error 3 ms              |
|----------|------------|---------------------------------------|
| 100      | 20         | yes                                   |
| 102      | 10         | yes: half the memory, not told slower |
| 120      | 10         | no: as much memory, slower            |

The first one is out too: 102 is not told apart from 100, and holds half.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overlapwatch.accounting.closure import Check
from overlapwatch.timeline.model import I64, Unknown
from overlapwatch.vocabulary import CollectiveKind
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.fsdp2_program import Setting


@dataclass(frozen=True, slots=True)
class Costs:
    """What a collective costs, by CollectiveKind."""

    of: Mapping[int, Cost]

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON-ready values."""
        return {CollectiveKind(kind).title: cost.to_dict() for kind, cost in self.of.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """Several steps in numbers, simulated or recorded.

    Args:
        step_ns, exposed_ns, tail_ns: medians over the steps; a tail that is not known is None.
        peak_bytes: median over the steps of the most that unsharded parameters held; None where not known.
        steps_ns, exposures_ns: of each step.
        collectives: how many were simulated.
        closure: checks.
    """

    step_ns: int
    exposed_ns: int
    tail_ns: int | None
    peak_bytes: int | None
    steps_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    exposures_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    collectives: int = 0
    closure: tuple[Check, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the medians as JSON-ready values."""
        return {
            "step_ns": self.step_ns,
            "exposed_ns": self.exposed_ns,
            "tail_ns": self.tail_ns,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, slots=True)
class SettingForecast:
    """One setting.

    Args:
        forward_prefetch, backward_prefetch, reshard_after_forward: the setting.
        recorded: whether the recorded run issued its all-gathers in this order.
        kind: settings of one kind issue the same in the same order: one forecast.
        gathers: all-gathers in a step.
        step_ns, exposed_ns, tail_ns, peak_bytes: see `Modelled`.
    """

    forward_prefetch: int
    backward_prefetch: int
    reshard_after_forward: bool
    recorded: bool
    kind: int
    gathers: int
    step_ns: int
    exposed_ns: int
    tail_ns: int | None
    peak_bytes: int | None

    @staticmethod
    def of(
        setting: Setting, modelled: Modelled, *, kind: int, recorded: bool, gathers: int
    ) -> "SettingForecast":
        """Put a setting and its numbers together."""
        return SettingForecast(
            forward_prefetch=setting.forward_prefetch or 0,
            backward_prefetch=setting.backward_prefetch or 0,
            reshard_after_forward=bool(setting.reshard_after_forward),
            recorded=recorded,
            kind=kind,
            gathers=gathers,
            step_ns=modelled.step_ns,
            exposed_ns=modelled.exposed_ns,
            tail_ns=modelled.tail_ns,
            peak_bytes=modelled.peak_bytes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "forward_prefetch": self.forward_prefetch,
            "backward_prefetch": self.backward_prefetch,
            "reshard_after_forward": self.reshard_after_forward,
            "recorded": self.recorded,
            "kind": self.kind,
            "all_gathers": self.gathers,
            "step_ns": self.step_ns,
            "exposed_ns": self.exposed_ns,
            "tail_ns": self.tail_ns,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, slots=True, eq=False)
class FsdpForecast:
    """What the model expects of each setting, beside what was recorded.

    Args:
        rank: whose step is told; None when the input does not say.
        ranks: how many were simulated together.
        steps: sampled steps.
        modules: that are gathered, the outermost one included.
        device: whether the recorded times are a device's.
        blocking: whether the caller of an all-gather stands still until it is over, so that nothing hides it.
        recorded: what was recorded.
        modelled: what the model says of the recorded setting.
        step_error_ns, exposed_error_ns: medians over the steps of |modelled - recorded|.
        costs: of a collective.
        at_once: how many collectives of one group run at once.
        apart: whether all-gathers and reductions of one group run beside each other all the same.
        settings: one forecast a setting.
        closure: how recorded and simulated steps add up.
        unknown: what could not be told.
    """

    rank: int | None
    ranks: int
    steps: int
    modules: int
    device: bool
    blocking: bool
    recorded: Modelled
    modelled: Modelled
    step_error_ns: int
    exposed_error_ns: int
    costs: Costs
    at_once: int
    apart: bool
    settings: tuple[SettingForecast, ...]
    closure: tuple[Check, ...]
    unknown: tuple[Unknown, ...]

    @property
    def kinds(self) -> tuple[tuple[SettingForecast, ...], ...]:
        """The settings, those of one kind together, in the order in which each kind first occurs."""
        found: dict[int, list[SettingForecast]] = {}
        for one in self.settings:
            found.setdefault(one.kind, []).append(one)
        return tuple(tuple(several) for several in found.values())

    @property
    def best(self) -> tuple[SettingForecast, ...]:
        """The setting with the shortest step, and those that the model cannot tell from it."""
        shortest = min(one.step_ns for one in self.settings)
        return tuple(one for one in self.settings if one.step_ns - shortest <= self.step_error_ns)

    @property
    def worth_having(self) -> tuple[SettingForecast, ...]:
        """The settings that none is better than in time and memory; none where memory is not known."""
        if any(one.peak_bytes is None for one in self.settings):
            return ()
        return tuple(
            one
            for one in self.settings
            if not any(better(other, one, self.step_error_ns) for other in self.settings)
        )

    @property
    def ceiling(self) -> float | None:
        """By how much throughput would rise if nothing were exposed: T / (T - R) - 1. A bound, not a forecast."""
        left = self.recorded.step_ns - self.recorded.exposed_ns
        return self.recorded.step_ns / left - 1 if left > 0 else None

    def checks(self) -> tuple[Check, ...]:
        """Return how recorded and simulated steps add up."""
        return self.closure

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "rank": self.rank,
            "ranks": self.ranks,
            "steps": self.steps,
            "modules": self.modules,
            "device": self.device,
            "all_gathers_block": self.blocking,
            "recorded": self.recorded.to_dict(),
            "model": {
                **self.modelled.to_dict(),
                "step_error_ns": self.step_error_ns,
                "exposed_error_ns": self.exposed_error_ns,
                "costs": self.costs.to_dict(),
                "collectives_at_once": self.at_once,
                "gathers_beside_reductions": self.apart or self.at_once > 1,
            },
            "ceiling": self.ceiling,
            "settings": [one.to_dict() for one in self.settings],
            "shortest_step": _places(self.settings, self.best),
            "worth_having": _places(self.settings, self.worth_having),
            "closure": [check.to_dict() for check in self.closure],
            "not_known": [{"what": one.what, "because": one.because} for one in self.unknown],
        }


def better(one: SettingForecast, other: SettingForecast, error_ns: int) -> bool:
    """Say whether `one` makes `other` pointless."""
    if one.peak_bytes is None or other.peak_bytes is None or one.peak_bytes > other.peak_bytes:
        return False
    if one.peak_bytes < other.peak_bytes:
        return one.step_ns <= other.step_ns + error_ns
    return one.step_ns < other.step_ns - error_ns


def _places(settings: tuple[SettingForecast, ...], chosen: Iterable[SettingForecast]) -> list[int]:
    wanted = set(chosen)
    return [place for place, one in enumerate(settings) if one in wanted]

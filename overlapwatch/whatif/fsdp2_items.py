"""The words of a simulation of FSDP2: work that stays where it was, marks between it, and what a rank recorded.

In: nothing. Out: frozen types. `fsdp2_recorded` reads them from a Timeline, `fsdp2_program` puts all-gathers between
them, `fsdp2_lanes` makes lanes of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import CollectiveKind, Phase

GATHER = CollectiveKind.ALL_GATHER


NOT_TOLD = -(1 << 62)
"""No moment of the host's: it may be before the step's beginning, so that -1 would be one."""


class MarkKind(IntEnum):
    """What happens at a mark."""

    USE = 1  # compute needs a module's parameters
    WAIT = 2  # compute waits for an earlier reduction (on a device)
    REDUCE = 3  # gradients are sent
    FREE = 4  # a module's parameters are given back
    BY_HAND = 5  # the user's own unshard()
    END = 6  # the end of a backward: all reductions are waited for
    STOP = 7  # a collective of no module, for which the caller stood still


@dataclass(frozen=True, slots=True)
class Piece:
    """Work that stays: `ns` of compute, or of anything else."""

    ns: int
    computing: bool
    phase: int


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing that happened between pieces.

    Args:
        kind, module, phase: what, of which module (its name), when.
        issued: at a USE: modules whose all-gathers it sent ahead, in order.
        gathered: at a USE: it consumed an all-gather of this step.
        collective: of a REDUCE or STOP: its CollectiveKind.
        ns: of a USE on a device: when the host got there, after the step's beginning, or NOT_TOLD; of a STOP: how
            long it took.
    """

    kind: MarkKind
    module: str = ""
    phase: int = Phase.OTHER
    issued: tuple[str, ...] = ()
    gathered: bool = False
    collective: int = 0
    ns: int = 0


Item = Piece | Mark


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """The modules' collectives of one step, in order of launch; columns of equal length.

    Args:
        kind: CollectiveKind.
        module: whose.
        place: how many of this kind and module came before in this step.
        size: bytes.
        begin: ns; when this rank had sent it, or, where that is known, when its turn came.
        finish: ns.
        group: id of the process group.
    """

    kind: NDArray[np.uint8]
    module: tuple[str, ...]
    place: tuple[int, ...]
    size: I64
    begin: I64
    finish: I64
    group: NDArray[np.uint16]

    @property
    def names(self) -> list[str]:
        """A name for each that is the same on every rank and in every step."""
        rows = zip(self.kind.tolist(), self.module, self.place, strict=True)
        return [job_name(kind, module, place) for kind, module, place in rows]


def job_name(kind: int, module: str, place: int) -> str:
    """Return what a module's collective is called in a simulation."""
    return f"{kind} {place} {module}"


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """One step of one rank.

    Args:
        number, start, end: of the step; ns.
        items: pieces and marks, in order.
        cut_ns: what was cut out of the lane.
        collectives: the modules' own.
        held_before: modules whose parameters were there when the step began.
    """

    number: int
    start: int
    end: int
    items: tuple[Item, ...]
    cut_ns: int
    collectives: Collectives
    held_before: frozenset[str]

    def check(self) -> Check:
        """Return how the pieces add up to the step."""
        kept = sum(item.ns for item in self.items if isinstance(item, Piece))
        return Check(
            f"work that stays + what was cut out = step {self.number}",
            kept + self.cut_ns,
            self.end - self.start,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RankRecord:
    """The steps of one rank, and what each module's parameters cost its lane beside the collectives.

    Args:
        rank: None where the input does not say.
        device: whether times are a device's.
        modules: names of those that are gathered, in order of first use.
        outermost: the model itself, where it is one of them; "" else.
        size: bytes of each module's unsharded parameters; 0 where not known.
        issue_ns: from the allocation of its buffer to the launch of the all-gather.
        copy_ns: copying its parameters out of the buffer.
        blocking: modules for whose all-gather the caller stands still until it has finished.
        steps: by step number.
        others: collectives of no module that did not stop the lane; they are left out.
        group_ranks: with how many ranks, itself included, it gathers parameters; the world's where not known.
    """

    rank: int | None
    device: bool
    modules: tuple[str, ...]
    outermost: str
    size: Mapping[str, int]
    issue_ns: Mapping[str, int]
    copy_ns: Mapping[str, int]
    blocking: frozenset[str]
    steps: Mapping[int, StepRecord]
    others: int
    group_ranks: int

"""What `blocks` measures of a run, as data.

In: nothing. Out: `MeasuredBlocks`: the blocks of some steps of one rank, what was recorded of these steps, and what is
fitted to all of them. It computes nothing but which of the steps stands for the others.
"""

from dataclasses import dataclass

import numpy as np

from overlapwatch.timeline.model import I64, Unknown
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.ddp import Layout


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of one step; of the communication, the gradient reductions alone.

    Args:
        step_ns: the step.
        total_ns: from its begin to the end of compute or of the last reduction, whichever is later.
        tail_ns: how long the last reduction outlived compute.
        communication_ns, hidden_ns, exposed_ns: the reductions, and what of them ran beside compute and not.
        other_exposed_ns: what all other communication adds to what is exposed.
    """

    step_ns: int
    total_ns: int
    tail_ns: int
    communication_ns: int
    hidden_ns: int
    exposed_ns: int
    other_exposed_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredStep:
    """One step; moments in ns from its begin.

    Args:
        step: its number.
        still_ns, compute_ns: of each segment of the compute engine: how long it stands still, then computes.
        segments: how many of them each compute block has, in order; at least one.
        ready_ns, delay_ns, service_ns: of each bucket, in launch order.
        gradients_ns: when each parameter was ready, in the order of the layout; None where that was not sampled.
        recorded: what was measured.
    """

    step: int
    still_ns: I64
    compute_ns: I64
    segments: tuple[int, ...]
    ready_ns: I64
    delay_ns: I64
    service_ns: I64
    gradients_ns: I64 | None
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class Model:
    """What is fitted to the steps, and how far it is off on the recorded layout.

    Args:
        launch_delay_ns: median from complete to launched.
        cost: of a reduction; None where it cannot be fitted.
        error_ns: median over the steps of |last finish at this cost - recorded one|, or of the same for the tail where
            that is more; None without a cost.
        because: why there is no cost.
        unknown: what else could not be told.
    """

    launch_delay_ns: int
    cost: Cost | None
    error_ns: int | None
    because: str = ""
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBlocks:
    """The blocks of some steps of one rank.

    Args:
        rank: whose compute it is; None when the input does not say.
        ranks: how many ranks' ready times went in.
        usable: steps that have everything; `steps` are these or an even choice of them.
        steps: in order; each has one block a bucket, one before them and one behind them.
        before: what is computed before the block of the first bucket.
        buckets, sizes: names and bytes, in launch order.
        layout: parameters and types, for laying buckets out anew; None where it is not known.
        layout_because: why not.
        model: what is fitted to all of `steps`.
    """

    rank: int | None
    ranks: int
    usable: int
    steps: tuple[MeasuredStep, ...]
    before: str
    buckets: tuple[str, ...]
    sizes: tuple[int, ...]
    layout: Layout | None
    layout_because: str
    model: Model

    @property
    def representative(self) -> int:
        """The place in `steps` of the one whose recorded step time is the median (of two, the shorter)."""
        lengths = np.array([step.recorded.step_ns for step in self.steps], np.int64)
        return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])

"""Two engines, one for compute and one for communication: the smallest model of overlap.

In: times of blocks. Out: where each runs, and what of the communication cannot be hidden. A block's communication may
start when its compute has ended, and one follows the other on its engine.

| compute, ms | communication, ms | serial | overlapped | tail |
|-------------|-------------------|--------|------------|------|
| 2, 2, 2     | 1, 1, 1           | 9      | 7          | 1    |
| 2, 2, 2     | 4, 4, 4           | 18     | 14         | 8    |

In the second row the queue, not the start, is the limit: the first send begins at 2 ms in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.intervals import cover, total, union
from overlapwatch.timeline.model import I64


def queue(launch: I64, service: I64) -> tuple[I64, I64]:
    """Return when each of several jobs starts and finishes on one engine that serves them in order, ns.

    Args:
        launch: when each may start at the earliest.
        service: how long each takes.
    """
    done = np.cumsum(service)
    finish = done + np.maximum.accumulate(launch - (done - service))
    return finish - service, finish


@dataclass(frozen=True, slots=True, eq=False)
class TwoEngines:
    """Where each block runs; int64 ns from the beginning of the first block's compute.

    Args:
        compute_start, compute_end: of each block's compute.
        start, finish: of each block's communication.
    """

    compute_start: I64
    compute_end: I64
    start: I64
    finish: I64

    @property
    def serial_ns(self) -> int:
        """How long everything takes without overlap."""
        return int(self.compute_end[-1]) + self.communication_ns

    @property
    def communication_ns(self) -> int:
        """All communication."""
        return int((self.finish - self.start).sum())

    @property
    def total_ns(self) -> int:
        """How long everything takes."""
        return int(max(self.compute_end[-1], self.finish[-1]))

    @property
    def tail_ns(self) -> int:
        """How long the last communication outlives the last compute."""
        return self.total_ns - int(self.compute_end[-1])

    @property
    def hidden_ns(self) -> int:
        """Communication while compute ran."""
        compute = union(self.compute_start, self.compute_end)
        return int(cover(self.start, self.finish, compute).sum())

    @property
    def exposed_ns(self) -> int:
        """Communication while compute did not run."""
        return total(union(self.start, self.finish)) - self.hidden_ns

    def to_dict(self) -> dict[str, Any]:
        """Return the blocks and the sums as JSON-ready values."""
        columns = (self.compute_start, self.compute_end, self.start, self.finish)
        names = ("compute_start_ns", "compute_end_ns", "start_ns", "finish_ns")
        return {
            "blocks": [
                dict(zip(names, row, strict=True))
                for row in zip(*(column.tolist() for column in columns), strict=True)
            ],
            "serial_ns": self.serial_ns,
            "total_ns": self.total_ns,
            "tail_ns": self.tail_ns,
            "communication_ns": self.communication_ns,
            "hidden_ns": self.hidden_ns,
            "exposed_ns": self.exposed_ns,
        }


def two_engines(compute_ns: Sequence[int], communication_ns: Sequence[int]) -> TwoEngines:
    """Run blocks of compute one after another, each one's communication behind it on the other engine.

    Args:
        compute_ns: of each block.
        communication_ns: of each block, what is sent when its compute has ended; 0 where nothing is.

    Raises:
        ConfigurationError: there are no blocks, not as many of one as of the other, or a time is negative.
    """
    if not compute_ns or len(compute_ns) != len(communication_ns):
        raise ConfigurationError(
            f"as many communication times as compute times are needed, and at least one: there are "
            f"{len(communication_ns)} and {len(compute_ns)}"
        )
    compute, service = np.asarray(compute_ns, np.int64), np.asarray(communication_ns, np.int64)
    if int(compute.min()) < 0 or int(service.min()) < 0:
        raise ConfigurationError("a block cannot take less than no time")
    end = np.cumsum(compute)
    start, finish = queue(end, service)
    return TwoEngines(end - compute, end, start, finish)

"""Sinks that keep a curve over steps: TensorBoard, Weights & Biases, MLflow.

In: SUMMARY rows on the drain thread. Out: `StepValues` of the steps in statistics, to a `Backend`, on a thread of its
own (`outbox`). It does not know the libraries; each backend is a module beside this one.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np

from overlapwatch.log.sinks import Standing
from overlapwatch.metrics.catalogue import PREFIX
from overlapwatch.metrics.outbox import EVERY_S, Outbox
from overlapwatch.metrics.tally import StepValues, Tally


class Backend(Protocol):
    """Where curves are kept. `open` is called on the thread of `watch()`, the rest on the sink's own."""

    title: str

    def open(self) -> None:
        """Take what it needs; raise when that cannot be."""

    def log(self, steps: list[StepValues]) -> None:
        """Keep the values of some steps, oldest first; raise when that failed."""

    def close(self) -> None:
        """Let go."""


class Tracker:
    """A `MetricsSink` over a backend.

    Args:
        backend: where curves are kept.
        every_s: pause between two calls of its `log`.
        warn: where a sentence goes; the `overlapwatch` logger by default.

    """

    def __init__(
        self,
        backend: Backend,
        *,
        every_s: float = EVERY_S,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        self.title = backend.title
        self._backend = backend
        self._tally = Tally()
        self._outbox: Outbox[StepValues] = Outbox(
            f"metrics to {backend.title}",
            backend.log,
            backend.close,
            warn or logging.getLogger("overlapwatch").warning,
            every_s=every_s,
        )

    def open(self) -> None:
        """Open the backend and start the thread."""
        self._backend.open()
        self._outbox.start()

    def step(self, summary: np.void, line: str | None) -> None:  # noqa: ARG002 - the protocol's
        """Leave the step for the thread, if it is in statistics."""
        values = self._tally.take(summary)
        if values is not None:
            self._outbox.put(values)

    def standing(self, standing: Standing) -> None:
        """Remember it for the next step."""
        self._tally.stand(standing)

    def close(self) -> None:
        """Deliver what is left."""
        self._outbox.close()


def key(name: str) -> str:
    """Return a value's name as trackers show it, in a group of its own."""
    return f"{PREFIX}/{name}"

"""What the adapters share: a watch that begins when the trainer has wrapped the model, and never ends the training.

In: the settings of `watch()`, and later the wrapped model. Out: a watch, or one warning that says why there is none;
the numbers of the latest finished step, under the names of `metrics.catalogue`, for the trainer's own logger. Settings
are checked before the training begins. What it does not know: any trainer.
"""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch.distributed as dist

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.recorder import log
from overlapwatch.log.sinks import Standing
from overlapwatch.metrics.tally import Tally
from overlapwatch.metrics.tracker import key
from overlapwatch.settings import describe, resolve
from overlapwatch.watching import NullWatch, Watch, watch


class LatestStep:
    """A metrics sink that keeps the latest step in statistics until training takes it.

    Args:
        title: where it is going to be logged, in words.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._tally = Tally()
        self._values: Mapping[str, float] = {}

    def open(self) -> None:
        """Nothing is needed."""

    def step(self, summary: np.void, line: str | None) -> None:  # noqa: ARG002 - the protocol's
        """Keep this step, unless it is in no statistics."""
        told = self._tally.take(summary)
        if told is not None:
            self._values = told.values

    def standing(self, standing: Standing) -> None:
        """Remember it for the next step."""
        self._tally.stand(standing)

    def close(self) -> None:
        """Nothing is held."""

    def take(self) -> dict[str, float]:
        """Return what is known of the latest step, once; {} when there is no new one."""
        values, self._values = self._values, {}
        return {key(name): value for name, value in values.items()}


class Attached:
    """The watch of one training after the other.

    Args:
        settings: keyword arguments of `watch()`.
        metrics_to: where the trainer logs the latest step's numbers, in words; "" when it does not.

    Raises:
        ConfigurationError: there is no such setting, or its value makes no sense.
    """

    def __init__(self, settings: Mapping[str, Any], metrics_to: str) -> None:
        self._settings, self._metrics_to = dict(settings), metrics_to
        self._latest = LatestStep(metrics_to)
        self._watch: Watch | NullWatch | None = None
        self._sinks()

    def attach(self, model: Any) -> None:
        """Watch the model as the trainer has wrapped it. When that cannot be, say why; training goes on."""
        self.close()
        try:
            self._latest = LatestStep(self._metrics_to)
            sinks = (*self._sinks(), *([self._latest] if self._metrics_to else []))
            self._watch = watch(model, **{**self._settings, "sinks": sinks})
        except ConfigurationError as error:
            distributed = dist.is_available() and dist.is_initialized()
            if not distributed or dist.get_world_size() == 1:
                log.warning(
                    "overlapwatch does not watch this training: it runs in one process, which shares no gradients"
                )
            elif dist.get_rank() == 0:
                log.warning("overlapwatch does not watch this training: %s", error)

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the latest finished step, by name, each step once; {} on ranks that write no lines."""
        return self._latest.take()

    def close(self) -> None:
        """Stop watching: every hook is out, the log is ended. Safe to call at any time."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _sinks(self) -> tuple[Any, ...]:
        # Of the environment only what is a setting: watch() itself warns of the rest.
        settings = {variable for variable, _, _ in describe()}
        environ = {name: value for name, value in os.environ.items() if name in settings}
        return resolve(self._settings, environ).sinks


def library(names: tuple[str, ...], package: str) -> Any:
    """Import the first of these modules that the process uses already, or else whose package is installed.

    Raises:
        ConfigurationError: none is.
    """
    used = [name for name in names if name in sys.modules]
    found = used or [name for name in names if find_spec(name.partition(".")[0]) is not None]
    if not found:
        raise ConfigurationError(f"{package} is not installed: pip install {package}")
    return import_module(found[0])

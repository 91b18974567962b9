"""Weights & Biases: values join the rows of the run that is active.

In: the values of steps. Out: `run.log(..., commit=False)` on the run that the training script began, which it may do
after `watch()`. So a value is in the row that the script's own next `log()` ends: no row and no step of its own is
made, since W&B drops what a script logs for a step that lies behind. The curves are drawn over `overlapwatch/step`.
Without a run nothing is begun. It never imports wandb: where it was not imported, no run is active.
"""

import sys
import threading
from typing import Any

from overlapwatch.errors import OverlapwatchError
from overlapwatch.metrics.catalogue import PREFIX
from overlapwatch.metrics.run_of_rank import need
from overlapwatch.metrics.tally import StepValues
from overlapwatch.metrics.tracker import key

STEP = key("step")


class WeightsAndBiases:
    """The backend.

    Raises:
        ConfigurationError: wandb is not installed.

    """

    title = "W&B"

    def __init__(self) -> None:
        need("wandb", "wandb", "wandb")
        self._told: str | None = None  # the run that knows our x axis

    def open(self) -> None:
        """Nothing: the run may begin later."""

    def log(self, steps: list[StepValues]) -> None:
        """Put the values into the row that the script will end."""
        run = _active_run()
        if run is None:
            if self._told is None:
                raise OverlapwatchError(
                    "no run is active on this rank; wandb.init() begins one, and steps wait for it"
                )
            return  # the script has ended its run
        if run.id != self._told:
            run.define_metric(STEP, hidden=True)
            run.define_metric(f"{PREFIX}/*", step_metric=STEP)
            self._told = run.id
        try:
            for one in steps:
                values = {key(name): value for name, value in one.values.items()}
                run.log({STEP: one.step, **values}, commit=False)
        except ConnectionError:
            if threading.main_thread().is_alive():
                raise
            # The process ends, and W&B's own exit handler has ended the run before ours.

    def close(self) -> None:
        """Leave the run open: it is not ours."""


def _active_run() -> Any:
    library = sys.modules.get("wandb")
    return getattr(library, "run", None)

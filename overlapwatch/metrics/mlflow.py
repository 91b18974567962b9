"""MLflow: metrics of the run that is active, in batches.

In: the values of steps. Out: `MlflowClient.log_batch` for the run that the training script began, on any thread and
perhaps after `watch()`, or that `MLFLOW_RUN_ID` names; also for the steps after its end. Without a run nothing is
begun. mlflow is imported by the script, or here where `MLFLOW_RUN_ID` is set.
"""

import os
import sys

from overlapwatch.errors import OverlapwatchError
from overlapwatch.metrics.run_of_rank import need
from overlapwatch.metrics.tally import StepValues
from overlapwatch.metrics.tracker import key

MOST_IN_A_BATCH = 1000
"""More metrics a request MLflow refuses."""


class MLflow:
    """The backend.

    Raises:
        ConfigurationError: mlflow is not installed.

    """

    title = "MLflow"

    def __init__(self) -> None:
        need("mlflow", "mlflow-skinny or mlflow", "mlflow")
        self._run_id: str | None = None

    def open(self) -> None:
        """Nothing: the run may begin later."""

    def log(self, steps: list[StepValues]) -> None:
        """Send the values of some steps."""
        self._run_id = _active_run_id() or self._run_id
        if self._run_id is None:
            raise OverlapwatchError(
                "no run is active on this rank; mlflow.start_run() begins one, and steps wait for it"
            )
        from mlflow.entities import Metric  # noqa: PLC0415 - only when used
        from mlflow.tracking import MlflowClient  # noqa: PLC0415

        client = MlflowClient()
        metrics = [
            Metric(key(name), value, one.unix_ns // 1_000_000, one.step)
            for one in steps
            for name, value in one.values.items()
        ]
        for first in range(0, len(metrics), MOST_IN_A_BATCH):
            client.log_batch(self._run_id, metrics=metrics[first : first + MOST_IN_A_BATCH])

    def close(self) -> None:
        """Leave the run open: it is not ours."""


def _active_run_id() -> str | None:
    """Return the run that is active on any thread: the public `active_run()` knows only its own thread's."""
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if fluent is not None:
        of_any_thread = getattr(fluent, "_get_latest_active_run", fluent.active_run)
        if (run := of_any_thread()) is not None:
            return str(run.info.run_id)
    return os.environ.get("MLFLOW_RUN_ID")

"""torchtitan: a handler of its structured logger. No code changes; settings are variables.

In: `overlapwatch.integrations.torchtitan.register`, named in TITAN_STRUCT_LOGGER_HANDLERS. Out: a watch from the first
step, when the model is parallelised and its checkpoint loaded, until the process group goes, a step fails or the
process ends. The latest finished step's numbers become `metric_value`s of the step that is running.

The logger is told what happens, not to whom: the trainer is the `self` of a caller that announced the first step.
"""

import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from overlapwatch.hooks.recorder import log
from overlapwatch.integrations.attached import Attached


class WatchHandler(logging.Handler):
    """Begins and ends a watch at what the structured logger is told; `tell` logs numbers there."""

    def __init__(self, tell: Callable[[dict[str, float]], None]) -> None:
        super().__init__()
        self._tell, self._begun = tell, False
        self._attached = Attached({}, "torchtitan's structured log")

    def emit(self, record: logging.LogRecord) -> None:
        """Take one event, on the thread that trains."""
        event = getattr(record, "log_type_name", "")
        if event == "step_start" and not self._begun:
            self._begun = True
            if parts := model_parts(sys._getframe()):  # noqa: SLF001 - every CPython has it
                self._attached.attach(parts)
            else:
                log.warning("overlapwatch does not watch this training: no torchtitan trainer runs")
        elif event == "step_end" and (values := self._attached.metrics()):
            self._tell(values)
        elif event in {"step_error", "torch_distributed_teardown_start"}:
            self._attached.close()


def model_parts(frame: FrameType | None) -> Any:
    """Return the `model_parts` of the innermost caller that has them; [] when none has."""
    while frame is not None:
        parts = getattr(frame.f_locals.get("self"), "model_parts", None)
        if parts is not None:
            return parts
        frame = frame.f_back
    return []


def register(*, structured_logger: logging.Logger, **_: Any) -> None:
    """Attach the handler; torchtitan calls this. Settings come from `OVERLAPWATCH_*`."""
    from torchtitan.observability.structured_logger import log_trace_scalar  # noqa: PLC0415

    structured_logger.addHandler(WatchHandler(log_trace_scalar))

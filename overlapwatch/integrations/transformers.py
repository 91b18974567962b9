"""Hugging Face's Trainer: a `TrainerCallback` that watches each `train()`.

In: a trainer. Out: a watch from the first step to the end of the training. The callback needs the trainer since what
callbacks are handed is the model inside DDP, not the wrapped one:

    trainer = Trainer(...)
    trainer.add_callback(WatchCallback(trainer, log_dir="runs/a"))

The trainer tells its callbacks of no exception: a watch that one left behind is closed by the next `train()`, or at the
end of the process.
"""

from typing import Any

from overlapwatch.integrations.attached import Attached, library

_trainer_callback: Any = library(("transformers.trainer_callback",), "transformers")


class WatchCallback(_trainer_callback.TrainerCallback):  # type: ignore[misc]
    """Watches every `train()` of a trainer.

    Args:
        trainer: the one that it is added to.
        metrics: whether the trainer's log gets the latest step's numbers, each time it logs.
        **settings: those of `overlapwatch.watch()`.

    Raises:
        ConfigurationError: there is no such setting, or its value makes no sense.
    """

    def __init__(self, trainer: Any, *, metrics: bool = True, **settings: Any) -> None:
        self._trainer = trainer
        self._attached = Attached(settings, "the trainer's log" if metrics else "")

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The trainer has wrapped the model."""
        self._attached.attach(self._trainer.model_wrapped)

    def on_log(self, *_: Any, **__: Any) -> None:
        """Log the latest step too, where the trainer logs."""
        # This comes back here, and then there is no new step. In on_step_end it would take the trainer's turn to log.
        if values := self._attached.metrics():
            self._trainer.log(values)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The training is over."""
        self._attached.close()

"""Lightning: a `Callback` that watches each `fit`.

In: a strategy that has wrapped the model (DDP, or FSDP2 by ModelParallelStrategy). Out: a watch from the first training
batch to the end of the fit, or to its exception. Both packages are served, `lightning` and `pytorch-lightning`.

    trainer = Trainer(strategy="ddp", callbacks=[WatchCallback(log_dir="runs/a")])

Numbers go straight to the trainer's loggers: `self.log` would first make each a tensor on
the device, and a copy to a GPU waits for it.
"""

from typing import Any

from overlapwatch.integrations.attached import Attached, library

_callbacks: Any = library(
    ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"), "lightning"
)


class WatchCallback(_callbacks.Callback):  # type: ignore[misc]
    """Watches every `fit` of the trainer that has it.

    Args:
        metrics: whether the trainer's loggers get the latest step's numbers, every `log_every_n_steps`.
        **settings: those of `overlapwatch.watch()`.

    Raises:
        ConfigurationError: there is no such setting, or its value makes no sense.
    """

    def __init__(self, *, metrics: bool = True, **settings: Any) -> None:
        self._attached = Attached(settings, "the trainer's loggers" if metrics else "")

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """The strategy has wrapped the model, and the sanity check is over."""
        self._attached.attach(trainer.strategy.model)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Hand the latest step to the trainer's loggers, as often as the trainer logs."""
        every = trainer.log_every_n_steps
        if not every or trainer.global_step % every:
            return
        if values := self._attached.metrics():
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    def on_train_end(self, *_: Any) -> None:
        """The fit is over."""
        self._attached.close()

    def on_exception(self, *_: Any) -> None:
        """The fit ended early."""
        self._attached.close()

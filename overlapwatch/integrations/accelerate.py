"""Accelerate: a `with` block around a training loop of your own.

In: an accelerator, and the model that its `prepare()` returned. Out: a watch, closed where the block ends.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with watching(accelerator, model, log_dir="runs/a") as watched:
        for step, batch in enumerate(loader):
            ...
            watched.log(step)
"""

from types import TracebackType
from typing import Any

from overlapwatch.integrations.attached import Attached


class watching:  # noqa: N801 - it reads as what it does
    """Watches a prepared model while the block runs.

    Args:
        accelerator: the one that prepared it.
        model: as `accelerator.prepare()` returned it, or a list of such.
        **settings: those of `overlapwatch.watch()`.

    Raises:
        ConfigurationError: there is no such setting, or its value makes no sense.
    """

    def __init__(self, accelerator: Any, model: Any, **settings: Any) -> None:
        self._accelerator, self._model = accelerator, model
        self._attached = Attached(settings, "accelerator.log")

    def __enter__(self) -> "watching":  # noqa: PYI034 - typing.Self needs Python 3.11
        self._attached.attach(self._model)
        return self

    def log(self, step: int | None = None) -> None:
        """Hand the latest finished step's numbers to `accelerator.log`, each step once; its trackers are yours."""
        if values := self._attached.metrics():
            self._accelerator.log(values, step=step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._attached.close()

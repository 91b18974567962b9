"""overlapwatch: how much of a training step's communication was hidden, on every step, on every rank, while it runs.

    watch = overlapwatch.watch(model, log_dir="runs/a")

Importing this package imports neither torch nor numpy; what a name needs is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "InputError",
    "OverlapwatchError",
    "__version__",
    "open_trace",
    "sweep",
    "watch",
]

if TYPE_CHECKING:
    from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError
    from overlapwatch.sources import open_trace
    from overlapwatch.watching import watch
    from overlapwatch.watching.sweeping import sweep

_HOMES = {
    "ConfigurationError": "overlapwatch.errors",
    "InputError": "overlapwatch.errors",
    "OverlapwatchError": "overlapwatch.errors",
    "open_trace": "overlapwatch.sources",
    "sweep": "overlapwatch.watching.sweeping",
    "watch": "overlapwatch.watching",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'overlapwatch' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)

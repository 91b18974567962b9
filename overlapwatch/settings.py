"""Every setting, declared once: its default, its environment variable, what it means.

In: keyword arguments of `watch()` and `OVERLAPWATCH_*` variables. Out: one frozen `Settings`. An argument wins over a
variable, a variable over the default. A value that makes no sense is one sentence, before anything is touched.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from overlapwatch.errors import ConfigurationError

log = logging.getLogger("overlapwatch")
PREFIX = "OVERLAPWATCH_"
MODES = ("auto", "passive", "hook", "off")
EVENT_POLICIES = ("auto", "host", "pairs", "phases")
SWITCHES = ("auto", "on", "off")


def _count(low: int, high: int) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigurationError(f"{name} must be a whole number, not {value!r}") from None
        if isinstance(value, float) and value != number:
            raise ConfigurationError(f"{name} must be a whole number, not {value!r}")
        if not low <= number <= high:
            raise ConfigurationError(f"{name} must be between {low} and {high}, not {number}")
        return number

    return parse


def _count_or_auto(low: int, high: int) -> Callable[[str, Any], "int | str"]:
    count = _count(low, high)
    return lambda name, value: "auto" if value == "auto" else count(name, value)


def _one_of(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        if value not in words:
            raise ConfigurationError(f"{name} must be one of {', '.join(words)}, not {value!r}")
        return str(value)

    return parse


def _path(name: str, value: Any) -> Path | None:
    if value is None or value == "":
        return None
    try:
        return Path(value).expanduser()
    except (TypeError, RuntimeError):  # not a path at all; a home directory that nobody has
        raise ConfigurationError(f"{name} must be a path, not {value!r}") from None


def _words(_name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _ranks(name: str, value: Any) -> tuple[int, ...] | str | None:
    if value is None or value == "all":
        return None
    if value == "auto":
        return "auto"
    parse = _count(0, 1 << 30)
    return tuple(parse(name, part) for part in _words(name, value))


def _switch(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"", "0", "false", "no", "off"}:
        return False
    raise ConfigurationError(f"{name} must be 1 or 0, not {value!r}")


def _setting(default: Any, parse: Callable[[str, Any], Any], meaning: str) -> Any:
    return field(default=default, metadata={"parse": parse, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Settings:
    """How to watch. `OVERLAPWATCH_<NAME>` sets each from outside the job."""

    log_dir: Path | None = _setting(
        None, _path, "directory for the logs, one file a rank; none: no log is written"
    )
    disable: bool = _setting(default=False, parse=_switch, meaning="1: watch() does nothing at all")
    mode: str = _setting(
        "auto", _one_of(MODES), "how DDP is watched: passive (no hook registered) or hook"
    )
    sinks: tuple[Any, ...] = _setting(
        ("stdout",),
        _words,
        "where step lines go: stdout, stderr, text:PATH, jsonl:PATH; and metrics: tensorboard:DIR, "
        "prometheus:PORT, prometheus-file:PATH, otel, wandb, mlflow",
    )
    sink_ranks: tuple[int, ...] | str | None = _setting(
        "auto",
        _ranks,
        "ranks that have the sinks, or 'all'; auto: rank 0, and every rank for prometheus, "
        "prometheus-file and otel",
    )
    line_every: int = _setting(1, _count(1, 1 << 30), "write the step line of every Nth step")
    ranks_every: int | str = _setting(
        "auto",
        _count_or_auto(0, 1 << 30),
        "name the late rank in rank 0's line every Nth step, from the logs in log_dir; 0: never; "
        "auto: 50, and never with more than 1,024 ranks",
    )
    keep_first: int = _setting(50, _count(0, 1 << 30), "keep the events of the first N steps")
    keep_every: int = _setting(
        10, _count(1, 1 << 30), "then keep the events of every Nth step (and of slow ones)"
    )
    gradients_every: int = _setting(
        10, _count(0, 1 << 30), "log each parameter's ready time every Nth step; 0: never"
    )
    shadow_every: int = _setting(
        20,
        _count(0, 1 << 30),
        "leave recording off in every Nth step, to see our own cost; 0: never",
    )
    kernels_every: int = _setting(
        0, _count(0, 1 << 30), "run torch.profiler over every Nth step to calibrate; 0: never"
    )
    max_log_mb: int = _setting(512, _count(1, 1 << 20), "a rank's log stays below this many MB")
    ring_slots: int = _setting(
        1 << 16, _count(1 << 8, 1 << 24), "records in the ring (80 bytes each), a power of two"
    )
    ring_dir: Path | None = _setting(None, _path, "directory for the ring; default /dev/shm")
    drain_ms: int = _setting(50, _count(1, 10_000), "how often the drain thread looks")
    hang_seconds: int = _setting(
        60, _count(1, 1 << 30), "say so when a collective is unfinished for this long"
    )
    events: str = _setting(
        "auto", _one_of(EVENT_POLICIES), "device events: pairs, phases only, or host clock only"
    )
    nvtx: str = _setting("auto", _one_of(SWITCHES), "NVTX ranges; auto: on a GPU")
    nvml: str = _setting("auto", _one_of(SWITCHES), "NVML counters; auto: on a GPU")

    @property
    def active(self) -> bool:
        """Whether anything is to be watched."""
        return not self.disable and self.mode != "off"


def resolve(arguments: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Merge arguments, environment and defaults.

    Raises:
        ConfigurationError: an unknown setting, or a value that makes no sense.
    """
    known = {f.name: f for f in fields(Settings)}
    for name in arguments:
        if name not in known:
            raise ConfigurationError(f"watch() has no setting {name!r}; it has {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, spec in known.items():
        variable = PREFIX + name.upper()
        if name in arguments:
            values[name] = spec.metadata["parse"](name, arguments[name])
        elif variable in environ:
            values[name] = spec.metadata["parse"](variable, environ[variable])
    for variable in environ:
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX).lower() not in known:
            log.warning("%s is not a setting of overlapwatch: ignored", variable)
    settings = Settings(**values)
    if settings.ring_slots & (settings.ring_slots - 1):
        raise ConfigurationError(f"ring_slots must be a power of two, not {settings.ring_slots}")
    return settings


def describe() -> list[tuple[str, Any, str]]:
    """Return (environment variable, default, meaning) of every setting, for the documentation."""
    return [(PREFIX + f.name.upper(), f.default, f.metadata["meaning"]) for f in fields(Settings)]

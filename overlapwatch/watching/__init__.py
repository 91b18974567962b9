"""`watch()`: the one call a user makes, and what it says when it cannot be done.

In: a model whose gradients are shared by a wrapper that we know (see `hooks/kinds.py`: PyTorch's DDP and FSDP2,
Megatron-Core's), or one that holds some, or a list of them. Out: a `Watch`. What was asked wrongly raises
`ConfigurationError` here, before anything is touched; what fails on our side is one warning and a watch that does
nothing.
"""

import os
from typing import Any

import torch
import torch.distributed as dist

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.instrument import Kind
from overlapwatch.hooks.kinds import KINDS
from overlapwatch.hooks.recorder import log
from overlapwatch.settings import resolve
from overlapwatch.watching.session import NullWatch, Watch

__all__ = ["NullWatch", "Watch", "watch"]

_current: Watch | None = None


def watch(model: Any, **settings: Any) -> Watch | NullWatch:
    """Watch a DDP, FSDP2 or Megatron-Core model; the training loop does not change.

    Args:
        model: a DistributedDataParallel module, a model wrapped by `fully_shard`, at the root or only further in, the
            model chunks that Megatron's `get_model` returns, one that contains some, a compiled one, or a list of them.
        **settings: the fields of `overlapwatch.settings.Settings`, such as `log_dir="runs/a"`; each can also be set as
            `OVERLAPWATCH_<NAME>`. `OVERLAPWATCH_DISABLE=1` makes this call do nothing.

    Returns:
        A handle with `close()`; it is closed at the end of the process otherwise.

    Raises:
        ConfigurationError: the model is not wrapped, or a setting makes no sense; one sentence says what to do.
    """
    global _current  # noqa: PLW0603 - one watch a process
    chosen = resolve(settings)
    if not chosen.active:
        return NullWatch(chosen)
    for kind in KINDS:
        because = kind.why_not(model)
        if because:
            raise ConfigurationError(because)
    found = [(kind, name, part) for kind in KINDS for name, part in kind.find(model)]
    if not found:
        raise ConfigurationError(_why_not(model))
    if _current is not None and _current.active and _current.pid == os.getpid():
        if settings and chosen != _current.settings:
            raise ConfigurationError(
                "this process is watched already, with other settings: close that watch first, or leave the "
                "settings out"
            )
        _current.add(found)
        return _current
    if _current is not None:
        _current.close()  # it turned itself off: its hooks make room for the new one's
    started: Watch | None = None
    try:
        kind, _, part = found[0]
        started = Watch(chosen, kind.device(part), _facts(found), _split(found))
        started.add(found)
        started.start()
    except ConfigurationError:
        if started is not None:
            started.close()
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, training goes on without us
        log.warning(
            "overlapwatch could not start (%s: %s); training is not affected",
            type(error).__name__,
            error,
        )
        log.debug("the fault", exc_info=error)
        if started is not None:
            started.close()
        return NullWatch(chosen)
    _current = started
    return started


def _facts(found: list[tuple[Kind, str, Any]]) -> dict[str, str]:
    """Return the options that decide overlap, of every kind that was found."""
    told: dict[str, str] = {}
    for kind in KINDS:
        told |= kind.facts([part for one, _, part in found if one is kind])
    return told


def _split(found: list[tuple[Kind, str, Any]]) -> int | None:
    """Return over how many ranks a layer or a sequence is split, the most of any kind; None when that is not known."""
    known = [
        ranks
        for kind in KINDS
        if (ranks := kind.split([part for one, _, part in found if one is kind])) is not None
    ]
    return max(known, default=None)


def _why_not(model: Any) -> str:
    """Say in one sentence what the model is and what to do."""
    models = model if isinstance(model, (list, tuple)) else [model]
    odd = [one for one in models if not isinstance(one, torch.nn.Module)]
    if not models or odd:
        what = type(odd[0]).__name__ if odd else "an empty list"
        return f"watch() needs a torch.nn.Module, not {what}"
    group = (
        ""
        if dist.is_available() and dist.is_initialized()
        else (" after torch.distributed.init_process_group(), which has not been called yet either")
    )
    return (
        f"{type(models[0]).__name__} is wrapped neither by DistributedDataParallel nor by fully_shard() (FSDP2) nor by "
        "Megatron-Core: wrap the model first, as in model = DistributedDataParallel(model)"
        f"{group}, and pass the wrapped one"
    )

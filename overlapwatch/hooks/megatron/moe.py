"""Whose the exchanges of a mixture of experts are: dispatch or combine, of which layer.

In: the token dispatchers of the chunk's MoE layers. Out: claims for their collectives, forward and backward.

A dispatcher is no module; the methods that communicate are called through it, and were renamed in 0.13.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.megatron.owners import Claim, Owners
from overlapwatch.hooks.megatron.patches import Patches
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.vocabulary import NameKind

_METHODS = {
    "token_dispatch": "dispatch",
    "token_combine": "combine",
    "token_permutation": "dispatch",
    "token_unpermutation": "combine",
}


class Experts:
    """The token dispatchers of all chunks."""

    def __init__(self, recorder: Recorder, owners: Owners) -> None:
        self._recorder, self._owners = recorder, owners
        self._patches = Patches()

    def add(self, names: dict[torch.nn.Module, str]) -> None:
        """Watch the dispatchers of these modules."""
        for module, text in names.items():
            dispatcher = getattr(module, "token_dispatcher", None)
            if dispatcher is None or isinstance(dispatcher, torch.nn.Module):
                continue
            for method, word in _METHODS.items():
                owner = self._recorder.names.intern(NameKind.LAYER, f"{text}: {word}")
                self._patches.add(dispatcher, method, functools.partial(self._wrap, Claim(owner)))

    def remove(self) -> None:
        """Leave the dispatchers as they were."""
        self._patches.undo()

    def _wrap(self, claim: Claim, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, owners = self._recorder, self._owners

        @not_compiled
        def exchange(*args: Any, **options: Any) -> Any:
            if not recorder.recording:
                return original(*args, **options)
            try:
                owners.push(claim)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                recorder.guard.trip("exchange of experts", error)
            try:
                result = original(*args, **options)
            finally:
                owners.pop(claim)
            try:
                if torch.is_grad_enabled():
                    outputs = result if isinstance(result, tuple) else (result,)
                    owners.tag(claim, outputs, (*args, *options.values()))
            except Exception as error:  # noqa: BLE001
                recorder.guard.trip("exchange of experts", error)
            return result

        return exchange

"""Watches the model chunks of Megatron-Core in this process.

In: model chunks that Megatron wrapped. Out: an instrument that says whose the collectives of the process are (data,
tensor, sequence, context, pipeline and expert parallel) and when compute waited for them. The tap records them.

Of Megatron-FSDP the chunk's forward and backward are marked and its collectives are seen with their kind, group, size
and phase; which parameters each carries is not told. A model in Megatron's wrapper of PyTorch's FSDP2 is not watched
here: it holds FSDP2 modules, which are watched as such.
"""

from collections.abc import Mapping
from typing import Any

import torch

from overlapwatch.hooks.instrument import Context
from overlapwatch.hooks.knobs import Knob
from overlapwatch.hooks.megatron.chunk import WatchedChunk
from overlapwatch.hooks.megatron.detect import Chunk, Wrapper
from overlapwatch.hooks.megatron.knobs import Switches, is_tunable, megatron_knobs, switches_of
from overlapwatch.hooks.megatron.layers import Layers
from overlapwatch.hooks.megatron.moe import Experts
from overlapwatch.hooks.megatron.owners import Owners
from overlapwatch.hooks.megatron.pipeline import Pipeline
from overlapwatch.hooks.megatron.waits import Waits


class MegatronInstrument:
    """Watches all model chunks of the process."""

    def __init__(self, context: Context) -> None:
        recorder = context.recorder
        self._context = context
        self._owners, self._waits = Owners(recorder), Waits(recorder)
        self._chunks: list[WatchedChunk] = []
        self._switches: list[Switches] = []
        self._layers = Layers(recorder, self._owners, self._waits)
        self._experts = Experts(recorder, self._owners)
        self._pipeline = Pipeline(recorder, self._owners, self._waits)
        context.tap.claims.append(self._owners.claim)

    @property
    def count(self) -> int:
        """How many chunks are watched."""
        return len(self._chunks)

    def knows(self, part: Chunk) -> bool:
        """Whether this chunk is watched already."""
        return any(one.chunk.module is part.module for one in self._chunks)

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether an optimizer that steps this tensor steps a watched chunk."""
        return any(chunk.holds(parameter) for chunk in self._chunks)

    def add(self, part: Chunk, label: str) -> None:
        """Watch one more chunk."""
        self._context.tap.install()
        groups = sum(len(chunk.groups) for chunk in self._chunks)
        chunk = WatchedChunk(part, label, groups, self._context, self._owners, self._waits)
        self._chunks.append(chunk)
        if part.wrapper is Wrapper.FSDP:
            self._owners.of_backward = chunk.claim
        self._layers.add(chunk.names)
        self._experts.add(chunk.names)
        self._context.boundaries.forget_relevance()

    def knobs(self) -> Mapping[str, Knob]:
        """Return what can be changed while the job runs."""
        guard = self._context.recorder.guard
        known = {id(one.chunk) for one in self._switches}
        self._switches += [
            switches_of(chunk, lambda error: guard.trip("change of a setting", error))
            for chunk in self._chunks
            if is_tunable(chunk) and id(chunk) not in known
        ]
        return megatron_knobs(self._chunks, self._switches)

    def remove(self, *, at_exit: bool) -> None:  # noqa: ARG002 - everything can be taken out at any time
        """Leave the chunks and Megatron's modules as they were."""
        guard = self._context.recorder.guard
        parts: tuple[Any, ...] = (*self._chunks, self._experts, self._pipeline, self._layers)
        for part in reversed(parts):
            try:
                part.remove()
            except Exception as error:  # noqa: BLE001, PERF203 - the others still have to leave
                guard.trip("close", error)
        self._chunks.clear()

"""Says of each collective whose it is, while the dispatcher tap records it.

In: what the other modules of this folder push before Megatron communicates. Out: the `Claim` that the tap asks for.
Three places are looked at, nearest first:

    pushed on this thread    a bucket group, a pipeline exchange, the module whose forward is running
    the autograd node        in backward: the node that runs was tagged with its module when forward made it
    nothing                  the collective goes without an owner

A tag lies in the node's own `metadata` and goes with the graph. A forward that is computed again inside backward
(activation checkpointing) makes and tags nodes like the first one.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from overlapwatch.hooks.recorder import Recorder
from overlapwatch.vocabulary import CollectiveKind, Phase

_TAG = "overlapwatch"
_NODES = 256
"""More nodes than one of the tagged modules makes; a Mamba mixer, the longest, makes about a hundred."""

_PythonNode = torch.autograd.function.BackwardCFunction
_task = torch._C._current_graph_task_id  # noqa: SLF001 - whether, and in which backward, this thread is
_node = torch._C._current_autograd_node  # noqa: SLF001


def in_backward() -> bool:
    """Whether this thread runs a backward pass."""
    return bool(_task() != -1)


class Claim:
    """Whose a collective is, as the tap asks for it (see `hooks.c10d.Claimant`).

    Args:
        owner: id of a Name.
        own_stream: it is issued on a stream of its own.
        tells_finish: whoever pushed it calls `returned` when its synchronous calls have come back to the host.
        taken: called with (slot, launch ns) of each record.
    """

    __slots__ = ("cause", "flags", "own_stream", "owner", "taken", "tells_finish", "to_stamp")

    def __init__(
        self,
        owner: int,
        *,
        own_stream: bool = False,
        tells_finish: bool = False,
        taken: Callable[[int, int], None] | None = None,
    ) -> None:
        self.owner = owner
        self.cause = 0
        self.flags = 0
        self.own_stream = own_stream
        self.tells_finish = tells_finish
        self.taken = taken
        self.to_stamp: list[int] = []

    def meet(self, kind: CollectiveKind, first: Any) -> "Claim":  # noqa: ARG002 - those that look closer use them
        """Return who answers for the collective with this first argument."""
        return self

    def describe(self) -> tuple[int, int, int]:
        """Return (owner, cause, flags)."""
        return self.owner, self.cause, self.flags

    def take(self, slot: int, at: int) -> None:
        """It was launched, in this record, at this time."""
        if self.taken is not None:
            self.taken(slot, at)

    def untold(self, slot: int) -> None:
        """The backend does not tell when this synchronous call is over: its return will."""
        self.to_stamp.append(slot)

    def returned(self, recorder: Recorder) -> None:
        """The synchronous calls have returned: what they did is over."""
        for slot in self.to_stamp:
            recorder.times.mark(slot, "finish")
        self.to_stamp.clear()


class _Stack(threading.local):
    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.gathering = 0


class Owners:
    """The stack of claims of each thread, and the tags.

    Args:
        recorder: whose phase is that of the collectives.

    Attributes:
        of_backward: claims what nobody else does in a backward. For a wrapper that sends before its backward is seen to
            begin (Megatron-FSDP gathers as the first gradient arrives): what it sends then is backward's.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stack = _Stack()
        self.of_backward: Claim | None = None

    def claim(self, kind: CollectiveKind, group: Any, first: Any) -> Claim | None:  # noqa: ARG002 - the tap's
        """Return whose collective the one that is being recorded is; None when nobody knows."""
        owner = self.current
        if owner is not None:
            return owner.meet(kind, first)
        if self.of_backward is None or not in_backward():
            return None
        if self._recorder.phase == Phase.OTHER:
            self._recorder.phase = Phase.BACKWARD
        return self.of_backward

    @property
    def current(self) -> Claim | None:
        """Whose the next collective of this thread is; None when nobody knows."""
        claims = self._stack.claims
        if claims:
            return claims[-1]
        if _task() == -1:
            return None
        node: Any = _node()
        claim: Claim | None = None if node is None else node.metadata.get(_TAG)
        return claim

    @property
    def gathering(self) -> int:
        """Id of the parameters that a module of this thread is being given; 0 = none."""
        return self._stack.gathering

    @gathering.setter
    def gathering(self, owner: int) -> None:
        self._stack.gathering = owner

    def push(self, claim: Claim) -> None:
        """From now on this thread's collectives are this claim's."""
        self._stack.claims.append(claim)

    def pop(self, claim: Claim) -> None:
        """Take back what was pushed, and what an exception left above it."""
        claims = self._stack.claims
        for place in range(len(claims) - 1, -1, -1):
            if claims[place] is claim:
                del claims[place:]
                return

    def clear(self) -> None:
        """Forget what an exception left behind."""
        self._stack.claims.clear()

    def tag(self, claim: Claim, outputs: Iterable[Any], inputs: Iterable[Any]) -> None:
        """Tag the autograd nodes that made `outputs` out of `inputs`, except those that a module in it has tagged."""
        # Held until the end: an id is a node's only as long as its object lives.
        met = _nodes_of(inputs)
        seen = {id(node) for node in met}
        waiting = _nodes_of(outputs)
        for _ in range(_NODES):
            if not waiting:
                return
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            met.append(node)
            if isinstance(node, _PythonNode):  # nothing else communicates in its backward
                node.metadata.setdefault(_TAG, claim)
            waiting.extend(before for before, _ in node.next_functions if before is not None)


def _nodes_of(values: Iterable[Any]) -> list[Any]:
    return [
        value.grad_fn
        for value in values
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    ]

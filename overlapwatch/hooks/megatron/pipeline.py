"""Pipeline exchanges: activations sent on, gradients sent back, and how long a stage waited for its neighbours.

In: calls of Megatron's one communicating function, a method of `P2PCommunicator` from 0.14 on, before that a function
of its module. Out: claims for its sends and receives, each with its direction, and WAIT records.

Sent to the next stage and received from the one before: forward. Sent back and received from the next: backward. One
call may do all four; it receives from the stage before first. Where the call itself waits, the wait is the time from
the first launch to its return; where it returns handles (overlap_p2p_comm), each is watched.
"""

import sys
from collections.abc import Callable
from typing import Any

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.megatron.owners import Claim, Owners
from overlapwatch.hooks.megatron.patches import Patches
from overlapwatch.hooks.megatron.waits import Waits
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase

_MODULE = "megatron.core.pipeline_parallel.p2p_communication"
_SEND_RECV = CollectiveKind.SEND_RECV


class _Exchange(Claim):
    """The claim of one call: it looks at each send and receive for its direction, which decides the phase.

    What is received next is known by the order of the calls; `meet` is asked of each, in that order.
    """

    __slots__ = ("_backward", "_forward", "_receives", "_recorder", "_waits", "slot", "waiting")

    def __init__(
        self,
        owner: int,
        options: dict[str, Any],
        recorder: Recorder,
        waits: Waits,
        *,
        waiting: bool,
    ) -> None:
        super().__init__(owner, taken=self._took)
        self._recorder, self._waits = recorder, waits
        self._forward = options.get("tensor_send_next")
        self._backward = options.get("tensor_send_prev")
        self._receives = [
            phase
            for name, phase in (("recv_prev", Phase.FORWARD), ("recv_next", Phase.BACKWARD))
            if options.get(name)
        ]
        self.waiting = waiting
        self.slot = -1

    def meet(self, kind: CollectiveKind, first: Any) -> Claim:
        """Set the phase of what is about to be recorded."""
        if kind is _SEND_RECV:
            self._recorder.phase = self._phase_of(first[0])
        return self

    def _phase_of(self, tensor: Any) -> int:
        if not tensor.is_floating_point():  # shapes, told ahead where sequences vary in length
            return Phase.OTHER
        if self._forward is not None and tensor.data_ptr() == self._forward.data_ptr():
            return Phase.FORWARD
        if self._backward is not None and tensor.data_ptr() == self._backward.data_ptr():
            return Phase.BACKWARD
        return self._receives.pop(0) if self._receives else Phase.OTHER

    def _took(self, _slot: int, _at: int) -> None:
        if self.waiting and self.slot < 0:
            self.slot = self._waits.begin(self.owner, _SEND_RECV)


class Pipeline:
    """The process-wide replacement of the communicating function."""

    def __init__(self, recorder: Recorder, owners: Owners, waits: Waits) -> None:
        self._recorder, self._owners, self._waits = recorder, owners, waits
        self._owner = recorder.names.intern(NameKind.LAYER, "pipeline")
        self._patches = Patches()
        module = sys.modules.get(_MODULE)
        communicator = getattr(module, "P2PCommunicator", None)
        self._patches.add(communicator or module, "_communicate", self._wrap)

    def remove(self) -> None:
        """Put the function back."""
        self._patches.undo()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, owners = self._recorder, self._owners

        @not_compiled
        def _communicate(*args: Any, **options: Any) -> Any:
            if not recorder.recording:
                return original(*args, **options)
            phase = recorder.phase
            exchange: _Exchange | None = None
            waiting = bool(options.get("wait_on_reqs", True))
            try:
                exchange = _Exchange(self._owner, options, recorder, self._waits, waiting=waiting)
                owners.push(exchange)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                recorder.guard.trip("pipeline exchange", error)
            try:
                result = original(*args, **options)
            finally:
                if exchange is not None:
                    owners.pop(exchange)
                    self._waits.guarded_end(exchange.slot)
                recorder.phase = phase
            return result if waiting else self._with_watched_handles(result)

        return _communicate

    def _with_watched_handles(self, result: Any) -> Any:
        try:
            *tensors, requests = result
            if isinstance(requests, dict):
                watched: Any = {
                    name: self._waits.watch(handle, self._owner, _SEND_RECV, _DIRECTION.get(name))
                    for name, handle in requests.items()
                }
            elif isinstance(requests, list):
                watched = [self._waits.watch(one, self._owner, _SEND_RECV) for one in requests]
            else:
                return result
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("pipeline exchange", error)
            return result
        return (*tensors, watched)


_DIRECTION = {
    "send_next": int(Phase.FORWARD),
    "recv_prev": int(Phase.FORWARD),
    "send_prev": int(Phase.BACKWARD),
    "recv_next": int(Phase.BACKWARD),
}

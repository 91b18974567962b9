"""One parameter group of FSDP2 from gather to reshard: its collectives' labels, waits, copies, and how long it is held.

In: calls of the group's communicators and of `post_backward`, copies, and where compute arrives (from `fsdp2`). Out:
WAIT, COPY and HELD records, and claims on the collectives that the tap sees. The life of a group in one use, and who
tells it:

    buffer allocated       communicator      HELD begins
    copy-in                copy tap          COPY
    all-gather launched    communicator,     COLLECTIVE; the one whose pre-forward or pre-backward is running is the
                           then the tap      cause, unless that is the module itself
    compute arrives        module hook       WAIT begins; before the all-gather when that is on demand
    all-gather waited for  copy tap          WAIT ends: where the copy-out begins, or when the all-gather was back
    copy-out               copy tap          COPY
    resharded              module hook,      HELD ends
                           `post_backward`
    gradients complete     `post_backward`   a reduce-scatter's ready; on a device a WAIT for the one before it
    reduced                communicator,     COLLECTIVE; with HSDP the all-reduce too
                           then the tap

On the host a synchronous all-gather was back when its communicator returned; one that was asynchronous is known to be
over where the copy-out begins, and its own finish, stamped later, is bounded by that (`FinishBound`). On a device all
of these are events on the stream where it happens.
"""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.fsdp2_layout import Group
from overlapwatch.hooks.recorder import FinishBound, Recorder, log
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase, RecordFlag, RecordKind

_GATHER, _SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_PREFETCHED = int(RecordFlag.PREFETCHED)
_ESTIMATED = int(RecordFlag.FINISH_ESTIMATED)
_FAILED = int(RecordFlag.FAILED)


class Stage:
    """What the groups share: who is at work right now.

    Attributes:
        fetching: ids of the modules whose pre-forward or pre-backward is running, innermost last.
        compute_stream: number of the stream on which compute arrived last.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.fetching: list[int] = []
        self.compute_stream = 0
        self.by_hand = recorder.names.intern(NameKind.OPERATION, "unshard()")
        self.expected: Share | None = None
        self.thread = 0
        self.gathering: WatchedGroup | None = None  # the last one for which a buffer was allocated
        self.reducing: WatchedGroup | None = None  # whose post_backward is running
        self.buffers: dict[int, WatchedGroup] = {}  # address of an all-gather's output
        self.told_of_unseen = False

    @property
    def spans(self) -> bool:
        """Whether waits, copies and what is held are recorded."""
        return self.recorder.recording and self.recorder.times.within_phases

    def claim(self, kind: CollectiveKind, group: Any, _tensors: Any) -> "Share | None":
        """Return whose collective this is: the tap asks for each one."""
        expected = self.expected
        if expected is None and self.reducing is not None and kind is CollectiveKind.ALL_REDUCE:
            expected = self.reducing.all_reduce(group)
        return expected if expected is not None and self.thread == get_ident() else None

    def cause_of(self, owner: int) -> int:
        """Return who prefetches: the module at work, or the user by hand; 0 when the owner itself is at work."""
        if not self.fetching:
            return self.by_hand
        return 0 if self.fetching[-1] == owner else self.fetching[-1]

    def forget_unused_buffers(self) -> None:
        """Forget where the all-gathers went that nobody will use."""
        self.buffers = {at: group for at, group in self.buffers.items() if group.pending}

    # -- copies ------------------------------------------------------------------------------------------------

    def gather_copy_in(self, _args: tuple[Any, ...]) -> int:
        """Shards go into the buffer that was allocated last."""
        if self.gathering is None or not self.spans:
            return -1
        stream = self.recorder.times.current_stream()
        beside = stream if stream != self.compute_stream else 0
        return self._copy(_GATHER, self.gathering, beside)

    def gather_copy_out(self, args: tuple[Any, ...]) -> int:
        """Parameters come out of a buffer: compute has waited for its all-gather."""
        group = self.buffers.pop(args[0].data_ptr(), None)
        if group is None:
            return -1
        group.usable()
        return self._copy(_GATHER, group, 0) if self.spans else -1

    def scatter_copy_in(self, _args: tuple[Any, ...]) -> int:
        """Gradients go into the buffer of the group whose post_backward is running."""
        if self.reducing is None:
            return -1
        self.reducing.stop_waiting_to_reduce()
        return self._copy(_SCATTER, self.reducing, 0) if self.spans else -1

    def _copy(self, kind: CollectiveKind, group: "WatchedGroup", stream: int) -> int:
        recorder = self.recorder
        return recorder.begin(
            RecordKind.COPY, recorder.phase, group.group.owner, kind, stream=stream
        )


class Share:
    """A group's collectives of one kind: the tap's claimant, and the listener of that communicator."""

    def __init__(self, group: "WatchedGroup", stage: Stage, kind: CollectiveKind) -> None:
        self._group, self._stage, self._kind = group, stage, kind
        self._recorder = stage.recorder
        self.own_stream = False
        self.tells_finish = self._on_host = stage.recorder.times.on_host
        self.cause = 0
        self.slot = -1  # the record of the last one
        self._untold: list[int] = []

    # -- for the tap -------------------------------------------------------------------------------------------

    def describe(self) -> tuple[int, int, int]:
        """Return (owner, cause, flags)."""
        return self._group.group.owner, self.cause, _PREFETCHED if self.cause else 0

    def take(self, slot: int, at: int) -> None:  # noqa: ARG002 - the protocol's
        """It is in this record."""
        self.slot = slot
        if self._kind is _SCATTER and self._group.ready_at:
            self._recorder.ring.stamp(slot, "ready", self._group.ready_at)

    def untold(self, slot: int) -> None:
        """Its finish is the return of the call."""
        self._untold.append(slot)

    # -- for the communicator ----------------------------------------------------------------------------------

    @not_compiled
    def allocated(self, tensor: Any) -> None:
        """An all-gather's output was allocated."""
        if self._kind is not _GATHER or not self._recorder.on:
            return
        try:
            self._group.allocated(tensor.data_ptr())
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 communicator", error)

    @not_compiled
    def call(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make the call with the tap expecting it."""
        if not self._recorder.on:
            return inner(*args, **kwargs)
        stage = self._stage
        self._prepare()
        try:
            result = inner(*args, **kwargs)
        except BaseException:
            stage.expected = None
            self._over(failed=True)
            raise
        stage.expected = None
        self._over(asynchronous=result is not None, inner=inner)
        return result

    def _prepare(self) -> None:
        try:
            stage = self._stage
            self.slot = -1
            self.cause = stage.cause_of(self._group.unit_owner) if self._kind is _GATHER else 0
            if not self._on_host:
                self.own_stream = self._recorder.times.current_stream() != stage.compute_stream
            stage.thread = get_ident()
            stage.expected = self
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 communicator", error)

    def _over(self, *, failed: bool = False, asynchronous: bool = False, inner: Any = None) -> None:
        try:
            at = self._recorder.now()
            for slot in self._untold:
                self._recorder.end_at(slot, at, _FAILED if failed else 0)
            self._untold.clear()
            if failed:
                return
            if self._kind is _GATHER:
                self._group.gathered(0 if asynchronous else at)
            if self.slot < 0 and self._recorder.recording:
                self._tell_of_unseen(inner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 communicator", error)

    def _tell_of_unseen(self, inner: Any) -> None:
        if self._stage.told_of_unseen or torch.is_inference_mode_enabled():
            return
        self._stage.told_of_unseen = True
        log.warning(
            "the FSDP2 communicator %s sends nothing that PyTorch dispatches as a collective: its communication is "
            "not seen, and missing from every number",
            type(inner).__name__,
        )


class WatchedGroup:
    """One parameter group."""

    def __init__(self, group: Group, unit_owner: int, stage: Stage) -> None:
        self.group, self.unit_owner = group, unit_owner
        self._stage = stage
        self._recorder = stage.recorder
        self._on_host = stage.recorder.times.on_host
        self.gather = Share(self, stage, _GATHER)
        self.scatter = Share(self, stage, _SCATTER)
        self._reduce = Share(self, stage, CollectiveKind.ALL_REDUCE)
        self.ready_at = 0
        self.pending = False  # gathered, or about to be, and not copied out
        self._gathered_at = 0  # 0: not yet, as far as we know
        self._wait_slot = self._held_slot = self._reduce_wait_slot = -1
        self._wait_at = 0
        self._holds_part = False

    # -- parameters --------------------------------------------------------------------------------------------

    def allocated(self, address: int) -> None:
        """Memory for an all-gather was allocated there."""
        stage = self._stage
        stage.gathering = self
        stage.buffers[address] = self
        self.pending, self._gathered_at = True, 0
        self._hold(self.group.size)

    def gathered(self, back_at: int) -> None:
        """The all-gather was launched, and was back at `back_at` (host ns); 0: it is under way."""
        self._stage.gathering = None
        self._gathered_at = back_at

    def arrive(self, phase: Phase, at: int) -> None:
        """Compute is here and needs the parameters."""
        self._wait_slot = self._recorder.begin(
            RecordKind.WAIT, phase, self.group.owner, _GATHER, at=at
        )
        self._wait_at = at

    def usable(self) -> None:
        """The all-gather has been waited for."""
        self.pending = False
        if self._wait_slot < 0:
            return
        slot, self._wait_slot = self._wait_slot, -1
        recorder = self._recorder
        if not self._on_host:
            recorder.end(slot)
        elif self._gathered_at:
            recorder.end_at(slot, max(self._wait_at, self._gathered_at))
        else:
            now = recorder.now()
            recorder.end_at(slot, now)
            if self.gather.slot >= 0:
                recorder.finish_bounds.append(
                    FinishBound(recorder.step, self.gather.slot, slot, now)
                )

    def settled(self) -> None:
        """Compute goes on: where no copy-out was seen there was nothing to wait for, or it is over by now."""
        waited, self.pending = self.pending, self.pending and not self.group.unsharded
        if self._wait_slot < 0:
            return
        slot, self._wait_slot = self._wait_slot, -1
        if not self._on_host:
            self._recorder.end(slot)
        elif waited:
            self._recorder.end_at(slot, self._recorder.now(), _ESTIMATED)
        else:
            self._recorder.end_at(slot, self._wait_at)

    def _hold(self, size: int, *, part: bool = False) -> None:
        if self._held_slot >= 0:
            self._recorder.end(self._held_slot)
            self._held_slot = -1
        self._holds_part = part
        if self._stage.spans:
            recorder = self._recorder
            self._held_slot = recorder.begin(
                RecordKind.HELD, recorder.phase, self.group.owner, size=size
            )

    def release(self) -> None:
        """Look whether the parameters have been resharded."""
        if self._held_slot < 0 or self.pending or self.group.unsharded:
            return
        part = self.group.kept_part
        if not (part and self._holds_part):
            self._recorder.end(self._held_slot)
            self._held_slot = -1
            if part:
                self._hold(part, part=True)

    def backward_over(self) -> None:
        """What was prefetched and not used is gone."""
        self.pending = False
        self.settled()
        self.release()

    # -- gradients ---------------------------------------------------------------------------------------------

    def all_reduce(self, group: Any) -> Share | None:
        """Return the share of an all-reduce launched while this group reduces, if it is one of these gradients."""
        if group is self.group.replicas:
            return self._reduce
        hook = getattr(self.group.raw, "_all_reduce_hook", None)
        return self._reduce if hook is not None and self.group.replicas is None else None

    @not_compiled
    def post_backward(self, original: Callable[..., Any], *args: Any) -> Any:
        """Stands in front of the group's post_backward: its gradients are complete."""
        recorder, stage = self._recorder, self._stage
        if not recorder.on:
            return original(*args)
        before = stage.reducing
        try:
            stage.reducing, stage.thread = self, get_ident()
            self._reduce.own_stream = not self._on_host
            self.ready_at = recorder.now() if self._on_host else 0
            if not self._on_host and stage.spans and self.group.reduces:
                self._reduce_wait_slot = recorder.begin(
                    RecordKind.WAIT, Phase.BACKWARD, self.group.owner, _SCATTER
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            recorder.guard.trip("FSDP2 post_backward", error)
        try:
            return original(*args)
        finally:
            stage.reducing = before
            self.ready_at = 0
            self._reduced()

    def _reduced(self) -> None:
        try:
            if self._recorder.on:
                self.stop_waiting_to_reduce()
                self.release()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
            self._recorder.guard.trip("FSDP2 post_backward", error)

    def stop_waiting_to_reduce(self) -> None:
        """The buffer of an earlier reduce-scatter is free again."""
        if self._reduce_wait_slot >= 0:
            self._recorder.end(self._reduce_wait_slot)
            self._reduce_wait_slot = -1

"""Sees every eager collective of the process where PyTorch dispatches it, without being part of the arithmetic.

In: calls of `torch.ops.c10d.*` from Python or C++ (DDP's reducer included). Out: one COLLECTIVE record per call, with
launch, and finish where the backend offers a future. The call itself is passed on unchanged to the kernel below, so
results are bit-identical by construction, whatever the user's hooks, divisors or buffers are.

How: a kernel is registered for the `Autograd<Device>` key of each op, a public `torch.library` facility; the op's own
kernels live below that key. `remove()` takes it out again; nothing of it stays.

Not seen here: traced (functional) collectives, process groups that override their methods in Python, and collectives
issued by code that calls NCCL itself. Gloo has no future for reduce-scatter, send and receive: their finish is
unobservable and flagged so.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.held_groups import HeldGroups
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.hooks.times import Finish
from overlapwatch.vocabulary import CollectiveKind, NameKind, RecordFlag

Sizer = Callable[[tuple[Any, ...], int], int]
"""(positional arguments of the op, ranks in the group) -> logical bytes, by the table in docs/definitions.md."""


def _nbytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    if len(tensors) == 1:  # as a bucket comes
        return _nbytes(tensors[0])
    return sum(_nbytes(t) for t in tensors)


def _first(args: tuple[Any, ...], _ranks: int) -> int:
    return _nbytes(args[0])


def _second(args: tuple[Any, ...], _ranks: int) -> int:
    return _nbytes(args[1])


def _first_times_ranks(args: tuple[Any, ...], ranks: int) -> int:
    return _nbytes(args[0]) * ranks


def _larger(args: tuple[Any, ...], _ranks: int) -> int:
    return max(_nbytes(args[0]), _nbytes(args[1]))


def _second_times_ranks(args: tuple[Any, ...], ranks: int) -> int:
    return _nbytes(args[1]) * ranks


def _none(_args: tuple[Any, ...], _ranks: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Operation:
    """One op of the c10d library: its kind, where its process group stands, and how its bytes are counted."""

    name: str
    kind: CollectiveKind
    group_at: int
    size: Sizer


OPERATIONS = (
    Operation("allreduce_", CollectiveKind.ALL_REDUCE, 1, _first),
    Operation("allreduce_coalesced_", CollectiveKind.ALL_REDUCE, 1, _first),
    Operation("_allgather_base_", CollectiveKind.ALL_GATHER, 2, _first),
    Operation("allgather_", CollectiveKind.ALL_GATHER, 2, _first),
    Operation("allgather_coalesced_", CollectiveKind.ALL_GATHER, 2, _first),
    Operation("allgather_into_tensor_coalesced_", CollectiveKind.ALL_GATHER, 2, _first),
    Operation("_reduce_scatter_base_", CollectiveKind.REDUCE_SCATTER, 2, _second),
    Operation("reduce_scatter_", CollectiveKind.REDUCE_SCATTER, 2, _second),
    Operation("reduce_scatter_tensor_coalesced_", CollectiveKind.REDUCE_SCATTER, 2, _second),
    Operation("alltoall_", CollectiveKind.ALL_TO_ALL, 2, _larger),
    Operation("alltoall_base_", CollectiveKind.ALL_TO_ALL, 2, _larger),
    Operation("broadcast_", CollectiveKind.BROADCAST, 1, _first),
    Operation("reduce_", CollectiveKind.REDUCE, 1, _first),
    Operation("gather_", CollectiveKind.GATHER, 2, _second_times_ranks),
    Operation("scatter_", CollectiveKind.SCATTER, 2, _first_times_ranks),
    Operation("send", CollectiveKind.SEND_RECV, 1, _first),
    Operation("recv_", CollectiveKind.SEND_RECV, 1, _first),
    Operation("recv_any_source_", CollectiveKind.SEND_RECV, 1, _first),
    Operation("barrier", CollectiveKind.BARRIER, 1, _none),
)


@dataclass(slots=True)
class GroupFacts:
    """What the hot path needs of a process group."""

    id: int
    ranks: int
    sequence: int = 0


class Claimant(Protocol):
    """Whoever a collective belongs to.

    Attributes:
        own_stream: it is issued on a device stream of its own, so a synchronous call does not stop compute. False where
            it is issued on the compute stream, or on the host.
        tells_finish: it stamps the finish of a synchronous call itself where the backend cannot tell it (`untold`).
    """

    own_stream: bool
    tells_finish: bool

    def describe(self) -> tuple[int, int, int]:
        """Return (id of the owner's Name, id of the cause's or 0, RecordFlags)."""

    def take(self, slot: int, at: int) -> None:
        """It was launched, in this record, at this time."""

    def untold(self, slot: int) -> None:
        """The backend does not tell the finish of this synchronous call: `tells_finish` promised to."""


Claim = Callable[[CollectiveKind, Any, Any], "Claimant | None"]
"""(kind, process group, the op's first argument: a tensor or a list of them) -> whose it is, if anybody expects it."""


class CollectiveTap:
    """Installs and removes the kernels.

    Attributes:
        claims: asked, in order, for each collective, until one says whose it is.
        held: process groups kept until no thread of theirs will call us.
    """

    def __init__(self, recorder: Recorder, device_types: frozenset[str]) -> None:
        self._recorder = recorder
        self._device_type = min(device_types)
        self._keys = tuple(autograd_key(kind) for kind in sorted(device_types))
        self._groups: weakref.WeakKeyDictionary[Any, GroupFacts] = weakref.WeakKeyDictionary()
        self.held = HeldGroups(recorder.times.is_awaited)
        self.claims: list[Claim] = []  # the kernels below hold this very list
        self._library: torch.library.Library | None = None
        self._kernels = [
            (op.name, self._kernel(op)) for op in OPERATIONS if hasattr(torch.ops.c10d, op.name)
        ]

    def install(self) -> None:
        """Register the kernels (about 30 microseconds each). Does nothing when they are in."""
        if self._library is not None:
            return
        library = torch.library.Library("c10d", "IMPL")
        for name, kernel in self._kernels:
            for key in self._keys:
                library.impl(name, kernel, key, with_keyset=True)
        self._library = library

    def remove(self) -> None:
        """Take the kernels out: the dispatcher is as it was."""
        if self._library is not None:
            self._library._destroy()  # noqa: SLF001 - the only way to unregister before garbage collection
            self._library = None

    @property
    def installed(self) -> bool:
        """Whether the kernels are in the dispatcher."""
        return self._library is not None

    def facts(self, group: Any) -> GroupFacts:
        """Return what is known of a process group, naming it on first sight."""
        known = self._groups.get(group)
        if known is None:
            ranks = tuple(dist.get_process_group_ranks(group)) if dist.is_initialized() else ()
            text = getattr(group, "group_desc", "") or group.group_name
            text = "default" if text == "default_pg" else text
            known = GroupFacts(
                self._recorder.names.intern(NameKind.GROUP, text, ranks), max(len(ranks), 1)
            )
            self._groups[group] = known
            if self._recorder.times.on_host:
                self.held.hold(group)
            workers = _workers(group, self._device_type)
            if workers:
                self._recorder.group_workers[known.id] = workers
        return known

    def _kernel(self, operation: Operation) -> Callable[..., Any]:
        """Build the kernel of one op; everything it needs sits in its closure."""
        op = getattr(torch.ops.c10d, operation.name).default
        redispatch, below = op.redispatch, torch._C._after_autograd_keyset  # noqa: SLF001
        arguments = [argument.name for argument in op._schema.arguments]  # noqa: SLF001
        async_at = arguments.index("async_op") if "async_op" in arguments else 1 << 30
        recorder, kind, group_at, size_of = (
            self._recorder,
            operation.kind,
            operation.group_at,
            operation.size,
        )
        unbox_group, unbox_work = dist.ProcessGroup.unbox, dist.Work.unbox
        launch, guard, times, now = recorder.launch, recorder.guard, recorder.times, recorder.now
        point_to_point = kind is CollectiveKind.SEND_RECV
        # Groups with an open batch (batch_isend_irecv on a device): a work of it tells nothing yet.
        coalescing: Any = getattr(dist.distributed_c10d._world, "pg_coalesce_state", {})  # noqa: SLF001
        groups, facts_of, claims = self._groups, self.facts, self.claims
        # Plain integers: arithmetic with an IntFlag builds a new member, which costs more than the record.
        synchronously = int(RecordFlag.SYNCHRONOUS)
        unobservable, coming_in_time = int(RecordFlag.FINISH_UNOBSERVABLE), Finish.COMING
        blind: set[int] = (
            set()
        )  # groups whose backend has no future for this op: asking costs an exception each time

        @not_compiled
        def kernel(keyset: Any, *args: Any) -> Any:
            if not recorder.recording:
                return redispatch(keyset & below, *args)
            slot = -1
            try:
                group = unbox_group(args[group_at])
                facts = groups.get(group) or facts_of(group)
                sequence = 0
                if not point_to_point:
                    facts.sequence = sequence = facts.sequence + 1
                synchronous = len(args) > async_at and not args[async_at]
                owner = cause = flags = 0
                claimant, told = None, False
                for claim in claims:
                    claimant = claim(kind, group, args[0])
                    if claimant is not None:
                        owner, cause, flags = claimant.describe()
                        told = synchronous and claimant.tells_finish
                        break
                if synchronous and (claimant is None or not claimant.own_stream):
                    flags |= synchronously
                if facts.id in blind and not told:
                    flags |= unobservable
                at = now()
                slot = launch(
                    kind, owner, facts.id, sequence, size_of(args, facts.ranks), flags, at, cause
                )
                if claimant is not None:
                    claimant.take(slot, at)
                    if synchronous:
                        times.mark_start(slot)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                guard.trip(f"recording {operation.name}", error)
            result = redispatch(keyset & below, *args)
            if slot >= 0 and claimant is not None and told and facts.id in blind:
                claimant.untold(slot)
            elif slot >= 0 and facts.id not in blind:
                try:
                    work = result[1] if isinstance(result, tuple) else result
                    coming = Finish.NEVER
                    if point_to_point and not times.on_host and group in coalescing:
                        # It is only noted down; the batch is launched later.
                        coming = Finish.NOT_SEEN
                    elif work is not None:
                        coming = times.mark_finish(slot, unbox_work(work), synchronous=synchronous)
                    if coming is Finish.NEVER:
                        blind.add(facts.id)
                    if coming is not coming_in_time:
                        if claimant is not None and told:
                            claimant.untold(slot)
                        else:
                            recorder.unobservable(slot)
                except Exception as error:  # noqa: BLE001
                    guard.trip(f"following {operation.name}", error)
            return result

        return kernel


def _workers(group: Any, device_type: str) -> int:
    """Return how many collectives of a group run at a time: gloo's threads, one on a device's stream; 0 = not known."""
    try:
        backend = group._get_backend(torch.device(device_type))  # noqa: SLF001 - where its options are
        name = str(backend.name())
        threads = int(backend.options._threads) if name == "gloo" else 0  # noqa: SLF001
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return 0
    return threads if device_type == "cpu" else 1


def autograd_key(device_type: str) -> str:
    """Return the dispatch key behind which a device's own kernels live."""
    known = {
        "cpu": "AutogradCPU",
        "cuda": "AutogradCUDA",
        "xpu": "AutogradXPU",
        "hpu": "AutogradHPU",
    }
    return known.get(device_type, "AutogradPrivateUse1")

"""Each collective is seen where PyTorch dispatches it, with its kind, bytes and order, and goes on as if it were not."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from overlapwatch.hooks.c10d import OPERATIONS, CollectiveTap
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase, RecordFlag, RecordKind
from tests.hooks.conftest import Bench

# PyTorch 2.13 renames some of the functions; the older versions that we support do not have the new names.
pytestmark = [
    pytest.mark.usefixtures("group"),
    pytest.mark.filterwarnings("ignore:.* is deprecated. Please use:FutureWarning"),
]


@pytest.fixture
def tap(bench: Bench, group: None) -> Iterator[CollectiveTap]:
    tap = CollectiveTap(bench.recorder, frozenset({"cpu"}))
    tap.install()
    yield tap
    tap.remove()


def floats(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def coalesced() -> None:
    with dist._coalescing_manager(async_ops=False):
        dist.all_reduce(floats(2))
        dist.all_reduce(floats(3))


# One rank: a gather gathers one tensor. All of them count 4 float32, 16 bytes, unless said otherwise.
CALLS: dict[str, tuple[Callable[[], object], CollectiveKind, int]] = {
    "all_reduce": (lambda: dist.all_reduce(floats(4)), CollectiveKind.ALL_REDUCE, 16),
    "all_gather": (lambda: dist.all_gather([floats(4)], floats(4)), CollectiveKind.ALL_GATHER, 16),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(floats(4), floats(4)),
        CollectiveKind.ALL_GATHER,
        16,
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(floats(4), [floats(4)]),
        CollectiveKind.REDUCE_SCATTER,
        16,
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(floats(4), floats(4)),
        CollectiveKind.REDUCE_SCATTER,
        16,
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(floats(4), floats(4)),
        CollectiveKind.ALL_TO_ALL,
        16,
    ),
    "broadcast": (lambda: dist.broadcast(floats(4), 0), CollectiveKind.BROADCAST, 16),
    "reduce": (lambda: dist.reduce(floats(4), 0), CollectiveKind.REDUCE, 16),
    "gather": (lambda: dist.gather(floats(4), [floats(4)], 0), CollectiveKind.GATHER, 16),
    "scatter": (lambda: dist.scatter(floats(4), [floats(4)], 0), CollectiveKind.SCATTER, 16),
    "barrier": (dist.barrier, CollectiveKind.BARRIER, 0),
    "all_reduce_coalesced": (coalesced, CollectiveKind.ALL_REDUCE, 20),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_is_seen_with_its_kind_and_bytes(
    call: str, tap: CollectiveTap, bench: Bench
) -> None:
    make, kind, size = CALLS[call]
    bench.recorder.open_step(1)
    bench.recorder.phase = Phase.FORWARD
    make()
    records = bench.records(RecordKind.COLLECTIVE)
    assert set(records["collective"]) == {kind}
    assert records["bytes"].sum() == size
    assert set(records["phase"]) == {Phase.FORWARD}
    assert set(records["step"]) == {1}
    assert (records["launch"] > 0).all()
    seen = (records["finish"] > records["launch"]) | (
        records["flags"] & RecordFlag.FINISH_UNOBSERVABLE != 0
    )
    assert seen.all()
    assert bench.recorder.guard.tripped is None
    (named,) = [name for name in bench.names.take_new() if name.kind is NameKind.GROUP]
    assert (named.id, named.text, named.members) == (records["group"][0], "default", (0,))


def test_the_order_in_the_group_is_counted_and_waiting_calls_are_told_apart(
    tap: CollectiveTap, bench: Bench
) -> None:
    dist.all_reduce(floats(4))
    work = dist.all_reduce(floats(4), async_op=True)
    work.wait()
    dist.broadcast(floats(1), 0)
    other = dist.new_group([0], group_desc="tensor parallel")
    dist.all_reduce(floats(4), group=other)
    records = bench.records(RecordKind.COLLECTIVE)
    assert records["sequence"].tolist() == [1, 2, 3, 1]
    assert records["group"].tolist() == [1, 1, 1, 2]
    synchronous = records["flags"] & RecordFlag.SYNCHRONOUS != 0
    assert synchronous.tolist() == [True, False, True, True]
    assert bench.names.take_new()[-1].text == "tensor parallel"


def test_a_finish_that_the_backend_does_not_tell_is_flagged_from_the_first_one_on(
    tap: CollectiveTap, bench: Bench
) -> None:
    for _ in range(2):
        output = torch.empty(4)
        dist.reduce_scatter_tensor(output, floats(4))
        assert torch.equal(output, floats(4))
    flags = bench.records(RecordKind.COLLECTIVE)["flags"]
    assert (flags & RecordFlag.FINISH_UNOBSERVABLE != 0).all()


def test_results_and_errors_are_those_without_it(tap: CollectiveTap, bench: Bench) -> None:
    def attempts() -> list[str]:
        told = []
        for call in (
            lambda: dist.all_gather_into_tensor(floats(3), floats(4)),
            lambda: dist.all_reduce(floats(4).to_sparse().coalesce().to(torch.complex64)),
            lambda: dist.broadcast(floats(4), 7),
            lambda: dist.all_gather([floats(4).int()], floats(4)),
        ):
            try:
                call()
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
            else:
                told.append("no error")
        return told

    watched = attempts()
    tap.remove()
    assert watched == attempts()
    assert any("Error" in text for text in watched)
    assert bench.recorder.guard.tripped is None


def test_nothing_is_recorded_while_recording_is_off(tap: CollectiveTap, bench: Bench) -> None:
    bench.recorder.recording = False
    values = floats(4)
    dist.all_reduce(values)
    assert torch.equal(values, floats(4))
    assert len(bench.records()) == 0


def test_a_fault_of_ours_leaves_the_collective_alone(
    tap: CollectiveTap, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(group: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(bench.recorder.names, "intern", fault)
    values = floats(4)
    dist.all_reduce(values)
    assert torch.equal(values, floats(4))
    assert bench.recorder.guard.tripped is not None
    assert bench.recorder.guard.tripped.startswith("recording allreduce_: ")
    dist.all_reduce(values)
    assert len(bench.records()) == 0


class Expecting:
    """Claims whatever it is asked for."""

    def __init__(self, *, own_stream: bool = False, tells_finish: bool = False) -> None:
        self.own_stream, self.tells_finish = own_stream, tells_finish
        self.taken: list[tuple[int, int]] = []
        self.told_by_nobody: list[int] = []

    def untold(self, slot: int) -> None:
        self.told_by_nobody.append(slot)

    def describe(self) -> tuple[int, int, int]:
        return 9, 7, int(RecordFlag.PREFETCHED)

    def take(self, slot: int, at: int) -> None:
        self.taken.append((slot, at))


def test_each_collective_is_offered_until_somebody_claims_it(
    tap: CollectiveTap, bench: Bench
) -> None:
    expecting = Expecting()
    offered: list[tuple[str, CollectiveKind]] = []

    def first(kind: CollectiveKind, group: object, tensors: list[torch.Tensor]) -> Expecting | None:
        assert group is dist.group.WORLD
        offered.append(("first", kind))
        return expecting if tensors[0].numel() == 4 else None

    def second(kind: CollectiveKind, _group: object, _tensors: object) -> None:
        offered.append(("second", kind))

    tap.claims += [first, second]
    dist.broadcast(floats(3), 0)
    dist.all_reduce(floats(4))
    assert offered == [
        ("first", CollectiveKind.BROADCAST),
        ("second", CollectiveKind.BROADCAST),
        ("first", CollectiveKind.ALL_REDUCE),
    ]
    records = bench.records(RecordKind.COLLECTIVE)
    assert records["owner"].tolist() == [0, 9]
    assert records["cause"].tolist() == [0, 7]
    assert expecting.taken == [(1, records["launch"][1])]
    flags = RecordFlag.PREFETCHED | RecordFlag.SYNCHRONOUS
    assert records["flags"].tolist() == [RecordFlag.SYNCHRONOUS, flags]


def test_whoever_claims_a_collective_may_know_more_than_the_backend(
    tap: CollectiveTap, bench: Bench
) -> None:
    beside = Expecting(own_stream=True)
    tells = Expecting(tells_finish=True)
    for expecting in (beside, tells, tells):
        tap.claims[:] = [lambda *_, one=expecting: one]  # type: ignore[misc]
        dist.reduce_scatter_tensor(torch.empty(4), floats(4))
    flags = bench.records(RecordKind.COLLECTIVE)["flags"]
    assert [bool(f & RecordFlag.SYNCHRONOUS) for f in flags] == [False, True, True]
    assert [bool(f & RecordFlag.FINISH_UNOBSERVABLE) for f in flags] == [True, False, False]
    work = dist.reduce_scatter_tensor(torch.empty(4), floats(4), async_op=True)
    work.wait()
    flags = bench.records(RecordKind.COLLECTIVE)["flags"]
    assert flags[-1] & RecordFlag.FINISH_UNOBSERVABLE, "only of a synchronous call"
    assert tells.told_by_nobody == [1, 2]
    assert beside.told_by_nobody == []


def test_the_dispatcher_is_left_as_it_was(bench: Bench) -> None:
    def kernels() -> list[str]:
        return [
            torch._C._dispatch_dump(f"c10d::{op.name}")
            for op in OPERATIONS
            if hasattr(torch.ops.c10d, op.name)
        ]

    before = kernels()
    tap = CollectiveTap(bench.recorder, frozenset({"cpu"}))
    assert kernels() == before
    for _ in range(2):
        tap.install()
        tap.install()  # it is in
        assert tap.installed
        assert kernels() != before
        tap.remove()
        tap.remove()
        assert not tap.installed
        assert kernels() == before


def test_every_operation_exists_and_is_understood() -> None:
    for operation in OPERATIONS:
        if not hasattr(torch.ops.c10d, operation.name):
            continue
        arguments = getattr(torch.ops.c10d, operation.name).default._schema.arguments
        assert arguments[operation.group_at].name == "process_group", operation.name

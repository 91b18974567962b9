"""Hooks of the user, wrapped: what DDP and the user see of it, and how it is undone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.ddp import DdpInstrument, DdpModule
from overlapwatch.hooks.ddp_comm_hook import CommHookMode, LaterHooks, lend_bucket
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.vocabulary import CollectiveKind, RecordFlag, RecordKind
from tests.hooks.conftest import Bench
from tests.support.training import SMALL_BUCKETS_MB, WIDTH, Net

Future = torch.futures.Future[torch.Tensor]


@pytest.fixture
def instrument(bench: Bench, group: None) -> Iterator[DdpInstrument]:
    boundaries = StepBoundaries(bench.recorder, lambda _parameter: True)
    instrument = DdpInstrument(bench.recorder, boundaries)
    yield instrument
    instrument.remove()
    boundaries.remove()


def module_of(instrument: DdpInstrument, **settings: Any) -> DdpModule:
    return instrument.add(
        DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, **settings), ""
    )


def train(ddp: DistributedDataParallel, steps: int = 3) -> None:
    for _ in range(steps):
        ddp(torch.ones(2, WIDTH)).sum().backward()


def comm_hook_name(ddp: DistributedDataParallel) -> str:
    return ddp._get_ddp_logging_data().get("comm_hook", "")


def both(module: DdpModule, bench: Bench, mode: str) -> LaterHooks | CommHookMode:
    return (
        LaterHooks(module, bench.recorder)
        if mode == "passive"
        else CommHookMode(module, bench.recorder, 1)
    )


def test_a_lent_hook_is_the_users_own_in_every_respect(
    instrument: DdpInstrument, bench: Bench
) -> None:
    module = module_of(instrument)

    def hook(state: list[Any], bucket: dist.GradBucket) -> Future:
        """What the user wrote."""
        state.append((bucket, module.in_hook))
        raise LookupError("the user's")

    lent = lend_bucket(module, bench.recorder, hook)
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(lent, attribute) == getattr(hook, attribute)
    DistributedDataParallel._check_comm_hook(module.ddp, lent)
    seen: list[Any] = []
    odd = (torch.ones(1), torch.ones(1))  # what the Python reducer hands over: nothing of ours
    with pytest.raises(LookupError, match="the user's"):
        lent(seen, odd)
    assert seen == [(odd, False)]


@pytest.mark.parametrize("mode", ["passive", "hook"])
def test_a_hook_registered_later_looks_to_ddp_as_registered(
    mode: str, instrument: DdpInstrument, bench: Bench
) -> None:
    plain = DistributedDataParallel(Net())
    plain.register_comm_hook(None, default_hooks.fp16_compress_hook)
    module = module_of(instrument)
    handle = both(module, bench, mode)
    module.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    assert module.ddp._comm_hooks == plain._comm_hooks
    train(plain)
    train(module.ddp)
    assert comm_hook_name(module.ddp) == comm_hook_name(plain) == "fp16_compress_hook"
    handle.remove()
    assert module.ddp._comm_hooks == plain._comm_hooks
    assert "register_comm_hook" not in vars(module.ddp)
    train(module.ddp)


@pytest.mark.parametrize("mode", ["none", "passive", "hook"])
def test_ddp_refuses_what_it_refuses_in_its_own_words(
    mode: str, instrument: DdpInstrument, bench: Bench
) -> None:
    module = module_of(instrument)
    handle = both(module, bench, mode) if mode != "none" else None
    register = module.ddp.register_comm_hook

    def wrong(state: object, bucket: int) -> Future: ...

    with pytest.raises(TypeError, match="Communication hook must be callable"):
        register(None, 3)
    with pytest.raises(ValueError, match=r"bucket annotation should be dist\.GradBucket"):
        register(None, wrong)
    register(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError, match="can only be called once"):
        register(None, default_hooks.allreduce_hook)
    train(module.ddp)
    if handle is not None:
        handle.remove()


def test_hook_mode_records_each_bucket_from_call_to_future(
    instrument: DdpInstrument, bench: Bench
) -> None:
    module = module_of(instrument)
    mode = CommHookMode(module, bench.recorder, 5)
    bench.recorder.open_step(1)
    train(module.ddp)
    records = bench.records(RecordKind.COLLECTIVE)
    assert records["sequence"].tolist() == list(range(1, 10))  # 1 + 4 + 4 buckets
    assert set(records["group"]) == {5}
    assert set(records["collective"]) == {CollectiveKind.ALL_REDUCE}
    assert (records["finish"] > records["launch"]).all()
    assert (records["flags"] & RecordFlag.READY_ESTIMATED != 0).all()
    assert records["owner"][-4:].tolist() == [bucket.id for bucket in module.layout.buckets]
    bench.recorder.recording = False
    train(module.ddp, 1)
    assert len(bench.records(RecordKind.COLLECTIVE)) == 9
    mode.remove()


def test_a_hook_of_unknown_making_is_not_called_an_all_reduce(
    instrument: DdpInstrument, bench: Bench
) -> None:
    def own(state: object, bucket: dist.GradBucket) -> Future:
        future: Future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    module = module_of(instrument)
    module.ddp.register_comm_hook(None, own)
    mode = CommHookMode(module, bench.recorder, 1)
    train(module.ddp)
    assert set(bench.records(RecordKind.COLLECTIVE)["collective"]) == {CollectiveKind.UNKNOWN}
    mode.remove()


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_what_cannot_be_kept_to_the_bit_is_refused(
    ranks: int, instrument: DdpInstrument, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda *_: ranks)
    module = module_of(instrument, gradient_as_bucket_view=True)
    if ranks in (2, 4):
        CommHookMode(module, bench.recorder, 1).remove()
        return
    with pytest.raises(ConfigurationError, match=f"{ranks} ranks .*mode='passive'"):
        CommHookMode(module, bench.recorder, 1)
    train(module.ddp)  # it was not touched


def test_a_built_in_hook_is_refused_before_and_given_way_to_after(
    instrument: DdpInstrument, bench: Bench
) -> None:
    before, after = module_of(instrument), module_of(instrument)
    before.ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    with pytest.raises(ConfigurationError, match=r"built-in communication hook .*ALLREDUCE"):
        CommHookMode(before, bench.recorder, 1)
    mode = CommHookMode(after, bench.recorder, 1)
    after.ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    assert bench.recorder.guard.tripped is not None
    assert "mode='passive'" in bench.recorder.guard.tripped
    train(after.ddp)
    mode.remove()  # it has left already: the user's hook must survive this
    train(after.ddp)
    assert "ALLREDUCE" in comm_hook_name(after.ddp)


def test_the_reducer_that_replaces_another_has_its_buckets_and_its_static_graph(
    instrument: DdpInstrument, bench: Bench
) -> None:
    net = Net(checkpointed="reentrant", again=True)  # only a static graph lets DDP reduce this
    module = instrument.add(
        DistributedDataParallel(net, bucket_cap_mb=SMALL_BUCKETS_MB, static_graph=True), ""
    )
    x = torch.ones(2, WIDTH, requires_grad=True)
    mode = CommHookMode(module, bench.recorder, 1)
    for _ in range(5):
        module.ddp(x).sum().backward()
    buckets = [bucket.size for bucket in module.layout.buckets]
    assert len(buckets) == 4
    mode.remove()
    sizes = module.ddp._get_ddp_logging_data()["bucket_sizes"]
    assert [int(size) for size in sizes.split(",")] == buckets
    for _ in range(3):
        module.ddp(x).sum().backward()
    assert module.ddp._get_ddp_logging_data()["static_graph"]

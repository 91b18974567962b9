"""FSDP2 models are found, told apart and left as they were; what is ours never reaches training."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.testing._internal.distributed.fake_pg import FakeStore

import overlapwatch
from overlapwatch import ConfigurationError
from overlapwatch.hooks import fsdp2_attach
from overlapwatch.hooks.c10d import CollectiveTap
from overlapwatch.hooks.fsdp2_attach import Fsdp2Attach, find_fsdp2
from overlapwatch.hooks.fsdp2_comm import stand_in
from overlapwatch.hooks.fsdp2_layout import groups_of
from overlapwatch.hooks.instrument import Context
from overlapwatch.hooks.nvtx import NullRanges
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.vocabulary import CollectiveKind, NameKind, RecordKind
from tests.hooks.conftest import Bench


@pytest.fixture
def pretended() -> Iterator[None]:
    """Two ranks, of which the other one is pretended."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def model_of(blocks: int = 2) -> Any:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(blocks)))
    for block in model:
        fully_shard(block)
    return fully_shard(model)


class Watched:
    """A model with the instrument on it."""

    def __init__(self, bench: Bench, model: Any) -> None:
        self.model, self.bench = model, bench
        self.tap = CollectiveTap(bench.recorder, frozenset({"cpu"}))
        self.boundaries = StepBoundaries(bench.recorder, lambda p: self.instrument.holds(p))  # noqa: PLW0108 - made on the next line
        self.instrument = Fsdp2Attach(Context(bench.recorder, self.boundaries, self.tap, "passive"))
        self.instrument.add(model, "")

    def step(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()

    def remove(self) -> None:
        self.instrument.remove(at_exit=False)
        self.tap.remove()
        self.boundaries.remove()


@pytest.fixture
def watched(bench: Bench, pretended: None) -> Iterator[Watched]:
    watched = Watched(bench, model_of())
    yield watched
    watched.remove()


# -- finding ---------------------------------------------------------------------------------------------------


def test_models_are_found_wherever_they_are_wrapped(pretended: None) -> None:
    whole, plain = model_of(), nn.Linear(2, 2)
    inside = nn.ModuleDict({"plain": plain, "wrapped": model_of(1)})
    assert find_fsdp2(whole) == [("", whole)]
    assert find_fsdp2(inside) == [("", inside)]
    assert find_fsdp2([plain, whole, inside]) == [("1", whole), ("2", inside)]
    assert find_fsdp2(plain) == find_fsdp2([]) == find_fsdp2(None) == []


def test_what_cannot_be_watched_is_said_in_one_sentence(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullyShardedDataParallel(nn.Module):
        """FSDP1 needs an accelerator to be built: the name is what counts."""

    model = model_of()
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (nn.Linear(2, 2), {}, "Linear is wrapped neither by DistributedDataParallel nor by"),
        (
            FullyShardedDataParallel(),
            {},
            "wrapped by FSDP1 (FullyShardedDataParallel), which cannot",
        ),
        (
            nn.Sequential(FullyShardedDataParallel()),
            {},
            "torch.distributed.fsdp.fully_shard() instead",
        ),
        (model, {"mode": "hook"}, "mode='hook' is a communication hook of DDP"),
    ]
    for what, settings, sentence in cases:
        with pytest.raises(ConfigurationError) as refused:
            overlapwatch.watch(what, sinks="none", **settings)
        assert sentence in str(refused.value)
        assert "\n" not in str(refused.value)
    monkeypatch.setattr(torch, "__version__", "2.8.0+cpu")
    with pytest.raises(ConfigurationError, match=r"needs PyTorch 2\.9 or newer.*this is 2\.8\.0"):
        overlapwatch.watch(model, sinks="none")
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    assert fsdp2_attach.why_not(model) == ""
    assert overlapwatch.hooks.installed() == []


def test_names_are_those_of_the_modules_and_their_unsharded_parameters(
    watched: Watched, bench: Bench
) -> None:
    names = {name.text: name for name in bench.names.take_new()}
    assert {"Sequential", "0", "1", "0.weight", "0.bias", "unshard()"} <= set(names)
    block = names["0"]
    assert (block.kind, block.elements, block.bytes, block.dtype) == (
        NameKind.MODULE,
        20,
        80,
        "float32",
    )
    assert block.members == (names["0.weight"].id, names["0.bias"].id)
    assert names["unshard()"].kind is NameKind.OPERATION


def test_an_optimizer_of_the_model_counts_also_after_its_parameters_were_moved(
    watched: Watched,
) -> None:
    model = watched.model
    assert all(watched.instrument.holds(p) for p in model.parameters())
    model.to(torch.float64).to(torch.float32)
    watched.step()
    assert all(watched.instrument.holds(p) for p in model.parameters())
    assert not watched.instrument.holds(torch.ones(1))


def test_the_same_module_in_two_models_is_watched_once(watched: Watched, bench: Bench) -> None:
    watched.instrument.add(watched.model[0], "first")
    assert watched.instrument.count == 2
    assert watched.instrument.knows(watched.model[0])
    watched.step()
    gathers = bench.records(RecordKind.COLLECTIVE)
    assert (gathers["collective"] == CollectiveKind.ALL_GATHER).sum() == 4
    forward = [r for r in bench.records(RecordKind.PHASE) if r["phase"] == 1]
    assert len(forward) == 1, "the inner model's forward is inside the outer's"


# -- communicators ---------------------------------------------------------------------------------------------


class Told:
    """Remembers what a stand-in told it."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self.calls = 0

    def allocated(self, tensor: Any) -> None:
        self.buffers.append(tensor)

    def call(self, inner: Any, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        return inner(*args, **kwargs)


class Slotted(DefaultAllGather):
    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 3

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.size, args, kwargs


class Final:
    """Duck-typed, and nothing can be derived from it."""

    def __init_subclass__(cls) -> None:
        raise TypeError("final")

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 3, args, kwargs


@pytest.mark.parametrize("kind", [Slotted, Final])
def test_a_stand_in_is_like_what_it_stands_for(kind: Any) -> None:
    inner, told = kind(), Told()
    outer = stand_in(inner, told)
    assert isinstance(outer, DefaultAllGather) == isinstance(inner, DefaultAllGather)
    assert type(outer).__name__ == kind.__name__
    assert outer(1, group=2) == (3, (1,), {"group": 2})
    buffer = outer.allocate((4,), dtype=torch.float32, device=torch.device("cpu"))
    assert told.buffers[0] is buffer
    assert told.calls == 1
    if kind is Slotted:
        assert outer.size == 3
    outer.noted = True
    assert inner.noted, "they share their attributes"


def test_what_the_user_set_meanwhile_is_watched_and_stays(watched: Watched, bench: Bench) -> None:
    block = watched.model[0]
    (raw,) = groups_of(block._get_fsdp_state())
    own = DefaultAllGather()
    block.set_custom_all_gather(own)
    watched.step()
    assert raw._all_gather_comm is not own
    owners = bench.records(RecordKind.COLLECTIVE)["owner"]
    assert (owners > 0).all()
    watched.instrument.remove(at_exit=False)
    assert raw._all_gather_comm is own


def test_who_stands_in_front_of_us_stays_when_we_leave(watched: Watched) -> None:
    state = watched.model._get_fsdp_state()
    ours, calls = state._pre_backward, []

    def theirs(*args: Any) -> Any:
        calls.append(args)
        return ours(*args)

    state._pre_backward = theirs
    watched.instrument.remove(at_exit=False)
    assert vars(state)["_pre_backward"] is theirs
    watched.step()
    assert len(calls) == 1


def test_a_communicator_that_cannot_be_seen_is_told_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(DefaultAllGather):
        def __call__(self, output_tensor: Tensor, *_args: Any, **_kwargs: Any) -> None:
            output_tensor.zero_()

    for block in watched.model:
        block.set_custom_all_gather(Silent())
    watched.step()
    watched.step()
    (said,) = caplog.messages
    assert "communicator Silent sends nothing that PyTorch dispatches" in said


def test_an_error_of_the_users_communicator_is_the_users(watched: Watched, bench: Bench) -> None:
    class Failing(DefaultAllGather):
        def __call__(self, *_args: Any, **_kwargs: Any) -> None:
            raise ValueError("no link")

    watched.model[1].set_custom_all_gather(Failing())
    with pytest.raises(ValueError, match="no link"):
        watched.step()
    assert bench.recorder.guard.tripped is None
    watched.model[1].set_custom_all_gather(DefaultAllGather())
    if hasattr(FSDPModule, "reset_iter_state"):
        watched.model.reset_iter_state()
        watched.step()
        assert bench.recorder.guard.tripped is None


# -- our own faults --------------------------------------------------------------------------------------------

FAULTS = (
    "overlapwatch.hooks.fsdp2.Fsdp2Instrument.forward_begins",
    "overlapwatch.hooks.fsdp2.Fsdp2Instrument.forward_ends",
    "overlapwatch.hooks.fsdp2.Fsdp2Instrument.backward_begins",
    "overlapwatch.hooks.fsdp2.Fsdp2Instrument._will_reduce",
    "overlapwatch.hooks.fsdp2_unit.WatchedUnit._arrive",
    "overlapwatch.hooks.fsdp2_unit.WatchedUnit.backward_over",
    "overlapwatch.hooks.fsdp2_groups.WatchedGroup.allocated",
    "overlapwatch.hooks.fsdp2_groups.WatchedGroup.gathered",
    "overlapwatch.hooks.fsdp2_groups.WatchedGroup.usable",
    "overlapwatch.hooks.fsdp2_groups.WatchedGroup.settled",
    "overlapwatch.hooks.fsdp2_groups.WatchedGroup.release",
    "overlapwatch.hooks.fsdp2_groups.WatchedGroup.stop_waiting_to_reduce",
    "overlapwatch.hooks.fsdp2_groups.Stage.cause_of",
    "overlapwatch.hooks.fsdp2_groups.Share.describe",
    "overlapwatch.hooks.fsdp2_groups.Stage._copy",
    "overlapwatch.hooks.fsdp2_groups.Share.take",
)


@pytest.mark.parametrize("where", FAULTS)
def test_a_fault_of_ours_is_one_warning_and_training_goes_on(
    where: str, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_args: Any, **_kwargs: Any) -> None:
        raise ZeroDivisionError("ours")

    watched.step()
    monkeypatch.setattr(where, fault)
    for _ in range(2):
        watched.step()
    (said,) = caplog.messages
    assert "turned itself off" in said
    assert "ZeroDivisionError: ours" in said
    assert all(p.grad is not None for p in watched.model.parameters())


def test_a_pytorch_without_what_we_need_is_not_watched(bench: Bench, pretended: None) -> None:
    model = model_of()
    model._get_fsdp_state()._modules = ()  # what an unknown version might look like
    del model._get_fsdp_state()._modules
    boundaries = StepBoundaries(bench.recorder, lambda _: True)
    tap = CollectiveTap(bench.recorder, frozenset({"cpu"}))
    instrument = Fsdp2Attach(Context(bench.recorder, boundaries, tap, "passive"))
    try:
        with pytest.raises((RuntimeError, AttributeError), match="_modules"):
            instrument.add(model, "")
    finally:
        instrument.remove(at_exit=False)
        tap.remove()
        boundaries.remove()


def test_ranges_are_named_by_module_and_never_ready(bench: Bench, pretended: None) -> None:
    class Ranges(NullRanges):
        def __init__(self) -> None:
            super().__init__("")
            self.named: dict[int, str] = {}
            self.opened: list[tuple[int, str]] = []
            self.open = 0

        def name_module(self, owner: int, text: str, *_kinds: CollectiveKind) -> None:
            self.named[owner] = text

        def start(self, kind: int, owner: int) -> int:
            self.opened.append((kind, self.named.get(owner, "?")))
            self.open += 1
            return self.open

        def end(self, token: int) -> None:
            self.open -= bool(token)

    ranges = Ranges()
    bench.recorder.ranges = ranges
    bench.recorder.times.on_finish = bench.recorder.range_ended
    watched = Watched(bench, model_of())
    try:
        watched.step()
    finally:
        watched.remove()
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    assert ranges.opened[:3] == [(gather, "0"), (gather, "1"), (gather, "1")]
    assert (scatter, "0") in ranges.opened
    assert "Sequential" not in {text for _, text in ranges.opened}, (
        "it has no parameters of its own"
    )

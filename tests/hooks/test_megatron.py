"""Megatron's parts watched one by one, on stand-ins of their own size: no Megatron is needed here."""

import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from overlapwatch.hooks.c10d import CollectiveTap
from overlapwatch.hooks.ddp_attach import DDP
from overlapwatch.hooks.instrument import Context
from overlapwatch.hooks.megatron.bucket_groups import BucketGroup
from overlapwatch.hooks.megatron.detect import Wrapper, find_megatron
from overlapwatch.hooks.megatron.kind import MEGATRON
from overlapwatch.hooks.megatron.options import facts
from overlapwatch.hooks.megatron.owners import Claim, Owners
from overlapwatch.hooks.megatron.patches import Patch
from overlapwatch.hooks.megatron.pipeline import Pipeline
from overlapwatch.hooks.megatron.waits import Waits
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.vocabulary import (
    CollectiveKind,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)
from overlapwatch.watching import _split
from tests.hooks.conftest import Bench

DDP_MODULE = "megatron.core.distributed.distributed_data_parallel"
P2P_MODULE = "megatron.core.pipeline_parallel.p2p_communication"


# -- detection ---------------------------------------------------------------------------------


class FakeDdp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        self.bucket_groups = ["dense"]
        self.expert_parallel_bucket_groups = ["expert"]


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(DDP_MODULE)
    module.DistributedDataParallel = FakeDdp  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, DDP_MODULE, module)


def test_nothing_is_found_where_megatron_is_not_loaded() -> None:
    assert find_megatron([torch.nn.Linear(2, 2)]) == []


@pytest.mark.usefixtures("megatron")
def test_chunks_are_found_in_order_whatever_is_around_them() -> None:
    chunks = [FakeDdp(), torch.nn.Sequential(FakeDdp()), "no module", torch.nn.Linear(2, 2)]
    found = find_megatron(chunks)
    assert [one.number for one in found] == [0, 1]
    assert found[0].module is chunks[0]
    assert {one.wrapper for one in found} == {Wrapper.DDP}
    assert found[0].bucket_groups == ["dense", "expert"]
    assert len(find_megatron(chunks[0])) == 1


def test_no_import_of_ours_imports_megatron() -> None:
    code = (
        "import sys, overlapwatch.watching\n"
        "assert 'overlapwatch.hooks.megatron.kind' in sys.modules\n"
        "assert 'overlapwatch.hooks.megatron.instrument' not in sys.modules\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('megatron', 'transformer_engine')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


# -- patches -----------------------------------------------------------------------------------


class Target:
    def method(self) -> str:
        return "own"

    @staticmethod
    def static() -> str:
        return "static"


def test_a_patch_of_an_instance_leaves_no_attribute() -> None:
    target = Target()
    patch = Patch(target, "method", lambda original: lambda: original() + "!")
    assert target.method() == "own!"
    patch.undo()
    patch.undo()
    assert target.method() == "own"
    assert vars(target) == {}


def test_a_static_method_stays_one() -> None:
    before = vars(Target)["static"]
    patch = Patch(Target, "static", lambda original: lambda: original() + "!")
    assert Target.static() == Target().static() == "static!"
    patch.undo()
    assert vars(Target)["static"] is before


def test_a_later_patch_of_somebody_else_stays() -> None:
    target = Target()
    patch = Patch(target, "method", lambda original: lambda: original() + "!")
    theirs = lambda: "theirs"  # noqa: E731
    target.method = theirs  # type: ignore[method-assign]
    patch.undo()
    assert target.method is theirs


def test_what_is_not_there_is_not_patched() -> None:
    assert not Patch(Target(), "absent", lambda original: original).done


# -- owners ------------------------------------------------------------------------------------


class Reducing(torch.autograd.Function):
    """Asks in its backward who owns what it would send."""

    asked: ClassVar[list[Claim | None]] = []
    owners: Owners

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Reducing.asked.append(Reducing.owners.claim(CollectiveKind.ALL_REDUCE, None, None))
        return gradient * 2


def test_nodes_belong_to_the_innermost_module_that_made_them(bench: Bench) -> None:
    owners = Reducing.owners = Owners(bench.recorder)
    inner, outer = Claim(1), Claim(2)
    x = torch.ones(2, requires_grad=True)
    middle = Reducing.apply(x)
    owners.tag(inner, [middle], [x])
    end = Reducing.apply(middle) + 1
    owners.tag(outer, [end], [x])
    before = Reducing.apply(end)  # nobody's
    Reducing.asked.clear()
    before.sum().backward()
    assert Reducing.asked == [None, outer, inner]
    assert owners.current is None  # outside a backward


def test_tags_stop_at_the_inputs(bench: Bench) -> None:
    owners = Reducing.owners = Owners(bench.recorder)
    claim = Claim(1)
    x = torch.ones(2, requires_grad=True)
    given = Reducing.apply(x)
    owners.tag(claim, [Reducing.apply(given)], [given])
    Reducing.asked.clear()
    given.sum().backward()
    assert Reducing.asked == [None]


def test_a_module_owns_what_it_does_behind_a_module_in_it(bench: Bench) -> None:
    """As a Mamba mixer does: it exchanges, and its projection comes last."""
    owners = Reducing.owners = Owners(bench.recorder)
    inner, outer = Claim(1), Claim(2)
    x = torch.ones(2, requires_grad=True)
    given = Reducing.apply(x) * 2  # nobody's, and a node of C++ between
    exchanged = Reducing.apply(given)
    projected = Reducing.apply(exchanged)
    owners.tag(inner, [projected], [exchanged])
    owners.tag(outer, [projected], [given])
    Reducing.asked.clear()
    projected.sum().backward()
    assert Reducing.asked == [inner, outer, None]


def test_in_a_backward_that_nobody_announced_the_wrapper_answers(bench: Bench) -> None:
    owners = Reducing.owners = Owners(bench.recorder)
    owners.of_backward = Claim(3)
    bench.recorder.phase = Phase.OTHER
    assert owners.claim(CollectiveKind.ALL_GATHER, None, None) is None  # outside a backward
    assert bench.recorder.phase == Phase.OTHER
    Reducing.asked.clear()
    Reducing.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert Reducing.asked == [owners.of_backward]
    assert bench.recorder.phase == Phase.BACKWARD


def test_what_an_exception_left_on_the_stack_goes_with_what_was_below(bench: Bench) -> None:
    owners = Owners(bench.recorder)
    outer, inner = Claim(1), Claim(2)
    owners.push(outer)
    owners.push(inner)  # its forward raised
    owners.pop(outer)
    assert owners.current is None
    owners.pop(outer)  # not there: nothing happens
    owners.push(outer)
    owners.clear()
    assert owners.current is None


# -- bucket groups -----------------------------------------------------------------------------


@dataclass
class Config:
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = False
    use_distributed_optimizer: bool = False
    num_distributed_optimizer_instances: int = 1


@dataclass
class Bucket:
    params_list: list[torch.Tensor]
    grad_data: torch.Tensor = field(default_factory=lambda: torch.ones(6))
    param_data: torch.Tensor | None = None


class Group:
    """Does what Megatron's bucket group does, as far as the watch can tell."""

    def __init__(self, config: Config, parameters: list[torch.Tensor]) -> None:
        self.ddp_config = config
        self.buckets = [Bucket(parameters)]
        self.is_first_batch = False
        self.grad_reduce_handle: Any = None
        self.param_gather_handle: Any = None
        self.param_gather_dispatched = False
        self.calls: list[str] = []
        self.accumulating = False

    def register_grad_ready(self, parameter: torch.Tensor, force_all_reduce: bool = False) -> None:
        self.calls.append("ready")
        if parameter is self.buckets[0].params_list[-1] and not self.is_first_batch:
            self.start_grad_sync(force_all_reduce=force_all_reduce)

    def start_grad_sync(self, force_all_reduce: bool = False) -> None:
        self.calls.append("start")
        if self.is_first_batch and self.grad_reduce_handle is not None:
            return
        wait = (
            not self.ddp_config.overlap_grad_reduce
            or self.ddp_config.num_distributed_optimizer_instances > 1
        )
        work = dist.all_reduce(self.buckets[0].grad_data, async_op=not wait)
        self.grad_reduce_handle = work
        if self.accumulating:
            self.grad_reduce_handle = SimpleNamespace(all_to_all_handle=work, wait=work.wait)

    def finish_grad_sync(self, force_all_reduce: bool = False) -> str:
        self.calls.append("finish")
        if self.is_first_batch or not self.ddp_config.overlap_grad_reduce:
            self.start_grad_sync()
        if self.grad_reduce_handle is not None:
            inner = getattr(self.grad_reduce_handle, "all_to_all_handle", self.grad_reduce_handle)
            inner.wait()
            self.grad_reduce_handle = None
        return "done"


@dataclass
class Watched:
    bench: Bench
    group: Group
    bucket: BucketGroup
    parameters: list[torch.Tensor]
    tap: CollectiveTap

    def collectives(self) -> Any:
        return self.bench.records(RecordKind.COLLECTIVE)

    def waits(self) -> Any:
        return self.bench.records(RecordKind.WAIT)


@pytest.fixture
def watched(bench: Bench, group: None) -> Iterator[Any]:
    taps: list[CollectiveTap] = []

    def make(config: Config) -> Watched:
        parameters = [torch.ones(2, requires_grad=True) for _ in range(3)]
        ids = {
            p: bench.names.intern(NameKind.PARAMETER, f"p{number}")
            for number, p in enumerate(parameters)
        }
        owners = Owners(bench.recorder)
        tap = CollectiveTap(bench.recorder, frozenset({"cpu"}))
        tap.claims.append(owners.claim)
        tap.install()
        taps.append(tap)
        mine = Group(config, parameters)
        bucket = BucketGroup(
            mine,
            "bucket group 0",
            ids,
            0,
            bench.recorder,
            owners,
            Waits(bench.recorder),
            lambda: False,
        )
        return Watched(bench, mine, bucket, parameters, tap)

    yield make
    for tap in taps:
        tap.remove()


def test_a_life_of_a_bucket_group(watched: Any) -> None:
    one = watched(Config())
    for _ in range(2):  # two backwards: the last time counts
        for parameter in one.parameters[:-1]:
            one.group.register_grad_ready(parameter)
    one.group.register_grad_ready(one.parameters[-1])
    assert one.group.finish_grad_sync() == "done"
    (sent,) = one.collectives()
    (waited,) = one.waits()
    assert sent["owner"] == waited["owner"] == one.bucket.gradients
    assert sent["cause"] == list(one.bucket._ids.values())[-1]
    assert sent["phase"] == waited["phase"] == Phase.BACKWARD
    assert waited["collective"] == CollectiveKind.ALL_REDUCE
    assert sent["launch"] < waited["start"] < waited["finish"]
    (report,) = one.bench.recorder.backward_reports
    base = report.base_earliest_ns
    ready = [base + after for after in report.ready_after_ns]
    assert ready == sorted(ready)
    assert ready[-1] < sent["launch"]
    assert [launch for _, launch, _ in report.buckets] == [sent["launch"]]
    assert report.waited_until_ns > waited["finish"]
    assert one.bench.flags() == []


def test_a_second_launch_in_the_first_batch_is_none(watched: Any) -> None:
    one = watched(Config())
    one.group.is_first_batch = True
    one.group.start_grad_sync()  # the schedule launched it, as it does with aligned reductions
    handle = one.group.grad_reduce_handle
    one.group.finish_grad_sync()  # calls start_grad_sync again
    assert one.group.calls == ["start", "finish", "start"]
    assert len(one.collectives()) == len(one.waits()) == 1
    assert one.bench.flags() == []  # it was sent before the end
    assert handle.is_completed()  # what is not `wait` is the work's own


def test_the_first_batch_is_flagged_once(watched: Any) -> None:
    one = watched(Config())
    for _ in range(2):
        one.group.is_first_batch = True
        one.group.finish_grad_sync()
    assert one.bench.flags() == [(0, StepFlag.FIRST_BATCH)]


def test_without_overlap_the_launch_waits(watched: Any) -> None:
    one = watched(Config(overlap_grad_reduce=False))
    one.group.finish_grad_sync()
    (sent,) = one.collectives()
    (waited,) = one.waits()
    assert sent["flags"] & RecordFlag.SYNCHRONOUS
    assert waited["start"] > sent["launch"]
    assert waited["finish"] >= sent["finish"] > 0
    assert sent["cause"] == 0  # nobody was told which gradient came last
    assert one.bench.flags() == []


def test_several_optimizer_instances_keep_no_handle(watched: Any) -> None:
    one = watched(Config(num_distributed_optimizer_instances=2))
    one.group.start_grad_sync()
    assert not one.collectives()["flags"][0] & RecordFlag.SYNCHRONOUS  # on a stream of its own
    one.group.finish_grad_sync()
    (waited,) = one.waits()
    assert waited["start"] > one.collectives()["launch"][0]


def test_of_an_accumulating_handle_the_communication_is_waited_for(watched: Any) -> None:
    one = watched(Config())
    one.group.accumulating = True
    one.group.start_grad_sync()
    one.group.finish_grad_sync()
    (waited,) = one.waits()
    assert waited["collective"] == CollectiveKind.ALL_TO_ALL
    assert waited["phase"] == Phase.OTHER


def test_a_shadow_step_passes_everything_through(watched: Any) -> None:
    one = watched(Config())
    one.bench.recorder.recording = False
    one.group.register_grad_ready(one.parameters[-1])
    assert isinstance(one.group.grad_reduce_handle, dist.Work)
    assert one.group.finish_grad_sync() == "done"
    assert len(one.bench.records()) == 0


def test_a_fault_of_ours_stays_with_us(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched(Config())
    monkeypatch.setattr(one.bucket._waits, "watch", lambda *_: 1 / 0)
    one.group.register_grad_ready(one.parameters[-1])
    assert one.group.finish_grad_sync() == "done"
    assert "division by zero" in one.bench.recorder.guard.tripped
    assert not one.bench.recorder.on


def test_an_error_of_the_job_is_the_jobs(watched: Any) -> None:
    one = watched(Config())
    one.group.buckets[0].grad_data = None
    with pytest.raises(TypeError):
        one.group.start_grad_sync()
    assert one.bench.recorder.on
    assert one.bucket._owners.current is None


def test_removed_it_is_as_it_was(watched: Any) -> None:
    one = watched(Config())
    assert "start_grad_sync" in vars(one.group)
    one.bucket.remove()
    assert not {"register_grad_ready", "start_grad_sync", "finish_grad_sync"} & set(vars(one.group))


# -- pipeline ----------------------------------------------------------------------------------


@dataclass
class Work:
    waited: int = 0

    def wait(self) -> bool:
        self.waited += 1
        return True


@pytest.fixture
def exchange(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A communicating function of a module, as releases up to 0.13 have it, whose sends and receives tell the tap."""
    owners = Owners(bench.recorder)
    phases: list[int] = []

    def tell(tensor: torch.Tensor) -> None:
        claim = owners.claim(CollectiveKind.SEND_RECV, None, [tensor])
        assert claim is not None
        claim.take(0, bench.recorder.now())
        phases.append(bench.recorder.phase)

    def _communicate(*, wait_on_reqs: bool = True, **options: Any) -> Any:
        if options.get("shapes"):
            tell(torch.ones(3, dtype=torch.int64))
        received = []
        for send, receive in (("tensor_send_prev", "recv_prev"), ("tensor_send_next", "recv_next")):
            if options.get(send) is not None:
                tell(options[send])
            if options.get(receive):
                received.append(torch.ones(1))
                tell(received[-1])
        return None, None, None if wait_on_reqs else {"recv_prev": Work(), "send_prev": Work()}

    module = types.ModuleType(P2P_MODULE)
    module._communicate = _communicate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, P2P_MODULE, module)
    pipeline = Pipeline(bench.recorder, owners, Waits(bench.recorder))
    yield module, phases
    pipeline.remove()
    assert module._communicate is _communicate


def test_each_direction_is_told(exchange: Any, bench: Bench) -> None:
    module, phases = exchange
    bench.recorder.phase = Phase.OTHER
    module._communicate(
        shapes=True,
        tensor_send_next=torch.ones(2),
        tensor_send_prev=torch.ones(2),
        recv_prev=True,
        recv_next=True,
    )
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    assert phases == [Phase.OTHER, backward, forward, forward, backward]
    assert bench.recorder.phase == Phase.OTHER
    (waited,) = bench.records(RecordKind.WAIT)
    assert waited["collective"] == CollectiveKind.SEND_RECV
    assert waited["finish"] > waited["start"]


def test_handles_are_watched_where_the_call_does_not_wait(exchange: Any, bench: Bench) -> None:
    module, _ = exchange
    *_, handles = module._communicate(tensor_send_next=torch.ones(2), wait_on_reqs=False)
    assert len(bench.records(RecordKind.WAIT)) == 0
    assert handles["recv_prev"].wait()
    assert handles["send_prev"].wait()
    assert handles["recv_prev"].waited == 1  # the work's own attribute
    found = bench.records(RecordKind.WAIT)
    assert found["phase"].tolist() == [Phase.FORWARD, Phase.BACKWARD]


# -- options -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("megatron")
def test_options_as_given_and_as_in_force() -> None:
    ddp = FakeDdp()
    ddp.bucket_groups = [SimpleNamespace(buckets=[Bucket([]), Bucket([])])]
    ddp.expert_parallel_bucket_groups = []
    ddp.ddp_config = SimpleNamespace(
        overlap_grad_reduce=True, overlap_param_gather=False, bucket_size=True
    )
    ddp.config = SimpleNamespace(
        tensor_model_parallel_size=2, cp_comm_type=["p2p", "a2a"], tp_comm_overlap=None
    )
    ddp.bucket_size = None
    ddp.pp_group = SimpleNamespace(rank=lambda: 1)
    told = facts(find_megatron(ddp))
    assert told == {
        "megatron wrapper": "megatron-ddp",
        "megatron overlap_grad_reduce": "on",
        "megatron overlap_param_gather": "off",
        "megatron tensor_model_parallel_size": "2",
        "megatron cp_comm_type": "p2p, a2a",
        "megatron bucket_size": "True",
        "megatron bucket_size type": "bool",
        "megatron bucket_size in force": "none",
        "megatron bucket groups": "1",
        "megatron bucket elements": "12",
        "megatron bucket bytes": "48",
        "megatron pipeline rank": "1",
    }
    assert facts([]) == {}


@pytest.mark.usefixtures("megatron")
def test_over_how_many_ranks_a_layer_is_split() -> None:
    ddp = FakeDdp()
    ddp.config = SimpleNamespace(tensor_model_parallel_size=2, context_parallel_size=4)
    assert MEGATRON.split(find_megatron(ddp)) == 4
    assert _split([(MEGATRON, "", one) for one in find_megatron(ddp)]) == 4
    del ddp.config
    assert MEGATRON.split(find_megatron(ddp)) is None
    assert _split([(DDP, "", torch.nn.Linear(2, 2))]) is None


# -- the whole -----------------------------------------------------------------------------------


class FakeFsdp(torch.nn.Module):
    """A wrapper without bucket groups, as Megatron-FSDP is."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Sequential(ColumnParallelLinear(2, 2))
        self.zeroed = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    def zero_grad_buffer(self) -> None:
        self.zeroed += 1


class ColumnParallelLinear(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(1))
        return super().forward(x)


@pytest.mark.usefixtures("group")
def test_megatron_fsdp_is_watched_without_its_buckets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "megatron.core.distributed.fsdp.mcore_fsdp_adapter"
    module = types.ModuleType(name)
    module.FullyShardedDataParallel = FakeFsdp  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    model = FakeFsdp()
    ((label, chunk),) = MEGATRON.find(model)
    assert label == "chunk 0"
    assert MEGATRON.facts([chunk]) == {"megatron wrapper": "megatron-fsdp"}
    recorder = bench.recorder
    tap = CollectiveTap(recorder, frozenset({"cpu"}))
    boundaries = StepBoundaries(recorder, lambda _p: False)
    instrument = MEGATRON.make(Context(recorder, boundaries, tap, "passive"))
    instrument.add(chunk, "")
    assert instrument.count == 1
    assert instrument.knows(chunk)
    assert instrument.holds(model.module[0].weight)
    assert not instrument.holds(torch.ones(2))
    for _ in range(2):  # no optimizer is seen: the loop itself says where a step begins
        model.zero_grad_buffer()
        model(torch.ones(1, 2)).sum().backward()
    model.zero_grad_buffer()
    steps = bench.records(RecordKind.STEP)
    assert steps["step"].tolist() == [1, 2, 3]
    assert (steps["finish"] != 0).tolist() == [True, True, False]
    phases = bench.records(RecordKind.PHASE)
    assert phases["phase"].tolist() == [Phase.FORWARD, Phase.BACKWARD] * 2
    assert phases["step"].tolist() == [1, 1, 2, 2]
    sent = bench.records(RecordKind.COLLECTIVE)
    assert len(sent) == 2
    text = {one.id: (one.kind, one.text) for one in bench.names.take_new()}
    assert text[sent["owner"][0]] == (NameKind.LAYER, "0")
    instrument.remove(at_exit=False)
    boundaries.remove()
    tap.remove()
    assert "zero_grad_buffer" not in vars(model)
    for one in model.modules():
        assert not one._forward_hooks
        assert not one._forward_pre_hooks
    assert model.zeroed == 3

"""What is recorded of a DDP module's forward, backward and wait, on one rank; bits are `e2e/test_bit_identity`'s business."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.hooks.c10d import CollectiveTap
from overlapwatch.hooks.ddp import DdpInstrument, DdpModule, world_of
from overlapwatch.hooks.ddp_attach import find_ddp
from overlapwatch.hooks.ddp_comm_hook import CommHookMode
from overlapwatch.hooks.ddp_layout import Stage
from overlapwatch.hooks.recorder import NEVER_NS
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.vocabulary import NameKind, Phase, RecordKind, StepFlag
from tests.hooks.conftest import Bench
from tests.support.training import SMALL_BUCKETS_MB, WIDTH, Net

INPUT = torch.ones(2, WIDTH)
BACKWARD, FORWARD = Phase.BACKWARD, Phase.FORWARD


class Setting:
    """Everything that watches a model in passive mode, put together by hand."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.boundaries = StepBoundaries(bench.recorder, self.holds)
        self.instrument = DdpInstrument(bench.recorder, self.boundaries)
        self.tap = CollectiveTap(bench.recorder, frozenset({"cpu"}))
        self.tap.claims.append(self.instrument.claim)
        self.tap.install()

    def holds(self, parameter: torch.Tensor) -> bool:
        return self.instrument.holds(parameter)

    def add(self, net: nn.Module, label: str = "", **settings: Any) -> DdpModule:
        settings = {"bucket_cap_mb": SMALL_BUCKETS_MB, **settings}
        return self.instrument.add(DistributedDataParallel(net, **settings), label)

    def spans(self, *kinds: RecordKind) -> list[tuple[int, int]]:
        """Return (kind, phase) in the order of their beginnings; all must have ended."""
        records = self.bench.records()
        records = records[np.isin(records["kind"], kinds or (RecordKind.PHASE, RecordKind.WAIT))]
        assert (records["finish"] > records["start"]).all()
        return records[["kind", "phase"]].tolist()

    def remove(self) -> None:
        self.boundaries.remove()
        self.instrument.remove()
        self.tap.remove()


@pytest.fixture
def stage(bench: Bench, group: None) -> Iterator[Setting]:
    stage = Setting(bench)
    yield stage
    stage.remove()
    assert bench.recorder.guard.tripped is None


def test_a_step_is_forward_backward_and_a_wait_at_its_end(stage: Setting) -> None:
    module = stage.add(Net())
    module.ddp(INPUT).sum().backward()
    phase, wait = RecordKind.PHASE, RecordKind.WAIT
    assert stage.spans() == [(phase, FORWARD), (phase, BACKWARD), (wait, BACKWARD)]
    records = stage.bench.records()
    collective = records[records["kind"] == RecordKind.COLLECTIVE][-1]  # DDP's constructor had some
    forward, backward = records[records["kind"] == phase]
    (waited,) = records[records["kind"] == wait]
    assert forward["finish"] <= backward["start"] < collective["launch"] < backward["finish"]
    assert backward["finish"] <= waited["start"]
    assert set(records["owner"][records["kind"] == phase]) == {module.owner}
    assert collective["owner"] == module.layout.buckets[0].id
    assert stage.bench.recorder.phase == Phase.OTHER


def test_ddp_s_own_statistics_are_handed_on_with_the_buckets_they_belong_to(stage: Setting) -> None:
    module = stage.add(Net())
    for _ in range(3):
        module.ddp(INPUT).sum().backward()
    first, third = stage.bench.recorder.backward_reports  # in the second step DDP does not tell
    assert [len(report.buckets) for report in (first, third)] == [1, 4]
    assert first.parameters == module.parameter_ids
    assert len(first.ready_after_ns) == len(module.parameters) == 8
    assert all(ns > 0 for ns in first.ready_after_ns)
    assert first.base_earliest_ns < first.base_latest_ns < first.waited_until_ns
    launches = [launch for _, launch, _ in third.buckets]
    assert launches == sorted(launches)
    assert [members for _, _, members in third.buckets] == [
        bucket.members for bucket in module.layout.buckets
    ]
    assert module.launched == []  # what comes outside a backward does not reach a report


@pytest.mark.parametrize("mode", ["passive", "hook"])
def test_a_hook_that_does_not_wait_for_its_reduction_says_nothing_of_its_finish(
    mode: str, stage: Setting
) -> None:
    def hasty(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer(), async_op=True)  # for the next step, say
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    module = stage.add(Net())
    module.ddp.register_comm_hook(None, hasty)
    handle = CommHookMode(module, stage.bench.recorder, 1) if mode == "hook" else None
    module.ddp(INPUT).sum().backward()
    (report,) = stage.bench.recorder.backward_reports
    # In hook mode the recorded finish is that of the future, for which DDP did wait.
    assert (report.waited_until_ns == NEVER_NS) == (mode == "passive")
    if handle is not None:
        handle.remove()


def test_the_rebuild_of_the_buckets_is_noticed(stage: Setting) -> None:
    module = stage.add(Net())
    stages = []
    optimizer = torch.optim.SGD(module.ddp.parameters(), lr=0.1)
    for _ in range(4):
        module.ddp(INPUT).sum().backward()
        stages.append(module.layout.stage)
        optimizer.step()
    assert stages == [Stage.FIRST, Stage.UNTOLD, Stage.FINAL, Stage.FINAL]
    assert stage.bench.flags() == [(1, StepFlag.UNBUCKETED), (2, StepFlag.REBUILT)]


def test_without_synchronisation_there_is_no_wait_and_the_step_accumulates(stage: Setting) -> None:
    module = stage.add(Net())
    with module.ddp.no_sync():
        module.ddp(INPUT).sum().backward()
    assert stage.spans(RecordKind.WAIT) == []
    assert len(stage.bench.recorder.backward_reports) == 0
    module.ddp(INPUT).sum().backward()
    assert len(stage.spans(RecordKind.WAIT)) == 1
    assert (1, StepFlag.ACCUMULATING) in stage.bench.flags()


def test_an_evaluation_is_a_forward_and_begins_no_step(stage: Setting) -> None:
    module = stage.add(Net())
    optimizer = torch.optim.SGD(module.ddp.parameters(), lr=0.1)
    module.ddp(INPUT).sum().backward()
    optimizer.step()
    with torch.no_grad():
        module.ddp(INPUT)
    assert stage.bench.recorder.step == 1
    module.ddp(INPUT)
    assert stage.bench.recorder.step == 2
    assert stage.spans(RecordKind.PHASE)[-2:] == [(RecordKind.PHASE, FORWARD)] * 2


@pytest.mark.parametrize("output", ["tuple", "dict", "dataclass-like"])
def test_the_backward_is_found_whatever_the_output_looks_like(output: str, stage: Setting) -> None:
    class Odd(Net):
        def forward(self, x: torch.Tensor) -> Any:
            h = super().forward(x)
            pair = (h, h * 2)
            return {"tuple": pair, "dict": {"a": [*pair], "n": 3}}.get(output, [pair, "text"])

    module = stage.add(Odd())
    out = module.ddp(INPUT)
    a, b = {"tuple": lambda: out, "dict": lambda: out["a"]}.get(output, lambda: out[0])()
    (a + b).sum().backward()
    assert stage.spans(RecordKind.PHASE) == [
        (RecordKind.PHASE, FORWARD),
        (RecordKind.PHASE, BACKWARD),
    ]


def slow_hook(delay_s: float) -> Any:
    """Return a hook whose reduction takes a while."""

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        buffer = bucket.buffer()
        threading.Timer(delay_s, lambda: future.set_result(buffer)).start()
        return future

    return hook


@pytest.mark.parametrize("checkpointed", ["", "non-reentrant", "reentrant"])
def test_the_wait_is_seen_where_ddp_waits(checkpointed: str, bench: Bench, group: None) -> None:
    """Under a reentrant checkpoint that is inside the backward, between two pieces of compute."""
    bench.clock.real = True
    stage = Setting(bench)
    module = stage.add(Net(checkpointed=checkpointed))
    mode = CommHookMode(module, bench.recorder, 1)
    module.ddp.register_comm_hook(None, slow_hook(0.05))
    for _ in range(3):
        module.ddp(INPUT.clone().requires_grad_()).sum().backward()
    mode.remove()
    stage.remove()
    waits = bench.records(RecordKind.WAIT)
    long = waits[waits["finish"] - waits["start"] > 40_000_000]
    backward = bench.records(RecordKind.PHASE)
    backward = backward[backward["phase"] == BACKWARD]
    inside = (long["start"] > backward["start"][-1]) & (long["finish"] < backward["finish"][-1])
    assert inside.any() == (checkpointed == "reentrant")
    assert len(long) >= 2


def test_a_backward_that_raises_does_not_spoil_the_next(stage: Setting) -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            if broken:
                raise LookupError("the user's")
            return gradient

    class Fragile(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Raises.apply(super().forward(x))

    module = stage.add(Fragile(), find_unused_parameters=False)
    broken = True
    with module.ddp.no_sync(), pytest.raises(LookupError):
        module.ddp(INPUT).sum().backward()
    broken = False
    module.ddp(INPUT).sum().backward()
    records = stage.bench.records(RecordKind.PHASE)
    assert (records["finish"] == 0).sum() == 1  # the backward that raised
    assert len(stage.spans(RecordKind.WAIT)) == 1


def test_two_models_of_one_size_are_told_apart(stage: Setting) -> None:
    modules = [stage.add(Net(), label) for label in ("a", "b")]
    for _ in range(3):
        (modules[0].ddp(INPUT) * modules[1].ddp(INPUT)).sum().backward()
    records = stage.bench.records(RecordKind.COLLECTIVE)
    names = {name.id: name.text for name in stage.bench.names.take_new()}
    last = [names[int(owner)] for owner in records["owner"][-8:]]
    assert sorted(last) == [f"{label}: bucket {n}" for label in "ab" for n in range(4)]


def test_a_reduction_of_another_size_is_no_bucket(stage: Setting) -> None:
    module = stage.add(Net())
    size = module.layout.buckets[0].elements
    assert module.expects(torch.empty(size))
    assert module.expects(torch.empty(size, dtype=torch.float16))  # a compressing hook
    assert not module.expects(torch.empty(size + 1))
    assert not module.expects(torch.empty(size, dtype=torch.int64))
    module.take(0, 0)
    assert module.bucket == 0  # all are launched
    assert not module.expects(torch.empty(size))


def test_removing_leaves_the_module_as_it_was(bench: Bench, group: None) -> None:
    ddp = DistributedDataParallel(Net())
    before = {name: str(value) for name, value in vars(ddp).items()}
    stage = Setting(bench)
    stage.instrument.add(ddp, "")
    assert ddp._forward_hooks
    stage.remove()
    assert {name: str(value) for name, value in vars(ddp).items()} == before


def test_ddp_modules_are_found_by_identity_and_named_by_place(group: None) -> None:
    first, second = (DistributedDataParallel(nn.Linear(2, 2)) for _ in range(2))
    inside = nn.ModuleDict({"encoder": nn.Sequential(first), "again": first, "head": second})
    assert find_ddp(first) == [("", first)]
    assert find_ddp(inside) == [("encoder.0", first), ("head", second)]
    assert find_ddp([first, second, first]) == [("0", first), ("1", second)]
    assert find_ddp((inside, nn.Linear(2, 2))) == [("0.encoder.0", first), ("0.head", second)]
    assert find_ddp(nn.Linear(2, 2)) == find_ddp([]) == find_ddp(None) == []
    assert world_of(first) == 1


def test_parameters_are_named_with_their_sizes(stage: Setting) -> None:
    stage.add(nn.Linear(2, 3, bias=False).to(torch.float64), "net")
    (parameter,) = [n for n in stage.bench.names.take_new() if n.kind is NameKind.PARAMETER]
    assert (parameter.text, parameter.elements, parameter.bytes, parameter.dtype) == (
        "net: weight",
        6,
        48,
        "float64",
    )

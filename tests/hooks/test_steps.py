"""Step boundaries and optimizer spans, on an optimizer and a model without DDP: the model's instrument is played here."""

from collections.abc import Iterator

import pytest
import torch
from torch.optim import optimizer as optimizers

from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.vocabulary import NameKind, Phase, RecordKind, StepFlag
from tests.hooks.conftest import Bench


class Stage:
    """One parameter, optimizers on it, and the calls that a watched model would make."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.parameter = torch.nn.Parameter(torch.ones(1))
        self.parameter.grad = torch.ones(1)
        self.boundaries = StepBoundaries(bench.recorder, lambda p: p is self.parameter)
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1)

    def forward(self) -> None:
        self.boundaries.training_forward_begins()
        self.bench.recorder.phase = Phase.OTHER

    def backward(self) -> None:
        self.boundaries.backward_ended()

    def step(self) -> int:
        """Do a whole step and return when its optimizer ended."""
        self.forward()
        self.backward()
        self.optimizer.step()
        return self.bench.clock.ns

    def steps(self) -> list[tuple[int, int, int]]:
        return self.bench.records(RecordKind.STEP)[["step", "start", "finish"]].tolist()

    def spans(self) -> list[tuple[int, bool]]:
        """Return (step, has an end) of each optimizer span."""
        phases = self.bench.records(RecordKind.PHASE)
        assert (phases["phase"] == Phase.OPTIMIZER).all()
        return [(int(record["step"]), bool(record["finish"])) for record in phases]


@pytest.fixture
def stage(bench: Bench) -> Iterator[Stage]:
    before = [
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
    ]
    stage = Stage(bench)
    yield stage
    stage.boundaries.remove()
    after = [
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
    ]
    assert after == before
    assert bench.recorder.guard.tripped is None


def test_steps_tile_the_time_and_turn_where_the_optimizer_ended(stage: Stage) -> None:
    began = stage.bench.clock.ns
    first, second = stage.step(), stage.step()
    stage.forward()
    assert stage.steps() == [(1, began, first), (2, first, second), (3, second, 0)]
    assert stage.spans() == [(1, True), (2, True)]
    (name,) = [n for n in stage.bench.names.take_new() if n.kind is NameKind.OPTIMIZER]
    assert name.text == "SGD"


def test_two_optimizers_in_a_row_are_one_step(stage: Stage) -> None:
    other = torch.optim.AdamW([stage.parameter], lr=0.1)
    stage.step()
    other.step()
    end = stage.bench.clock.ns
    stage.forward()
    assert [step[::2] for step in stage.steps()] == [(1, end), (2, 0)]
    assert stage.spans() == [(1, True)] * 2


def test_an_optimizer_of_another_model_ends_no_step(stage: Stage) -> None:
    other = torch.nn.Parameter(torch.ones(1))
    other.grad = torch.ones(1)
    stage.forward()
    torch.optim.SGD([other], lr=0.1).step()
    stage.forward()
    assert len(stage.steps()) == 1
    assert stage.spans() == []


def test_an_optimizer_is_looked_at_again_when_another_model_is_watched(stage: Stage) -> None:
    late = torch.nn.Parameter(torch.ones(1))
    late.grad = torch.ones(1)
    optimizer = torch.optim.SGD([late], lr=0.1)
    optimizer.step()
    stage.parameter = late  # this one is watched from now on
    stage.boundaries.forget_relevance()
    optimizer.step()
    assert stage.spans() == [(1, True)]


def test_a_backward_after_the_optimizer_moves_the_end_of_the_step(stage: Stage) -> None:
    stage.step()  # an optimizer inside the backward
    stage.backward()
    end = stage.bench.clock.ns
    stage.forward()
    assert stage.steps()[0][2] == end


def test_the_user_can_take_over(stage: Stage) -> None:
    stage.step()
    stage.boundaries.explicit()
    first = stage.bench.clock.ns
    stage.step()
    stage.step()
    stage.forward()
    stage.boundaries.explicit()
    assert [step[::2] for step in stage.steps()] == [(1, first), (2, stage.bench.clock.ns), (3, 0)]


def test_a_closure_that_runs_the_model_ends_steps_too(stage: Stage) -> None:
    def closure() -> torch.Tensor:
        stage.forward()
        stage.backward()
        return torch.zeros(())

    ends = []
    for _ in range(3):
        stage.optimizer.step(closure)
        ends.append(stage.bench.clock.ns)
    assert [step[::2] for step in stage.steps()] == [(n, ends[n - 1]) for n in (1, 2, 3)]
    # Before and behind the closure it is the optimizer's time, in the closure it is the model's. What comes before the
    # closure's forward is still counted to the step before, which ends there.
    assert stage.spans() == [(1, True), (1, True), (1, True), (2, True), (2, True), (3, True)]


def test_an_optimizer_that_calls_its_closure_many_times_is_one_step(stage: Stage) -> None:
    lbfgs = torch.optim.LBFGS([stage.parameter], max_iter=4)
    target = torch.tensor([3.0])

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        stage.forward()
        loss = (stage.parameter - target).square().sum() + stage.parameter.exp().sum()
        loss.backward()
        stage.backward()
        return loss

    for _ in range(2):
        lbfgs.step(closure)
    stage.forward()
    assert [step[0] for step in stage.steps()] == [1, 2, 3]


@pytest.mark.parametrize("next_one", ["the same", "another"])
def test_an_optimizer_that_raised_does_not_hide_the_next(next_one: str, stage: Stage) -> None:
    def broken() -> torch.Tensor:
        raise LookupError("the user's closure")

    with pytest.raises(LookupError):
        stage.optimizer.step(broken)
    if next_one == "another":
        stage.optimizer = torch.optim.SGD([stage.parameter], lr=0.1)
    for _ in range(2):
        stage.step()
    stage.forward()
    assert [step[0] for step in stage.steps()] == [1, 2, 3]


def test_an_optimizer_that_drives_another_counts_once(stage: Stage) -> None:
    class Driver(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: object = None) -> None:
            self.inner.step()

    stage.optimizer = Driver(stage.optimizer)
    stage.step()
    stage.forward()
    assert stage.spans() == [(1, True)]
    assert len(stage.steps()) == 2


def test_in_a_shadow_step_there_are_no_spans_but_boundaries(stage: Stage) -> None:
    stage.bench.recorder.recording = False
    stage.step()
    stage.step()
    assert stage.spans() == []
    assert [step[0] for step in stage.steps()] == [1, 2]


def test_the_phase_of_a_backward_is_not_changed_by_a_fused_optimizer(stage: Stage) -> None:
    stage.forward()
    stage.bench.recorder.phase = Phase.BACKWARD
    stage.optimizer.step()
    assert stage.bench.recorder.phase == Phase.BACKWARD


@pytest.mark.parametrize("in_the_middle", [True, False])
def test_a_step_cut_off_by_closing_is_partial(in_the_middle: bool, bench: Bench) -> None:
    stage = Stage(bench)
    end = stage.step()
    if in_the_middle:
        stage.forward()
    stage.boundaries.remove()
    partial = [step for step, flags in bench.flags() if flags & StepFlag.PARTIAL]
    assert partial == ([2] if in_the_middle else [])
    finishes = [step[2] for step in stage.steps()]
    assert finishes == ([end, bench.clock.ns] if in_the_middle else [end])


def test_a_fault_of_ours_does_not_reach_the_optimizer(bench: Bench) -> None:
    def fault(parameter: torch.Tensor) -> bool:
        raise ZeroDivisionError("ours")

    boundaries = StepBoundaries(bench.recorder, fault)
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.SGD([parameter], lr=0.5).step()
    assert parameter.item() == 0.5
    assert bench.recorder.guard.tripped == "optimizer hook: ZeroDivisionError: ours"
    boundaries.remove()


def test_a_loop_whose_steps_nobody_sees_is_told_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(600):
        stage.forward()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "call watch.step()" in said[0]

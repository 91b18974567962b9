"""A backward is found: where it begins, where its last gradient is computed, and where it is over."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from overlapwatch.hooks.backward import BackwardSpan, call_at_end, follow, graph_task
from overlapwatch.vocabulary import Phase, RecordKind, StepFlag
from tests.hooks.conftest import Bench


class Model:
    """A weight, and a wrapper that queues what it does at the end of a backward, as DDP and FSDP do."""

    def __init__(self, bench: Bench, *, waits: bool = True) -> None:
        self.told: list[str] = []
        self.weight = torch.ones(2, requires_grad=True)
        self.weight.register_hook(self._gradient)
        self.recorder = bench.recorder
        self.span = BackwardSpan(
            bench.recorder,
            "backward hook",
            ended=self._tell("ended"),
            computed=self._tell("computed") if waits else None,
        )

    def _tell(self, word: str) -> Callable[[], None]:
        return lambda: self.told.append(word)

    def _gradient(self, gradient: torch.Tensor) -> None:
        call_at_end(self._tell("the wrapper's own"))

    def forward(self) -> Any:
        first, second = self.weight * 2, self.weight * 3
        follow({"a": first, "rest": [second, "no tensor"]}, self._arrives)
        return first, second

    def _arrives(self, _gradient: torch.Tensor) -> None:
        if self.span.is_new():
            self.told.append("begins")
            self.span.begin(7)


def test_the_wrappers_own_lies_between_the_last_gradient_and_the_end(bench: Bench) -> None:
    model = Model(bench)
    first, second = model.forward()
    (first + second).sum().backward()  # two outputs, one backward
    assert model.told == ["begins", "computed", "the wrapper's own", "ended"]
    (phase,) = bench.records(RecordKind.PHASE)
    assert (phase["phase"], phase["owner"]) == (Phase.BACKWARD, 7)
    assert phase["finish"] > phase["start"]
    assert model.span.task == graph_task() == -1
    assert bench.flags() == []


def test_without_anything_to_wait_for_it_is_over_with_the_last_gradient(bench: Bench) -> None:
    model = Model(bench, waits=False)
    first, _ = model.forward()
    first.sum().backward()
    assert model.told == ["begins", "ended", "the wrapper's own"]


def test_a_second_backward_in_a_step_accumulates(bench: Bench) -> None:
    model = Model(bench)
    for _ in range(3):
        model.forward()[0].sum().backward()
    assert bench.flags() == [(0, StepFlag.ACCUMULATING)]
    bench.recorder.step = 1
    model.forward()[0].sum().backward()
    assert len(bench.flags()) == 1
    assert len(bench.records(RecordKind.PHASE)) == 4


def test_one_that_raised_is_followed_by_a_new_one(bench: Bench) -> None:
    model = Model(bench)
    first, _ = model.forward()
    handle = model.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.sum().backward()
    handle.remove()
    assert model.told == ["begins"]
    model.told.clear()
    model.forward()[1].sum().backward()
    assert model.told == ["begins", "computed", "the wrapper's own", "ended"]


def test_a_fault_of_ours_stays_with_us(bench: Bench) -> None:
    model = Model(bench)
    model.span._computed = lambda: 1 / 0  # type: ignore[assignment, return-value]
    model.forward()[0].sum().backward()
    assert model.weight.grad is not None
    assert "backward hook: ZeroDivisionError" in str(bench.recorder.guard.tripped)
    assert not bench.recorder.on


def test_in_a_shadow_step_nothing_is_written(bench: Bench) -> None:
    model = Model(bench)
    bench.recorder.recording = False
    model.forward()[0].sum().backward()
    assert model.told[-1] == "ended"
    assert len(bench.records()) == 0

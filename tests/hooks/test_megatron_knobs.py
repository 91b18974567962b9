"""Megatron's settings changed on stand-ins: what is refused, and the corners that a real job does not come to.

Real jobs are in tests/e2e/test_megatron_sweep.py.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.megatron.detect import Chunk, Wrapper
from overlapwatch.hooks.megatron.knobs import megatron_knobs, switches_of
from overlapwatch.hooks.megatron.overlap import ParameterOverlap
from overlapwatch.hooks.megatron.regroup import Grouping


class Group:
    """As much of Megatron's bucket group as is taken over."""

    def __init__(self, buckets: list[Any], ddp_config: Any, ranks: Any, size: int) -> None:
        self.buckets, self.ddp_config = buckets, ddp_config
        self.data_parallel_group = ranks
        assert size == ranks.size()
        self.params = {parameter for bucket in buckets for parameter in bucket.params}
        self.grad_reduce_handle = self.param_gather_handle = None
        self.next_param_gather_bucket_group: Any = None
        self.is_first_batch, self.is_last_microbatch = True, True
        self.param_gather_dispatched = False
        self.golden_per_param_grad_ready_counts: dict[Any, int] = {}
        self.per_param_grad_ready_counts: dict[Any, int] = {}

    def reset(self) -> None:
        self.per_param_grad_ready_counts = {}
        self.is_last_microbatch = True


RANKS = SimpleNamespace(size=lambda: 2)


@dataclass
class Ddp:
    """A wrapper with bucket groups of one parameter each."""

    dtypes: list[torch.dtype] = field(default_factory=lambda: [torch.float32] * 5)
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = {
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "use_distributed_optimizer": True,
            "bucket_size": 100,
        }
        self.ddp_config = SimpleNamespace(**(options | self.options))
        self.config = SimpleNamespace(grad_sync_func=None, param_sync_func=None)
        vars(self.config).update(self.model_options)
        self.module = torch.nn.Linear(2, 2)
        self.parameters = [torch.nn.Parameter(torch.ones(2, dtype=d)) for d in self.dtypes]
        self.bucket_groups = [
            Group(
                [SimpleNamespace(params=[p], grad_data=p.detach(), param_data=None)],
                self.ddp_config,
                RANKS,
                2,
            )
            for p in self.parameters
        ]
        self.expert_parallel_bucket_groups: list[Any] = []
        for before, group in zip(self.bucket_groups, self.bucket_groups[1:], strict=False):
            group.next_param_gather_bucket_group = before
        for group in self.bucket_groups:
            group.is_first_batch = False
            group.golden_per_param_grad_ready_counts = dict.fromkeys(group.params, 1)
        self.param_to_bucket_group = {p: g for g in self.bucket_groups for p in g.params}
        self.use_forward_hook = True
        self.remove_forward_pre_hook_handles: dict[Any, Any] = {}
        self.calls: list[str] = []
        self.enable_forward_pre_hook()

    def enable_forward_pre_hook(self) -> None:
        self.calls.append("enable")
        self.remove_forward_pre_hook_handles = dict.fromkeys(self.module.modules(), 1)

    def disable_forward_pre_hook(self, param_sync: bool = True) -> None:
        self.calls.append("disable")
        self.remove_forward_pre_hook_handles = {}
        if param_sync:
            self.start_param_sync(force_sync=True)

    def start_param_sync(self, *, force_sync: bool = False) -> None:
        self.calls.append(f"gather {force_sync}")

    def finish_grad_sync(self) -> str:
        return "finished"


@dataclass
class Watched:
    """A watched chunk, as far as the knobs need one."""

    chunk: Chunk
    followed: int = 0

    def follow_groups(self) -> None:
        self.followed += 1


def knobs(*ddps: Any, wrapper: Wrapper = Wrapper.DDP) -> dict[str, Any]:
    chunks: list[Any] = [Watched(Chunk(number, ddp, wrapper)) for number, ddp in enumerate(ddps)]
    failed: list[Exception] = []
    switches = [] if wrapper is not Wrapper.DDP else [switches_of(c, failed.append) for c in chunks]
    return megatron_knobs(chunks, switches)


NAMES = ("overlap_grad_reduce", "overlap_param_gather", "merge_bucket_groups")


@pytest.mark.parametrize(
    ("options", "model", "refused", "because"),
    [
        ({}, {"cuda_graph_scope": "full_iteration"}, NAMES, "a step is one CUDA graph"),
        ({}, {"cuda_graph_impl": "local"}, NAMES[1:2], "CUDA graphs hold the forward pre-hooks"),
        ({}, {"enable_cuda_graph": True}, NAMES[1:2], "CUDA graphs hold the forward pre-hooks"),
        (
            {"reuse_grad_buf_for_mxfp8_param_ag": True},
            {},
            NAMES[1:2],
            "share their buffers with gradients",
        ),
        ({"use_distributed_optimizer": False}, {}, NAMES[1:], "optimizer"),
        ({"num_distributed_optimizer_instances": 2}, {}, NAMES[2:], "several optimizer instances"),
        ({"reduce_scatter_with_fp32_accumulation": True}, {}, NAMES[2:], "one bucket at a time"),
    ],
)
def test_what_the_configuration_rules_out(
    options: dict[str, Any], model: dict[str, Any], refused: tuple[str, ...], because: str
) -> None:
    found = knobs(Ddp(options=options, model_options=model))
    for name in NAMES:
        value = 2 if name == "merge_bucket_groups" else False
        if name in refused:
            with pytest.raises(ConfigurationError, match=because):
                found[name].check(value)
        else:
            found[name].check(value)


def test_of_the_optimizer_step_nothing_is_taken_away() -> None:
    ddp: Any = Ddp()
    ddp.overlap_param_gather_with_optimizer_step = True
    with pytest.raises(ConfigurationError, match="has split the optimizer in two"):
        knobs(ddp)["overlap_param_gather"].check(False)


def test_megatron_fsdp_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="wrapped by megatron-fsdp, which decides"):
        knobs(SimpleNamespace(), wrapper=Wrapper.FSDP)["merge_bucket_groups"].check(2)


def test_a_release_with_something_new_in_its_groups_is_refused() -> None:
    ddp = Ddp()
    ddp.bucket_groups[1].__dict__["drained_by"] = None
    ddp.bucket_groups[1].__dict__["start_grad_sync"] = lambda: None  # a watch stands before it
    with pytest.raises(ConfigurationError, match=r"parts that are not known: drained_by$"):
        knobs(ddp)["merge_bucket_groups"].check(2)


def test_one_bucket_group_is_none_to_merge_but_on_a_later_stage() -> None:
    one = Ddp([torch.float32])
    with pytest.raises(ConfigurationError, match="nothing to merge"):
        knobs(one)["merge_bucket_groups"].check(2)
    later = Ddp([torch.float32], model_options={"pipeline_model_parallel_size": 2})
    knobs(later)["merge_bucket_groups"].check(2)


# -- groups ------------------------------------------------------------------------------------


def test_groups_of_other_types_are_not_merged() -> None:
    ddp = Ddp([torch.float32, torch.float32, torch.bfloat16, torch.float32])
    held = ddp.bucket_groups
    Grouping(ddp).set(4)
    assert ddp.bucket_groups is held  # others may hold the list
    assert [len(group.buckets) for group in held] == [2, 1, 1]


def test_what_a_group_has_learnt_goes_with_it_and_comes_back() -> None:
    ddp = Ddp()
    built = list(ddp.bucket_groups)
    grouping = Grouping(ddp)
    built[0].is_last_microbatch = built[1].is_last_microbatch = False  # inside Megatron's no_sync
    for group in built:
        group.param_gather_dispatched = True
        group.per_param_grad_ready_counts = dict.fromkeys(group.params, 1)  # of the last step
    grouping.set(2)
    merged = ddp.bucket_groups
    assert [len(group.buckets) for group in merged] == [2, 2, 1]
    assert merged[0].golden_per_param_grad_ready_counts == dict.fromkeys(ddp.parameters[:2], 1)
    assert [group.is_first_batch for group in merged] == [False] * 3
    assert [group.is_last_microbatch for group in merged] == [False, True, True]
    assert all(group.param_gather_dispatched for group in merged)
    assert [group.per_param_grad_ready_counts for group in merged] == [{}, {}, {}]
    assert [group.next_param_gather_bucket_group for group in merged] == [None, *merged[:2]]
    assert [ddp.param_to_bucket_group[p] for p in ddp.parameters] == [
        *[merged[0]] * 2,
        *[merged[1]] * 2,
        merged[2],
    ]
    for group in merged:
        group.param_gather_dispatched = False
    grouping.set(1)
    assert ddp.bucket_groups == built
    assert [group.next_param_gather_bucket_group for group in built] == [None, *built[:4]]
    assert not any(group.param_gather_dispatched for group in built)
    assert [group.per_param_grad_ready_counts for group in built] == [{}] * 5


def test_what_is_still_learning_goes_on_learning() -> None:
    ddp = Ddp()
    ddp.bucket_groups[1].is_first_batch = True
    ddp.bucket_groups[1].golden_per_param_grad_ready_counts = {}
    Grouping(ddp).set(2)
    assert [group.is_first_batch for group in ddp.bucket_groups] == [True, False, False]
    assert ddp.bucket_groups[0].golden_per_param_grad_ready_counts == {}


def test_nothing_is_merged_in_flight_and_all_chunks_stay_as_they_were() -> None:
    still, flying = Ddp(), Ddp()
    flying.bucket_groups[3].grad_reduce_handle = object()  # type: ignore[assignment]
    knob = knobs(still, flying)["merge_bucket_groups"]
    before = list(still.bucket_groups)
    with pytest.raises(RuntimeError, match="still in flight"):
        knob.apply(3)
    assert still.bucket_groups == before


# -- overlap -----------------------------------------------------------------------------------


def test_parameters_are_switched_off_at_the_end_of_backward_without_a_gathering() -> None:
    ddp, failed = Ddp(), []
    ddp.config.param_sync_func = "schedule's"
    overlap = ParameterOverlap(ddp, failed.append)
    overlap.switch(False)
    assert ddp.ddp_config.overlap_param_gather  # the forward still gathers
    assert ddp.finish_grad_sync() == "finished"
    assert not ddp.ddp_config.overlap_param_gather
    assert ddp.config.param_sync_func is None
    assert ddp.calls == ["enable", "disable"]
    ddp.disable_forward_pre_hook()  # the loop's, before a checkpoint
    ddp.enable_forward_pre_hook()
    assert ddp.calls == ["enable", "disable", "gather True"]
    overlap.switch(True)
    assert ddp.config.param_sync_func == "schedule's"
    assert ddp.ddp_config.overlap_param_gather
    assert ddp.calls[-1] == "enable"
    assert not {"finish_grad_sync", "disable_forward_pre_hook", "enable_forward_pre_hook"} & set(
        vars(ddp)
    )
    assert failed == []


def test_hooks_that_the_loop_has_taken_out_stay_out() -> None:
    ddp, failed = Ddp(), []
    overlap = ParameterOverlap(ddp, failed.append)
    overlap.switch(False)
    ddp.finish_grad_sync()
    ddp.disable_forward_pre_hook(param_sync=False)
    overlap.switch(True)
    assert not ddp.remove_forward_pre_hook_handles
    ddp.enable_forward_pre_hook()  # Megatron's own again
    assert ddp.remove_forward_pre_hook_handles


def test_what_has_not_been_switched_off_yet_is_not_switched_on() -> None:
    ddp, failed = Ddp(), []
    overlap = ParameterOverlap(ddp, failed.append)
    overlap.switch(False)
    overlap.switch(True)
    ddp.finish_grad_sync()
    assert ddp.calls == ["enable"]
    assert "finish_grad_sync" not in vars(ddp)


def test_a_model_that_was_changed_is_left_alone() -> None:
    ddp, failed = Ddp(), []
    overlap = ParameterOverlap(ddp, failed.append)
    overlap.switch(False)
    ddp.module.extra = torch.nn.Linear(1, 1)
    assert ddp.finish_grad_sync() == "finished"
    assert "modules were added to or taken" in str(failed[0])
    assert ddp.ddp_config.overlap_param_gather
    with pytest.raises(RuntimeError, match="modules were added"):
        ParameterOverlap(ddp, failed.append).switch(False)

"""The buckets that are read are the buckets that DDP has, at each stage of its life."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlapwatch.hooks.ddp_layout import (
    Layout,
    Stage,
    _reverse_order_groups,
    parameters_of,
    plain_name,
    read_layout,
)
from overlapwatch.hooks.names import Names
from overlapwatch.vocabulary import NameKind
from tests.support.training import SMALL_BUCKETS_MB, WIDTH, Net

LAYER = ((WIDTH * WIDTH) + WIDTH) * 4  # bytes of a weight and its bias


def read(ddp: DistributedDataParallel, names: Names | None = None, label: str = "") -> Layout:
    names = names or Names()
    named = parameters_of(ddp)
    ids = tuple(names.intern(NameKind.PARAMETER, name) for name, _ in named)
    return read_layout(ddp, label, ids, [p for _, p in named], names)


def train(ddp: DistributedDataParallel, steps: int) -> None:
    for _ in range(steps):
        ddp(torch.ones(2, WIDTH)).sum().backward()


def in_words(layout: Layout, names: Names) -> list[tuple[str, list[str]]]:
    """Return each bucket's name and those of its parameters."""
    by_id = {name.id: name for name in names.take_new()}
    return [
        (by_id[bucket.id].text, [by_id[member].text for member in bucket.members])
        for bucket in layout.buckets
    ]


def layers(*numbers: int) -> list[str]:
    return [f"layers.{n}.{what}" for n in numbers for what in ("bias", "weight")]


def test_before_the_first_backward_the_whole_model_is_one_bucket(group: None) -> None:
    names = Names()
    layout = read(DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB), names)
    assert layout.stage is Stage.FIRST
    assert in_words(layout, names) == [("whole model", layers(3, 2, 1, 0))]
    (bucket,) = layout.buckets
    assert (bucket.size, bucket.elements) == (4 * LAYER, LAYER)


def test_the_final_layout_is_told_one_step_after_it_is_made(group: None) -> None:
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    train(ddp, 1)
    assert read(ddp).stage is Stage.FIRST
    ddp(torch.ones(2, WIDTH)).sum().backward()
    assert read(ddp) == Layout((), Stage.UNTOLD)
    ddp(torch.ones(2, WIDTH))
    names = Names()
    layout = read(ddp, names, "actor: ")
    assert layout.stage is Stage.FINAL
    assert in_words(layout, names) == [(f"actor: bucket {n}", layers(3 - n)) for n in range(4)]
    assert [bucket.size for bucket in layout.buckets] == [LAYER] * 4


def test_with_find_unused_parameters_the_first_layout_stays(group: None) -> None:
    ddp = DistributedDataParallel(
        Net(unused=True), bucket_cap_mb=SMALL_BUCKETS_MB, find_unused_parameters=True
    )
    before = read(ddp)
    assert before.stage is Stage.FINAL
    assert sum(bucket.size for bucket in before.buckets) == 5 * LAYER
    train(ddp, 2)
    assert read(ddp) == before


def test_what_has_no_gradient_or_another_type_is_told_right(group: None) -> None:
    net = Net()
    net.layers[1].requires_grad_(requires_grad=False)
    net.layers[2].to(torch.float64)
    ddp = DistributedDataParallel(net, bucket_cap_mb=25)
    names = [name for name, _ in parameters_of(ddp)]
    assert names == ["layers.0.weight", "layers.0.bias", *layers(2)[::-1], *layers(3)[::-1]]
    layout = read(ddp)
    assert sum(bucket.size for bucket in layout.buckets) == (1 + 2 + 1) * LAYER
    # DDP puts each type in buckets of its own, in an order that sizes alone do not tell: no guess is made.
    assert {bucket.members for bucket in layout.buckets} == {()}


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([24], [[3, 2, 1, 0]]),
        ([8, 16], [[3], [2, 1, 0]]),
        ([12, 12], []),  # no parameter ends there
        ([8, 8], []),  # some would be left over
        ([8, 16, 4], []),  # some would be missing
    ],
)
def test_the_first_layout_is_composed_from_sizes_or_not_at_all(
    sizes: list[int], groups: list[list[int]]
) -> None:
    parameters = [nn.Parameter(torch.ones(size // 4)) for size in (4, 4, 8, 8)]
    assert _reverse_order_groups(parameters, sizes) == groups


def test_wrappers_leave_no_trace_in_names() -> None:
    assert plain_name("_orig_mod.a._checkpoint_wrapped_module.b.weight") == "a.b.weight"

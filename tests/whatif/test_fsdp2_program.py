"""Where each setting has its all-gathers, and when parameters are given back, by PyTorch's rules."""

import numpy as np
import pytest

from overlapwatch.timeline.model import Lane
from overlapwatch.vocabulary import CollectiveKind, Phase
from overlapwatch.whatif.fsdp2_cut import cut
from overlapwatch.whatif.fsdp2_items import Collectives, Mark, MarkKind, Piece, StepRecord
from overlapwatch.whatif.fsdp2_program import AS_RECORDED, Chain, Setting, order

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
SCATTER = CollectiveKind.REDUCE_SCATTER
CHAIN = Chain(("a", "b", "c"), ("c", "b", "a"))
NOTHING = Collectives(
    np.empty(0, np.uint8), (), (), *(np.empty(0, np.int64) for _ in range(3)), np.empty(0, np.uint16)
)  # fmt: skip


def step(*, resharded=True, free_marks=True, held=(), root=True):
    """Three modules in a root, forward and backward; as recorded with PyTorch's defaults, or kept after forward."""
    items = []

    def use(module, phase, issued=(), gathered=True):
        items.append(Mark(MarkKind.USE, module, phase, issued, gathered))
        items.append(Piece(10, True, phase))

    if root:
        use("root", FORWARD)
    for module in "abc":
        use(module, FORWARD, gathered=module not in held)
        if resharded and free_marks:
            items.append(Mark(MarkKind.FREE, module))
    if root:
        use("root", BACKWARD, ("c",) if resharded else (), gathered=False)
    for module, before in (("c", "b"), ("b", "a"), ("a", "")):
        use(module, BACKWARD, (before,) if before and resharded else (), gathered=resharded)
        items += [Mark(MarkKind.FREE, module), Mark(MarkKind.REDUCE, module, BACKWARD, collective=SCATTER)]  # fmt: skip
    return StepRecord(1, 0, 100, tuple(items), 0, NOTHING, frozenset(held))


def told(one, setting, chain=CHAIN, outermost="root"):
    """The order in short: `gather`, [use] and -free."""
    words = []
    for action in order(one, setting, chain, outermost).actions:
        if action.item is None:
            words.append(action.module)
        elif isinstance(action.item, Mark) and action.item.kind is MarkKind.USE:
            words.append(f"[{action.module}]")
        elif isinstance(action.item, Mark) and action.item.kind is MarkKind.FREE:
            words.append(f"-{action.module}")
    return " ".join(words)


DEFAULT = "root [root] a [a] -a b [b] -b c [c] -c [root] c [c] b -c [b] a -b [a] -a"
KEPT = "root [root] a [a] b [b] c [c] [root] [c] -c [b] -b [a] -a"


def test_as_recorded_it_is_what_was_recorded():
    assert told(step(), AS_RECORDED) == DEFAULT
    assert told(step(resharded=False), AS_RECORDED) == KEPT


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ((0, 0, True), DEFAULT),
        ((0, 1, True), DEFAULT),
        ((1, 0, True), "root [root] a [a] b -a [b] c -b [c] -c [root] c [c] b -c [b] a -b [a] -a"),
        ((2, 0, True), "root [root] a [a] b c -a [b] -b [c] -c [root] c [c] b -c [b] a -b [a] -a"),
        ((0, 2, True), "root [root] a [a] -a b [b] -b c [c] -c [root] c [c] b a -c [b] -b [a] -a"),
        ((0, 0, False), KEPT),
        ((0, 2, False), KEPT),
        ((1, 2, False), "root [root] a [a] b [b] c [c] [root] [c] -c [b] -b [a] -a"),
    ],
)
def test_each_setting_has_its_all_gathers_in_their_places(setting, says):
    assert told(step(), Setting(*setting)) == says


def test_what_was_kept_is_given_back_where_its_forward_must_have_ended():
    """From a run that kept its parameters: before the next module that does not lie inside."""
    assert told(step(resharded=False), Setting(0, 0, True)) == DEFAULT


def test_a_module_inside_another_is_no_end_of_its_forward():
    inner = StepRecord(
        1, 0, 100,
        (
            Mark(MarkKind.USE, "layer", FORWARD, (), True), Mark(MarkKind.USE, "layer.mlp", FORWARD, (), True),
            Mark(MarkKind.USE, "head", FORWARD, (), True),
        ),
        0, NOTHING, frozenset(),
    )  # fmt: skip
    chain = Chain(("layer", "layer.mlp", "head"), ())
    says = "layer [layer] layer.mlp [layer.mlp] -layer.mlp -layer head [head]"
    assert told(inner, Setting(0, 0, True), chain, "") == says


def test_without_a_root_the_first_backward_gather_is_on_demand():
    says = "a [a] -a b [b] -b c [c] -c c [c] b -c [b] a -b [a] -a"
    assert told(step(root=False), Setting(0, 0, True), outermost="") == says


def test_what_was_there_when_the_step_began_is_not_gathered():
    assert told(step(held="a"), Setting(0, 0, True)).startswith("root [root] [a] -a b [b]")
    assert told(step(held="a"), AS_RECORDED).startswith("root [root] [a] -a b [b]")


def test_two_backwards_each_know_their_own_forward():
    twice = StepRecord(1, 0, 200, step().items + step().items, 0, NOTHING, frozenset())
    once = DEFAULT.replace("root [root] a", "[root] a", 1)
    assert told(twice, Setting(0, 0, True)) == f"{DEFAULT} {once}"


def test_equal_orders_have_equal_shapes_and_every_collective_once():
    first, second = (
        order(step(), Setting(*s), CHAIN, "root") for s in ((0, 0, True), (0, 1, True))
    )
    assert first.shape == second.shape
    assert first.shape != order(step(), Setting(1, 0, True), CHAIN, "root").shape
    assert len(first.jobs) == len(set(first.jobs)) == 7 + 3


def test_a_step_is_cut_as_in_the_docstring():
    lane = Lane(np.array([0, 6]), np.array([4, 9]), np.zeros(2, np.uint32), np.ones(2, np.uint8))
    mark = Mark(MarkKind.USE, "a")
    items, gone = cut(lane, (0, 10), [(6, mark), (3, mark)], [(2, 3)], [])
    assert gone == 1
    assert items == [
        Piece(2, True, 1), mark, Piece(1, True, 1), Piece(2, False, 0), mark, Piece(3, True, 1), Piece(1, False, 0),
    ]  # fmt: skip
    items, gone = cut(lane, (0, 10), [], [(2, 8)], [(3, 4)])
    assert gone == 5
    assert sum(item.ns for item in items) == 5

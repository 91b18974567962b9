"""Which rule tells the phases of a profile, and what each tells."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.timeline.phase_rules import (
    BY_RANGES,
    BY_RANGES_IN_TIME,
    phase_of,
    phase_of_stack,
    with_phases,
)
from overlapwatch.timeline.step_rules import AnchorRule, with_steps
from overlapwatch.vocabulary import Name, NameKind, Phase
from tests.support.profiles import kernels
from tests.support.scenarios import at, collective, lane, lanes, profile, records, step_rows

GAP = AnchorRule(step_gap_ns=5_000_000)
F, B, OPT = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def spans(tl):
    phases = tl.phases
    return [
        (Phase(phase), int(start), int(end))
        for start, end, phase in zip(phases.start, phases.end, phases.phase, strict=True)
    ]


def anchored(row):
    tl, _ = with_steps(kernels(row, flash=True), GAP)
    return with_phases(tl, "auto", GAP)


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("autograd::engine::evaluate_function: MulBackward0", B),
        ("torch::autograd::AccumulateGrad", Phase.OTHER),
        ("CompiledFunctionBackward", B),
        ("FSDP::post_backward_reduce", B),
        ("DeepSpeedEngine.backward", B),
        ("bwd_inner", B),
        ("_LayerNormLinear.backward.dgrad", B),
        ("transformer_engine.LayerNormLinear.forward", F),
        ("DistributedDataParallel.forward", F),
        ("fwd_microstep", F),
        ("forward_step", F),
        ("Optimizer.step#AdamW.step", OPT),
        ("optimiser", OPT),
        ("step_microstep", OPT),
        ("DeepSpeedEngine.step", OPT),
        ("forward-backward", Phase.OTHER),
        ("ProfilerStep#3", Phase.OTHER),
        ("nccl:all_reduce", Phase.OTHER),
        ("", Phase.OTHER),
    ],
)
def test_what_the_name_of_a_range_tells(text, phase):
    assert phase_of(text) is phase


def test_a_forward_inside_backward_is_backward():
    assert phase_of_stack(["backward", "checkpoint", "Linear.forward"]) is B
    assert phase_of_stack(["step", "Linear.forward"]) is F
    assert phase_of_stack(["step", "batch"]) is Phase.OTHER
    assert phase_of_stack([]) is Phase.OTHER


def test_recorded_phases_are_kept():
    tl = profile([(0, 9)], phases=lane([(0, 4)], F), phase_rule="recorded marks")
    assert with_phases(tl) is tl
    assert with_phases(tl, "marks") is tl


def test_phases_can_be_taken_away():
    tl = profile([(0, 9)], [collective(1, 2, phase=B)], phases=lane([(0, 4)], F))
    found = with_phases(tl, "none")
    assert (len(found.phases), found.phase_rule, found.communication["phase"].any()) == (
        0,
        "none",
        False,
    )
    assert [(one.what, one.because) for one in found.unknown] == [
        ("phases", "no phases were asked for")
    ]
    assert tl.communication["phase"].any(), "the input is not changed"


def test_the_call_site_tells_the_phase_of_a_launch():
    names = {
        1: Name(1, NameKind.OPERATION, "train > forward > Linear"),
        2: Name(2, NameKind.OPERATION, "train > loss.backward > Linear.forward"),
        3: Name(3, NameKind.OPERATION, "train > Optimizer.step"),
    }
    sends = [collective(i, i + 1, owner=owner) for i, owner in enumerate((1, 2, 3, 0, 77))]
    found = with_phases(profile([(0, 9)], sends, names=names))
    assert found.communication["phase"].tolist() == [F, B, OPT, 0, 0]
    assert (found.phase_rule, len(found.phases)) == (BY_RANGES, 0)


def test_without_call_sites_the_ranges_open_at_the_launch_tell():
    names = {5: Name(5, NameKind.OPERATION, "forward"), 6: Name(6, NameKind.OPERATION, "backward")}
    ranges = lanes(lane([(0, 4), (10, 14)]), lane([(3, 9)]))
    ranges = replace(ranges, name=np.array([5, 5, 6], np.uint32))
    sends = [collective(ready + 20, ready + 21, ready=ready) for ready in (1, 3.5, 8, 9, 10, 13.9)]
    found = with_phases(profile([(0, 40)], sends, ranges=ranges, names=names))
    assert found.communication["phase"].tolist() == [F, B, B, 0, F, F]
    assert found.phase_rule == BY_RANGES_IN_TIME


def test_phases_of_kernels_become_spans_of_their_runs():
    """The table of `_runs`: a kernel of no phase breaks no run."""
    compute = lanes(lane([(0, 2), (3, 4)], F), lane([(4, 6), (8, 9)], B), lane([(6, 7)]))
    found = with_phases(replace(profile(), compute=compute))
    assert spans(found) == [(F, at(0), at(4)), (B, at(4), at(9))]
    assert found.phase_rule == BY_RANGES


def test_the_collectives_of_a_phase_belong_to_its_time():
    """A reduction that outlives the backward's kernels is the backward's, up to the optimizer and under it."""
    compute = lanes(lane([(0, 4)], B), lane([(8, 9)], OPT))
    tl = replace(profile([], [collective(3, 7, phase=B)]), compute=compute)
    assert spans(with_phases(tl)) == [(B, at(0), at(7)), (OPT, at(8), at(9))]
    launched = with_phases(profile([(0, 9)], [collective(3, 7, phase=B)]))
    assert (len(launched.phases), launched.phase_rule) == (0, BY_RANGES)


def test_ranges_that_tell_few_launches_give_way_to_anchors():
    names = {9: Name(9, NameKind.OPERATION, "forward")}
    tl = kernels("ffbb", flash=True)
    tl = replace(
        tl,
        names={**tl.names, **names},
        communication=records([collective(0, 1, owner=9), collective(1, 2), collective(2, 3)]),
        steps=step_rows([(1, 0, 4)]),
    )
    assert with_phases(tl).phase_rule == "anchor kernels (2 forward, 2 backward)"
    assert with_phases(tl, "ranges").communication["phase"].tolist() == [F, 0, 0]
    assert not with_phases(tl).communication["phase"].any()


def test_first_forward_to_first_backward_is_forward():
    found = anchored("ffbb........ffbb..")
    assert spans(found) == [
        (F, at(0), at(2)), (B, at(2), at(4)), (OPT, at(4), at(12)),
        (F, at(12), at(14)), (B, at(14), at(16)), (OPT, at(16), at(18)),
    ]  # fmt: skip


def test_forward_recomputed_in_the_backward_is_backward():
    assert spans(anchored("fffbfbfb.")) == [
        (F, at(0), at(3)),
        (B, at(3), at(8)),
        (OPT, at(8), at(9)),
    ]


def test_micro_batches():
    assert spans(anchored("ffbbffbb")) == [
        (F, at(0), at(2)), (B, at(2), at(4)), (F, at(4), at(6)), (B, at(6), at(8)),
    ]  # fmt: skip


def test_a_capture_that_begins_in_a_backward_or_ends_in_a_forward():
    assert spans(anchored("bb......fb......ff")) == [
        (B, at(0), at(2)), (OPT, at(2), at(8)),
        (F, at(8), at(9)), (B, at(9), at(10)), (OPT, at(10), at(16)),
        (F, at(16), at(18)),
    ]  # fmt: skip


def test_phases_of_anchors_lie_in_their_steps():
    tl = replace(kernels("ffbbffbb", flash=True), steps=step_rows([(1, 0, 3), (2, 5, 7)]))
    assert spans(with_phases(tl)) == [
        (F, at(0), at(2)), (B, at(2), at(3)), (F, at(5), at(6)), (B, at(6), at(7)),
    ]  # fmt: skip


@pytest.mark.parametrize("rule", ["auto", "marks", "ranges", "anchors"])
def test_a_rule_that_finds_nothing_says_so(rule):
    found = with_phases(profile([(0, 9)], [(1, 2)]), rule)
    assert (found.phase_rule, len(found.phases)) == ("none", 0)
    (unknown,) = found.unknown
    assert unknown.what == "phases"
    assert ("anchor" in unknown.because) == (rule in {"auto", "anchors"})

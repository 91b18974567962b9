"""Steps from anchor kernels: where they begin and end, which are cut, which collective is of which."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.step_rules import (
    NO_STEPS,
    RECORDED,
    AnchorRule,
    anchor_steps,
    find_anchors,
    step_at,
    with_steps,
)
from overlapwatch.vocabulary import StepFlag
from tests.support.profiles import kernels
from tests.support.scenarios import at, collective, profile, records, step_rows

GAP = AnchorRule(step_gap_ns=5_000_000)


def told(tl, rule=GAP):
    tl, words = with_steps(tl, rule)
    return [
        (int(s["step"]), int(s["start"]), int(s["end"]), int(s["flags"])) for s in tl.steps
    ], words


def test_a_gap_between_anchors_starts_a_step():
    """The table of the module: f f b b, a gap of 8, f f b b, end of the capture."""
    tl = kernels("ffbb........ffbb..", flash=True)
    steps, words = told(tl)
    assert steps == [(1, at(0), at(12), 0), (2, at(12), at(18), 0)]
    assert words == "anchor kernels, a gap of over 5 ms starts a step"


def test_a_gap_that_is_just_as_long_starts_none():
    tl = kernels("fb.....fb", flash=True)
    assert len(told(tl)[0]) == 1
    assert len(told(tl, AnchorRule(step_gap_ns=4_999_999))[0]) == 2


def test_a_long_anchor_hides_no_gap():
    """A gap counts from the end of all anchors before, not from the end of the last one begun."""
    tl = kernels("f", flash=True)
    lane = replace(
        tl.compute,
        start=np.array([at(0), at(1), at(12)]),
        end=np.array([at(11), at(2), at(13)]),
        name=np.array([1, 2, 1], np.uint32),
        phase=np.zeros(3, np.uint8),
    )
    assert len(told(replace(tl, compute=lane))[0]) == 1


def test_an_edge_step_with_fewer_anchors_is_partial():
    steps, _ = told(kernels("bb.......ffbb.......ffbb.......f", flash=True))
    partial = int(StepFlag.PARTIAL)
    assert [flags for *_, flags in steps] == [partial, 0, 0, partial]


def test_recorded_steps_are_kept():
    tl = replace(kernels("ffbb.......fb", flash=True), steps=step_rows([(7, 0, 3)]))
    assert told(tl) == ([(7, at(0), at(3), 0)], RECORDED)


def test_without_both_kinds_of_anchors_there_are_no_steps_and_it_is_said():
    for row in ("ff.......ff", "bb", ""):
        tl, words = with_steps(kernels(row, flash=True), GAP)
        assert (len(tl.steps), words) == (0, NO_STEPS)
        assert [one.what for one in tl.unknown] == ["steps"]


def test_collectives_get_the_step_they_begin_in():
    sends = [collective(1, 4), collective(11.5, 13), collective(12, 14), collective(-5, -4)]
    tl = replace(kernels("ffbb........ffbb..", flash=True), communication=records(sends))
    numbered, _ = with_steps(tl, GAP)
    assert numbered.communication["step"].tolist() == [1, 1, 2, 0]
    assert tl.communication["step"].tolist() == [0, 0, 0, 0], "the input is not changed"


def test_a_source_that_numbered_its_collectives_is_believed():
    tl = profile(
        [(0, 9)], [collective(1, 2, step=3), collective(2, 3)], steps=step_rows([(1, 0, 9)])
    )
    assert with_steps(tl, GAP)[0] is tl


def test_step_at():
    steps = step_rows([(4, 0, 10), (5, 10, 20), (9, 30, 40)])
    moments = np.array([at(ms) for ms in (-1, 0, 9.9, 10, 25, 30, 40)], np.int64)
    assert step_at(steps, moments).tolist() == [0, 4, 4, 5, 0, 9, 0]
    assert step_at(steps[:0], moments).tolist() == [0] * 7


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", True, False),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>", False, True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", True, False),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", False, True),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", True, False),
        ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80", False, True),
        ("_attn_fwd", True, False),
        ("_attn_bwd_dkdv", False, True),
        ("ampere_sgemm_128x64_nn", False, False),
    ],
)
def test_what_is_an_anchor(name, forward, backward):
    found = find_anchors(kernels("f", names={1: name}), AnchorRule())
    assert len(found) == (forward or backward)
    assert found.backward.tolist() == ([backward] if len(found) else [])


def test_anchors_can_be_named():
    tl = kernels("f.b", names={1: "my_layer_in", 2: "my_layer_out"})
    assert len(find_anchors(tl, AnchorRule())) == 0
    found = find_anchors(tl, AnchorRule(forward="layer_in", backward="LAYER_OUT"))
    assert found.usable
    assert len(anchor_steps(found, 10, 0)) == 2


def test_nonsense_is_one_sentence():
    with pytest.raises(ConfigurationError, match=r"the forward anchor '\(' is no regular"):
        AnchorRule(forward="(")
    with pytest.raises(ConfigurationError, match="the step gap must be above 0"):
        AnchorRule(step_gap_ns=0)

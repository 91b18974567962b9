"""Blocks cut from a run put together again give that run; what cannot tell says why."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.timeline.intervals import union
from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import GRADIENT_READY, Name, NameKind
from overlapwatch.whatif import blocks as blocks_
from overlapwatch.whatif.blocks import MAX_STEPS, measured_blocks
from overlapwatch.whatif.engines import TwoEngines, queue
from tests.reports.recordings import Job
from tests.whatif import test_ddp as ddp

MS = 1_000_000


def together(step):
    """The two engines of these blocks."""
    ends = np.cumsum(step.still_ns + step.compute_ns)
    return TwoEngines(
        ends - step.compute_ns, ends, *queue(step.ready_ns + step.delay_ns, step.service_ns)
    )


def by_block(step):
    """(stood still, computed) of each block."""
    first = np.cumsum((0, *step.segments[:-1]))
    sums = [np.add.reduceat(column, first).tolist() for column in (step.still_ns, step.compute_ns)]
    return list(zip(*sums, strict=True))


def test_the_worked_example_is_measured_as_it_was_made():
    blocks = measured_blocks([Job(steps=4, world=1).recording()])
    assert blocks.buckets == ("bucket 0", "bucket 1", "bucket 2")
    assert blocks.ranks == 1
    for step in blocks.steps:
        # Nothing before the first bucket's block, nothing behind the last one's.
        assert by_block(step) == [(0, 0), *[(0, 2 * MS)] * 3, (0, 0)]
        assert step.service_ns.tolist() == [MS] * 3
        assert dataclasses.astuple(step.recorded) == (
            7 * MS,
            7 * MS,
            MS,
            3 * MS,
            2 * MS,
            MS,
            0,
        )
    assert "no step in statistics has both" in blocks.layout_because
    assert blocks.layout is None


def test_a_block_that_waits_in_the_queue_keeps_its_own_time():
    blocks = measured_blocks([Job(steps=3, sends=(4, 4, 4), forward=3, optimizer=1).recording()])
    for step in blocks.steps:
        assert step.service_ns.tolist() == [4 * MS] * 3
        assert by_block(step) == [(0, 3 * MS), *[(0, 2 * MS)] * 3, (0, 0)]
        engines = together(step)
        assert engines.tail_ns == step.recorded.tail_ns == 8 * MS
        assert engines.total_ns == step.recorded.total_ns == 17 * MS
        assert engines.hidden_ns == step.recorded.hidden_ns
        assert engines.exposed_ns == step.recorded.exposed_ns
    assert blocks.before == "forward"


@pytest.mark.parametrize(("cap", "late"), [(2, 0), (None, 0), (3, 2 * MS)])
def test_ddp_is_put_together_again_and_its_model_is_that_of_the_forecast(cap, late):
    run = ddp.run(cap, late=late, world=2)
    peer = ddp.run(cap, rank=1, world=2)
    blocks = measured_blocks([run, peer])
    assert blocks.ranks == 2
    forecast = ddp.ddp_forecast([run, peer], (None,))
    assert (blocks.model.error_ns, blocks.model.cost) == (forecast.error_ns, forecast.cost)
    for step in blocks.steps:
        engines = together(step)
        assert engines.tail_ns == step.recorded.tail_ns
        assert engines.total_ns == step.recorded.total_ns
        assert step.gradients_ns.tolist() == [ddp.EVERY * (i + 1) for i in range(ddp.PARAMETERS)]
        assert int((step.still_ns + step.compute_ns).sum()) == ddp.EVERY * ddp.PARAMETERS


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12),
    st.lists(st.integers(0, 90), min_size=1, max_size=6),
    st.integers(1, 8),
)
def test_segments_are_the_lane_cut_at_the_edges(spans, cuts, most):
    start = np.cumsum([gap + length for gap, length in spans]) - [length for _, length in spans]
    lane = union(start, start + [length for _, length in spans])
    edges = np.array([0, *sorted(cuts)], np.int64)
    busy = {t for a, b in zip(lane.start, lane.end, strict=True) for t in range(a, b)}
    still, compute, counts = blocks_.segments(edges, lane, 1000)
    begin = np.cumsum(still + compute) - compute
    assert {t for a, n in zip(begin, compute, strict=True) for t in range(a, a + n)} == {
        t for t in busy if t < edges[-1]
    }
    # Fewer: each block keeps its end and what it computes.
    fewer_still, fewer, fewer_counts = blocks_.segments(edges, lane, most)
    assert len(fewer) <= max(most, len(cuts))
    for one, other in ((still, fewer_still), (compute, fewer)):
        sums = [np.add.reduceat(column, np.cumsum((0, *count[:-1]))).tolist()
                for column, count in ((one, counts), (other, fewer_counts))]  # fmt: skip
        assert sums[0] == sums[1]


def test_only_the_steps_asked_for_and_no_more_than_a_page_holds():
    whole = ddp.run(2, steps=60)
    assert [step.step for step in measured_blocks([whole], [7, 9, 999]).steps] == [7, 9]
    thinned = measured_blocks([whole])
    assert len(thinned.steps) == MAX_STEPS
    assert thinned.usable == 60
    assert (thinned.steps[0].step, thinned.steps[-1].step) == (1, 60)


def test_the_median_step_stands_for_the_others():
    slow = Job(steps=5, longer={0: 9, 1: 5, 2: 1, 3: 2, 4: 7})
    blocks = measured_blocks([slow.recording()])
    assert blocks.steps[blocks.representative].step == 1


def test_a_model_without_sizes_has_no_error_and_says_why():
    whole = Job(steps=3).recording()
    nameless = whole.timeline.communication.copy()
    nameless["bytes"] = 0
    blocks = measured_blocks(
        [Recording(dataclasses.replace(whole.timeline, communication=nameless))]
    )
    assert blocks.model.error_ns is None
    assert blocks.model.cost is None
    assert "cannot be fitted" in blocks.model.because


def test_what_cannot_tell_says_why_in_one_sentence():
    timeline = ddp.run(2).timeline
    kernels = timeline.communication.copy()
    kernels["stream"], kernels["ready"] = 7, 0
    none = np.empty(0, GRADIENT_READY)
    profile = dataclasses.replace(timeline, communication=kernels, gradients=none)
    with pytest.raises(InputError, match="not when its gradients were complete"):
        measured_blocks([Recording(profile)])
    modules = {
        i: Name(i, NameKind.MODULE, f"layer {i}")
        for i in np.unique(timeline.communication["owner"])
    }
    fsdp = dataclasses.replace(timeline, gradients=none, names={**timeline.names, **modules})
    with pytest.raises(InputError, match="FSDP2"):
        measured_blocks([Recording(fsdp)])
    silent = dataclasses.replace(timeline, communication=timeline.communication[:0])
    with pytest.raises(InputError, match="it has no collective"):
        measured_blocks([Recording(silent)])
    with pytest.raises(InputError, match="no step that counts"):
        measured_blocks([Recording(dataclasses.replace(timeline, gradients=none))], [999])

"""What was configured against what was measured: the public cases, each with the reason that its recording supports."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.configured import Configured, configured
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.window import capture_window
from overlapwatch.timeline.model import Origin, Timeline
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind, Phase, RecordFlag, StepFlag
from tests.support.scenarios import MS, collective, lane, profile, step_rows

NAMES = {
    1: Name(1, NameKind.BUCKET, "bucket group 0"),
    2: Name(2, NameKind.MODULE, "bucket group 0, parameters", (9,)),
    3: Name(3, NameKind.LAYER, "chunk 0: pipeline"),
}
DDP = {
    "megatron version": "0.16.1",
    "megatron wrapper": "megatron-ddp",
    "megatron overlap_grad_reduce": "on",
    "megatron bucket_size": "40000000",
    "megatron bucket_size in force": "40000000",
    "megatron bucket groups": "1",
    "megatron bucket elements": "43072",
    "megatron bucket bytes": "172288",
    "megatron pipeline rank": "0",
}


def timeline(sends, device: str = "cuda:0 H100") -> Timeline:
    """Backward computes from 0 to 6 ms in a step of 20 ms."""
    tl = profile([(0, 6)], sends, steps=step_rows([(1, 0, 20)]))
    return replace(
        tl,
        names=NAMES,
        phases=lane([(0, 6)], Phase.BACKWARD),
        compute=lane([(0, 6)], Phase.BACKWARD),
        origin=Origin("owlog", "", 0, 2, device=device),
    )


def told(tl: Timeline, about, flags=(0,), notes=()) -> Configured:
    found = configured(
        about,
        tl,
        tl.communication,
        lanes_of(tl, capture_window(tl)),
        np.array(flags, np.uint32),
        notes,
    )
    assert found is not None
    return found


def bucket(start: float, finish: float, ready: float | None = None, **fields):
    return collective(start, finish, ready=ready, owner=1, step=1, phase=Phase.BACKWARD, **fields)


def test_no_options_no_section():
    tl = timeline([bucket(6, 9)])
    lanes = lanes_of(tl, capture_window(tl))
    assert (
        configured({"torch": "2.13"}, tl, tl.communication, lanes, np.zeros(1, np.uint32)) is None
    )


def test_case_6_configured_to_overlap_measured_nothing_with_the_variable_beside_it():
    tl = timeline([bucket(6, 9, ready=2), bucket(9, 12, ready=4)])
    several = {**DDP, "megatron bucket groups": "2", "megatron bucket elements": "20000 23072"}
    (verdict,) = told(tl, {**several, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}).verdicts
    assert verdict.nothing_hidden
    assert (verdict.hidden_ns, verdict.union_ns, verdict.in_time, verdict.count) == (
        0,
        6 * MS,
        2,
        2,
    )
    launched, variable = verdict.reasons
    assert launched.startswith("2 of 2 reductions were launched before backward ended")
    assert variable.startswith(
        "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one hardware queue"
    )
    (verdict,) = told(tl, several).verdicts
    assert verdict.reasons[-1] == "CUDA_DEVICE_MAX_CONNECTIONS was not set: it is not the cause"
    (verdict,) = told(timeline([bucket(6, 9)], device="cpu"), several).verdicts
    assert not any("CONNECTIONS" in reason for reason in verdict.reasons)


def test_case_7_a_bucket_size_is_told_in_elements_and_bytes():
    for width, size in (("268435456", "256 MiB"), ("536870912", "512 MiB")):
        about = {
            **DDP,
            "megatron bucket_size": "134217728",
            "megatron bucket_size in force": "134217728",
            "megatron bucket elements": "134217728",
            "megatron bucket bytes": width,
        }
        (text,) = told(timeline([bucket(2, 4)]), about).buckets
        assert f"134,217,728 elements before padding, {size} of gradients" in text


def test_case_8_an_odd_type_is_flagged_and_the_size_in_force_is_told():
    about = {
        **DDP,
        "megatron overlap_grad_reduce": "off",
        "megatron bucket_size": "True",
        "megatron bucket_size type": "bool",
        "megatron bucket_size in force": "none",
    }
    found = told(timeline([bucket(6, 9)]), about)
    odd, size = found.buckets
    assert "bucket_size=True is of type bool" in odd
    assert "without a limit (bucket_size=True is not in force here)" in size
    assert any("without overlap_grad_reduce" in text for text in found.by_design)
    assert found.verdicts == ()


def test_case_9_later_pipeline_ranks_never_overlap_by_design():
    about = {**DDP, "megatron pipeline rank": "3", "megatron pipeline_model_parallel_size": "4"}
    found = told(timeline([bucket(6, 9, ready=6)]), about)
    (verdict,) = found.verdicts
    assert verdict.reasons[0].startswith("by design: pipeline rank 3 > 0 uses a single bucket")
    assert verdict.in_time == 0
    assert any(text.startswith("pipeline rank 3") for text in found.by_design)
    assert found.sizes == (("pipeline", 4),)


def test_one_bucket_that_holds_all():
    (verdict,) = told(timeline([bucket(6, 9, ready=6)]), DDP).verdicts
    assert verdict.reasons[0].startswith(
        "bucket_size of 40,000,000 elements holds all 43,072 gradients"
    )
    assert "none of 1 reductions was launched before" in verdict.reasons[1]


def test_overlap_needs_no_reason():
    (verdict,) = told(timeline([bucket(2, 6)]), DDP).verdicts
    assert not verdict.nothing_hidden
    assert verdict.reasons == ()
    assert (verdict.hidden_ns, verdict.union_ns) == (4 * MS, 4 * MS)


def test_an_unobservable_finish_is_no_measured_zero():
    unseen = bucket(2, 4, kind=CollectiveKind.REDUCE_SCATTER)
    unseen["finish"] = 0
    unseen["start"] = 0
    unseen["flags"] = RecordFlag.FINISH_UNOBSERVABLE
    (verdict,) = told(timeline([unseen]), DDP).verdicts
    assert not verdict.nothing_hidden
    assert (verdict.union_ns, verdict.hidden_ns, verdict.in_time) == (None, None, 1)
    assert verdict.to_dict()["union_ns"] is None
    assert verdict.reasons == ()


def test_parameters_and_exchanges():
    about = {
        **DDP,
        "megatron overlap_param_gather": "on",
        "megatron overlap_p2p_comm": "on",
        "megatron pipeline_model_parallel_size": "2",
    }
    sends = [
        bucket(2, 4),
        collective(7, 9, owner=2, step=1, phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER),
        collective(1, 3, owner=3, step=1, phase=Phase.FORWARD, kind=CollectiveKind.SEND_RECV),
    ]
    found = told(timeline(sends), about)
    by_option = {one.option: one for one in found.verdicts}
    assert by_option["overlap_param_gather"].nothing_hidden
    assert "one bucket group holds all parameters" in by_option["overlap_param_gather"].reasons[0]
    assert by_option["overlap_p2p_comm"].hidden_ns == 2 * MS
    assert any("first all-gather" in text for text in found.by_design)


def test_the_first_batch_is_said_to_be_out():
    found = told(timeline([bucket(2, 4)]), DDP, flags=(StepFlag.FIRST_BATCH, 0))
    assert found.by_design[0].startswith("first batch")


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"tp_comm_overlap": "on"}, "user buffers"),
        (
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
            "hybridep",
        ),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, "full_iteration"),
        ({"wrapper": "megatron-fsdp"}, "Megatron-FSDP"),
    ],
)
def test_blind_spots_are_declared(facts, what):
    about = {**DDP, **{f"megatron {name}": value for name, value in facts.items()}}
    found = told(timeline([bucket(2, 4)]), about)
    assert len(found.unknown) == 1
    assert what in found.unknown[0].what
    assert told(timeline([bucket(2, 4)]), DDP).unknown == ()


def test_what_a_sweep_changed_is_not_judged():
    tl = timeline([bucket(8, 10, ready=6)])
    assert [one.option for one in told(tl, DDP).verdicts] == ["overlap_grad_reduce"]
    notes = ("sweep: overlap_grad_reduce=False from step 12 on", "a torn tail")
    swept = told(tl, DDP, notes=notes)
    assert swept.verdicts == ()
    assert [one.what for one in swept.unknown] == ["what came of overlap_grad_reduce"]
    assert told(tl, DDP, notes=("overlap_grad_reduce was left out",)).verdicts

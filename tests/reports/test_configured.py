"""The sections about options and layers, as people read them."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.reports.text import plain
from overlapwatch.timeline.model import Origin, Recording
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind, Phase, RecordFlag, RecordKind
from tests.support.scenarios import at, collective, lane, profile, record, records, step_rows

NAMES = {
    1: Name(1, NameKind.BUCKET, "bucket group 0", (9,), 43_072, 172_288, "float32"),
    2: Name(2, NameKind.LAYER, "decoder.layers.0.mlp.linear_fc1"),
    3: Name(3, NameKind.LAYER, "decoder.layers.1.mlp.linear_fc1"),
    4: Name(4, NameKind.LAYER, "pipeline"),
    9: Name(9, NameKind.PARAMETER, "embedding.weight"),
}
ABOUT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "megatron version": "0.16.1",
    "megatron wrapper": "megatron-ddp",
    "megatron overlap_grad_reduce": "on",
    "megatron batch_p2p_comm": "on",
    "megatron tensor_model_parallel_size": "2",
    "megatron bucket_size": "134217728",
    "megatron bucket_size in force": "134217728",
    "megatron bucket groups": "1",
    "megatron bucket elements": "43072",
    "megatron bucket bytes": "172288",
    "megatron pipeline rank": "0",
    "megatron tp_comm_overlap": "on",
}


def recording() -> Recording:
    back = {"phase": Phase.BACKWARD, "step": 1}
    tl = profile(
        [(0, 6)],
        [
            collective(6, 9, owner=1, **back),
            collective(1, 3, owner=2, kind=CollectiveKind.ALL_GATHER, **back),
            collective(2, 5, owner=3, kind=CollectiveKind.ALL_GATHER, **back),
            record(
                kind=RecordKind.COLLECTIVE,
                collective=CollectiveKind.SEND_RECV,
                owner=4,
                flags=RecordFlag.FINISH_UNOBSERVABLE,
                launch=at(5),
                **back,
            ),
        ],
        steps=step_rows([(1, 0, 10)]),
    )
    wait = record(
        kind=RecordKind.WAIT,
        collective=CollectiveKind.SEND_RECV,
        owner=4,
        start=at(5),
        finish=at(6),
        **back,
    )
    return Recording(
        replace(
            tl,
            names=NAMES,
            uses=records([wait]),
            phases=lane([(0, 6)], Phase.BACKWARD),
            compute=lane([(0, 6)], Phase.BACKWARD),
            origin=Origin("owlog", "a.owlog", 0, 2, device="cuda:0 H100"),
            compute_rule="marked forward, backward and optimizer spans minus waits",
        ),
        state="closed",
        about=ABOUT,
    )


@pytest.fixture(scope="module")
def text() -> str:
    return plain([analyse(recording())], 100)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_measured_zero_has_its_likely_reasons(text: str) -> None:
    told = flat(text)
    assert (
        "overlap_grad_reduce is on: 0.0 % of the time of its gradients was hidden (0 / 3.00 ms"
        in told
    )
    assert (
        "likely because: bucket_size of 134,217,728 elements holds all 43,072 gradients of this rank: one bucket"
    ) in told
    assert "none of 1 reductions was launched before the last backward of its step ended" in told
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one hardware queue" in told
    assert "134,217,728 elements before padding, 512 MiB of gradients" in told


def test_options_are_told_once_and_only_those_that_matter(text: str) -> None:
    assert "megatron overlap_grad_reduce" not in text
    told = flat(text)
    assert "on overlap_grad_reduce, tp_comm_overlap buckets" in told  # nothing of the pipeline's
    assert "parallel tensor 2" in told
    assert (
        "tensor-parallel communication through user buffers (tp_comm_overlap): it runs inside"
        in told
    )


def test_layers_are_told_alike_ones_together(text: str) -> None:
    told = flat(text)
    assert "decoder.layers.*.mlp.linear_fc1 AllGather 2" in told.replace(" (2)", "")
    assert "(2)" in told
    assert "pipeline SendRecv 1 – – – – 1.0" in told
    assert "most exposed" not in told  # nothing of them was


def test_a_kind_without_spans_is_in_the_table_of_phases(text: str) -> None:
    assert "backward SendRecv 1 – – – – not seen" in flat(text)


def test_a_narrow_terminal_loses_nothing() -> None:
    narrow = plain([analyse(recording())], 60)
    assert max(len(line) for line in narrow.splitlines()) <= 60
    assert "decoder.layers.*.mlp" in narrow


def test_the_json_has_both() -> None:
    told = analyse(recording()).to_dict()
    assert told["configured"]["verdicts"][0]["hidden_ns"] == 0
    assert [row["layers"] for row in told["layers"]["alike"]] == [2, 1]
    assert np.sum([row["count"] for row in told["layers"]["rows"]]) == 3

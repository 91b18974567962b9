"""Layers: by name, phase and kind; held against a count of each millisecond."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.layers import LayerTable, layer_table, pattern_of
from overlapwatch.accounting.window import capture_window
from overlapwatch.timeline.model import Timeline
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind, Phase, RecordFlag, RecordKind
from tests.support.scenarios import MS, at, collective, profile, record, records

AG, RS = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
NAMES = {
    1: Name(1, NameKind.LAYER, "layers.0.fc1"),
    2: Name(2, NameKind.LAYER, "layers.1.fc1"),
    3: Name(3, NameKind.BUCKET, "bucket group 0"),
    4: Name(4, NameKind.LAYER, "pipeline"),
}


def wait(start: float, finish: float, owner: int, kind: CollectiveKind, step: int = 0):
    return record(
        kind=RecordKind.WAIT,
        owner=owner,
        collective=kind,
        phase=Phase.BACKWARD,
        step=step,
        start=at(start),
        finish=at(finish),
    )


def told(tl: Timeline, steps=(0,)) -> LayerTable:
    tl = replace(tl, names=NAMES)
    found = layer_table(
        tl.communication, lanes_of(tl, capture_window(tl)), tl, np.array(steps, np.uint32)
    )
    assert [check for check in found.checks() if not check.ok] == []
    return found


def test_the_table_of_the_module():
    sends = [
        collective(2, 6, owner=1, kind=AG, phase=Phase.BACKWARD),
        collective(8, 9, owner=2, kind=AG, phase=Phase.BACKWARD),
        collective(1, 3, owner=3, kind=RS, phase=Phase.BACKWARD),  # no layer's
    ]
    tl = replace(profile([(0, 4), (7, 9)], sends), uses=records([wait(4, 6, 1, AG)]))
    table = told(tl)
    assert table.collectives == 2
    first, second = table.rows
    assert (first.layer, first.count, first.bytes, first.waits, first.wait_ns) == (
        "layers.0.fc1", 1, 1000, 1, 2 * MS,
    )  # fmt: skip
    assert (first.union_ns, first.overlap_ns, first.exposed_ns) == (4 * MS, 2 * MS, 2 * MS)
    assert (second.layer, second.union_ns, second.overlap_ns, second.exposed_ns) == (
        "layers.1.fc1", MS, MS, 0,
    )  # fmt: skip
    (both,) = table.alike
    assert (both.layer, both.layers, both.count, both.union_ns, both.overlap_ns) == (
        "layers.*.fc1", 2, 2, 5 * MS, 3 * MS,
    )  # fmt: skip
    assert both.to_dict()["kind"] == "AllGather"


def test_what_cannot_be_seen_is_counted_and_its_wait_is_known():
    send = record(
        kind=RecordKind.COLLECTIVE,
        collective=CollectiveKind.SEND_RECV,
        owner=4,
        phase=Phase.BACKWARD,
        flags=RecordFlag.FINISH_UNOBSERVABLE,
        launch=at(1),
        bytes=64,
    )
    tl = profile([(0, 9)], [send])
    tl = replace(
        tl,
        uses=records(
            [
                wait(2, 5, 4, CollectiveKind.SEND_RECV),
                wait(6, 7, 4, CollectiveKind.SEND_RECV, step=7),  # of a step that is not asked for
            ]
        ),
    )
    (row,) = told(tl).rows
    assert (row.count, row.spans, row.union_ns, row.exposed_ns) == (1, 0, None, None)
    assert (row.waits, row.wait_ns) == (1, 3 * MS)
    assert row.to_dict()["union_ns"] is None


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("decoder.layers.13.mlp.linear_fc1", "decoder.layers.*.mlp.linear_fc1"),
        ("chunk 1: decoder.layers.0.mlp: dispatch", "chunk *: decoder.layers.*.mlp: dispatch"),
        ("linear_fc1", "linear_fc1"),
        ("0", "*"),
    ],
)
def test_patterns(text: str, pattern: str):
    assert pattern_of(text) == pattern


SPAN = st.tuples(
    st.integers(0, 20),
    st.integers(1, 6),
    st.sampled_from((1, 2, 3, 4)),
    st.sampled_from((Phase.FORWARD, Phase.BACKWARD)),
    st.sampled_from((AG, RS)),
)


@given(st.lists(SPAN, max_size=12), st.lists(st.integers(0, 25), max_size=4))
def test_against_each_millisecond(spans, computing):
    sends = [collective(s, s + n, owner=o, phase=p, kind=k) for s, n, o, p, k in spans]
    compute = [(s, s + 3) for s in computing]
    table = told(profile(compute, sends))
    busy, count = defaultdict(set), defaultdict(int)
    for start, length, owner, phase, kind in spans:
        if owner != 3:
            key = (NAMES[owner].text, phase, kind)
            busy[key] |= set(range(start, start + length))
            count[key] += 1
    computed = {ms for start, end in compute for ms in range(start, end)}
    found = {(row.layer, row.phase, row.kind): row for row in table.rows}
    assert set(found) == set(busy)
    for key, moments in busy.items():
        row = found[key]
        assert (row.count, row.union_ns) == (count[key], len(moments) * MS)
        assert row.overlap_ns == len(moments & computed) * MS
        assert row.exposed_ns == len(moments - computed) * MS

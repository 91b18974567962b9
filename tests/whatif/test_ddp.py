"""A run made by the model's own rules, on known times and costs: the forecast must find every number again."""

import dataclasses

import numpy as np
import pytest

from overlapwatch.errors import ConfigurationError, InputError
from overlapwatch.timeline.model import Origin, Recording
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import (
    GRADIENT_READY,
    CollectiveKind,
    Name,
    NameKind,
    Phase,
    RecordFlag,
    RecordKind,
)
from overlapwatch.whatif.bucketing import MIB, assign, limits
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.ddp import ddp_forecast
from overlapwatch.whatif.engines import queue
from tests.support.scenarios import BASE_NS, MS, record, records

PARAMETERS = 12
SIZE = MIB
EVERY = 5 * MS  # a gradient is ready every 5 ms of the backward
COST = Cost(latency_ns=MS, ns_per_byte=4 * MS / MIB)  # 1 ms + 4 ms a MiB
DELAY = 20_000


def truth(cap_mb, late=0):
    """The tail of a step with this cap, by the rules."""
    members = assign([SIZE] * PARAMETERS, limits(cap_mb), ["float32"] * PARAMETERS)
    ready = np.array([EVERY * (max(m) + 1) + late for m in members], np.int64)
    sizes = np.array([SIZE * len(m) for m in members], np.int64)
    start, finish = queue(ready + DELAY, COST.of(sizes))
    return members, ready, start, finish


def run(cap_mb=2, steps=3, late=0, rank=0, world=1):
    """`late`: this much later than on this rank, the last rank's gradients are ready."""
    members, ready, _, finish = truth(cap_mb, late)
    names = {
        1 + i: Name(1 + i, NameKind.PARAMETER, f"p{i}", (), SIZE // 4, SIZE, "float32")
        for i in range(PARAMETERS)
    }
    for b, m in enumerate(members):
        names[100 + b] = Name(
            100 + b, NameKind.BUCKET, f"bucket {b}", tuple(1 + i for i in m), 0, SIZE * len(m)
        )
    rows, gradients = [], []
    compute_end = EVERY * PARAMETERS
    for s in range(1, steps + 1):
        zero = BASE_NS + s * 1000 * MS
        rows.append(record(kind=RecordKind.STEP, step=s, start=zero, finish=zero + 200 * MS))
        rows.append(
            record(
                kind=RecordKind.PHASE,
                phase=Phase.BACKWARD,
                step=s,
                start=zero,
                finish=zero + compute_end,
            )
        )
        for b in range(len(members)):
            own = zero + int(ready[b]) - late
            rows.append(
                record(
                    kind=RecordKind.COLLECTIVE,
                    collective=CollectiveKind.ALL_REDUCE,
                    phase=Phase.BACKWARD,
                    flags=RecordFlag.READY_ESTIMATED,
                    step=s,
                    owner=100 + b,
                    group=1,
                    sequence=b + 1,
                    bytes=SIZE * len(members[b]),
                    ready=own,
                    launch=own + DELAY,
                    finish=zero + int(finish[b]),
                )
            )
        gradients += [(s, 1 + i, zero + EVERY * (i + 1)) for i in range(PARAMETERS)]
    timeline = from_records(
        records(rows),
        origin=Origin("owlog", "run", rank, world, host="h"),
        gradients=np.array(gradients, GRADIENT_READY),
        names=names,
        groups={1: Name(1, NameKind.GROUP, "default", tuple(range(world)))},
    )
    return Recording(timeline)


CAPS = (1, 2, 3, 6, 100)


def test_every_cap_is_forecast_exactly_with_the_cost_given():
    forecast = ddp_forecast([run()], CAPS, COST)
    assert forecast.launch_delay_ns == DELAY
    assert forecast.error_ns == 0
    for cap in forecast.caps:
        members, _, _, finish = truth(cap.cap_mb)
        assert cap.buckets == len(members)
        assert cap.tail_ns == finish[-1] - EVERY * PARAMETERS
        assert cap.step_ns == 200 * MS + cap.tail_ns - forecast.tail_ns
        assert cap.exposed_ns == forecast.exposed_ns + cap.tail_ns - forecast.tail_ns
    assert [cap.cap_mb for cap in forecast.best] == [1]
    assert forecast.ceiling == pytest.approx(200 * MS / (200 * MS - forecast.exposed_ns) - 1)


def test_the_cost_is_fitted_where_sizes_differ():
    # A first bucket of one parameter, then of several: two sizes tell latency from rate.
    forecast = ddp_forecast([run(cap_mb=None)], (None, *CAPS))
    assert forecast.cost.latency_ns == pytest.approx(MS, rel=0.01)
    assert forecast.cost.ns_per_byte == pytest.approx(4 * MS / MIB, rel=0.01)
    default = forecast.caps[0]
    assert default.cap_mb is None
    assert default.tail_ns == pytest.approx(forecast.tail_ns, rel=0.01)
    assert not forecast.unknown


def test_one_size_says_that_latency_is_not_known():
    forecast = ddp_forecast([run(cap_mb=2)], CAPS)
    assert [one.what for one in forecast.unknown] == ["the latency of a collective"]


def test_a_late_rank_counts_where_its_log_is_there():
    # On this rank's clock the peer's gradients come 3 ms later, and nothing moves before.
    mine, peer = run(late=3 * MS, rank=0, world=2), run(rank=1, world=2)
    shifted = peer.timeline.gradients.copy()
    shifted["ready"] += 3 * MS
    communication = peer.timeline.communication.copy()
    communication["launch"] += 3 * MS
    peer = Recording(
        dataclasses.replace(peer.timeline, gradients=shifted, communication=communication)
    )
    both = ddp_forecast([mine, peer], CAPS, COST)
    assert both.ranks == 2
    assert both.error_ns == 0
    assert both.launch_delay_ns == DELAY
    alone = ddp_forecast([mine], CAPS, COST)
    assert alone.error_ns == 3 * MS
    assert [one.what for one in alone.unknown] == ["when the other ranks' gradients were ready"]


def test_bad_input_is_one_sentence():
    for caps in ((), (0,), (-1, 2), (float("nan"),)):
        with pytest.raises(ConfigurationError, match="positive numbers of MiB"):
            ddp_forecast([run()], caps)
    whole = run()
    blind = dataclasses.replace(whole.timeline, gradients=np.empty(0, GRADIENT_READY))
    with pytest.raises(InputError, match="gradients_every=1"):
        ddp_forecast([Recording(blind)])
    empty = dataclasses.replace(whole.timeline, names={})
    with pytest.raises(InputError, match="no step with DDP buckets"):
        ddp_forecast([Recording(empty)])

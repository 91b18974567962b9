"""FSDP2's own code on a simulated device: every span is the one that the streams had, and watching moves none of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from overlapwatch.clock import DeviceEventClock, HostClock
from overlapwatch.hooks.c10d import CollectiveTap
from overlapwatch.hooks.fsdp2_attach import Fsdp2Attach
from overlapwatch.hooks.hazard import event_policy
from overlapwatch.hooks.instrument import Context
from overlapwatch.hooks.names import Names
from overlapwatch.hooks.recorder import Guard, Recorder
from overlapwatch.hooks.steps import StepBoundaries
from overlapwatch.hooks.times import DeviceTimes
from overlapwatch.ring import Ring
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag, RecordKind
from tests.support.device import SimulatedDevice, SimulatedTime, Stream
from tests.support.fsdp2_device import MS, Block, simulated

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
TOOK_MS = {
    "c10d::_allgather_base_": 3.0,
    "c10d::_reduce_scatter_base_": 5.0,
    "fsdp::all_gather_copy_in": 0.25,
    "fsdp::split_with_sizes_copy": 0.5,
    "fsdp::chunk_cat": 0.75,
}


@dataclass
class Job:
    """A model of three blocks on a device, and what watches it."""

    device: SimulatedDevice
    model: Any
    recorder: Recorder
    times: DeviceTimes
    ring: Ring
    names: Names
    boundaries: StepBoundaries | None

    def step(self) -> None:
        """One forward and backward; the host takes no time, so it runs ahead of the device."""
        x = torch.zeros(2, 8, requires_grad=True)
        self.model(x).sum().backward()
        if self.boundaries is not None:
            self.boundaries.explicit()

    def records(self, step: int) -> np.ndarray:
        """Return what was recorded of a step, once the device has got there."""
        self.device.time.sleep(1_000 * MS)
        self.times.poll()
        records = self.ring.read(0).records
        return records[records["step"] == step]


@contextmanager
def job(environ: dict[str, str] | None = None, *, watched: bool = True) -> Iterator[Job]:
    device = SimulatedDevice(SimulatedTime(read_ns=0), launch_ns=0)
    with simulated(device, TOOK_MS):
        host = HostClock(device.time.now)
        clock = DeviceEventClock(device, host)
        device.time.read_ns = 50
        assert clock.calibrate()
        device.time.read_ns = 0
        ring, _ = Ring.create("fsdp2", 1 << 10, (), {})
        plan = event_policy("cuda", environ or {})
        observer = Stream(9) if plan.observer_stream else None
        times = DeviceTimes(host.now, ring, clock, plan, device.on, observer)
        names = Names()
        recorder = Recorder(ring, names, times, Guard())
        model = nn.Sequential(*(Block(device) for _ in range(3)))
        for block in model:
            fully_shard(block)
        fully_shard(model)
        boundaries = tap = instrument = None
        if watched:
            tap = CollectiveTap(recorder, frozenset({"cpu"}))
            boundaries = StepBoundaries(recorder, lambda _: True)
            instrument = Fsdp2Attach(Context(recorder, boundaries, tap, "passive"))
            instrument.add(model, "")
        try:
            yield Job(device, model, recorder, times, ring, names, boundaries)
            assert recorder.guard.tripped is None
        finally:
            if instrument is not None:
                instrument.remove(at_exit=False)
                tap.remove()
                boundaries.remove()
            ring.close(remove=True)


def chosen(records: np.ndarray, kind: RecordKind, collective: CollectiveKind) -> np.ndarray:
    return records[(records["kind"] == kind) & (records["collective"] == collective)]


def spans_ms(records: np.ndarray) -> list[float]:
    return [
        round(float(f - s) / MS, 2)
        for s, f in zip(records["start"], records["finish"], strict=True)
    ]


def test_each_collective_and_copy_is_timed_on_its_own_stream() -> None:
    with job() as running:
        running.step()
        running.step()
        records = running.records(2)
    gathers = chosen(records, RecordKind.COLLECTIVE, GATHER)
    assert spans_ms(gathers) == [3.0] * len(gathers)
    scatters = chosen(records, RecordKind.COLLECTIVE, SCATTER)
    assert spans_ms(scatters) == [5.0] * 3
    assert not (records["flags"] & RecordFlag.SYNCHRONOUS).any(), "compute goes on beside them"
    assert not (records["flags"] & RecordFlag.FINISH_UNOBSERVABLE).any()
    copies = chosen(records, RecordKind.COPY, GATHER)
    by_length = {ms: set() for ms in (0.25, 0.5)}
    for copy, ms in zip(copies, spans_ms(copies), strict=True):
        by_length[ms].add(int(copy["stream"]))
    assert by_length[0.5] == {0}, "out of the buffer on the compute stream"
    assert 0 not in by_length[0.25], "into it on FSDP's copy-in stream"
    assert set(spans_ms(chosen(records, RecordKind.COPY, SCATTER))) == {0.75}
    assert set(chosen(records, RecordKind.COPY, SCATTER)["stream"]) == {0}


def test_waits_are_what_the_compute_stream_stood_still() -> None:
    with job() as running:
        running.step()
        running.step()
        records = running.records(2)
        names = {name.id: name.text for name in running.names.take_new()}
    forward = records[records["phase"] == Phase.FORWARD]
    # Gathered while the block before computes (1 ms) and copies out (0.5 ms): 0.25 + 3 ms, but the streams are not free
    # before the compute stream's wait ends for the one before.
    uses = chosen(forward, RecordKind.WAIT, GATHER)
    assert [names[int(owner)] for owner in uses["owner"]] == ["0", "1", "2"]
    gathers = chosen(forward, RecordKind.COLLECTIVE, GATHER)
    for use, gather in zip(uses, gathers, strict=True):
        assert use["owner"] == gather["owner"]
        assert abs(int(use["finish"] - max(use["start"], gather["finish"]))) < 0.02 * MS
    assert max(spans_ms(uses)) > 1.0, "the communication is longer than what hides it"
    backward = records[records["phase"] == Phase.BACKWARD]
    for use in chosen(backward, RecordKind.WAIT, GATHER):
        gather = chosen(backward, RecordKind.COLLECTIVE, GATHER)
        own = gather[gather["owner"] == use["owner"]]
        assert abs(int(use["finish"] - max(use["start"], own["finish"].max()))) < 0.02 * MS
    waits = chosen(backward, RecordKind.WAIT, SCATTER)
    # A block's gradients wait until the reduce-scatter before is over: 5 ms, of which others are hidden by compute.
    assert [names[int(owner)] for owner in waits["owner"][:3]] == ["2", "1", "0"]
    scatters = chosen(backward, RecordKind.COLLECTIVE, SCATTER)
    for wait, before in zip(waits[1:3], scatters, strict=False):
        assert abs(int(wait["finish"] - max(wait["start"], before["finish"]))) < 0.02 * MS
    last = waits[-1]
    assert names[int(last["owner"])] == "Sequential"
    assert abs(int(last["finish"] - scatters["finish"].max())) < 0.02 * MS


def test_watching_delays_nothing() -> None:
    ends = []
    for watched in (False, True):
        with job(watched=watched) as running:
            began = running.device.time.ns
            for _ in range(3):
                running.step()
            ends.append(running.device.default.free_at - began)
    assert abs(ends[0] - ends[1]) < 0.01 * MS
    assert ends[0] > 3 * 3 * 5 * MS


def test_where_timed_events_would_remove_overlap_nothing_is_timed_inside_a_phase() -> None:
    with job({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) as running:
        running.step()
        records = running.records(1)
    assert not np.isin(records["kind"], (RecordKind.COPY, RecordKind.HELD)).any()
    assert chosen(records, RecordKind.WAIT, GATHER).size == 0
    collectives = records[records["kind"] == RecordKind.COLLECTIVE]
    assert (collectives["flags"] & RecordFlag.FINISH_UNOBSERVABLE != 0).all()
    (last,) = records[records["kind"] == RecordKind.WAIT]
    assert last["start"] < last["finish"], "the wait at the end is at a phase boundary"


@pytest.mark.parametrize("watched", [False, True])
def test_the_simulation_itself_hides_what_fsdp2_hides(watched: bool) -> None:
    """In the backward the next gather runs beside compute, which the simulation would show wrongly if streams did not wait."""
    with job(watched=watched) as running:
        running.step()
        began = running.device.default.free_at
        running.step()
        took = running.device.default.free_at - began
    serial = 3 * (3.25 + 0.5 + 1) + 3 * (3.25 + 0.5 + 2 + 0.75 + 5)
    assert took < serial * MS

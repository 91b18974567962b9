"""FSDP2's own code on a simulated device: what is forecast from one setting is what the device then does under another."""

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
from overlapwatch.timeline.model import Origin, Recording
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import NameKind, RecordKind
from overlapwatch.watching.assemble import EndedStep
from overlapwatch.watching.complete import Completer
from overlapwatch.whatif.fsdp2 import fsdp2_forecast
from overlapwatch.whatif.fsdp2_model import recorded
from tests.support.device import SimulatedDevice, SimulatedTime
from tests.support.fsdp2_device import MS, Block, simulated

BLOCKS = 5


def run(forward, backward, reshard, took_ms, compute_ms=(1, 2), steps=4):
    """Train a few steps on a device; return the recording."""
    device = SimulatedDevice(SimulatedTime(read_ns=0), launch_ns=0)
    with simulated(device, took_ms):
        host = HostClock(device.time.now)
        clock = DeviceEventClock(device, host)
        device.time.read_ns = 50
        assert clock.calibrate()
        device.time.read_ns = 0
        ring, _ = Ring.create("whatif", 1 << 12, (), {})
        times = DeviceTimes(host.now, ring, clock, event_policy("cuda", {}), device.on, None)
        names = Names()
        recorder = Recorder(ring, names, times, Guard())
        model = nn.Sequential(*(Block(device, *compute_ms) for _ in range(BLOCKS)))
        for block in model:
            fully_shard(block, reshard_after_forward=reshard)
        fully_shard(model)
        blocks = list(model)
        for place, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + forward])
            block.set_modules_to_backward_prefetch(blocks[max(0, place - backward) : place][::-1])
        tap = CollectiveTap(recorder, frozenset({"cpu"}))
        boundaries = StepBoundaries(recorder, lambda _: True)
        instrument = Fsdp2Attach(Context(recorder, boundaries, tap, "passive"))
        instrument.add(model, "")
        try:
            for _ in range(steps):
                x = torch.zeros(2, 8, requires_grad=True)
                model(x).sum().backward()
                boundaries.explicit()
            device.time.sleep(10_000 * MS)
            times.poll()
            read = ring.read(0)
            assert recorder.guard.tripped is None
        finally:
            instrument.remove(at_exit=False)
            tap.remove()
            boundaries.remove()
            ring.close(remove=True)
    completer, parts = Completer({}, on_host=False), []
    for number in range(1, steps + 1):
        mine = read.records["step"] == number
        ended = EndedStep(number, read.records[mine].copy(), np.flatnonzero(mine), 0)
        completer.complete(ended, ())
        parts.append(ended.records)
    # A step is from the beginning of its forward to that of the next one.
    begins = [int(one["start"][one["kind"] == RecordKind.PHASE].min()) for one in parts]
    for one, begin, end in zip(parts, begins, begins[1:], strict=False):
        mine = one["kind"] == RecordKind.STEP
        one["start"][mine], one["finish"][mine] = begin, end
    told = names.take_new()
    timeline = from_records(
        np.concatenate(parts[1:-1]),
        origin=Origin("owlog", "run", 0, 2, "cuda:0", host="h"),
        names={one.id: one for one in told if one.kind is not NameKind.GROUP},
        groups={one.id: one for one in told if one.kind is NameKind.GROUP},
    )
    return Recording(timeline)


COPIES = {
    "fsdp::all_gather_copy_in": 0.25,
    "fsdp::split_with_sizes_copy": 0.5,
    "fsdp::chunk_cat": 0.75,
}
GATHER, SCATTER = "c10d::_allgather_base_", "c10d::_reduce_scatter_base_"


@pytest.mark.parametrize(
    ("gather_ms", "scatter_ms", "others"),
    [(3.0, 1.0, [(2, 2, True), (3, 3, True)]), (1.5, 5.0, [(0, 0, False), (1, 3, True)])],
)
def test_a_forecast_is_what_the_device_then_does(gather_ms, scatter_ms, others):
    took = {**COPIES, GATHER: gather_ms, SCATTER: scatter_ms}
    recording = run(0, 0, True, took)
    told = fsdp2_forecast([recording], [0, 1, 2, 3], [0, 2, 3])
    assert told.device
    assert told.step_error_ns < 0.02 * MS
    assert told.apart, (
        "this device's streams do not wait for each other, and the recording shows it"
    )
    assert [check for check in told.checks() if not check.ok] == []
    rows = {
        (row.forward_prefetch, row.backward_prefetch, row.reshard_after_forward): row
        for row in told.settings
    }
    assert rows[0, 0, True].recorded
    for setting in others:
        timeline = run(*setting, took).timeline
        truth = recorded(timeline, timeline.steps["step"].tolist())
        row = rows[setting]
        assert row.step_ns == pytest.approx(truth.step_ns, abs=0.02 * MS)
        assert row.exposed_ns == pytest.approx(truth.exposed_ns, abs=0.02 * MS)
        assert row.tail_ns == pytest.approx(truth.tail_ns, abs=0.02 * MS)
        assert row.peak_bytes == truth.peak_bytes


def test_on_a_device_whose_streams_never_met_that_is_said():
    took = {**COPIES, GATHER: 1.0, SCATTER: 0.5}
    told = fsdp2_forecast([run(0, 0, False, took)], [0], [0], [True, False])
    assert not told.apart
    whats = [one.what for one in told.unknown]
    assert "how collectives that are under way together share the link" in whats
    assert any("simulated streams only" in one.because for one in told.unknown)

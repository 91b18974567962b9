"""The live path on a simulated device: hooks' calls in, SUMMARY rows out, with the answers of the worked example.

What a GPU does differently from the host clock is all here: the host runs ahead, times arrive late and out of order, a
step's end is an event, and a collective's finish is seen from an observer stream.
"""

import pytest

from overlapwatch.clock import DeviceEventClock, HostClock
from overlapwatch.hooks.hazard import event_policy
from overlapwatch.hooks.names import Names
from overlapwatch.hooks.recorder import Guard, Recorder
from overlapwatch.hooks.times import DeviceTimes, Finish
from overlapwatch.log.sinks import open_sinks
from overlapwatch.ring import Ring
from overlapwatch.settings import resolve
from overlapwatch.timeline.model import Origin
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind, NameKind, Phase, RecordKind
from overlapwatch.watching.drain import Drain
from tests.support.device import SimulatedDevice, SimulatedTime, Stream

MS = 1_000_000


class Work:
    """A collective on the backend's own stream, complete at `event`."""

    def __init__(self, device, event):
        self._device, self._event = device, event

    def get_future(self):
        return self

    def wait(self):
        self._device.wait(self._device.current_stream(), self._event)


class Job:
    """Three blocks of backward compute, each followed by the reduction of its bucket, as DDP does it."""

    def __init__(self, environ=None, drift_ppm=0):
        self.time = SimulatedTime()
        self.device = SimulatedDevice(self.time, drift_ppm=drift_ppm, launch_ns=0)
        self.communication, observer = Stream(7), Stream(9)
        host = HostClock(self.time.now)
        clock = DeviceEventClock(self.device, host)
        assert clock.calibrate()
        ring, _ = Ring.create("job", 1 << 10, (), {})
        plan = event_policy("cuda", environ or {})
        observer = observer if plan.observer_stream else None
        self.times = DeviceTimes(host.now, ring, clock, plan, self.device.on, observer)
        self.recorder = Recorder(ring, Names(), self.times, Guard())
        self.recorder.group_workers[1] = 1
        self.bucket = [self.recorder.names.intern(NameKind.BUCKET, f"bucket {i}") for i in range(3)]
        self.drain = Drain(
            self.recorder,
            resolve({"line_every": 1}, {}),
            Origin("owlog", "", 0, 1, "cuda:0"),
            None,
            open_sinks((), 0),
            sample=dict,
        )
        self.recorder.open_step(host.now())

    def step(self, compute_ms, send_ms, host_ms=0.1):
        recorder, device = self.recorder, self.device
        forward = recorder.begin(RecordKind.PHASE, Phase.FORWARD, 0)
        recorder.end(forward)
        recorder.phase = Phase.BACKWARD
        backward = recorder.begin(RecordKind.PHASE, Phase.BACKWARD, 0)
        for owner in self.bucket:
            device.work(int(compute_ms * MS))
            self.time.sleep(
                int(host_ms * MS)
            )  # launching takes the host a while, much less than the device
            slot = recorder.launch(
                CollectiveKind.ALL_REDUCE, owner, 1, 1, 1 << 20, 0, self.time.now()
            )
            inputs_ready = device.make_event()
            device.record(inputs_ready, device.default)
            device.wait(self.communication, inputs_ready)
            device.work(int(send_ms * MS), self.communication)
            sent = device.make_event()
            device.record(sent, self.communication)
            if (
                self.times.mark_finish(slot, Work(device, sent), synchronous=False)
                is not Finish.COMING
            ):
                recorder.unobservable(slot)
        recorder.end(backward)
        wait = recorder.begin(RecordKind.WAIT, Phase.BACKWARD, 0)
        device.wait(device.default, sent)
        recorder.end(wait)
        recorder.phase = Phase.OTHER
        recorder.step_may_end(self.time.now())
        self.time.sleep(int(0.05 * MS))
        recorder.close_step(self.time.now())
        recorder.open_step(self.time.now())

    def summaries(self):
        while self.drain.steps < self.recorder.step - 1:
            self.time.sleep(MS)
            self.drain.turn()
        return list(self.drain.summaries)


def ms(ns):
    return pytest.approx(ns / MS, abs=0.01)


@pytest.mark.parametrize("drift_ppm", [0, 20])
@pytest.mark.parametrize(
    ("send_ms", "step_ms", "tail_ms", "hidden_ms"),
    [(1, 7, 1, 2), (4, 14, 8, 4)],
    ids=["short", "queued"],
)
def test_the_worked_example_comes_out_of_device_events(
    drift_ppm, send_ms, step_ms, tail_ms, hidden_ms
):
    job = Job(drift_ppm=drift_ppm)
    for _ in range(4):  # the host runs ahead: nothing is polled before all is queued
        job.step(2, send_ms)
    for summary in job.summaries()[1:]:  # the first step has the host's lead in it
        assert ms(summary["end_ns"] - summary["start_ns"]) == step_ms
        assert ms(summary["tail_ns"]) == tail_ms
        assert ms(summary["wait_ns"]) == tail_ms
        assert ms(summary["compute_ns"]) == 6
        assert ms(summary["communication_ns"]) == 3 * send_ms
        assert ms(summary["overlap_ns"]) == hidden_ms
        assert summary["unfinished"] == summary["unobservable"] == 0


def test_steps_tile_the_device_time_although_the_host_was_ahead():
    job = Job()
    for _ in range(5):
        job.step(2, 1)
    rows = job.summaries()
    assert [int(b["start_ns"]) for b in rows[1:]] == [int(a["end_ns"]) for a in rows[:-1]]


def test_watching_does_not_delay_the_device():
    job = Job()
    began, asked, query = job.time.ns, [], job.device.query
    job.device.query = lambda event: asked.append(event) or query(event)
    for _ in range(3):
        job.step(2, 1)
    assert ms(job.device.default.free_at - began) == 3 * 7
    assert not asked, "nobody asked the device for anything while training ran"


def test_where_timed_events_would_remove_overlap_only_phases_are_timed():
    job = Job({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    events = 0
    for _ in range(2):
        job.step(2, 1)
        events = len(job.device.events)
    row = job.summaries()[-1]
    assert row["unobservable"] == 3
    assert row["tail_ns"] == row["overlap_ns"] == NOT_KNOWN, "never a zero for what was not seen"
    assert ms(row["wait_ns"]) == 1, "the exposed wait is still measured"
    assert events > 0

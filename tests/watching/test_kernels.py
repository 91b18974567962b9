"""Windows on a real profiler and a real backward; what counts as compute is tested on made-up events."""

import threading
import time

import numpy as np
import pytest
import torch
from torch.autograd import profiler

from overlapwatch.hooks import installed
from overlapwatch.hooks.names import Names
from overlapwatch.hooks.recorder import Guard, Recorder
from overlapwatch.hooks.times import HostTimes
from overlapwatch.ring import Ring
from overlapwatch.timeline.intervals import total
from overlapwatch.vocabulary import Phase, StepFlag
from overlapwatch.watching.kernel_events import (
    ANCHOR,
    device_spans,
    host_spans,
    place_clock,
    read_events,
)
from overlapwatch.watching.kernels import Calibrator, KernelWindows
from tests.support.scenarios import MS, profile, step_rows

HOST = torch._C._autograd.DeviceType.CPU
DEVICE = torch._C._autograd.DeviceType.CUDA
PATCHED = ("_prepare_profiler", "_run_on_profiler_start", "_run_on_profiler_stop")


class Event:
    """What is asked of a `_KinetoEvent`."""

    def __init__(self, name, start, end, thread=1, *, annotation=False, device=HOST):
        self._name, self._start, self._end, self._thread = name, start, end, thread
        self._annotation, self._device = annotation, device

    def name(self):
        return self._name

    def start_ns(self):
        return self._start

    def end_ns(self):
        return self._end

    def start_thread_id(self):
        return self._thread

    def is_user_annotation(self):
        return self._annotation

    def device_type(self):
        return self._device


def spans(union):
    return list(zip(union.start.tolist(), union.end.tolist(), strict=True))


def host(*events):
    return spans(host_spans(read_events(events, on_device=False)))


def test_an_operator_counts_whole_and_a_frame_does_not():
    assert host(
        Event("autograd::engine::evaluate_function: AddmmBackward0", 0, 100),
        Event("AddmmBackward0", 5, 90),
        Event("aten::mm", 10, 40),
        Event("aten::empty", 12, 20),
        Event("mylib::fused", 60, 80),
    ) == [(10, 40), (60, 80)]


def test_an_autograd_function_that_calls_nothing_counts():
    assert host(
        Event("autograd::engine::evaluate_function: NapBackward", 0, 100),
        Event("NapBackward", 5, 90),
        Event("torch::autograd::AccumulateGrad", 100, 103),
    ) == [(5, 90), (100, 103)]


def test_communication_does_not_count_and_is_cut_out():
    assert host(
        Event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 100),
        Event("c10d::allreduce_", 10, 50),
        Event("gloo:all_reduce", 20, 300, thread=2, annotation=True),
        Event("mylib::all_reduce_and_norm", 200, 300),
        Event("_c10d_functional::wait_tensor", 210, 250),
        Event("record_param_comms", 400, 410),
    ) == [(200, 210), (250, 300)]


def test_an_annotation_is_neither_compute_nor_something_called():
    assert host(
        Event("Optimizer.step#SGD.step", 0, 100, annotation=True),
        Event("aten::add_", 10, 20),
        Event("NapBackward", 200, 300),
        Event("my range", 210, 250, annotation=True),
    ) == [(10, 20), (200, 300)]


def test_threads_nest_for_themselves_and_are_joined():
    """Event of one thread inside the time of another's is not called by it."""
    assert host(
        Event("NapBackward", 0, 100, thread=1),
        Event("SumBackward0", 50, 120, thread=2),
        Event("aten::mm", 200, 210, thread=2),
        Event("nothing at all", 300, 300, thread=2),
    ) == [(0, 120), (200, 210)]


def test_on_a_device_kernels_count_without_copies_waits_and_communication():
    events = [
        Event("void cutlass::gemm<float>(...)", 10, 40, thread=7, device=DEVICE),
        Event("triton_poi_fused_add_0", 30, 60, thread=8, device=DEVICE),
        Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 0, 90, device=DEVICE),
        Event("void deep_ep::internode::dispatch<true>", 0, 90, device=DEVICE),
        Event(
            "allreduce_fusion_kernel_oneshot_lamport<AllReduceFusionPattern)2>",
            0,
            90,
            device=DEVICE,
        ),
        Event("Memcpy HtoD (Pinned -> Device)", 100, 120, device=DEVICE),
        Event("Memset (Device)", 120, 130, device=DEVICE),
        Event("Stream Wait Event", 0, 90, device=DEVICE),
        Event("ProfilerStep#3", 0, 500, annotation=True, device=DEVICE),
        Event("aten::mm", 0, 500),
    ]
    assert spans(device_spans(read_events(events, on_device=True))) == [(10, 60)]


def test_nothing_ran():
    ran = read_events([], on_device=False)
    assert (spans(host_spans(ran)), spans(device_spans(ran))) == ([], [])


def anchors(*pairs):
    return read_events([Event(ANCHOR, start, end) for start, end in pairs], on_device=False)


def test_the_clock_is_placed_between_our_readings():
    """The example of `place_clock`, at both ends: the offset is -998, at most 8 ns off."""
    ran = anchors((1120, 1150), (1205, 1230), (2120, 2150), (2205, 2230))
    before, after = np.array([100, 200, 1100, 1200]), np.array([190, 240, 1190, 1240])
    place, error = place_clock(before, after, ran)
    assert error == 8
    assert place(np.array([1120, 1700, 2205])).tolist() == [122, 702, 1207]


def test_a_clock_that_drifts_is_followed():
    ran = anchors((0, 0), (1_000_000, 1_000_000))
    place, error = place_clock(np.array([500, 1_000_600]), np.array([500, 1_000_600]), ran)
    assert (place(np.array([0, 500_000, 1_000_000])).tolist(), error) == (
        [500, 500_550, 1_000_600],
        0,
    )


def test_an_anchor_that_is_missing_is_an_error():
    with pytest.raises(ValueError, match="kept 1 of 2 clock marks"):
        place_clock(np.array([1, 2]), np.array([2, 3]), anchors((1, 2)))


class Nap(torch.autograd.Function):
    """20 ms of compute in the backward, as far as autograd can tell."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.02)
        return gradient


class Job:
    """A training loop without DDP that tells the recorder its boundaries."""

    def __init__(self, every=2, **options):
        self.recorder = make_recorder()
        self.windows = KernelWindows(self.recorder, every, first=1, **options)
        self.recorder.boundary_listeners.append(self.windows.on_boundary)
        self.net = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.naps = []

    def step(self, *, optimize=True):
        now = self.recorder.now
        self.recorder.close_step(now())
        self.recorder.open_step(now())
        loss = Nap.apply(self.net(torch.ones(4, 8))).sum()
        began = now()
        loss.backward()
        self.naps.append((began, now()))
        if optimize:
            self.optimizer.step()

    def flagged(self):
        return {step for step, flags in self.recorder.step_flags if flags & StepFlag.DISTURBED}


def make_recorder():
    ring, _ = Ring.create("test.owring", 256, (), {})
    return Recorder(ring, Names(), HostTimes(time.perf_counter_ns, ring), Guard())


@pytest.fixture
def job():
    job = Job()
    yield job
    job.windows.close()


def test_a_window_shows_what_ran_on_our_clock(job):
    for _ in range(4):
        job.step()
    first, second = job.windows.take()
    assert (first.step, second.step) == (2, 4)
    began, ended = job.naps[1]
    assert first.start_ns < began < ended < first.end_ns
    inside = (first.compute.start < ended) & (first.compute.end > began)
    longest = int((first.compute.end - first.compute.start).max())
    assert 20 * MS <= longest <= ended - began
    at = int(np.argmax(first.compute.end - first.compute.start))
    assert inside[at]
    assert began - first.error_ns <= first.compute.start[at]
    assert first.compute.end[at] <= ended + first.error_ns
    assert 0 < first.error_ns < MS
    assert first.events > len(first.compute) > 5
    assert total(first.compute) < first.end_ns - first.start_ns
    assert (job.windows.take(), job.windows.counts()["kernel_windows_read"]) == ([], 2)


def test_the_steps_that_pay_are_flagged(job):
    for _ in range(3):
        job.step()
    job.windows.take()
    assert job.flagged() == {2, 3}
    for _ in range(4):
        job.step()
    job.windows.take()
    assert job.flagged() == {2, 3, 4, 5, 6, 7}


def test_no_window_before_the_first():
    job = Job(every=1)
    job.windows.close()
    late = KernelWindows(job.recorder, 1, first=3)
    for step in (1, 2, 3):
        late.on_boundary(step)
        assert profiler._is_profiler_enabled is (step == 3)
    late.close()
    assert not profiler._is_profiler_enabled


def test_it_ends_with_the_optimizer_so_that_a_validation_is_not_in_it(job):
    job.step()
    job.step()
    assert not torch._C._autograd._profiler_enabled()
    torch.ones(3) + 1
    job.step()
    (window,) = job.windows.take()
    assert window.end_ns < job.naps[2][0]


def test_without_an_optimizer_it_ends_where_the_next_step_begins(job):
    for _ in range(2):
        job.step(optimize=False)
    assert torch._C._autograd._profiler_enabled()
    job.step(optimize=False)
    (window,) = job.windows.take()
    assert job.naps[1][1] < window.end_ns < job.naps[2][0]


def test_an_optimizer_inside_the_backward_does_not_end_it(job):
    job.step()
    job.recorder.open_step(job.recorder.now())
    job.recorder.phase = Phase.BACKWARD
    job.optimizer.step()
    assert torch._C._autograd._profiler_enabled()


def test_a_shadow_step_is_left_alone(job):
    job.step()
    job.recorder.recording = False
    job.step()
    assert not job.windows.take()
    job.recorder.recording = True
    job.step()
    assert [window.step for window in job.windows.take()] == [3]


def test_a_running_profiler_of_the_user_is_left_alone(job):
    with profiler.profile(use_kineto=True) as users:
        for _ in range(5):
            job.step()
    assert len(users.function_events) > 50
    assert job.windows.take() == []
    assert job.windows.counts()["kernel_windows_skipped"] == 2
    assert list(job.windows.notes) == ["no kernel-level window while another profiler is there"]
    job.step()
    assert [window.step for window in job.windows.take()] == [6]


def test_a_profiler_that_was_only_prepared_is_left_alone(job):
    """A start of ours between its preparation and its start would crash PyTorch."""
    users = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    users.prepare_trace()
    for _ in range(3):
        job.step()
    users.start_trace()
    job.step()
    users.stop_trace()
    assert job.windows.take() == []
    assert any("aten::mm" in event.key for event in users.key_averages())


def test_a_profiler_prepared_before_us_is_found():
    users = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    users.prepare_trace()
    job = Job(every=1)
    job.step()
    assert not torch._C._autograd._profiler_enabled()
    users.start_trace()
    users.stop_trace()
    job.step()
    job.windows.close()
    assert [window.step for window in job.windows.take()] == [2]


def test_a_profiler_that_starts_in_a_window_wins(job):
    job.step()
    job.step(optimize=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as users:
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in users.key_averages())
    job.step()
    assert job.windows.take() == []
    assert list(job.windows.notes) == [
        "a kernel-level window was thrown away: another profiler was started in it"
    ]
    assert job.windows.counts()["kernel_windows_dropped"] == 1


def test_a_watch_that_turned_itself_off_leaves_no_profiler_running(job):
    job.step()
    job.recorder.open_step(job.recorder.now())
    assert torch._C._autograd._profiler_enabled()
    job.recorder.guard.trip("test", RuntimeError("on purpose"))
    job.optimizer.step()
    assert not torch._C._autograd._profiler_enabled()
    assert job.windows.take() == []


def test_only_the_thread_that_started_a_profiler_stops_it(job):
    job.step()
    job.step(optimize=False)
    for stop in (job.windows.close, lambda: job.windows.on_boundary(3), job.optimizer.step):
        elsewhere = threading.Thread(target=stop)
        elsewhere.start()
        elsewhere.join()
        assert torch._C._autograd._profiler_enabled()
    job.optimizer.step()
    assert not torch._C._autograd._profiler_enabled()


def test_a_profiler_that_cannot_start_ends_the_windows_and_nothing_else(job, monkeypatch, caplog):
    def refuses(*_args, **_kwargs):
        raise RuntimeError("no profiler today")

    monkeypatch.setattr(profiler.profile, "__enter__", refuses)
    for _ in range(5):
        job.step()
    assert [record.message for record in caplog.records] == [
        "no more kernel-level windows: RuntimeError: no profiler today; training is not affected"
    ]
    assert job.recorder.on
    assert list(job.windows.notes) == [
        "no more kernel-level windows: RuntimeError: no profiler today"
    ]


def test_a_window_that_cannot_be_read_is_dropped(job, monkeypatch):
    job.step()
    job.step()
    (window,) = job.windows._unread
    window.before = window.before[1:]
    window.after = window.after[1:]
    assert job.windows.take() == []
    assert job.windows.counts()["kernel_windows_dropped"] == 1
    assert "kept 8 of 7 clock marks" in job.windows.notes[-1]


def test_close_leaves_pytorch_as_it_was():
    before = [getattr(profiler, name) for name in PATCHED]
    job = Job(every=1)
    assert installed() == ["kernel windows"]
    assert [getattr(profiler, name) for name in PATCHED] != before
    job.recorder.open_step(job.recorder.now())
    assert torch._C._autograd._profiler_enabled()
    job.windows.close()
    job.windows.close()
    assert not torch._C._autograd._profiler_enabled()
    assert [getattr(profiler, name) for name in PATCHED] == before
    assert installed() == []
    job.step()
    assert not torch._C._autograd._profiler_enabled()


def timeline_of(job, number):
    """What marks would say of the step: compute from its first to its last moment."""
    began, ended = (at / MS - 1000 for at in job.naps[number - 1])
    flags = int(StepFlag.DISTURBED)
    return profile([(began, ended)], steps=step_rows([(number, began - 1, ended + 1)], flags))


def test_window_and_timeline_meet_whichever_comes_first(job):
    calibrator = Calibrator(job.windows)
    job.step()
    job.step()
    calibrator.keep(timeline_of(job, 2))
    (early,) = calibrator.poll()
    job.step()
    job.step()
    assert calibrator.poll() == []
    calibrator.keep(timeline_of(job, 4))
    (late,) = calibrator.poll()
    assert (early.step, late.step) == (2, 4)
    for one in (early, late):
        # Two clocks meet here: what the profiler saw may stick out of its marks by the error of placing it.
        assert 20 * MS < one.kernels.compute_ns < one.marks.compute_ns + MS
        assert all(check.ok for check in one.checks())
    counts = calibrator.counts()
    assert counts["kernel_windows_read"] == 2
    assert counts["calibrated_marks_compute_ns"] == (early.marks.compute_ns + late.marks.compute_ns)
    assert counts["calibrated_kernels_compute_ns"] == (
        early.kernels.compute_ns + late.kernels.compute_ns
    )


def test_the_log_gets_sentences(job):
    calibrator = Calibrator(job.windows)
    job.step()
    job.step()
    calibrator.keep(timeline_of(job, 2))
    with profiler.profile(use_kineto=True):
        job.step()
        job.step()
    first, second = calibrator.sentences()
    assert first.startswith("step 2 ran under a profiler: compute 2")
    assert second == "no kernel-level window while another profiler is there"
    assert calibrator.sentences() == []


def test_a_step_that_was_not_disturbed_is_not_kept(job):
    calibrator = Calibrator(job.windows)
    tl = profile([(0, 1)], steps=step_rows([(2, 0, 1)]))
    calibrator.keep(tl)
    job.step()
    job.step()
    assert calibrator.poll() == []


def test_timelines_without_a_window_do_not_pile_up(job):
    calibrator = Calibrator(job.windows)
    for number in range(100):
        calibrator.keep(profile(steps=step_rows([(number, 0, 1)], int(StepFlag.DISTURBED))))
    assert sorted(calibrator._timelines) == list(range(84, 100))

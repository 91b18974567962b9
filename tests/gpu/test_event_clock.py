"""The device-event clock on a real device, against CUDA's own event pairs and against the host clock."""

import threading
import time

import pytest

from overlapwatch.clock import DeviceEventClock, HostClock, TorchDevice

pytestmark = pytest.mark.gpu

MS = 1_000_000
SPIN = 20_000_000  # clock cycles of a spinning kernel: about 10 ms


class Stamps(dict):
    def __call__(self, slot, field, ns):
        self[slot, field] = ns
        return True


@pytest.fixture
def clock(cuda):
    cuda.cuda.synchronize()
    cuda.cuda._sleep(1000)  # loads the kernel, so that later launches do not wait
    cuda.cuda.synchronize()
    clock = DeviceEventClock(TorchDevice("cuda"), HostClock())
    assert clock.calibrate(budget_ns=100 * MS)
    yield clock
    clock.close()


def test_times_between_events_are_those_of_cudas_own_pairs(cuda, clock, number):
    stamps, pairs = Stamps(), []
    for slot in range(20):
        clock.anchor()
        first, second = (cuda.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        clock.mark(slot, "start")
        cuda.cuda._sleep(SPIN)
        clock.mark(slot, "finish")
        second.record()
        pairs.append((first, second))
    cuda.cuda.synchronize()
    clock.poll(stamps)
    errors = [
        abs(
            stamps[slot, "finish"] - stamps[slot, "start"] - round(first.elapsed_time(second) * 1e6)
        )
        for slot, (first, second) in enumerate(pairs)
    ]
    number("largest difference to CUDA's pairs", max(errors) / 1000, "us")
    assert max(errors) < 50_000  # the outer pair also spans the recording of ours


def test_a_finish_is_placed_on_the_host_clock_within_the_reported_bound(cuda, clock, number):
    errors, bounds = [], []
    for slot in range(20):
        stamps = Stamps()
        clock.anchor()
        cuda.cuda._sleep(SPIN)
        clock.mark(slot, "finish")
        cuda.cuda.current_stream().synchronize()
        returned = time.perf_counter_ns()
        clock.poll(stamps)
        errors.append(returned - stamps[slot, "finish"])
        bounds.append(clock.report().uncertainty_ns)
    # The host comes back some us after the true finish: never before it.
    number("host return after the placed finish, median", sorted(errors)[10] / 1000, "us")
    number("reported uncertainty, median", sorted(bounds)[10] / 1000, "us")
    assert clock.report().restarts == 0
    for error, bound in zip(errors, bounds, strict=True):
        assert -bound <= error <= bound + 1 * MS


def test_a_poll_never_waits(cuda, clock, number):
    cuda.cuda._sleep(20 * SPIN)
    clock.mark(0, "finish")
    before = time.perf_counter_ns()
    assert clock.poll(Stamps()) == 0
    took = time.perf_counter_ns() - before
    number("poll while the device is busy", took / 1000, "us")
    assert took < 20 * MS
    cuda.cuda.synchronize()


def test_a_slow_stream_holds_up_only_itself(cuda, clock):
    slow, fast = cuda.cuda.Stream(), cuda.cuda.Stream()
    with cuda.cuda.stream(slow):
        cuda.cuda._sleep(20 * SPIN)
        clock.mark(0, "finish")
    with cuda.cuda.stream(fast):
        cuda.cuda._sleep(1000)
        clock.mark(1, "finish")
    fast.synchronize()
    stamps = Stamps()
    clock.poll(stamps)
    assert set(stamps) == {(1, "finish")}
    slow.synchronize()
    clock.poll(stamps)
    assert stamps[0, "finish"] > stamps[1, "finish"]


def test_nothing_is_recorded_in_a_captured_graph(cuda, clock):
    value = cuda.zeros(16, device="cuda")
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        clock.mark(0, "start")
        value += 1
        clock.anchor()
    graph.replay()
    cuda.cuda.synchronize()
    assert clock.report().in_capture == 2
    assert value.sum().item() == 16  # captured, not run; then replayed once


def test_polling_does_not_break_another_threads_capture(cuda, clock):
    # Queried while the default (global) capture mode is in force: without the clock's precaution this invalidates it.
    stamps, stop = Stamps(), threading.Event()
    cuda.cuda._sleep(30 * SPIN)
    clock.mark(0, "finish")

    def drain():
        while not stop.is_set():
            clock.poll(stamps)

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        value = cuda.zeros(16, device="cuda")
        graph = cuda.cuda.CUDAGraph()
        with cuda.cuda.graph(graph):
            time.sleep(0.05)
            value += 1
    finally:
        stop.set()
        thread.join()
    graph.replay()
    cuda.cuda.synchronize()
    assert value.sum().item() == 16


def test_what_a_mark_costs(cuda, clock, number):
    stamps, costs = Stamps(), []
    for slot in range(2000):
        before = time.perf_counter_ns()
        clock.mark(slot, "start")
        costs.append(time.perf_counter_ns() - before)
        if slot % 100 == 99:
            cuda.cuda.synchronize()
            clock.poll(stamps)
    costs.sort()
    number("one mark on the host, median", costs[1000] / 1000, "us")
    assert len(stamps) == 2000
    assert costs[1000] < 100_000

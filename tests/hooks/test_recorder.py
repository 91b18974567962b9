"""What hooks call: one record a call, a span stamped when it ends, and a guard that trips once."""

import threading

import pytest

from overlapwatch.hooks.recorder import Guard
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag, RecordKind, StepFlag
from tests.hooks.conftest import Bench


def test_a_span_is_there_from_its_beginning_and_stamped_at_its_end(bench: Bench) -> None:
    bench.recorder.open_step(500)
    slot = bench.recorder.begin(RecordKind.PHASE, Phase.FORWARD, 7)
    (running,) = bench.records(RecordKind.PHASE)
    assert (running["phase"], running["step"], running["owner"]) == (Phase.FORWARD, 1, 7)
    assert running["start"] == bench.clock.ns
    assert running["finish"] == 0
    bench.recorder.end(slot)
    (ended,) = bench.records(RecordKind.PHASE)
    assert ended["finish"] == bench.clock.ns == running["start"] + 1


def test_a_launch_is_recorded_in_full(bench: Bench) -> None:
    bench.recorder.open_step(500)
    bench.recorder.phase = Phase.BACKWARD
    slot = bench.recorder.launch(
        CollectiveKind.REDUCE_SCATTER, 3, 2, 41, 1 << 40, RecordFlag.SYNCHRONOUS, 777
    )
    (record,) = bench.records(RecordKind.COLLECTIVE)
    assert record["collective"] == CollectiveKind.REDUCE_SCATTER
    assert record["phase"] == Phase.BACKWARD
    fields = ("step", "owner", "group", "sequence", "bytes", "flags", "launch", "finish")
    assert record[list(fields)].item() == (1, 3, 2, 41, 1 << 40, RecordFlag.SYNCHRONOUS, 777, 0)
    bench.recorder.unobservable(slot)
    assert bench.records()[-1]["flags"] == RecordFlag.SYNCHRONOUS | RecordFlag.FINISH_UNOBSERVABLE


def test_steps_are_numbered_told_to_listeners_and_flagged(bench: Bench) -> None:
    told: list[int] = []
    bench.recorder.boundary_listeners.append(told.append)
    bench.recorder.open_step(100, StepFlag.UNBUCKETED)
    bench.recorder.close_step(200)
    bench.recorder.close_step(999)  # it is closed already
    bench.recorder.open_step(200)
    bench.recorder.flag_step(StepFlag.REBUILT)
    steps = bench.records(RecordKind.STEP)
    assert steps[["step", "start", "finish"]].tolist() == [(1, 100, 200), (2, 200, 0)]
    assert told == [1, 2]
    assert bench.flags() == [(1, StepFlag.UNBUCKETED), (2, StepFlag.REBUILT)]


def test_the_first_fault_turns_it_off_and_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[str] = []
    bench.recorder.guard.call_when_tripped(reasons.append)
    assert bench.recorder.on
    bench.recorder.guard.trip("here", ValueError("first"))
    bench.recorder.guard.trip("there", ValueError("second"))
    assert not bench.recorder.on
    assert not bench.recorder.recording
    assert reasons == ["here: ValueError: first"]
    assert [record.message for record in caplog.records] == [
        "overlapwatch turned itself off (here: ValueError: first); training is not affected"
    ]


def test_threads_that_fail_together_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    guard, reasons, start = Guard(), [], threading.Barrier(8)
    guard.call_when_tripped(reasons.append)

    def fail() -> None:
        start.wait()
        guard.trip("thread", ValueError("x"))

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reasons) == len(caplog.records) == 1

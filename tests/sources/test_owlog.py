import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.errors import InputError
from overlapwatch.log.frames import ClockPair, Counters, End, Events, Gradients, Header, Summaries
from overlapwatch.log.writer import LogWriter
from overlapwatch.ring import Ring
from overlapwatch.sources import open_trace
from overlapwatch.sources.owlog import open_log, open_run
from overlapwatch.vocabulary import (
    RecordFlag,
    RecordKind,
    StepFlag,
)
from tests.log.samples import (
    FRAMES,
    NAMES,
    gradients,
    log_bytes,
    step_records,
    step_summary,
    write_log,
)

MB = 1_000_000
ROOT = Path(__file__).parents[2]


def header(rank=0, *, world=2, run="run-a", created=0, pid=None, host=None, ring=None) -> Header:
    return Header(
        rank=rank,
        world=world,
        local_rank=rank,
        host=host or socket.gethostname(),
        pid=os.getpid() if pid is None else pid,
        run_id=run,
        created=ClockPair(0, time.time_ns() + created),
        mode="passive",
        device="cpu",
        ring=str(ring.path) if ring else "",
        versions={"torch": "2.13.0"},
        settings={"keep_every": "10"},
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


def write_rank(directory: Path, head: Header, *frames, end=True) -> Path:
    path = directory / f"rank{head.rank}-{head.run_id}.owlog"
    frames = frames or (NAMES, Events(1, 1, 0, step_records(1)), Summaries(step_summary(1, 2)))
    return write_log(path, (head, *frames, *([End("closed", 9, {"steps": 2})] if end else [])))


def make_ring(directory: Path, rank=0, run="run-a", capacity=64) -> Ring:
    about = {"run_id": run, "rank": rank, "pid": os.getpid()}
    ring, problems = Ring.create("ring", capacity, (directory / "rings",), about)
    assert problems == []
    return ring


def begin_step(ring: Ring, step: int) -> int:
    return ring.write(RecordKind.STEP, 0, 0, 0, step, 0, 0, 0, 0, 0, 0, 0, 0, step * 100, 0)


def collective(ring: Ring, step: int, finish: int, *, launch=10, flags=0) -> int:
    times = (0, step * 100 + launch, 0, step * 100 + finish if finish else 0)
    return ring.write(RecordKind.COLLECTIVE, 2, 1, flags, step, 1, 1, 0, step, 0, 64, *times)


def whole_step(ring: Ring, step: int) -> None:
    slot = begin_step(ring, step)
    collective(ring, step, 50)
    ring.stamp(slot, "finish", step * 100 + 99)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# -- one log ---------------------------------------------------------------------------------------


def test_a_closed_log_is_a_recording(tmp_path):
    path = write_rank(tmp_path, header(1), *FRAMES[1:-1])
    recording = open_log(path)
    timeline = recording.timeline
    assert recording.state == "closed"
    assert timeline.steps["step"].tolist() == [1, 10]
    assert timeline.steps["flags"].tolist() == [0, 0]  # the summaries' flags win
    assert timeline.communication["launch"].tolist() == [110, 1010]
    assert (timeline.origin.rank, timeline.origin.world, timeline.origin.source) == (1, 2, "owlog")
    assert timeline.origin.host == socket.gethostname()
    assert timeline.names[1].text == "bucket 0"
    assert timeline.groups[1].members == (0, 1, 2, 3)
    assert len(timeline.gradients) == 1
    assert recording.summaries["step"].tolist() == [1, 2, 3, 10]
    assert len(recording.in_flight) == 0
    assert recording.counters == {"steps": 2}
    assert recording.about["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert recording.about["setting keep_every"] == "10"
    assert (recording.about["torch"], recording.about["run"]) == ("2.13.0", "run-a")
    assert recording.notes == ("a note",)
    assert timeline.skipped == timeline.unknown == ()


def test_flags_come_from_the_summary_or_else_from_the_events(tmp_path):
    frames = (
        Events(1, 1, StepFlag.SLOW, step_records(1)),
        Events(2, 2, StepFlag.REBUILT, step_records(2)),
        Summaries(step_summary(1, flags=StepFlag.UNBUCKETED)),
    )
    steps = open_log(write_rank(tmp_path, header(), *frames)).timeline.steps
    assert steps["flags"].tolist() == [StepFlag.UNBUCKETED, StepFlag.REBUILT]


def test_a_range_of_steps(tmp_path):
    frames = [Events(n, n, 0, step_records(n)) for n in range(1, 6)]
    path = write_rank(
        tmp_path, header(), *frames, Summaries(step_summary(*range(1, 6))), Gradients(gradients(3))
    )
    recording = open_log(path, steps=range(2, 4))
    assert recording.timeline.steps["step"].tolist() == [2, 3]
    assert recording.summaries["step"].tolist() == [2, 3]
    assert len(recording.timeline.gradients) == 1


def test_damage_is_told(tmp_path):
    path = write_rank(tmp_path, header())
    raw = path.read_bytes()
    path.write_bytes(raw[:-3])
    recording = open_log(path)
    lost = recording.timeline.skipped[0]
    assert (lost.what, lost.because) == ("log bytes", "damaged or cut short")
    assert recording.notes[-1].startswith(f"{lost.count} bytes of the log lost at offset ")
    assert recording.state == "running"


def test_a_damaged_header_costs_what_it_said_and_no_more(tmp_path):
    path = tmp_path / "rank3-x.owlog"
    raw = bytearray(log_bytes())
    raw[60] ^= 1
    path.write_bytes(raw)
    recording = open_run(tmp_path)[0]
    assert recording.timeline.origin.rank == 3
    assert recording.timeline.origin.world is None
    assert recording.state == "closed"
    assert len(recording.summaries) == 4
    assert recording.about == {}
    assert recording.timeline.unknown[0].because == "the log's header is damaged"
    path.write_bytes(raw[: len(log_bytes(FRAMES[:-1]))])
    assert open_log(path).state == "unknown: the log's header is damaged"


# -- the process -----------------------------------------------------------------------------------


def test_a_log_without_an_end_is_running_or_killed(tmp_path):
    assert open_log(write_rank(tmp_path, header(), end=False)).state == "running"
    assert open_log(write_rank(tmp_path, header(pid=dead_pid()), end=False)).state == "killed"


def test_a_later_process_with_that_number_is_not_the_writer(tmp_path):
    head = header(created=-86_400 * 365 * 20 * 10**9)  # long before this process began
    assert open_log(write_rank(tmp_path, head, end=False)).state == "killed"


def test_a_process_that_nobody_has_buried_is_dead(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 10
    while ") Z" not in Path(f"/proc/{process.pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert open_log(write_rank(tmp_path, header(pid=process.pid), end=False)).state == "killed"
    process.wait()


def test_a_log_of_another_host_does_not_pretend(tmp_path):
    ring = make_ring(tmp_path)
    recording = open_log(write_rank(tmp_path, header(host="node-7", ring=ring), end=False))
    assert recording.state == "unknown: on host node-7"
    assert recording.notes == ("the ring was not read: it is on host node-7",)


# -- the ring --------------------------------------------------------------------------------------


def test_steps_that_are_only_in_the_ring_are_taken_from_it(tmp_path):
    ring = make_ring(tmp_path)
    for step in (1, 2, 3):
        whole_step(ring, step)
    begin_step(ring, 4)
    collective(ring, 4, 0)
    recording = open_log(write_rank(tmp_path, header(ring=ring), end=False))
    steps = recording.timeline.steps
    assert steps["step"].tolist() == [1, 3, 4]  # step 2 is in the log, as a summary
    assert steps["flags"].tolist() == [0, StepFlag.EVENTS_KEPT, 128 | StepFlag.PARTIAL]
    assert recording.summaries["step"].tolist() == [1, 2]
    assert recording.in_flight["launch"].tolist() == [410]
    assert recording.notes == ("2 steps read from the ring: not in the log yet",)
    assert open_log(recording_path(recording), steps=range(3, 4)).timeline.steps["step"] == [3]


def recording_path(recording) -> Path:
    return Path(recording.timeline.origin.path)


def test_a_step_that_the_ring_has_begun_to_overwrite_is_left_out(tmp_path):
    ring = make_ring(tmp_path, capacity=8)
    for step in range(3, 8):
        whole_step(ring, step)
    collective(ring, 7, 0)  # nine or more slots: the first records are gone
    recording = open_log(write_rank(tmp_path, header(ring=ring), end=False))
    assert recording.timeline.steps["step"].tolist() == [1, 5, 6, 7]
    assert (recording.timeline.communication["step"] != 4).all()
    assert recording.in_flight["step"].tolist() == [7]


def test_in_flight_is_oldest_first_without_what_cannot_be_seen(tmp_path):
    ring = make_ring(tmp_path)
    begin_step(ring, 3)
    collective(ring, 3, 0, launch=30)
    collective(ring, 3, 0, launch=20)
    collective(ring, 3, 0, launch=10, flags=RecordFlag.FINISH_UNOBSERVABLE)
    collective(ring, 3, 40)
    in_flight = open_log(write_rank(tmp_path, header(ring=ring), end=False)).in_flight
    assert in_flight["launch"].tolist() == [320, 330]


def test_a_step_of_which_nothing_was_recorded_is_partial(tmp_path):
    ring = make_ring(tmp_path)
    ring.stamp(begin_step(ring, 3), "finish", 399)
    steps = open_log(write_rank(tmp_path, header(ring=ring), end=False)).timeline.steps
    assert steps["flags"][-1] & StepFlag.PARTIAL


def test_without_a_ring_the_last_step_of_the_log_tells_what_was_in_flight(tmp_path):
    frames = (
        Events(1, 1, 0, step_records(1, finish=0)),
        Events(2, 2, 0, step_records(2, finish=0)),
        Summaries(step_summary(1, 2)),
    )
    recording = open_log(write_rank(tmp_path, header(), *frames, end=False))
    assert recording.in_flight["step"].tolist() == [2]
    assert recording.notes == ("the ring was private memory: nothing outlived the log",)
    later = (*frames, Summaries(step_summary(3)))
    assert len(open_log(write_rank(tmp_path, header(), *later, end=False)).in_flight) == 0


def test_a_ring_that_is_gone_or_another_runs_or_no_ring_is_a_note(tmp_path):
    ring = make_ring(tmp_path, run="run-b")
    path = write_rank(tmp_path, header(ring=ring), end=False)
    assert "belongs to another run" in open_log(path).notes[0]
    ring.path.write_bytes(b"something else")
    assert "not an overlapwatch ring" in open_log(path).notes[0]
    ring.path.unlink()
    assert open_log(path).notes == (f"the ring {ring.path} is gone: the last steps are not known",)
    closed = write_rank(tmp_path, header(ring=ring))
    assert open_log(closed).notes == ()


def test_holes_in_the_ring_are_counted(tmp_path):
    ring = make_ring(tmp_path)
    whole_step(ring, 3)
    with ring.path.open("r+b") as file:
        file.seek(4096 + 80 + 72)
        file.write(bytes(8))  # the end ticket of slot 1
    ring.write(*[5] * 15)
    assert "1 record in the ring not whole" in " ".join(
        open_log(write_rank(tmp_path, header(ring=ring), end=False)).notes
    )


KILLED = """
import sys, time
from pathlib import Path
from tests.sources.test_owlog import *
directory = Path(sys.argv[1])
ring = make_ring(directory)
writer = LogWriter.to_file(directory / "rank0.owlog", header(ring=ring), MB)
writer.write(NAMES)
for step in range(1, 4):
    whole_step(ring, step)
    writer.write(Events(step, step, 0, step_records(step)))
writer.write(Summaries(step_summary(1, 2, 3)))
writer.flush()
whole_step(ring, 4)
writer.write(Events(4, 4, 0, step_records(4)))
begin_step(ring, 5)
collective(ring, 5, 0)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_job_killed_in_a_collective_is_read_up_to_its_last_moment(tmp_path):
    command = [sys.executable, "-c", KILLED, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as job:
        assert job.stdout.readline() == b"ready\n"
        assert open_run(tmp_path)[0].state == "running"
        job.kill()
    recording = open_run(tmp_path)[0]
    assert recording.state == "killed"
    assert recording.timeline.steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert recording.summaries["step"].tolist() == [1, 2, 3]
    assert recording.in_flight[["step", "owner", "group"]].tolist() == [(5, 1, 1)]
    assert recording.timeline.names[1].text == "bucket 0"


# -- a directory -----------------------------------------------------------------------------------


def test_a_run_is_read_rank_by_rank(tmp_path):
    for rank in (10, 0, 2, 1):
        write_rank(tmp_path, header(rank, world=4))
    seen = []
    recordings = open_run(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert [recording.timeline.origin.rank for recording in recordings] == [0, 1, 2, 10]
    assert recordings[0].notes == ("no log of rank 3 of 4 in this directory",)
    assert seen[-1][0] == seen[-1][1] == sum(p.stat().st_size for p in tmp_path.glob("*.owlog"))
    assert seen == sorted(seen)
    chosen = open_run(tmp_path, ranks={2, 10})
    assert [recording.timeline.origin.rank for recording in chosen] == [2, 10]
    assert chosen[0].notes == ()


def test_an_unreadable_rank_does_not_stop_the_others(tmp_path):
    write_rank(tmp_path, header(0))
    (tmp_path / "rank1-run-a.owlog").write_bytes(b"SQLite format 3\x00 and so on")
    (recording,) = open_run(tmp_path)
    assert len(recording.notes) == 2
    assert "rank1-run-a.owlog: not an overlapwatch log but an SQLite" in recording.notes[0]


def test_a_rank_that_cannot_be_read_after_all_is_named(tmp_path, monkeypatch):
    write_rank(tmp_path, header(0))
    bad = write_rank(tmp_path, header(1))

    def open_but_one(path, **options):
        if path == bad:
            raise InputError(f"{path}: cannot be read")
        return open_log(path, **options)

    monkeypatch.setattr("overlapwatch.sources.owlog.open_log", open_but_one)
    (recording,) = open_run(tmp_path)
    assert recording.notes == (f"left out: {bad}: cannot be read",)
    with pytest.raises(InputError, match="cannot be read"):
        open_run(tmp_path, ranks=[1])


def test_of_two_runs_the_newest_is_taken_and_the_other_named(tmp_path):
    for rank in (0, 1, 2):
        write_rank(tmp_path, header(rank, world=3, run="old", created=-(10**12)))
    for rank in (0, 1):
        write_rank(tmp_path, header(rank, run="new"))
    recordings = open_run(tmp_path)
    assert [recording.about["run"] for recording in recordings] == ["new", "new"]
    assert recordings[0].notes[0] == f"run new is shown; {tmp_path} also holds old, older"


def test_of_two_logs_of_one_rank_the_newest_is_taken(tmp_path):
    path = write_rank(tmp_path, header(0, world=1, created=-(10**12)))
    path.rename(tmp_path / "rank0-restart.owlog")
    write_rank(tmp_path, header(0, world=1))
    (recording,) = open_run(tmp_path)
    assert recording.timeline.origin.path.endswith("rank0-run-a.owlog")
    assert "rank 0 has a newer log" in recording.notes[0]


def test_nothing_to_read_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"no \*\.owlog"):
        open_run(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        open_trace(tmp_path / "nothing")
    with pytest.raises(InputError, match="holds nothing that can be read"):
        open_trace(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="not a Kineto trace: no list of traceEvents in it"):
        open_trace(tmp_path / "x.json")
    (tmp_path / "rank0.owlog").touch()
    with pytest.raises(InputError, match="empty"):
        open_trace(tmp_path)
    write_rank(tmp_path, header(0))
    with pytest.raises(InputError, match="no log of rank 5, 7"):
        open_trace(tmp_path, ranks=[7, 5])


def test_open_trace_takes_a_file_or_a_directory_by_any_name(tmp_path):
    path = write_rank(tmp_path, header(0, world=1))
    assert open_trace(str(tmp_path))[0].summaries["step"].tolist() == [1, 2]
    other = path.rename(tmp_path / "renamed.bin")
    assert open_trace(other, steps=range(2, 3))[0].summaries["step"].tolist() == [2]


def test_what_the_recorder_counted_is_there_for_a_killed_job_too(tmp_path):
    frames = (Counters(1, {"records_lost": 1}), Counters(2, {"records_lost": 5}))
    recording = open_log(
        write_rank(tmp_path, replace(header(), pid=dead_pid()), *frames, end=False)
    )
    assert recording.counters == {"records_lost": 5}
    assert recording.timeline.steps["step"].tolist() == []
    assert isinstance(recording.in_flight, np.ndarray)


def test_logs_written_by_the_writer_are_read(tmp_path):
    writer = LogWriter.to_file(tmp_path / "rank0.owlog", header(0, world=1), MB)
    writer.note("hello")
    writer.close("closed", {})
    assert open_trace(tmp_path)[0].notes == ("hello",)

import contextlib
import os
import resource
import subprocess

import numpy as np
import pytest

from overlapwatch.log.frames import (
    MAGIC,
    Counters,
    Events,
    Gradients,
    Names,
    Note,
    Summaries,
    encode,
)
from overlapwatch.log.reader import read_log
from overlapwatch.log.sinks import FileSink
from overlapwatch.log.writer import FLUSH_BYTES, LogWriter
from overlapwatch.vocabulary import GRADIENT_READY, RECORD, Name, NameKind
from tests.log.samples import (
    FRAMES,
    HEADER,
    gradients,
    plain,
    step_records,
    step_summary,
    write_log,
)

MB = 1_000_000


class MemorySink:
    """Keeps what it is given; fails when told to."""

    def __init__(self):
        self.pieces = []
        self.closed = 0
        self.error = None

    def write(self, data):
        if self.error:
            raise self.error
        self.pieces.append(data)

    def flush(self):
        pass

    def close(self):
        self.closed += 1


@contextlib.contextmanager
def file_size_limit(size):
    """No file of this process may grow beyond `size`: a disk that is full from there on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_is_written_is_read(tmp_path):
    writer = LogWriter.to_file(tmp_path / "run" / "rank1.owlog", HEADER, MB)
    for frame in FRAMES[1:-1]:
        assert writer.write(frame)
    writer.close("closed", {"records_lost": 4})
    log = read_log(tmp_path / "run" / "rank1.owlog")
    assert plain(log)[:6] == plain(read_log(write_log(tmp_path / "expected")))[:6]
    assert log.end.reason == "closed"
    assert log.counts["records_lost"] == 4
    assert log.counts["log_bytes_events"] == sum(
        len(encode(frame)) for frame in FRAMES if isinstance(frame, Events)
    )
    assert writer.counts["log_bytes"] == log.size_bytes
    assert writer.problem is None


def test_the_header_is_there_at_once_and_the_rest_in_one_piece_a_flush():
    sink = MemorySink()
    writer = LogWriter(sink, HEADER, MB)
    assert sink.pieces == [MAGIC + encode(HEADER)]
    writer.write(FRAMES[1])
    writer.write(FRAMES[2])
    assert len(sink.pieces) == 1
    writer.flush()
    writer.flush()
    assert sink.pieces[1:] == [encode(FRAMES[1]) + encode(FRAMES[2])]


def test_much_at_once_is_split_and_flushed_by_itself():
    sink = MemorySink()
    writer = LogWriter(sink, HEADER, 100 * MB)
    writer.write(Events(3, 4, 5, np.zeros(2 * FLUSH_BYTES // 64 + 1, RECORD)))
    assert len(sink.pieces) == 2
    assert len(sink.pieces[1]) > 2 * FLUSH_BYTES
    writer.write(Names(tuple(Name(n, NameKind.MODULE, "m") for n in range(20_000))))
    writer.write(Gradients(np.zeros(200_000, GRADIENT_READY)))
    writer.write(Summaries(step_summary(*range(20_000))))
    writer.close("closed", {})
    data = b"".join(sink.pieces)
    assert data.count(encode(FRAMES[0])) == 1


def test_split_frames_read_back_as_one(tmp_path):
    records = np.zeros(40_000, RECORD)
    records["sequence"] = np.arange(40_000)
    writer = LogWriter.to_file(tmp_path / "log", HEADER, 100 * MB)
    writer.write(Events(3, 4, 5, records))
    writer.write(Names(tuple(Name(n, NameKind.MODULE, f"m{n}") for n in range(20_000))))
    writer.close("closed", {})
    log = read_log(tmp_path / "log")
    assert [(e.first_step, e.last_step, e.flags) for e in log.events] == [(3, 4, 5)] * 3
    assert np.concatenate([e.records for e in log.events])["sequence"].tolist() == list(
        range(40_000)
    )
    assert log.names[19_999].text == "m19999"


def test_a_step_without_rows_writes_nothing():
    writer = LogWriter(MemorySink(), HEADER, MB)
    assert writer.write(Events(3, 3, 0, np.empty(0, RECORD)))
    assert "events" not in writer.bytes_by_type


def test_events_stop_first_and_summaries_go_on(tmp_path):
    writer = LogWriter.to_file(tmp_path / "log", HEADER, 100_000)
    kept = dropped = 0
    for step in range(1, 1001):
        if writer.write(Events(step, step, 0, step_records(step))):
            kept += 1
            assert not dropped, "events do not come back after they stopped"
        else:
            dropped += 1
        if dropped < 70:
            assert writer.write(Summaries(step_summary(step)))
    writer.write(Gradients(gradients(3)))
    writer.close("closed", {})
    log = read_log(tmp_path / "log")
    assert log.size_bytes < 100_000
    assert len(log.events) == kept
    assert len(log.summaries) == kept + 69
    assert [note.split(":")[1] for note in log.notes] == [
        " events of later steps are left out, summaries go on (max_log_mb)"
    ]
    assert log.end.counts["log_dropped_events"] == 2 * dropped
    assert log.end.counts["log_dropped_gradients"] == 1


def test_when_the_budget_is_gone_only_the_end_is_written(tmp_path):
    writer = LogWriter.to_file(tmp_path / "log", HEADER, 20_000)
    written = [writer.write(Summaries(step_summary(step))) for step in range(200)]
    assert written.count(False) > 50
    assert not writer.note("x" * 3000)
    writer.close("closed", {})
    log = read_log(tmp_path / "log")
    assert log.size_bytes < 20_000
    assert log.end.counts["log_dropped_summaries"] == written.count(False)
    assert log.end.counts["log_dropped_note"] == 1


def test_a_full_disk_turns_the_writer_off_at_a_whole_frame(tmp_path):
    path = tmp_path / "log"
    writer = LogWriter.to_file(path, HEADER, MB)
    with file_size_limit(1500):
        for step in range(1, 11):
            writer.write(Events(step, step, 0, step_records(step)))
        writer.flush()
        assert writer.problem == (
            f"{path}: nothing more is logged (File too large); training goes on"
        )
        assert not writer.write(Summaries(step_summary(1)))
        writer.flush()
        writer.close("closed", {})
    log = read_log(path)
    assert log.damage == ()
    assert 1 < len(log.events) < 10
    assert writer.dropped["events"] == 20
    assert writer.dropped["summaries"] == 1
    assert writer.counts["log_bytes"] == len(MAGIC + encode(HEADER))


def test_a_really_full_file_system(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root to mount a small tmpfs")
    try:
        writer = LogWriter.to_file(small / "log", HEADER, MB)
        for step in range(200):
            writer.write(Events(step, step, 0, step_records(step)))
            writer.flush()
        assert "No space left on device" in writer.problem
        log = read_log(small / "log")
        assert log.damage == ()
        assert len(log.events) > 50
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_device_that_takes_nothing():
    class FullSink(MemorySink):
        def write(self, data):
            with open("/dev/full", "wb", buffering=0) as file:
                file.write(data)

    sink = FullSink()
    writer = LogWriter(sink, HEADER, MB)
    assert "No space left" in writer.problem
    assert not writer.write(Note(1, "x"))
    writer.close("closed", {})
    assert sink.closed == 1


def test_a_directory_that_was_removed_is_noticed(tmp_path):
    path = tmp_path / "run" / "log"
    writer = LogWriter.to_file(path, HEADER, MB)
    path.unlink()
    path.parent.rmdir()
    writer.write(Note(1, "x"))
    writer.flush()
    assert "the file was removed" in writer.problem
    assert writer.counts["log_dropped_note"] == 1


def test_a_place_that_cannot_be_written_gives_a_writer_that_is_off(tmp_path):
    (tmp_path / "file").touch()
    writer = LogWriter.to_file(tmp_path / "file" / "log", HEADER, MB)
    assert writer.problem.startswith(f"no log in {tmp_path / 'file' / 'log'}: ")
    assert not writer.write(Counters(1, {}))
    writer.flush()
    writer.close("closed", {})
    assert writer.counts == {"log_bytes": 0, "log_dropped_header": 1, "log_dropped_counters": 1}


def test_an_error_at_close_is_kept_in_a_sentence():
    class BadClose(MemorySink):
        def close(self):
            raise OSError(5, "Input/output error")

    writer = LogWriter(BadClose(), HEADER, MB)
    writer.close("closed", {})
    assert writer.problem == "log: closing it failed (Input/output error)"


def test_closing_twice_writes_one_end(tmp_path):
    writer = LogWriter.to_file(tmp_path / "log", HEADER, MB)
    writer.close("first", {})
    writer.close("second", {})
    assert not writer.write(Note(1, "late"))
    assert read_log(tmp_path / "log").end.reason == "first"


def test_another_process_writes_nothing(tmp_path, monkeypatch):
    writer = LogWriter.to_file(tmp_path / "log", HEADER, MB)
    writer.write(Note(1, "ours"))
    size = (tmp_path / "log").stat().st_size
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert not writer.write(Note(1, "the child's"))
    writer.flush()
    writer.close("child", {})
    assert (tmp_path / "log").stat().st_size == size
    monkeypatch.undo()
    writer.close("closed", {})
    assert read_log(tmp_path / "log").notes == ("ours",)


def test_an_older_file_is_moved_aside(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"older")
    first = LogWriter.to_file(path, HEADER, MB)
    assert (tmp_path / "log.old").read_bytes() == b"older"
    second = LogWriter.to_file(path, HEADER, MB)
    first.write(Note(1, "first"))
    first.close("first", {})
    second.close("second", {})
    assert read_log(path).end.reason == "second"
    assert read_log(tmp_path / "log.old").notes == ("first",)


def test_a_sink_goes_on_after_a_write_that_failed(tmp_path):
    sink = FileSink(tmp_path / "log")
    frame = encode(Note(1, "x" * 100))
    sink.write(MAGIC)
    with file_size_limit(250), pytest.raises(OSError, match="File too large"):
        sink.write(frame * 3)
    assert (tmp_path / "log").read_bytes() == MAGIC + frame * 2
    sink.write(frame)
    sink.close()
    assert (tmp_path / "log").read_bytes() == MAGIC + frame * 3

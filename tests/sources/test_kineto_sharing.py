"""One trace read by several processes: the same columns and Recordings as by one, whatever becomes of the others."""

import gzip
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlapwatch.errors import InputError
from overlapwatch.sources.kineto import open_kineto, sharing, stream
from overlapwatch.sources.kineto.columns import Columns
from overlapwatch.sources.kineto.parts import read_part
from overlapwatch.sources.kineto.sharing import read_columns
from overlapwatch.sources.kineto.stream import Stream
from tests.support.kineto_traces import call, kernel, launch, span, text, write

DATA = Path(__file__).parents[1] / "data" / "kineto"
TRACES = sorted(DATA.glob("*.json.gz"))
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def plain(value):
    """Return a value as one that compares by all it holds: arrays by type and bytes."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tobytes()
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return [(key, plain(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def told(columns, read):
    """Return all that is known after reading."""
    arrays = columns.arrays(0)
    return plain(
        [arrays, columns.names.texts(), columns.calls.all, columns.calls.seen,
         list(columns.skipped.items()), columns.repaired, read.about, read.notes]
    )  # fmt: skip


def trace(count=400):
    """Events with names, threads, processes and groups that first occur all over the file, some bad."""
    events = [span("user_annotation", "ProfilerStep#1", 0, 10 * count)]
    for i in range(count):
        events += [
            launch(10 * i, i + 1), kernel(REDUCE if i % 9 == 8 else f"gemm_{i // 7}", 10 * i + 5, 8, correlation=i + 1),
            {**span("cpu_op", f"my::op{i % 31}", 10 * i, 9), "tid": f"{i % 13}"},
        ]  # fmt: skip
        if i % 9 == 8:
            events.append(
                call(10 * i, 5, "allreduce", i, i, **{"Process Group Name": str(i % 5), "Seq": i})
            )
        if i % 50 == 49:
            events.append(kernel("late", 10 * i, -1 if i % 100 == 49 else "soon"))
    return events


@pytest.fixture
def shared(monkeypatch):
    """Have every trace read by two processes, in small blocks; return what helpers read."""
    monkeypatch.setattr(sharing, "LARGE_BYTES", 0)
    monkeypatch.setattr(sharing, "_cores", lambda: 2)
    monkeypatch.setattr(stream, "BLOCK", 300_000)
    counts = []
    read = sharing._Helper.parts

    def counted(self):
        found = read(self)
        counts.append(len(found))
        return found

    monkeypatch.setattr(sharing._Helper, "parts", counted)
    return counts


# -- the same, whoever reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_two_processes_make_the_recordings_of_one(path, shared, monkeypatch):
    both = open_kineto(path)
    assert len(shared) == 1
    monkeypatch.setattr(sharing, "LARGE_BYTES", 1 << 60)
    alone = open_kineto(path)
    assert len(shared) == 1
    assert plain(both) == plain(alone)


def test_a_helper_reads_a_part_of_a_large_trace(shared):
    open_kineto(DATA / "a100_dlrm_rank3of8.json.gz")
    (count,) = shared
    assert count > 0


@pytest.mark.parametrize("damage", ["none", "torn", "not JSON", "inf", "gzip cut"])
def test_three_processes_count_damage_as_one_does(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(stream, "BLOCK", 5000)
    whole = text(trace()).encode()
    place = len(whole) // 2
    match damage:
        case "torn":
            whole = whole[:place]
        case "not JSON":
            whole = whole.replace(b'"dur": 8', b'"dur": eight', 30)
        case "inf":
            whole = whole.replace(b'"dur": 9', b'"dur": inf')
    path = tmp_path / "t.json"
    path.write_bytes(whole)
    if damage == "gzip cut":
        packed = gzip.compress(whole)
        path.write_bytes(packed[: len(packed) // 2])
    assert told(*read_columns(path, processes=3)) == told(*read_columns(path, processes=1))


WHOLE = text(trace(60)).encode()


def resolved(path, block, order):
    """Return the rows of a trace with what their ids stand for; its chunks are read in the order given."""
    read, columns = Stream(path, block=block), Columns()
    chunks = list(read.chunks())
    parts = {
        index: read_part(chunks[index]) for index in order.sample(range(len(chunks)), len(chunks))
    }
    for index in range(len(chunks)):
        columns.take(parts[index])
    found, names, calls = columns.arrays(7), columns.names.texts(), [*columns.calls.all, None]
    rows = []
    for table in (found.device, found.host):
        name, call = (table.dtype.names.index(one) for one in ("name", "call"))
        for row in map(list, table.tolist()):
            row[name], row[call] = names[row[name] - 1], calls[row[call]]
            rows.append(row)
    return (
        rows,
        found.runtime.tolist(),
        found.host_end,
        columns.calls.seen,
        columns.skipped,
        read.about,
    )


@given(st.integers(100, 5000), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_where_a_trace_is_cut_and_in_which_order_parts_are_read_changes_nothing(
    tmp_path, block, order
):
    path = tmp_path / "t.json"
    path.write_bytes(WHOLE)
    whole = resolved(path, 1 << 20, order)
    assert len(whole[0]) > 120
    assert resolved(path, block, order) == whole


# -- helpers that are lost -----------------------------------------------------------------------------------------

LOST = {
    "at once": "raise SystemExit(3)",
    "after it has begun": "import os, sys; sys.stdin.buffer.read(9000); os._exit(1)",
    "after all it was given": "import os, sys; sys.stdin.buffer.read(); os._exit(1)",
    "within what it says": (
        "import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write(b'parts of a trace\\n\\x80\\x05')"
    ),
    "having read nothing": (
        "import pickle, sys; sys.stdin.buffer.read(); "
        "sys.stdout.buffer.write(b'parts of a trace\\n' + pickle.dumps({}))"
    ),
    "saying something else": "import sys; sys.stdin.buffer.read(); print('hello, hello, hello, hello')",
}  # fmt: skip


@pytest.mark.parametrize("when", LOST)
def test_a_helper_that_is_lost_changes_nothing(tmp_path, monkeypatch, when):
    path = write(tmp_path / "t.json", trace())
    monkeypatch.setattr(stream, "BLOCK", 5000)
    alone = told(*read_columns(path, processes=1))
    monkeypatch.setattr(sharing, "_PROGRAM", LOST[when])
    assert told(*read_columns(path, processes=2)) == alone


@pytest.mark.parametrize("program", ["", "/nowhere/python3", "/usr/bin/blender"])
def test_where_no_python_can_be_started_one_process_reads(tmp_path, monkeypatch, program):
    path = write(tmp_path / "t.json", trace(30))
    alone = told(*read_columns(path, processes=1))
    monkeypatch.setattr(sys, "executable", program)
    assert sharing._started(1) == []
    assert told(*read_columns(path, processes=2)) == alone


def test_helpers_end_with_the_reading_also_where_it_fails(tmp_path, monkeypatch):
    made = []
    begin = subprocess.Popen.__init__

    def noted(self, *args, **options):
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    path = tmp_path / "t.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="no list of traceEvents"):
        read_columns(path, processes=2)
    write(path, trace(30))
    read_columns(path, processes=3)
    assert [one.poll() is not None for one in made] == [True] * 3
    assert all(one.stdout.closed and one.stdin.closed for one in made)


# -- when ----------------------------------------------------------------------------------------------------------


def test_how_many_processes_read_depends_on_the_text_and_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "LARGE_BYTES", 1000)
    small, large, packed = (tmp_path / name for name in ("small", "large", "packed"))
    small.write_bytes(b"x" * 999)
    large.write_bytes(b"x" * 1000)
    packed.write_bytes(b"\x1f\x8b" + b"x" * 98)
    for cores, most in ((1, 1), (2, 2), (64, sharing.MOST_PROCESSES)):
        monkeypatch.setattr(sharing, "_cores", lambda cores=cores: cores)
        assert sharing._processes_for(large) == sharing._processes_for(packed) == most
        assert sharing._processes_for(small) == 1
    assert sharing._processes_for(tmp_path / "absent") == 1
    # Several inputs are read by a process each.
    monkeypatch.setattr(sharing, "parent_process", object)
    assert sharing._processes_for(large) == 1


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    """What multiprocessing would start runs the script of the user again."""
    path = write(tmp_path / "t.json", trace(30))
    script = tmp_path / "scripts" / "mine.py"
    script.parent.mkdir()
    script.write_text(
        "from overlapwatch.sources.kineto import open_kineto, sharing\n"
        "sharing.LARGE_BYTES, sharing._cores = 0, lambda: 2\n"
        f"(recording,) = open_kineto({str(path)!r})\n"
        "print(len(recording.timeline.compute), flush=True)\n"
    )
    (tmp_path / "pickle.py").write_text("raise SystemExit('a module of the user')")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert json.loads(done.stdout) == len(open_kineto(path)[0].timeline.compute)

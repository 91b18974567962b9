"""Damage anywhere in an export: a partial result or one sentence, never a traceback."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.window import capture_window
from overlapwatch.errors import InputError
from overlapwatch.sources.nsight import open_nsight
from tests.support.nsight_export import Export, Process, init_blob, write_schemas

MS = 1_000_000
NAMES = ("gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_Generic_1")


def write_small(path: Path) -> None:
    """Write an export that has a bit of everything, in a few pages."""
    export = Export(path, page_size=512)
    for pid in (100, 200):
        process = Process(export, pid, pid // 200)
        process.domain()
        process.call("CommInitRankConfig", 100, 200, payload=init_blob(77, 2, pid // 200, 0))
        for at in range(8):
            host = (50 + 10 * at) * MS
            process.span(f"step {at}", host - 900, host + 90_000)
            process.call("AllReduce", host - 10, host + 9_000, 77, 4096 + at)
            process.kernel(
                NAMES[at % 3], host + MS, host + 4 * MS, correlation=process.launch(host)
            )
            process.copy(host + 2 * MS, host + 3 * MS, kind=10, correlation=process.correlation)
        export.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start=9 * MS,
            end=10 * MS,
            deviceId=0,
            contextId=1,
            streamId=7,
            correlationId=3,
            globalPid=process.global_pid,
            graphId=1,
        )
    write_schemas(export, 2)
    export.add("ANALYSIS_DETAILS", globalVid=1, duration=10**9, startTime=0, stopTime=10**9)
    export.close()


def survives(path: Path) -> bool:
    """Read it and account it; say whether that gave a result and not a sentence."""
    recordings, said = [], ""
    try:
        recordings = open_nsight(path)
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    for recording in recordings:
        tl = recording.timeline
        parts = partition(tl, capture_window(tl))
        assert all(check.left == check.right for check in parts.checks())
    return not said


def test_flipped_bytes(tmp_path: Path) -> None:
    path = tmp_path / "small.sqlite"
    write_small(path)
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(11)
    outcomes = []
    for turn in range(120):
        damaged = whole.copy()
        # Often few bytes, sometimes a whole stretch; the first page holds the schema's root.
        places = rng.integers(0, len(whole), int(rng.choice((1, 3, 30))))
        damaged[places] = rng.integers(0, 256, len(places))
        if turn % 10 == 0:
            start = int(rng.integers(0, len(whole)))
            damaged[start : start + 700] = 0
        path.write_bytes(damaged.tobytes())
        outcomes.append(survives(path))
    assert any(outcomes)
    assert not all(outcomes)  # or the damage would not reach anything


def test_every_length(tmp_path: Path) -> None:
    path = tmp_path / "small.sqlite"
    write_small(path)
    whole = path.read_bytes()
    assert survives(path)
    for size in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:size])
        if size:
            survives(path)


@pytest.mark.parametrize("value", [None, 2**63 - 1, "x", b"\xff\xfe"])
def test_any_value_in_any_column(value: object, tmp_path: Path) -> None:
    path = tmp_path / "small.sqlite"
    write_small(path)
    whole = path.read_bytes()
    db = sqlite3.connect(path)
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = [
        (table, row[1]) for table in tables for row in db.execute(f"PRAGMA table_info({table})")
    ]
    db.close()
    unused = [
        "launch",
        "cache",
        "grid",
        "block",
        "registers",
        "call",
        "color",
        "category",
        "shared",
        "static",
        "dynamic",
        "local",
        "green",
        "src",
        "dst",
    ]
    for table, column in columns:
        if column == "id" or column.startswith(tuple(unused)):
            continue
        path.write_bytes(whole)
        db = sqlite3.connect(path)
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        try:
            db.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid % 3 = 0', (value,))
        except sqlite3.IntegrityError:
            continue  # the schema itself forbids it
        finally:
            db.commit()
            db.close()
        survives(path)

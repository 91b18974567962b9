"""Ways of exporting, and files that are locked, read-only, half-written, foreign or not there."""

import json
import os
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.errors import ConfigurationError, InputError
from overlapwatch.sources import open_trace
from overlapwatch.sources.nsight import arrow, fast, is_nsight, open_nsight, sqlite
from overlapwatch.sources.nsight.sqlite import SqliteTables
from overlapwatch.sources.nsight.tables import MISSING
from overlapwatch.timeline.model import Recording
from tests.support.nsight_case import Shape, write_megatron

SMALL = Shape(ranks=2, devices=(1,), steps=1)
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "profile.sqlite"
    write_megatron(path, SMALL)
    return path


def told(recordings: list[Recording]) -> list[str]:
    """Return everything that the recordings say, but where they came from."""
    analyses = [analyse(one).to_dict() for one in recordings]
    for one in analyses:
        del one["path"], one["notes"]
    return [json.dumps(one) for one in analyses]


# -- the two readers of sqlite ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.sqlite"
    db = sqlite3.connect(path)
    db.execute(f"CREATE TABLE {KERNELS} (start INTEGER, end INTEGER, correlationId INTEGER)")
    rows = ((at * 7, at * 7 + 3, None if at % 5 == 0 else at) for at in range(sqlite._FEW + 1000))
    db.executemany(f"INSERT INTO {KERNELS} VALUES (?, ?, ?)", rows)
    db.execute(f"DELETE FROM {KERNELS} WHERE rowid BETWEEN 2000 AND 2010")
    db.commit()
    db.close()
    return path


COLUMNS = ("start", "end", "correlationId", "absent")


def test_the_fast_reader_gives_what_its_plain_twin_gives(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    pytest.importorskip("nanoarrow")
    read: list[object] = []
    bulk = fast.integers

    def counted(*given: object) -> object:
        read.append(bulk(*given))  # type: ignore[arg-type]
        return read[-1]

    monkeypatch.setattr(fast, "integers", counted)
    quick = SqliteTables(large).integers(KERNELS, COLUMNS)
    assert len(read) == 1
    assert read[0] is not None  # or the plain twin would be compared with itself
    plain = SqliteTables(large, use_fast=False).integers(KERNELS, COLUMNS)
    assert len(read) == 1
    assert quick.keys() == plain.keys()
    for name in COLUMNS:
        assert quick[name].dtype == np.int64
        assert np.array_equal(quick[name], plain[name])
    assert plain["correlationId"][0] == MISSING
    assert (plain["absent"] == MISSING).all()


@pytest.mark.parametrize("value", ["soon", 1.5, b"\x00"])
def test_the_plain_twin_takes_over_at_a_value_that_is_no_integer(
    value: object, large: Path, tmp_path: Path
) -> None:
    path = tmp_path / "odd.sqlite"
    path.write_bytes(large.read_bytes())
    db = sqlite3.connect(path)
    db.execute(f"UPDATE {KERNELS} SET end = ? WHERE rowid = 40000", (value,))
    db.commit()
    db.close()
    found = SqliteTables(path).integers(KERNELS, ("start", "end"))
    assert (found["end"] == MISSING).sum() == 1
    assert found["end"][found["start"] == 39_999 * 7].tolist() == [MISSING]


def test_without_the_fast_reader_everything_is_read(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told(open_nsight(export))
    monkeypatch.setattr(fast, "available", lambda: False)
    assert told(open_nsight(export)) == before


def test_only_rows_with_a_wanted_value(export: Path) -> None:
    tables = SqliteTables(export)
    wanted = np.array([1, 2, 10**9], np.int64)
    found = tables.integers(
        "CUPTI_ACTIVITY_KIND_RUNTIME", ("correlationId", "start"), only=("correlationId", wanted)
    )
    assert sorted(found["correlationId"].tolist()) == [1, 1, 2, 2]  # of both processes
    nothing = tables.integers("CUPTI_ACTIVITY_KIND_RUNTIME", ("start",), only=("absent", wanted))
    assert len(nothing["start"]) == 0


def test_rows_looked_up_at_once_are_those_of_the_plain_twin(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2005 was deleted, a 5th of the rows has none, and the last one is of another thread's piece.
    wanted = np.array([1, 2, 5, 2005, 30_001, 50_001, 10**9], np.int64)
    only = ("correlationId", wanted)
    monkeypatch.setattr(sqlite, "_THREADS", 3)
    assert SqliteTables(large)._at_once(KERNELS, ["start"], only) is not None
    quick = SqliteTables(large).integers(KERNELS, COLUMNS, only)
    monkeypatch.setattr(sqlite, "_FEW", 10**9)
    assert SqliteTables(large)._at_once(KERNELS, ["start"], only) is None
    plain = SqliteTables(large).integers(KERNELS, COLUMNS, only)
    assert quick["correlationId"].tolist() == [1, 2, 30_001, 50_001]
    for name in COLUMNS:
        assert np.array_equal(quick[name], plain[name])


# -- Arrow and Parquet -----------------------------------------------------------------------------


def to_directory(source: Path, target: Path, kind: str) -> Path:
    """Write every table of an sqlite export as one file, as `nsys export --type parquetdir` does."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    target.mkdir()
    db = sqlite3.connect(source)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        cursor = db.execute(f"SELECT * FROM {name}")
        columns = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
        table = pa.table(
            {column: pa.array([row[at] for row in rows]) for at, column in enumerate(columns)}
        )
        if kind == "parquet":
            parquet.write_table(table, target / f"{name}.parquet")
        else:
            writer = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
            with writer(target / f"{name}.arrow", table.schema) as out:
                out.write_table(table)
    db.close()
    return target


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream"])
def test_a_directory_of_tables_tells_the_same(kind: str, export: Path, tmp_path: Path) -> None:
    directory = to_directory(export, tmp_path / "dir", kind)
    assert is_nsight(directory)
    assert told(open_trace(directory)) == told(open_trace(export))


def test_a_table_file_that_cannot_be_read_is_told(export: Path, tmp_path: Path) -> None:
    directory = to_directory(export, tmp_path / "dir", "parquet")
    (directory / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet").write_bytes(b"PAR1 and no more")
    recordings = open_nsight(directory)
    assert any("CUPTI_ACTIVITY_KIND_RUNTIME cannot be read" in note for note in recordings[0].notes)
    assert (recordings[1].timeline.communication["launch"] == 0).all()


def test_without_pyarrow_one_sentence_says_what_to_install(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = to_directory(export, tmp_path / "dir", "parquet")
    monkeypatch.setattr(arrow.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r'needs pyarrow: pip install "overlapwatch\[parquet\]"$'):
        open_nsight(directory)


# -- files left alone ------------------------------------------------------------------------------


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}


def test_reading_changes_nothing(export: Path) -> None:
    before = snapshot(export.parent)
    open_nsight(export)
    assert snapshot(export.parent) == before


def test_a_file_that_another_program_has_locked(export: Path) -> None:
    before = told(open_nsight(export))
    db = sqlite3.connect(export)
    db.execute("BEGIN EXCLUSIVE")
    try:
        assert told(open_nsight(export)) == before
    finally:
        db.rollback()
        db.close()


def test_a_file_and_directory_that_cannot_be_written(export: Path) -> None:
    before = told(open_nsight(export))
    db = sqlite3.connect(export)
    db.execute("PRAGMA journal_mode = WAL")  # such a file asks to have files made beside it
    db.close()
    export.chmod(stat.S_IRUSR)
    export.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert told(open_nsight(export)) == before
        assert [file.name for file in export.parent.iterdir()] == [export.name]
    finally:
        export.parent.chmod(stat.S_IRWXU)


def test_a_write_ahead_log_beside_it_is_told(export: Path) -> None:
    before = told(open_nsight(export))
    db = sqlite3.connect(export)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("DELETE FROM StringIds")
    db.commit()
    try:
        files = snapshot(export.parent)
        assert len(files) == 3
        recordings = open_nsight(export)
        assert told_without_notes(recordings) == [json.loads(one)["partition"] for one in before]
        assert any(
            "a write-ahead log of" in note and "was not read" in note
            for note in recordings[0].notes
        )
        assert snapshot(export.parent) == files
    finally:
        db.close()


def told_without_notes(recordings: list[Recording]) -> list[object]:
    return [json.loads(one)["partition"] for one in told(recordings)]


def test_a_journal_beside_it_is_told(export: Path) -> None:
    Path(f"{export}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 4)
    assert any("a rollback journal" in note for note in open_nsight(export)[0].notes)


def test_a_file_that_changes_meanwhile_is_told(export: Path) -> None:
    def touch(_done: int, _total: int) -> None:
        os.utime(export, ns=(0, 0))

    assert any(
        "changed while it was read" in note for note in open_nsight(export, progress=touch)[0].notes
    )


# -- files that are not what they should be --------------------------------------------------------


def refuse(path: Path, words: str) -> None:
    with pytest.raises(InputError) as caught:
        open_trace(path)
    said = str(caught.value)
    assert str(path) in said
    assert words in said
    assert "\n" not in said


def test_an_sqlite_file_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE a (b)")
    db.execute("DROP TABLE a")
    db.commit()
    db.close()
    refuse(path, "holds no tables")


def test_an_sqlite_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE moz_places (url)")
    db.commit()
    db.close()
    refuse(path, "not those of Nsight Systems")


def test_an_export_with_no_gpu_work_and_no_calls(export: Path) -> None:
    db = sqlite3.connect(export)
    for table in (KERNELS, "NVTX_EVENTS"):
        db.execute(f"DELETE FROM {table}")
    db.commit()
    db.close()
    refuse(export, "nsys profile --trace=cuda,nvtx")


def test_a_file_that_only_begins_like_one(tmp_path: Path) -> None:
    path = tmp_path / "begun.sqlite"
    path.write_bytes(sqlite.MAGIC)
    refuse(path, "cannot be read")


def test_a_pattern_that_is_no_expression(export: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        open_nsight(export, patterns=("(",))


@pytest.mark.parametrize("part", [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_file_cut_short_gives_what_it_has_or_one_sentence(part: float, export: Path) -> None:
    whole = export.read_bytes()
    export.write_bytes(whole[: int(len(whole) * part)])
    said: list[str] = []
    try:
        said += open_nsight(export)[0].notes
    except InputError as error:
        said.append(str(error))
    assert "damaged" in said[0] or "malformed" in said[0] or "not a database" in said[0]
    assert "\n" not in said[0]


def test_one_bad_file_of_a_directory_is_left_out(export: Path) -> None:
    (export.parent / "another.sqlite").write_bytes(sqlite.MAGIC + bytes(100))
    recordings = open_trace(export.parent)
    assert len(recordings) == 2
    assert "left out: " in recordings[0].notes[0]
    assert "another.sqlite" in recordings[0].notes[0]


# -- reports ---------------------------------------------------------------------------------------


def fake_nsys(directory: Path, body: str) -> None:
    program = directory / "nsys"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_without_nsys_the_command_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"anything")
    monkeypatch.setenv("PATH", "")
    refuse(
        report, "nsys export --type sqlite --include-blobs=true --output run.sqlite run.nsys-rep"
    )


COPY = 'for word; do last="$word"; [ "$before" = --output ] && out="$word"; before="$word"; done\n'


@pytest.mark.parametrize(
    "body",
    [
        COPY + 'cat "$EXPORT" > "$out"',
        COPY
        + 'case "$*" in *include-blobs*) echo "unrecognised option" >&2; exit 1;; esac\ncat "$EXPORT" > "$out"',
    ],
    ids=["new", "before --include-blobs"],
)
def test_nsys_exports_a_report_into_a_temporary_place(
    body: str, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, temporary = tmp_path / "reports", tmp_path / "temporary"
    place.mkdir()
    temporary.mkdir()
    report = place / "run.nsys-rep"
    report.write_bytes(b"anything")
    fake_nsys(tmp_path, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("EXPORT", str(export))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    recordings = open_trace(report)
    assert told(recordings) == told(open_nsight(export))
    assert recordings[0].timeline.origin.path == str(report)
    assert list(place.iterdir()) == [report]
    assert list(temporary.iterdir()) == []
    assert told(open_trace(place)) == told(recordings)  # a directory of reports


def test_what_nsys_says_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"anything")
    fake_nsys(tmp_path, 'echo "first" >&2\necho "the report is too new" >&2\nexit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    refuse(report, "nsys export failed: the report is too new")


@pytest.mark.parametrize("name", ["notes.txt", "trace.json"])
def test_other_files_are_not_recognised(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("{}")
    assert not is_nsight(path)
    assert not is_nsight(tmp_path)

"""Tables: their rows add up to the report, and both kinds of files hold the same."""

import csv
import io
from collections import defaultdict

import pytest

from overlapwatch.accounting.analyse import Rules, analyse
from overlapwatch.accounting.ranks.across import across_ranks
from overlapwatch.accounting.selection import Selection
from overlapwatch.errors import ConfigurationError
from overlapwatch.exports import columns, write_tables
from overlapwatch.exports.columns import Table, Type
from overlapwatch.exports.subject import subject_of
from overlapwatch.exports.tables import OF_EACH, TABLES, WAITS, Told, waits
from overlapwatch.timeline.model import Origin, Recording, Timeline
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS
from tests.reports.recordings import Job, killed, queued, typical, worked

UNITS = ("_ns", "_bytes", "_ppm")
SELECTIONS = [
    {},
    {"first_step": 3, "last_step": 5},
    {"boundary": "contained"},
    {"trim": (0.2, 1.5)},
]


def told(recording: Recording, label: str = "rank 0", **selection) -> Told:
    asked = Selection(**selection)
    return Told(label, subject_of(recording, asked, Rules()), analyse(recording, asked), None)


def rows_of(name: str, one: Told) -> list[dict]:
    table, batches = OF_EACH[name]
    found = []
    for batch in batches(one):
        assert list(batch) == [column.name for column in table.columns]
        assert len({len(values) for values in batch.values()}) == 1
        found += [
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
    check_types(table, found)
    return found


def check_types(table: Table, rows: list[dict]) -> None:
    kinds = {Type.INTEGER: int, Type.REAL: float, Type.TEXT: str, Type.BOOLEAN: bool}
    for column in table.columns:
        for row in rows:
            value = row[column.name]
            assert value is None or type(value) is kinds[column.type], (column.name, value)


def summed(rows: list[dict], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


@pytest.mark.parametrize("make", [worked, queued, typical, killed])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_rows_add_up_to_the_report(make, selection):
    if "trim" in selection and make is not typical:
        selection = {"trim": (0.02, 0.05)}
    one = told(make(), **selection)
    analysis, parts = one.analysis, one.analysis.partition
    (whole,) = rows_of("timelines", one)
    assert whole["window_ns"] == parts.window_ns
    assert whole["window_ns"] == sum(
        whole[name]
        for name in ("compute_only_ns", "communication_only_ns", "overlap_ns", "idle_ns")
    )
    steps = rows_of("steps", one)
    assert len(steps) == len(analysis.rows)
    exposed = rows_of("exposed_segments", one)
    assert summed(exposed, "length_ns") == parts.communication_only_ns == analysis.exposed.total_ns
    collectives = rows_of("collectives", one)
    counted = [row for row in collectives if row["in_window"]]
    assert len(counted) == analysis.messages.total.count
    assert summed(counted, "message_bytes") == (analysis.messages.total.bytes or 0)
    assert all(
        row["hidden_ns"] + row["exposed_ns"] == row["span_ns"]
        for row in collectives
        if row["state"] == "finished"
    )
    for name in ("messages", "groups"):
        assert summed(rows_of(name, one), "count") == analysis.messages.total.count
    cells = rows_of("kinds_phases", one)
    for split in ("kind", "phase and kind"):
        mine = [row for row in cells if row["split"] == split]
        sums = {
            row: sum(cell["union_ns"] for cell in mine if cell["row"] == row)
            for row in ("cell", "remainder")
        }
        assert sums["cell"] - sums["remainder"] == parts.communication_ns
    tails = rows_of("tails", one)
    pieces = defaultdict(int)
    for piece in rows_of("tail_pieces", one):
        pieces[piece["step"]] += piece["length_ns"]
    assert [row["tail_ns"] for row in tails] == [tail.tail_ns for tail in analysis.tails]
    assert all(pieces[row["step"]] == row["tail_ns"] for row in tails if row["tail_ns"] is not None)
    assert all((row["because"] is None) == (row["tail_ns"] is not None) for row in tails)
    remarks = rows_of("remarks", one)
    assert [row["what"] for row in remarks if row["about"] == "not known"] == [
        unknown.what for unknown in analysis.unknown
    ]


def test_steps_say_null_where_a_number_is_not_known():
    one = told(typical())
    shadow = [row for row in rows_of("steps", one) if "shadow" in row["flags"].split()]
    assert len(shadow) == 8
    assert all(row["communication_ns"] is None and row["sent_bytes"] is None for row in shadow)
    assert not any(row["in_statistics"] for row in shadow)
    assert all(row["end_ns"] > row["start_ns"] for row in shadow)
    rows = one.analysis.rows
    counted = rows[rows["flags"] & OUT_OF_STATISTICS == 0]
    assert sum(row["in_statistics"] for row in rows_of("steps", one)) == len(counted)
    assert NOT_KNOWN not in {value for row in rows_of("steps", one) for value in row.values()}


def test_a_collective_in_words():
    rows = rows_of("collectives", told(Job(steps=1).recording()))
    row = rows[1]
    assert (row["kind"], row["phase"], row["owner"], row["owner_kind"]) == (
        "AllReduce", "backward", "bucket 1", "bucket",
    )  # fmt: skip
    assert (row["group"], row["sequence"], row["step"], row["state"]) == (
        "default",
        2,
        0,
        "finished",
    )
    assert (row["span_ns"], row["hidden_ns"], row["exposed_ns"]) == (1_000_000, 1_000_000, 0)
    assert rows[2]["exposed_ns"] == 1_000_000
    assert {row[f"{mark}_provenance"] for mark in ("ready", "launch", "start", "finish")} == {
        "measured"
    }


def test_what_still_runs():
    rows = rows_of("collectives", told(killed()))
    running = [row for row in rows if row["state"] == "running"]
    assert len(running) == 2
    assert all(
        row["finish_ns"] is None and row["finish_provenance"] == "unfinished" for row in running
    )
    assert all(row["span_ns"] is None and row["hidden_ns"] is None for row in running)
    assert all(row["launch_ns"] is not None for row in running)


def test_batches_are_small_and_together_all(monkeypatch):
    one = told(typical())
    whole = rows_of("collectives", one)
    monkeypatch.setattr(columns, "ROWS", 7)
    _, batches = OF_EACH["collectives"]
    sizes = [len(batch["rank"]) for batch in batches(one)]
    assert max(sizes) == 7
    assert rows_of("collectives", one) == whole


def test_an_input_without_anything_has_one_row_and_its_reasons():
    one = told(Recording(Timeline(Origin("kineto", "trace.json"))))
    assert [len(rows_of(name, one)) for name in ("timelines", "steps", "collectives", "exposed_segments")] == [
        1, 0, 0, 0,
    ]  # fmt: skip
    (whole,) = rows_of("timelines", one)
    assert whole["overlap_ratio"] is None
    assert whole["rank"] is None


def test_waits_and_transfers_are_stays():
    recordings = [typical(rank) for rank in (0, 1)]
    analyses = [analyse(one) for one in recordings]
    across = across_ranks([one.table for one in analyses])
    rows = []
    for batch in waits(across, ["rank 0", "rank 1"]):
        assert list(batch) == [column.name for column in WAITS.columns]
        rows += [
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
    check_types(WAITS, rows)
    assert len(rows) == len(across.matches.row) > 100
    assert all(row["wait_ns"] + row["transfer_ns"] == row["stay_ns"] for row in rows)
    told_waits = sum(row["wait_ns"] for row in rows if row["counted"])
    assert told_waits == sum(one.wait_ns for one in across.waits)
    assert {row["ranks_seen"] for row in rows} == {2}


# -- names ---------------------------------------------------------------------------------------


def test_times_and_sizes_have_their_unit_in_the_name():
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names)
        assert names[:2] == ["timeline", "rank"]
        for column in table.columns:
            if column.name.endswith(UNITS):
                assert column.type in {Type.INTEGER, Type.REAL}
            assert "bytes" not in column.name or column.name.endswith("_bytes")
            assert "time" not in column.name.split("_")


# -- files ---------------------------------------------------------------------------------------


def written(directory, form, make, one: Told) -> None:
    tables = [table for table, _ in OF_EACH.values()]
    with write_tables.in_directory(directory, tables, form, make) as sinks:
        for name, (_, batches) in OF_EACH.items():
            for batch in batches(one):
                sinks[name].write(batch)


def test_csv_and_parquet_hold_the_same(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    hostile = 'a "name", with\nall in it; =1+1 é'
    one = told(Job(flags={}, bucket_label=hostile).recording())
    written(tmp_path / "csv", "csv", write_tables.csv_sink, one)
    written(tmp_path / "parquet", "parquet", write_tables.parquet_sink, one)
    for table, _ in OF_EACH.values():
        read = parquet.read_table(tmp_path / "parquet" / f"{table.name}.parquet")
        rows = rows_of(table.name, one)
        assert read.to_pylist() == rows
        assert read.column_names == [column.name for column in table.columns]
        text = (tmp_path / "csv" / f"{table.name}.csv").read_text(encoding="utf-8")
        plain = list(csv.DictReader(io.StringIO(text, newline="")))
        assert plain == [{key: in_csv(value) for key, value in row.items()} for row in rows]
    schema = parquet.read_schema(tmp_path / "parquet" / "collectives.parquet")
    assert schema.field("span_ns").metadata[b"about"] == b"from there to its finish"


def in_csv(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def test_row_groups(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(write_tables, "ROW_GROUP", 10)
    monkeypatch.setattr(columns, "ROWS", 4)
    one = told(typical())
    written(tmp_path / "tables", "parquet", write_tables.parquet_sink, one)
    file = parquet.ParquetFile(tmp_path / "tables" / "steps.parquet")
    sizes = [file.metadata.row_group(place).num_rows for place in range(file.num_row_groups)]
    assert sizes == [12, 12, 12, 12, 12]


def test_a_name_that_has_no_bytes_is_written_all_the_same(tmp_path):
    pytest.importorskip("pyarrow")
    one = told(Job(steps=1, bucket_label="half \ud800").recording())
    written(tmp_path / "csv", "csv", write_tables.csv_sink, one)
    written(tmp_path / "parquet", "parquet", write_tables.parquet_sink, one)
    assert "half ? 0" in (tmp_path / "csv" / "collectives.csv").read_text()


def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(write_tables, "find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'overlapwatch\[parquet\]'"):
        write_tables.arrow()


def test_a_failure_leaves_what_was_there(tmp_path):
    directory = tmp_path / "tables"
    directory.mkdir()
    (directory / "steps.csv").write_text("the old one")

    def break_off() -> None:
        with write_tables.in_directory(
            directory, list(TABLES.values()), "csv", write_tables.csv_sink
        ):
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    assert [path.name for path in directory.iterdir()] == ["steps.csv"]
    assert (directory / "steps.csv").read_text() == "the old one"

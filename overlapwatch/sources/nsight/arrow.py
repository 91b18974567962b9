"""A `--type parquetdir` or `arrowdir` export -> its tables as arrays: one file a table, named after it.

In: the directory. Out: `ArrowTables`, which gives what `SqliteTables` gives. Only the wanted columns
are read. It needs pyarrow, which is an extra (`pip install "overlapwatch[parquet]"`) and is imported
here only.
"""

import importlib
import importlib.util
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overlapwatch.errors import InputError
from overlapwatch.sources.nsight.tables import MISSING, Value, empty, text
from overlapwatch.timeline.model import I64

SUFFIXES = (".parquet", ".arrow")
_MARKERS = ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "META_DATA_EXPORT")


def is_export_directory(path: Path) -> bool:
    """Say whether the directory holds tables of an export."""
    return path.is_dir() and any(
        (path / f"{table}{suffix}").exists() for table in _MARKERS for suffix in SUFFIXES
    )


class ArrowTables:
    """The tables of one directory. Fulfils `Tables`."""

    def __init__(self, path: Path) -> None:
        """Look at what the directory holds.

        Raises:
            InputError: pyarrow is not installed.
        """
        if importlib.util.find_spec("pyarrow") is None:
            raise InputError(
                f'{path}: reading a parquetdir or arrowdir export needs pyarrow: pip install "overlapwatch[parquet]"'
            )
        self.path = path
        self.notes: list[str] = []
        self._files = {
            file.stem: file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES
        }
        self._columns: dict[str, tuple[str, ...]] = {}

    def names(self) -> Collection[str]:
        """Return the tables that there are."""
        return self._files

    def columns(self, table: str) -> Collection[str]:
        """Return the columns of a table; none when it is absent or cannot be read."""
        if table not in self._columns:
            read = self._read(table, None)
            self._columns[table] = () if read is None else tuple(read.schema.names)
        return self._columns[table]

    def count(self, table: str) -> int:
        """Return the rows of a table."""
        there = list(self.columns(table))[:1]
        read = self._read(table, there) if there else None
        return 0 if read is None else int(read.num_rows)

    def integers(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None = None
    ) -> dict[str, I64]:
        """Return integer columns; see `Tables.integers`."""
        wanted = [name for name in columns if name in self.columns(table)]
        read = self._read(table, self._with(table, wanted, only)) if wanted else None
        if read is None:
            return empty(columns)
        read = _filtered(read, only)
        absent = np.full(read.num_rows, MISSING, np.int64)
        return {
            name: _integers(read.column(name)) if name in wanted else absent for name in columns
        }

    def rows(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None = None
    ) -> list[tuple[Value, ...]]:
        """Return rows as Python values; see `Tables.rows`."""
        wanted = [name for name in columns if name in self.columns(table)]
        read = self._read(table, self._with(table, wanted, only)) if wanted else None
        if read is None:
            return []
        read = _filtered(read, only)
        values = [
            read.column(name).to_pylist() if name in wanted else [None] * read.num_rows
            for name in columns
        ]
        return list(zip(*values, strict=True))

    def coded(
        self, table: str, column: str, fold: Callable[[bytes], bytes]
    ) -> tuple[I64, list[str]]:
        """Return a text column as codes; see `Tables.coded`."""
        read = self._read(table, [column]) if column in self.columns(table) else None
        if read is None:
            return np.full(self.count(table), -1, np.int64), []
        values = read.column(column).to_pylist()
        texts: dict[bytes, int] = {}
        codes = [
            texts.setdefault(fold(value.encode()), len(texts)) if isinstance(value, str) else -1
            for value in values
        ]
        return np.array(codes, np.int64), [text(raw) for raw in texts]

    def close(self) -> None:
        """Nothing is held open."""

    def _with(self, table: str, wanted: list[str], only: tuple[str, I64] | None) -> list[str]:
        """Return the wanted columns and the one that rows are chosen by."""
        if only is None or only[0] in wanted or only[0] not in self.columns(table):
            return wanted
        return [*wanted, only[0]]

    def _read(self, table: str, columns: list[str] | None) -> Any:
        """Return columns of a table; with None, an empty table that has its schema; None on failure."""
        file = self._files.get(table)
        if file is None:
            return None
        try:
            return (
                _read_parquet(file, columns)
                if file.suffix == ".parquet"
                else _read_ipc(file, columns)
            )
        except Exception as error:  # noqa: BLE001 - pyarrow raises what its C++ tells it to
            reason = str(error).split("\n", 1)[0]
            note = f"table {table} cannot be read: {reason}"
            if note not in self.notes:
                self.notes.append(note)
            return None


def _read_parquet(file: Path, columns: list[str] | None) -> Any:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    if columns is None:
        return parquet.read_schema(file).empty_table()
    return parquet.read_table(file, columns=columns)


def _read_ipc(file: Path, columns: list[str] | None) -> Any:
    """Read an Arrow file, or a stream of the same content: exports have used both."""
    arrow: Any = importlib.import_module("pyarrow")
    with arrow.memory_map(str(file)) as source:
        try:
            opened = arrow.ipc.open_file(source)
        except arrow.ArrowInvalid:
            source.seek(0)
            opened = arrow.ipc.open_stream(source)
        if columns is None:
            return opened.schema.empty_table()
        return opened.read_all().select(columns)


def _filtered(read: Any, only: tuple[str, I64] | None) -> Any:
    if only is None:
        return read
    column, values = only
    if column not in read.schema.names:
        return read.slice(0, 0)
    return read.filter(np.isin(_integers(read.column(column)), values))


def _integers(column: Any) -> I64:
    """Return a column as int64; unsigned 64-bit wraps as sqlite stores it, what is no integer is MISSING."""
    arrow: Any = importlib.import_module("pyarrow")
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    if not (arrow.types.is_integer(kind) or arrow.types.is_boolean(kind)):
        return np.full(len(column), MISSING, np.int64)
    if arrow.types.is_uint64(kind):
        wide = column.fill_null(1 << 63).combine_chunks().to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(wide).view(np.int64)
    filled = column.cast(arrow.int64()).fill_null(MISSING)
    return np.ascontiguousarray(filled.to_numpy(), np.int64)

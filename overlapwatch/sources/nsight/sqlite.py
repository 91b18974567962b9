"""An sqlite export -> its tables as arrays. The file is never written, locked or waited for.

In: a path. Out: `SqliteTables`. The file is opened `immutable`: no lock is taken and nothing is
created beside it, so a file that another program holds, or in a directory that cannot be written,
reads as it lies. What that leaves out is told: changes that are still in a write-ahead log or
a journal beside it.

Integer columns go through `fast` where it is installed; the plain twin here gives the same arrays
and takes over wherever the fast one stops. A page that is damaged ends a table: the rows before it
are kept and a note says so.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice, pairwise
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import InputError
from overlapwatch.sources.nsight import fast
from overlapwatch.sources.nsight.tables import MISSING, Value, empty, text
from overlapwatch.timeline.model import I64

MAGIC = b"SQLite format 3\0"
_WAL_HEADER = 32  # a write-ahead log without frames is no longer than its header
_FEW = 50_000  # below this many rows the fast reader's start costs more than it saves
_CHUNK = 65_536
_THREADS = min(4, os.cpu_count() or 1)
_FAILURES = (sqlite3.Error, UnicodeError, OverflowError, MemoryError)
"""What a damaged file can make of a query: Python also fails to decode what sqlite says went wrong."""


def is_sqlite(path: Path) -> bool:
    """Say whether the file begins as every sqlite database does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class SqliteTables:
    """The tables of one sqlite file. Fulfils `Tables`."""

    def __init__(self, path: Path, *, use_fast: bool = True) -> None:
        """Open the file.

        Args:
            path: the file.
            use_fast: False reads everything with the plain twin.

        Raises:
            InputError: it cannot be opened, or its schema cannot be read.
        """
        self.path = path
        self.notes = [*_cut_short(path), *_beside(path)]
        self._uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        self._use_fast = use_fast and fast.available()
        self._columns: dict[str, tuple[str, ...]] = {}
        try:
            self._stat = _stat(path)
            self._db = sqlite3.connect(self._uri, uri=True)
        except (*_FAILURES, OSError) as error:
            raise InputError(f"{path}: the sqlite file cannot be opened: {error}") from None
        self._db.text_factory = _decode
        try:
            found = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self._names = frozenset(name for (name,) in found if isinstance(name, str))
        except _FAILURES as error:
            self._db.close()
            raise InputError(f"{path}: the sqlite file cannot be read: {error}") from None

    def names(self) -> Collection[str]:
        """Return the tables that there are."""
        return self._names

    def columns(self, table: str) -> Collection[str]:
        """Return the columns of a table; none when it is absent."""
        if table not in self._names:
            return ()
        if table not in self._columns:
            try:
                info = self._db.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            except _FAILURES as error:
                self._damaged(table, error)
                info = []
            self._columns[table] = tuple(row[1] for row in info if isinstance(row[1], str))
        return self._columns[table]

    def count(self, table: str) -> int:
        """Return the rows of a table, 0 where that cannot be told."""
        if table not in self._names:
            return 0
        try:
            found = self._db.execute(_select("count(*)", table)).fetchone()
        except _FAILURES:
            return 0
        return int(found[0])

    def integers(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None = None
    ) -> dict[str, I64]:
        """Return integer columns; see `Tables.integers`."""
        there = [name for name in columns if name in self.columns(table)]
        if not there:
            return empty(columns)
        found: dict[str, I64] | None = None
        if only is None and self._use_fast:
            found = self._fast(table, there)
        if only is not None:
            found = self._at_once(table, there, only)
        if found is None:
            found = self._plain(table, there, only)
        rows = len(found[there[0]])
        absent = np.full(rows, MISSING, np.int64) if len(there) < len(columns) else None
        return {
            name: found[name] if absent is None or name in found else absent for name in columns
        }

    def rows(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None = None
    ) -> list[tuple[Value, ...]]:
        """Return rows as Python values; see `Tables.rows`."""
        there = self.columns(table)
        if not any(name in there for name in columns):
            return []
        select = ", ".join(_quoted(name) if name in there else "NULL" for name in columns)
        kept: list[tuple[Value, ...]] = []
        for chunk in self._chunks(table, select, only):
            kept += chunk
        return kept

    def coded(
        self, table: str, column: str, fold: Callable[[bytes], bytes]
    ) -> tuple[I64, list[str]]:
        """Return a text column as codes; see `Tables.coded`."""
        if column not in self.columns(table):
            return np.full(self.count(table), -1, np.int64), []
        texts: dict[bytes, int] = {}
        parts = []
        known = texts.setdefault
        # Only the few that differ are decoded.
        self._db.text_factory = bytes
        select = f"CASE typeof({_quoted(column)}) WHEN 'text' THEN {_quoted(column)} END"
        for chunk in self._chunks(table, select, None):
            codes = [
                known(fold(raw), len(texts)) if isinstance(raw, bytes) else -1 for (raw,) in chunk
            ]
            parts.append(np.array(codes, np.int64))
        self._db.text_factory = _decode
        return np.concatenate(parts) if parts else np.empty(0, np.int64), [text(r) for r in texts]

    def close(self) -> None:
        """Close the file, and note it if somebody changed it meanwhile."""
        self._db.close()
        try:
            changed = _stat(self.path) != self._stat
        except OSError:
            changed = True
        if changed:
            self.notes.append(
                "the file changed while it was read: what was read may not fit together"
            )

    def _fast(self, table: str, columns: Sequence[str]) -> dict[str, I64] | None:
        """Read integers in bulk, if there are many; None leaves it to the plain twin."""
        ends = self._many(table)
        if ends is None:
            return None
        select = ", ".join(f"coalesce({_quoted(name)}, {MISSING})" for name in columns)
        return fast.integers(self._uri, _select(select, table), columns, *ends)

    def _at_once(
        self, table: str, columns: Sequence[str], only: tuple[str, I64]
    ) -> dict[str, I64] | None:
        """Look rows up by several threads, if there are many; None leaves it to the plain twin.

        sqlite passes over the rows that are not wanted without the interpreter's lock.
        """
        ends = self._many(table)
        if ends is None or only[0] not in self.columns(table):
            return None
        where, bound = _wanted(only)
        query = f"{_select(_plain_integers(columns), table)}{where} AND rowid >= ? AND rowid < ?"
        edges = np.linspace(ends[0], ends[1] + 1, _THREADS + 1).astype(np.int64).tolist()

        def read(piece: tuple[int, int]) -> list[NDArray[np.void]]:
            with closing(sqlite3.connect(self._uri, uri=True)) as db:
                cursor = db.execute(query, (*bound, *piece))
                return [_as_columns(rows, columns) for rows in _in_chunks(cursor)]

        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                parts = list(chain.from_iterable(pool.map(read, pairwise(edges))))
        except _FAILURES:
            return None
        return _joined(parts, columns)

    def _many(self, table: str) -> tuple[int, int] | None:
        """Return the numbers of the first and the last row; None where they are few, or not known."""
        try:
            # One query each: sqlite finds an end of a table at once, both ends by reading all of it.
            first, last = (
                self._db.execute(_select(end, table)).fetchone()[0]
                for end in ("min(rowid)", "max(rowid)")
            )
        except _FAILURES:
            return None
        if not (isinstance(first, int) and isinstance(last, int)) or last - first < _FEW:
            return None
        return first, last

    def _plain(
        self, table: str, columns: Sequence[str], only: tuple[str, I64] | None
    ) -> dict[str, I64]:
        """Read integers row by row; whatever is no integer becomes MISSING."""
        chunks = self._chunks(table, _plain_integers(columns), only)
        return _joined([_as_columns(chunk, columns) for chunk in chunks], columns)

    def _chunks(
        self, table: str, select: str, only: tuple[str, I64] | None
    ) -> Iterator[list[tuple[Value, ...]]]:
        """Yield rows in chunks, up to where the file is damaged."""
        where = ""
        bound: tuple[str, ...] = ()
        if only is not None:
            if only[0] not in self.columns(table):
                return
            where, bound = _wanted(only)
        failure: Exception | None = None
        try:
            cursor = self._db.execute(_select(select, table) + where, bound)
        except _FAILURES as error:
            self._damaged(table, error)
            return
        while failure is None:
            chunk: list[tuple[Value, ...]] = []
            try:
                chunk.extend(islice(cursor, _CHUNK))  # what came before a damaged page stays in it
            except _FAILURES as error:
                failure = error
            if chunk:
                yield chunk
            if failure is None and len(chunk) < _CHUNK:
                return
        self._damaged(table, failure)

    def _damaged(self, table: str, error: Exception) -> None:
        self.notes.append(
            f"table {table} is damaged; what lies before the damage was read: {error}"
        )


def _stat(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _cut_short(path: Path) -> list[str]:
    """Say if the file is shorter than its header says it is."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
        there = path.stat().st_size
    except OSError:
        return []  # opening it will say why
    if len(header) < 100 or header[24:28] != header[92:96]:  # its writer kept no count of pages
        return []
    page = int.from_bytes(header[16:18], "big")
    size = (65_536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if there >= size:
        return []
    return [f"the file is damaged: cut short, {there} of {size} bytes are there"]


def _beside(path: Path) -> list[str]:
    """Say which changes to the file are not in it yet."""
    notes = []
    for suffix, least, what, cure in (
        (
            "-wal",
            _WAL_HEADER,
            "a write-ahead log",
            "close the program that writes it, or merge it in a copy",
        ),
        (
            "-journal",
            0,
            "a rollback journal",
            "its last writer has not finished or was killed: export again",
        ),
    ):
        try:
            size = path.with_name(path.name + suffix).stat().st_size
        except OSError:
            continue
        if size > least:
            notes.append(f"{what} of {size} bytes lies beside the file and was not read: {cure}")
    return notes


def _wanted(only: tuple[str, I64]) -> tuple[str, tuple[str, ...]]:
    """Return the condition that a column has one of the values, and what is bound to it."""
    column, values = only
    # One parameter however many values: the list becomes an index that each row is looked up in.
    condition = f" WHERE {_quoted(column)} IN (SELECT value FROM json_each(?))"  # noqa: S608 - see _select
    return condition, ("[" + ",".join(map(str, values.tolist())) + "]",)


def _plain_integers(columns: Sequence[str]) -> str:
    return ", ".join(
        f"CASE typeof({name}) WHEN 'integer' THEN {name} ELSE {MISSING} END"
        for name in map(_quoted, columns)
    )


def _as_columns(rows: list[tuple[Value, ...]], columns: Sequence[str]) -> NDArray[np.void]:
    return np.fromiter(
        rows, np.dtype([(f"f{at}", np.int64) for at in range(len(columns))]), len(rows)
    )


def _in_chunks(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Value, ...]]]:
    while rows := cursor.fetchmany(_CHUNK):
        yield rows


def _joined(parts: list[NDArray[np.void]], columns: Sequence[str]) -> dict[str, I64]:
    rows = np.concatenate(parts) if parts else _as_columns([], columns)
    return {name: np.ascontiguousarray(rows[f"f{at}"]) for at, name in enumerate(columns)}


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _select(what: str, table: str) -> str:
    """Return a query. Names are quoted, and those the file itself lists; values are bound."""
    return f"SELECT {what} FROM {_quoted(table)}"  # noqa: S608 - as said

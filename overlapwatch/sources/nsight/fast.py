"""Integer columns of an sqlite query, in bulk: Arrow's sqlite driver (ADBC) and nanoarrow, where they are installed.

In: a file and a table. Out: int64 arrays, or None, which tells the caller to use its plain twin: the
driver is not installed, or it met a value that is no integer or a damaged page. The table is cut by
row number and the pieces read at once, one thread each: the driver works outside the interpreter's
lock. Pieces are put together in the order of rows.

On 1.0 M kernels, eight or nine columns: 2.6 to 3.5 times as fast as reading row by row.
"""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from overlapwatch.timeline.model import I64

_PARTS = 4
_BATCH_ROWS = "65536"


def available() -> bool:
    """Say whether the driver is installed."""
    return all(importlib.util.find_spec(name) for name in ("adbc_driver_sqlite", "nanoarrow"))


def integers(
    uri: str, select: str, columns: Sequence[str], first: int, last: int
) -> dict[str, I64] | None:
    """Return the columns of the rows numbered `first` to `last`, or None when they cannot be had this way.

    Args:
        uri: an sqlite URI, with what makes it read-only.
        select: a query that ends before its WHERE; its columns are integers, never NULL.
        columns: what to call them.
        first: the first row's number.
        last: the last row's.
    """
    parts = min(_PARTS, os.cpu_count() or 1)
    edges = np.linspace(first, last + 1, parts + 1).astype(np.int64).tolist()
    queries = [
        f"{select} WHERE rowid >= {low} AND rowid < {high}"
        for low, high in pairwise(edges)
        if high > low
    ]
    try:
        with ThreadPoolExecutor(len(queries)) as pool:
            read = list(pool.map(lambda query: _read(uri, query, len(columns)), queries))
    except Exception:  # noqa: BLE001 - whatever stops the driver, the plain twin says what is wrong
        return None
    return {name: np.concatenate([one[at] for one in read]) for at, name in enumerate(columns)}


def _read(uri: str, query: str, width: int) -> list[I64]:
    manager: Any = importlib.import_module("adbc_driver_manager")
    driver: Any = importlib.import_module("adbc_driver_sqlite")
    arrow: Any = importlib.import_module("nanoarrow")
    found: list[list[I64]] = [[] for _ in range(width)]
    with (
        manager.AdbcDatabase(driver=driver._driver_path(), uri=uri) as database,  # noqa: SLF001 - the only way without pyarrow
        manager.AdbcConnection(database) as connection,
        manager.AdbcStatement(connection) as statement,
    ):
        statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
        statement.set_sql_query(query)
        handle, _ = statement.execute_query()
        for batch in arrow.c_array_stream(handle):
            for at in range(width):
                found[at].append(_copied(batch.child(at)))
    return [np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in found]


def _copied(column: Any) -> I64:
    """Return a column as our own array: the batch that it is a view of goes away."""
    if not column.length:
        return np.empty(0, np.int64)
    view = column.view()
    if view.storage_type != "int64" or view.null_count:
        raise TypeError(f"a column of {view.storage_type} with {view.null_count} nulls")
    values = np.frombuffer(view.buffer(1), np.int64)
    return values[column.offset : column.offset + column.length].copy()

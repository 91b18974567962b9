"""What runs in a peer's environment: bare scans of an export, and the peers themselves. It knows nothing of ours.

    python _bench_sources_child.py WHAT PATH [ARGUMENTS as JSON]

The last line of its output is JSON: what was found and the seconds that it took, without the imports.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

Tables = dict[str, list[str]]


def main() -> None:
    what, path, *rest = sys.argv[1:]
    arguments = json.loads(rest[0]) if rest else {}
    print("\n" + json.dumps(PROGRAMS[what](path, **arguments)))


# -- bare scans --------------------------------------------------------------------------------------------------
#
# Each reads the columns of each table from the first row to the last and does nothing with them.


def _query(columns: list[str], table: str) -> str:
    return f"SELECT {_names(columns)} FROM {table}"


def _names(columns: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def scan_sqlite3(path: str, tables: Tables) -> dict[str, Any]:
    began, rows = time.perf_counter(), 0
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for table, columns in tables.items():
        cursor = db.execute(_query(columns, table))
        while chunk := cursor.fetchmany(65_536):
            rows += len(chunk)
    return {"seconds": time.perf_counter() - began, "rows": rows}


def scan_adbc(path: str, tables: Tables, parts: int = 1) -> dict[str, Any]:
    import adbc_driver_manager as manager
    import adbc_driver_sqlite as driver
    import nanoarrow

    uri = f"file:{path}?mode=ro"

    def read(query: str) -> int:
        with (
            manager.AdbcDatabase(driver=driver._driver_path(), uri=uri) as database,
            manager.AdbcConnection(database) as connection,
            manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            return sum(batch.length for batch in nanoarrow.c_array_stream(stream))

    began, rows = time.perf_counter(), 0
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with ThreadPoolExecutor(parts) as pool:
        for table, columns in tables.items():
            query, last = _query(columns, table), 0
            if parts > 1:
                last = db.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
            edges = [last * at // parts for at in range(parts + 1)]
            pieces = [
                f"{query} WHERE rowid > {low} AND rowid <= {high}" for low, high in pairwise(edges)
            ]
            rows += sum(pool.map(read, pieces if parts > 1 else [query]))
    return {"seconds": time.perf_counter() - began, "rows": rows}


def scan_connectorx(path: str, tables: Tables, parts: int = 1) -> dict[str, Any]:
    import connectorx

    began, rows = time.perf_counter(), 0
    for table, columns in tables.items():
        cut = {"partition_on": "rowid", "partition_num": parts} if parts > 1 else {}
        named = ["rowid", *columns] if parts > 1 else columns
        found = connectorx.read_sql(
            f"sqlite://{path}", _query(named, table), return_type="arrow", **cut
        )
        rows += found.num_rows
    return {"seconds": time.perf_counter() - began, "rows": rows}


def scan_duckdb(path: str, tables: Tables) -> dict[str, Any]:
    import duckdb
    from duckdb_extensions import import_extension

    import_extension("sqlite_scanner")
    db = duckdb.connect()
    began, rows = time.perf_counter(), 0
    for table, columns in tables.items():
        found = db.execute(f"SELECT {_names(columns)} FROM sqlite_scan('{path}', '{table}')")
        rows += len(next(iter(found.fetchnumpy().values())))
    return {"seconds": time.perf_counter() - began, "rows": rows}


# -- peers -------------------------------------------------------------------------------------------------------


def hta(path: str, rank: int = 0) -> dict[str, Any]:
    """HolisticTraceAnalysis, or traceinsight, which is imported by the same name."""
    began = time.perf_counter()
    from hta.trace_analysis import TraceAnalysis

    imported = time.perf_counter()
    analysis = TraceAnalysis(trace_files={rank: path}, include_last_profiler_step=True)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    parts = analysis.get_temporal_breakdown(visualize=False)
    return {
        "overlap_pct": float(overlap["comp_comm_overlap_pctg"].iloc[0]),
        "compute_us": float(parts["compute_time(us)"].iloc[0]),
        "window_us": float(parts["kernel_time(us)"].iloc[0]),
        "import_seconds": imported - began,
        "seconds": time.perf_counter() - imported,
    }


def nsys_ai_extension(path: str) -> dict[str, Any]:
    """Put DuckDB's sqlite extension where nsys-ai finds it, instead of letting it be downloaded."""
    del path
    from duckdb_extensions import import_extension

    import_extension("sqlite_scanner")
    return {}


def nsys_ai_warm(path: str, devices: list[int]) -> dict[str, Any]:
    """The overlap skill on all devices in one process, its cache being there."""
    from nsys_ai.cli.handlers import _open_skill_connection
    from nsys_ai.skills.registry import get_skill

    began = time.perf_counter()
    connection = _open_skill_connection(path, no_cache=False)
    skill = get_skill("overlap_breakdown")
    found = [skill.execute(connection, device=device)[0] for device in devices]
    return {
        "seconds": time.perf_counter() - began,
        "overlap_ms": [one["overlap_ms"] for one in found],
    }


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "sqlite3": scan_sqlite3,
    "adbc": scan_adbc,
    "connectorx": scan_connectorx,
    "duckdb": scan_duckdb,
    "hta": hta,
    "nsys_ai_extension": nsys_ai_extension,
    "nsys_ai_warm": nsys_ai_warm,
}

if __name__ == "__main__":
    main()

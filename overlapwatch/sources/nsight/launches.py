"""Device rows -> the host call that launched each, joined by process and correlation id.

In: `Tables`, the processes and correlation ids of the rows asked about. Out: time and thread of each
launch. Correlation ids start over in each process, so an id without its process names several calls.
Only calls with a wanted id are read: the table of calls is the largest there is.

    process 1, id 7, row A        calls: (1, 7) at 100, (2, 7) at 900        A was launched at 100
"""

from dataclasses import dataclass

import numpy as np

from overlapwatch.sources.nsight.tables import MISSING, Tables
from overlapwatch.timeline.model import I64

_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """When and where rows were launched: start and end of the call, ns, 0 = not known; globalTid."""

    start: I64
    end: I64
    thread: I64


def read_launches(tables: Tables, process: I64, correlation: I64) -> Launches:
    """Return the launch of each row.

    Args:
        tables: the export.
        process: `globalPid >> 24` of each row; MISSING matches when only one process made calls.
        correlation: of each row, 0 = not known.
    """
    rows = len(process)
    nothing = Launches(np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    wanted = np.unique(correlation[correlation > 0])
    if not len(wanted):
        return nothing
    columns = ("start", "end", "globalTid", "correlationId")
    parts = [tables.integers(table, columns, only=("correlationId", wanted)) for table in _TABLES]
    calls = {name: np.concatenate([part[name] for part in parts]) for name in columns}
    good = (calls["start"] != MISSING) & (calls["end"] >= calls["start"])
    good &= calls["globalTid"] != MISSING
    if not good.any():
        return nothing
    calls = {name: column[good] for name, column in calls.items()}
    owners, owner = np.unique(calls["globalTid"] >> 24, return_inverse=True)
    of_row = np.searchsorted(owners, process)
    of_row[of_row == len(owners)] = 0
    known = owners[of_row] == process
    if len(owners) == 1:
        known |= process == MISSING
    # Both parts fit: an id has 32 bits, and processes are numbered from 0 here.
    key = owner.astype(np.int64) << 33 | calls["correlationId"]
    order = np.lexsort((calls["start"], key))  # the outermost call of an id begins first
    key = key[order]
    asked = of_row.astype(np.int64) << 33 | correlation
    place = np.searchsorted(key, asked)
    place[place == len(key)] = 0
    found = known & (correlation > 0) & (key[place] == asked)
    call = order[place]
    return Launches(
        np.where(found, calls["start"][call], 0),
        np.where(found, calls["end"][call], 0),
        np.where(found, calls["globalTid"][call], 0),
    )


def graph_launches(tables: Tables) -> tuple[I64, I64]:
    """Return process and correlation id of each call that launched a CUDA graph."""
    ids = [
        number
        for number, words in tables.rows("StringIds", ("id", "value"))
        if isinstance(number, int)
        and isinstance(words, str)
        and words.startswith(("cudaGraphLaunch", "cuGraphLaunch"))
    ]
    if not ids:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    only = ("nameId", np.array(ids, np.int64))
    parts = [tables.integers(one, ("globalTid", "correlationId"), only=only) for one in _TABLES]
    thread = np.concatenate([part["globalTid"] for part in parts])
    return thread >> 24, np.concatenate([part["correlationId"] for part in parts])

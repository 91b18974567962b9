"""Nsight Systems: a report or an export of it -> Recordings, one for each process and device.

In: an `.sqlite` export, the directory of a `parquetdir` or `arrowdir` export, or a `.nsys-rep`. Out:
Recordings. Schemas from 2021 on are read by what is there: tables and columns are looked up.
Files are opened read-only and left as they are. What the export cannot tell is in `unknown`, what
was read and cannot be used in `skipped`.
"""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from overlapwatch.errors import InputError
from overlapwatch.sources.nsight.arrow import ArrowTables, is_export_directory
from overlapwatch.sources.nsight.assemble import recordings
from overlapwatch.sources.nsight.report_file import exported, is_report_file
from overlapwatch.sources.nsight.sqlite import SqliteTables, is_sqlite
from overlapwatch.sources.nsight.tables import Tables
from overlapwatch.timeline.model import Recording

_MARKERS = frozenset(
    {
        "NVTX_EVENTS",
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "META_DATA_CAPTURE",
        "TARGET_INFO_SESSION_START_TIME",
        "ANALYSIS_DETAILS",
    }
)
_PREFIX = "CUPTI_ACTIVITY_KIND_"


def is_nsight(path: Path) -> bool:
    """Say whether this is something of Nsight Systems, or an sqlite file that may be."""
    if path.is_dir():
        return is_export_directory(path)
    return is_sqlite(path) or is_report_file(path)


def open_nsight(
    path: Path | str,
    *,
    patterns: Sequence[re.Pattern[str]] = (),
    progress: Callable[[int, int], object] | None = None,
    devices: Collection[int] | None = None,
) -> list[Recording]:
    """Read an export, or a report by exporting it.

    Args:
        path: the file or directory.
        patterns: kernel names that are communication, beside the rules (`--comm-pattern`).
        progress: called with (bytes done, bytes in all), by the size of the input.
        devices: only these CUDA devices, as the processes number them.

    Returns:
        One Recording for each process and device with GPU work, and one without a device for each
        process that only made NCCL calls.

    Raises:
        InputError: it cannot be read, is no export of Nsight Systems, or holds nothing to account.
    """
    path = Path(path)
    with ExitStack() as stack:
        readable = stack.enter_context(exported(path)) if is_report_file(path) else path
        tables: Tables = ArrowTables(readable) if readable.is_dir() else SqliteTables(readable)
        stack.callback(tables.close)
        if not any(name in _MARKERS or name.startswith(_PREFIX) for name in tables.names()):
            what = "holds no tables" if not tables.names() else "is not an export of Nsight Systems"
            raise InputError(f"{path}: the {_kind(readable)} {what}")
        found = recordings(tables, patterns, devices, _by_size(readable, progress))
        tables.close()
    if not found:
        raise InputError(f"{path}: {_nothing(devices)}")
    notes = tuple(dict.fromkeys(tables.notes))
    return [_renamed(one, path, notes) for one in found]


def _kind(path: Path) -> str:
    return "directory" if path.is_dir() else "sqlite file"


def _nothing(devices: Collection[int] | None) -> str:
    if devices is not None:
        return f"no GPU work of device {', '.join(map(str, sorted(devices)))} was recorded"
    return "no GPU work and no NCCL calls were recorded; record with nsys profile --trace=cuda,nvtx"


def _renamed(one: Recording, path: Path, notes: tuple[str, ...]) -> Recording:
    """Return the recording under the path that was asked for, with what was noted on the way."""
    origin = replace(one.timeline.origin, path=str(path))
    return replace(one, timeline=replace(one.timeline, origin=origin), notes=(*notes, *one.notes))


def _by_size(
    path: Path, progress: Callable[[int, int], object] | None
) -> Callable[[int, int], object] | None:
    if progress is None:
        return None
    files = [path] if path.is_file() else list(path.iterdir())
    size = sum(file.stat().st_size for file in files)
    return lambda done, total: progress(size * done // total, size)

"""The entry to this source: what is recognised, and what a user is told when it cannot be read.

In: a path and what is wanted of it. Out: Recordings, or one `InputError` sentence. Whatever a damaged
file makes go wrong that nobody foresaw ends in such a sentence as well, never in a traceback.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from overlapwatch.errors import InputError
from overlapwatch.sources.nsight.arrow import ArrowTables, is_export_directory
from overlapwatch.sources.nsight.assemble import Wanted, recordings
from overlapwatch.sources.nsight.report_file import exported, is_report_file
from overlapwatch.sources.nsight.sqlite import SqliteTables, is_sqlite
from overlapwatch.sources.nsight.tables import Tables
from overlapwatch.timeline.classify import compile_patterns
from overlapwatch.timeline.model import Recording

Progress = Callable[[int, int], object]

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
    """Say whether this is something of Nsight Systems, an sqlite file, or a directory of these."""
    if path.is_dir():
        return is_export_directory(path) or bool(_files(path))
    return is_sqlite(path) or is_report_file(path)


def open_nsight(
    path: Path | str,
    *,
    ranks: Collection[int] | None = None,
    steps: range | None = None,  # noqa: ARG001 - a profile is read whole
    devices: Collection[int] | None = None,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Recording]:
    """Read an export, a report by exporting it, or all exports of a directory.

    Args:
        path: the file or directory.
        ranks: only these; a process whose rank is not known is none of them.
        steps: not used: which steps are told is chosen later.
        devices: only these CUDA devices, as the processes number them.
        patterns: regular expressions of kernel names that are communication too.
        progress: called with (bytes done, bytes in all), by the size of the input.

    Returns:
        One Recording for each process and device with GPU work, and one without a device for each
        process that only made NCCL calls.

    Raises:
        InputError: it cannot be read, is no export of Nsight Systems, or holds nothing to account.
        ConfigurationError: a pattern is not a regular expression.
    """
    path = Path(path)
    wanted = Wanted(compile_patterns(patterns), devices)
    single = not path.is_dir() or is_export_directory(path)
    files = [path] if single else _files(path)
    total, done = sum(map(_size, files)), 0
    found: list[Recording] = []
    failures: list[str] = []
    for file in files:
        try:
            found += _open_one(file, wanted, _part(progress, done, _size(file), total))
        except InputError as error:
            failures.append(str(error))
        done += _size(file)
    if not found:
        raise InputError(failures[0] if failures else f"{path}: nothing of Nsight Systems in it")
    if ranks is not None:
        found = [one for one in found if one.timeline.origin.rank in ranks]
        if not found:
            asked = ", ".join(map(str, sorted(ranks)))
            raise InputError(f"{path}: no process is known to be rank {asked}")
    notes = tuple(f"left out: {failure}" for failure in failures)
    return [replace(found[0], notes=(*notes, *found[0].notes)), *found[1:]]


def _files(directory: Path) -> list[Path]:
    """Return the exports of a directory, and the reports that have no export beside them."""
    files = [file for file in sorted(directory.iterdir()) if file.is_file()]
    exports = [file for file in files if file.suffix == ".sqlite" and is_sqlite(file)]
    made = {file.stem for file in exports}
    return exports + [file for file in files if is_report_file(file) and file.stem not in made]


def _open_one(
    path: Path, wanted: Wanted, progress: Callable[[int, int], object] | None
) -> list[Recording]:
    with ExitStack() as stack:
        readable = stack.enter_context(exported(path)) if is_report_file(path) else path
        tables: Tables = ArrowTables(readable) if readable.is_dir() else SqliteTables(readable)
        try:
            if not any(one in _MARKERS or one.startswith(_PREFIX) for one in tables.names()):
                raise InputError(f"{path}: {_foreign(tables)}")
            found = recordings(tables, wanted, progress)
        except (sqlite3.Error, ArithmeticError, ValueError, LookupError, MemoryError) as error:
            raise InputError(
                f"{path}: the export is damaged and cannot be read ({error})"
            ) from error
        finally:
            tables.close()
        notes = tuple(dict.fromkeys(tables.notes))
    if not found:
        raise InputError(f"{path}: {_nothing(wanted.devices, notes)}")
    return [_renamed(one, path, notes) for one in found]


def _foreign(tables: Tables) -> str:
    if not tables.names():
        return "the file holds no tables" + "".join(f"; {note}" for note in tables.notes)
    return "its tables are not those of Nsight Systems"


def _nothing(devices: Collection[int] | None, notes: tuple[str, ...]) -> str:
    if notes:
        return f"nothing of it can be accounted; {notes[0]}"
    if devices is not None:
        return f"no GPU work of device {', '.join(map(str, sorted(devices)))} was recorded"
    return "no GPU work and no NCCL calls were recorded; record with nsys profile --trace=cuda,nvtx"


def _renamed(one: Recording, path: Path, notes: tuple[str, ...]) -> Recording:
    """Return the recording under the path that was asked for, with what was noted on the way."""
    origin = replace(one.timeline.origin, path=str(path))
    return replace(one, timeline=replace(one.timeline, origin=origin), notes=(*notes, *one.notes))


def _size(path: Path) -> int:
    files = [path] if path.is_file() else list(path.iterdir())
    return sum(file.stat().st_size for file in files)


def _part(
    progress: Progress | None, before: int, size: int, total: int
) -> Callable[[int, int], object] | None:
    if progress is None:
        return None
    return lambda done, parts: progress(before + size * done // parts, total)

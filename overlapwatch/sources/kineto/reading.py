"""Files -> Recordings: what is read, for which rank, and what is said beside the numbers.

In: a path. Out: Recordings. The lanes are made in `recording`; here is what concerns a file as a
whole: whether it is a trace, which rank it is of, several files of one directory.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlapwatch.errors import InputError
from overlapwatch.sources.kineto.recording import Trace, recordings_of
from overlapwatch.sources.kineto.sharing import read_columns
from overlapwatch.sources.kineto.stream import head_of
from overlapwatch.timeline.classify import compile_patterns
from overlapwatch.timeline.model import Origin, Recording, Unknown

Progress = Callable[[int, int], object]

_SIGNS = re.compile(
    rb'"traceEvents"\s*:|"deviceProperties"\s*:|"schemaVersion"\s*:|^\s*\[\s*\{[^{}]*"ph"\s*:'
)
_SUFFIXES = (".json", ".json.gz")
_ABOUT = (
    ("nccl_version", "nccl"),
    ("backend", "backend"),
)
_REPAIRED = (
    "some events were not valid JSON as written (inf, control characters, bytes that are not UTF-8)"
    " and were repaired"
)
_SETTINGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
_VERSIONS = ("cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version")


def is_kineto(path: Path) -> bool:
    """Say whether `path` looks like a trace, or is a directory with traces in it."""
    if path.is_dir():
        return any(_is_trace(file) for file in _files(path))
    return _is_trace(path)


def open_kineto(
    path: Path,
    *,
    ranks: Collection[int] | None = None,
    steps: range | None = None,  # noqa: ARG001 - a trace is read whole
    devices: Collection[int] | None = None,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Recording]:
    """Read a trace, or all traces of a directory.

    Args:
        path: the file or directory.
        ranks: of a directory, only these.
        steps: not used: which steps are told is chosen later.
        devices: only these device numbers.
        patterns: regular expressions of kernel names that are communication too.
        progress: called with (bytes read, bytes in all).

    Raises:
        InputError: there is no trace, or nothing of it can be read.
        ConfigurationError: a pattern is not a regular expression.
    """
    path = Path(path)
    if not path.is_dir():
        return _open_one(path, devices, patterns, progress)
    files = [file for file in _files(path) if _is_trace(file)]
    if not files:
        raise InputError(f"{path}: no Kineto trace (*.json, *.json.gz) in the directory")
    total, done = sum(file.stat().st_size for file in files), 0
    found: list[Recording] = []
    failures: list[str] = []
    for file in files:
        try:
            found += _open_one(file, devices, patterns, _part(progress, done, total))
        except InputError as error:
            failures.append(str(error))
        done += file.stat().st_size
    if ranks is not None:
        found = [one for one in found if one.timeline.origin.rank in ranks]
    if not found:
        because = failures[0] if failures else f"{path}: no trace of the ranks asked for"
        raise InputError(because)
    found.sort(key=_rank_order)
    notes = (*(f"left out: {failure}" for failure in failures), *_twice(found))
    return [replace(found[0], notes=(*notes, *found[0].notes)), *found[1:]]


def _open_one(
    path: Path,
    devices: Collection[int] | None,
    patterns: Sequence[str],
    progress: Progress | None,
) -> list[Recording]:
    compiled = compile_patterns(patterns)
    columns, stream = read_columns(path, progress)
    notes = list(stream.notes)
    if columns.repaired:
        notes.append(_REPAIRED)
    origin, unknown = _origin(path, stream.about)
    trace = Trace(
        origin=origin,
        columns=columns,
        base_ns=_base(stream.about, notes),
        groups=columns.calls.groups(stream.about),
        device_names=_device_names(stream.about),
        about=_about(stream.about),
        notes=tuple(notes),
        unknown=tuple(unknown),
    )
    return recordings_of(trace, compiled, devices)


def _origin(path: Path, about: Mapping[str, Any]) -> tuple[Origin, list[Unknown]]:
    info = about.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, world = _count(info.get("rank")), _count(info.get("world_size"))
    host = about.get("host_name")
    unknown = []
    if rank is None:
        unknown.append(Unknown("rank", "the trace has no distributedInfo with a rank"))
    if world is None:
        unknown.append(Unknown("world size", "the trace has no distributedInfo with one"))
    host = host if isinstance(host, str) else ""
    return Origin("kineto", str(path), rank, world, host=host), unknown


def _base(about: Mapping[str, Any], notes: list[str]) -> int:
    """Return what the times of the trace count from, ns since 1970."""
    base = about.get("baseTimeNanoseconds", 0)
    if isinstance(base, int) and 0 <= base < 2**61:
        return base
    notes.append("baseTimeNanoseconds is no time: the times are told as they are in the file")
    return 0


def _about(about: Mapping[str, Any]) -> dict[str, str]:
    info = about.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    told = {name: info.get(key) for key, name in _ABOUT}
    told |= {key: about.get(key) for key in _VERSIONS}
    told |= {f"profiler {key}": about.get(key) for key in _SETTINGS}
    return {name: str(value)[:80] for name, value in told.items() if isinstance(value, (str, int))}


def _device_names(about: Mapping[str, Any]) -> dict[int, str]:
    listed = about.get("deviceProperties")
    names = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            number = _count(one.get("id"))
            if number is not None:
                names[number] = one["name"][:80]
    return names


def _count(value: Any) -> int | None:
    """Return a number of 0 or more, given as one or as text; None for whatever is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**31 else None


def _is_trace(path: Path) -> bool:
    if not path.is_file():
        return False
    head = head_of(path)
    if _SIGNS.search(head):
        return True
    # Named like a trace, and damaged: its reader says what is wrong with it.
    return path.name.endswith(_SUFFIXES) and (head[:1] in {b"{", b"["} or not head)


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.name.endswith(_SUFFIXES))


def _rank_order(one: Recording) -> tuple[bool, int, str]:
    origin = one.timeline.origin
    return origin.rank is None, origin.rank or 0, origin.path


def _twice(found: Sequence[Recording]) -> list[str]:
    """Say which ranks come from several files: they may be of different runs."""
    homes = {(one.timeline.origin.rank, one.timeline.origin.path) for one in found}
    count = Counter(rank for rank, _ in homes if rank is not None)
    return [f"rank {rank} is in {files} files" for rank, files in count.items() if files > 1]


def _part(progress: Progress | None, done: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda read, _size: progress(done + read, total)

"""Our own logs -> Recordings, with what the ring still holds of a job that runs, hangs or was killed.

In: an `.owlog`, or the directory of a run. Out: one `Recording` for each rank. The ring is read when
this is the host that wrote it and the file is still there: it holds the steps since the last flush
of the log, and the collectives in flight. A step is taken from the ring when the ring still holds
its STEP record, the first of each step: then nothing of it has been overwritten.

    log   summaries 1..120, records 100, 110, 120
    ring  half of 118, 119..122, 123 begun        -> records 100, 110, 120, 121, 122, 123 (partial)
"""

import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import InputError
from overlapwatch.log.frames import MAGIC, Header
from overlapwatch.log.reader import LogContents, concatenate_records, read_header, read_log
from overlapwatch.ring import Batch
from overlapwatch.sources.processes import fate_of
from overlapwatch.sources.rings import OutOfReach, open_ring
from overlapwatch.timeline.model import Origin, Recording, Skipped, Unknown
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import RecordFlag, RecordKind, StepFlag

Progress = Callable[[int, int], object]


def is_owlog(path: Path) -> bool:
    """Say whether `path` is a log, or a directory with logs in it."""
    if path.is_dir():
        return any(path.glob("*.owlog"))
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_run(
    path: Path,
    ranks: Collection[int] | None = None,
    steps: range | None = None,
    progress: Progress | None = None,
) -> list[Recording]:
    """Read the logs of a run, in the order of ranks.

    A log that cannot be read does not stop the others; a directory with several runs yields the
    newest. Both are told in the notes of the first recording.

    Args:
        path: a directory of `.owlog` files, or one of them.
        ranks: only these.
        steps: only steps in this range (half-open).
        progress: called with (bytes done, bytes in all).

    Raises:
        InputError: there is nothing there, or nothing of it can be read.
    """
    if not path.is_dir():
        return [open_log(path, steps=steps, progress=progress)]
    files, notes = newest_run(path)
    if ranks is not None:
        files = {rank: file for rank, file in files.items() if rank in ranks}
        if not files:
            asked = ", ".join(str(rank) for rank in sorted(ranks))
            raise InputError(f"{path}: no log of rank {asked}")
    total = sum(file.stat().st_size for file in files.values())
    done = 0
    recordings: list[Recording] = []
    failures: list[str] = []
    for rank in sorted(files):
        file = files[rank]
        try:
            recordings.append(open_log(file, steps=steps, progress=_part(progress, done, total)))
        except InputError as error:
            failures.append(str(error))
        done += file.stat().st_size
    if not recordings:
        raise InputError(failures[0])
    notes += [f"left out: {failure}" for failure in failures]
    if ranks is None:
        notes += _absent(recordings, len(failures))
    recordings[0] = replace(recordings[0], notes=(*notes, *recordings[0].notes))
    return recordings


def open_log(
    path: Path, *, steps: range | None = None, progress: Progress | None = None
) -> Recording:
    """Read one rank's log, and its ring when it is within reach.

    Raises:
        InputError: it cannot be read, or is not a log.
    """
    log = read_log(path, progress, steps=steps)
    header = log.header
    state = _state(log)
    batch, notes = _read_ring(header, state)
    records = concatenate_records(log.events)
    flags = {step: block.flags for block in log.events for step in _steps_of(block.records)}
    flags |= zip(log.summaries["step"].tolist(), log.summaries["flags"].tolist(), strict=True)
    if batch is None:
        flying = in_flight(records[records["step"] == (log.last_step or 0)])
    else:
        flying = in_flight(batch.records)
        late, late_flags = _only_in_ring(batch.records, log, steps)
        records = np.concatenate([records, late])
        flags = late_flags | flags
        if late_flags:
            notes.append(
                f"{_counted(len(late_flags), 'step')} read from the ring: not in the log yet"
            )
    timeline = from_records(
        records,
        origin=_origin(path, header),
        gradients=log.gradients,
        names=log.names,
        groups=log.groups,
        step_flags=flags,
        skipped=_skipped(log),
        unknown=_unknown(header),
    )
    return Recording(
        timeline=timeline,
        summaries=log.summaries,
        in_flight=flying,
        state=state,
        read_ns=time.perf_counter_ns() if state == "running" else None,
        about=_about(header),
        counters=dict(log.counts),
        notes=(*log.notes, *notes, *_damage_notes(log)),
    )


# -- the ring ----------------------------------------------------------------------------------


def _read_ring(header: Header | None, state: str) -> tuple[Batch | None, list[str]]:
    """Return what the ring holds, or None and why, unless the job closed it in order."""
    reader = open_ring(header)
    if isinstance(reader, OutOfReach):
        silent = reader.expected and state == "closed"
        return None, [] if silent else [reader.because]
    batch = reader.read()
    if len(batch.slots):
        holes = int(batch.slots[-1] - batch.slots[0]) + 1 - len(batch.slots)
        if holes:
            lost = _counted(holes, "record")
            return batch, [f"{lost} in the ring not whole: being written when it was read"]
    return batch, []


def _only_in_ring(
    records: NDArray[np.void], log: LogContents, steps: range | None
) -> tuple[NDArray[np.void], dict[int, int]]:
    """Return the records of whole steps that the log has not got yet, and flags for those steps."""
    opened = records[records["kind"] == RecordKind.STEP]["step"]
    logged = {step for block in log.events for step in _steps_of(block.records)}
    new = {
        step
        for step in opened.tolist()
        if step > (log.last_step or 0) and step not in logged and (steps is None or step in steps)
    }
    chosen = records[np.isin(records["step"], sorted(new))]
    flags = {}
    for step in sorted(new):
        # Only the drain knew why recording was off; a step that holds nothing cannot be counted.
        alone = int((chosen["step"] == step).sum()) == 1
        flags[step] = int(StepFlag.EVENTS_KEPT | (StepFlag.PARTIAL if alone else 0))
    return chosen, flags


def in_flight(records: NDArray[np.void]) -> NDArray[np.void]:
    """Return the collectives launched and not finished, oldest first."""
    running = (records["kind"] == RecordKind.COLLECTIVE) & (records["finish"] == 0)
    running &= records["flags"] & RecordFlag.FINISH_UNOBSERVABLE == 0
    found = np.flatnonzero(running)
    return records[found[np.argsort(records["launch"][found], kind="stable")]]


def _steps_of(records: NDArray[np.void]) -> list[int]:
    return [int(step) for step in np.unique(records["step"])]


# -- the process -------------------------------------------------------------------------------


def _state(log: LogContents) -> str:
    if log.end is not None:
        return "closed"
    if log.header is None:
        return "unknown: the log's header is damaged"
    if log.header.host != socket.gethostname():
        return f"unknown: on host {log.header.host}"
    created_s = log.header.created.wall_ns / 1e9
    return "killed" if fate_of(log.header.pid, created_s) == "gone" else "running"


# -- what is told beside the numbers -----------------------------------------------------------


def _origin(path: Path, header: Header | None) -> Origin:
    if header is None:
        return Origin("owlog", str(path), rank_in_name(path))
    return Origin(
        source="owlog",
        path=str(path),
        rank=header.rank,
        world=header.world,
        device=header.device,
        process=f"pid {header.pid}",
        host=header.host,
    )


def _about(header: Header | None) -> dict[str, str]:
    if header is None:
        return {}
    return {
        "run": header.run_id,
        "mode": header.mode,
        "clock": header.clock,
        **header.versions,
        **{f"setting {name}": value for name, value in header.settings.items()},
        **header.environment,
    }


def _skipped(log: LogContents) -> list[Skipped]:
    skipped = [
        Skipped("log frames", count, f"type {kind} is not known to this version")
        for kind, count in log.skipped.items()
    ]
    lost = sum(damage.size for damage in log.damage)
    if lost:
        skipped.append(Skipped("log bytes", lost, "damaged or cut short"))
    return skipped


def _unknown(header: Header | None) -> list[Unknown]:
    if header is not None:
        return []
    return [Unknown("run, world size, host and settings", "the log's header is damaged")]


def _damage_notes(log: LogContents) -> list[str]:
    return [
        f"{_counted(damage.size, 'byte')} of the log lost at offset {damage.offset}: {damage.why}"
        for damage in log.damage
    ]


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("s" if count != 1 else "")


# -- a directory -------------------------------------------------------------------------------


def newest_run(directory: Path) -> tuple[dict[int, Path], list[str]]:
    """Return the logs of the newest run by rank, and what else there is, in words."""
    headers: dict[Path, Header | None] = {}
    unreadable: list[str] = []
    for path in sorted(directory.glob("*.owlog")):
        try:
            headers[path] = read_header(path)
        except InputError as error:  # noqa: PERF203 - a log without a beginning stops no other
            unreadable.append(f"left out: {error}")
    if not headers:
        raise InputError(
            unreadable[0].removeprefix("left out: ") if unreadable else f"{directory}: no *.owlog"
        )
    files, notes = choose_newest(directory, headers)
    return files, unreadable + notes


def choose_newest(
    directory: Path, headers: Mapping[Path, Header | None]
) -> tuple[dict[int, Path], list[str]]:
    """Return the logs of the newest run by rank, and what else there is, in words.

    Args:
        directory: where they are.
        headers: of each log, at least one; None where it is damaged.

    """
    found: list[tuple[int, str, int, Path]] = []  # (created, run, rank, path)
    for path, header in headers.items():
        if header is not None:
            found.append((header.created.wall_ns, header.run_id, header.rank, path))
        else:
            found.append((0, "", rank_in_name(path) or 0, path))
    notes: list[str] = []
    newest = max(found)[1]
    others = sorted({run for _, run, _, _ in found} - {newest, ""})
    if others:
        notes.append(f"run {newest} is shown; {directory} also holds {', '.join(others)}, older")
    files: dict[int, Path] = {}
    for _, run, rank, path in sorted(found, reverse=True):
        if run not in {newest, ""}:
            continue
        if rank in files:
            notes.append(f"left out: {path}: rank {rank} has a newer log, {files[rank].name}")
        else:
            files[rank] = path
    return files, notes


def rank_in_name(path: Path) -> int | None:
    """Return the rank that the file is named after; None where it is called otherwise."""
    match = re.match(r"rank(\d+)", path.name)
    return int(match[1]) if match else None


def _absent(recordings: list[Recording], failures: int) -> list[str]:
    """Say which ranks of the world have no log, when that is certain."""
    world = max(recording.timeline.origin.world or 0 for recording in recordings)
    there = {recording.timeline.origin.rank for recording in recordings}
    absent = [str(rank) for rank in range(world) if rank not in there]
    if not absent or failures:
        return []
    return [f"no log of rank {', '.join(absent)} of {world} in this directory"]


def _part(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _size: progress(before + done, total)

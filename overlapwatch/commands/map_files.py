"""One function over many files: on the cores of this machine, or on a Dask cluster.

In: a function that reads one file and returns something small, and the paths. Out: what it returned
for each, in the order of the paths, one at a time, so that whoever adds them up never holds them all.
At most a few files for each worker are under way, whatever the number of files: 16,384 ranks cost
the memory of the workers and of what the caller keeps.

| where              | when                                                                    |
|--------------------|-------------------------------------------------------------------------|
| this process       | one file, one core, or files so small that starting processes costs more |
| a pool of processes | otherwise; if it breaks (a process killed for its memory), the rest here |
| Dask               | an address is given; its workers must see the same paths                |

A file that cannot be read is an error in its place and does not stop the others.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

from overlapwatch.commands.progress import LateProgress
from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError
from overlapwatch.sources.nsight.arrow import is_export_directory
from overlapwatch.sources.owlog import newest_run

T = TypeVar("T")
Work = Callable[[Path], T]
"""Reads one file. It is sent to other processes: a function of a module, or a `partial` of one."""

MANY_BYTES = 8_000_000
"""Below this, starting other processes costs more than they save."""
FILES_AT_ONCE = 16
"""A task is at most so many files: an answer a file would cost more than reading a small one."""
TASKS_A_WORKER = 3
"""Under way for each worker, so that none waits for the next."""
CONNECT_S = 15
MANY_FAILURES = 5


class _Waiting(Protocol):
    """A result that is on its way: of a pool, or of Dask."""

    def result(self) -> Any:
        """Wait for it and return it."""


def map_files(
    work: Work[T],
    paths: Sequence[Path],
    *,
    scheduler: str | None = None,
    workers: int | None = None,
) -> Iterator[tuple[Path, T | OverlapwatchError]]:
    """Yield each path with what `work` returned for it, or with the error that it raised.

    Args:
        work: reads one file.
        paths: the files.
        scheduler: address of a Dask scheduler, such as tcp://host:8786; None: this machine.
        workers: processes on this machine; None: one a core.

    Raises:
        ConfigurationError: there is no such scheduler, or Dask is not installed.

    """
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    total, done = sum(sizes), 0
    outcomes = _outcomes(work, paths, total, scheduler, workers)
    with LateProgress(f"reading {len(paths)} files", sys.stderr) as progress:
        for path, size, outcome in zip(paths, sizes, outcomes, strict=True):
            done += size
            progress(done, total)
            yield path, outcome


def _outcomes(
    work: Work[T], paths: Sequence[Path], total: int, scheduler: str | None, workers: int | None
) -> Iterator[T | OverlapwatchError]:
    if scheduler is not None:
        yield from _on_dask(work, paths, scheduler)
        return
    count = min(workers or os.cpu_count() or 1, len(paths))
    done = 0
    if count > 1 and (total >= MANY_BYTES or workers):
        try:
            for outcome in _in_a_pool(work, paths, count):
                done += 1
                yield outcome
        except BrokenProcessPool:
            # A process was killed, as a rule for its memory: one file at a time may fit.
            pass
        else:
            return
    for path in paths[done:]:
        yield _outcome(work, path)


def _in_a_pool(
    work: Work[T], paths: Sequence[Path], workers: int
) -> Iterator[T | OverlapwatchError]:
    # Not forked: a reader's threads may hold locks that a forked child would wait for.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def submit(task: Sequence[Path]) -> "Future[list[T | OverlapwatchError]]":
            return pool.submit(_several, work, task)

        yield from _in_order(submit, _tasks(paths, workers), workers * TASKS_A_WORKER)


def _on_dask(work: Work[T], paths: Sequence[Path], address: str) -> Iterator[T | OverlapwatchError]:
    try:
        from distributed import Client  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise ConfigurationError(
            "--scheduler needs Dask: pip install 'overlapwatch[dask]'"
        ) from None
    try:
        connect: Any = Client  # untyped
        client = connect(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--scheduler {address}: no Dask scheduler answers there ({error})"
        ) from None
    with client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise ConfigurationError(f"--scheduler {address}: the scheduler has no workers")
        absolute = [path.resolve() for path in paths]

        def submit(task: Sequence[Path]) -> _Waiting:
            # Not pure: the same path may hold more the next time.
            waiting: _Waiting = client.submit(_several, work, task, pure=False)
            return waiting

        yield from _in_order(submit, _tasks(absolute, workers), workers * TASKS_A_WORKER)


def _in_order(
    submit: Callable[[Sequence[Path]], _Waiting], tasks: Sequence[Sequence[Path]], at_once: int
) -> Iterator[Any]:
    """Yield the results of all tasks in their order, with at most `at_once` of them under way."""
    under_way: deque[_Waiting] = deque()
    try:
        for task in tasks:
            if len(under_way) >= at_once:
                yield from under_way.popleft().result()
            under_way.append(submit(task))
        while under_way:
            yield from under_way.popleft().result()
    finally:
        for waiting in under_way:  # whoever reads has had enough
            cancel: Callable[[], object] = getattr(waiting, "cancel", lambda: None)
            cancel()


def _tasks(paths: Sequence[Path], workers: int) -> list[Sequence[Path]]:
    size = max(1, min(FILES_AT_ONCE, len(paths) // (workers * TASKS_A_WORKER)))
    return [paths[at : at + size] for at in range(0, len(paths), size)]


def _several(work: Work[T], paths: Sequence[Path]) -> list[T | OverlapwatchError]:
    return [_outcome(work, path) for path in paths]


def _outcome(work: Work[T], path: Path) -> T | OverlapwatchError:
    try:
        return work(path)
    except OverlapwatchError as error:
        return error


def left_out(failures: Sequence[OverlapwatchError]) -> list[str]:
    """Say which files could not be read, and why; of many, of the first few."""
    told = [f"left out: {failure}" for failure in failures[:MANY_FAILURES]]
    if len(failures) > MANY_FAILURES:
        told.append(f"left out: {len(failures) - MANY_FAILURES} more files that cannot be read")
    return told


def files_of(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files that the named inputs are made of, one a rank, and remarks about the choice.

    A directory with logs is the newest run in it; any other directory is the files in it that are not
    hidden. A file is itself.

    Raises:
        InputError: a path does not exist, or a directory is empty.

    """
    found: dict[Path, None] = {}
    notes: list[str] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or directory")
        if not path.is_dir() or is_export_directory(path):
            found[path] = None
        elif any(path.glob("*.owlog")):
            logs, remarks = newest_run(path)
            found.update(dict.fromkeys(logs[rank] for rank in sorted(logs)))
            notes += remarks
        else:
            inside = sorted(one for one in path.iterdir() if one.is_file() and one.name[0] != ".")
            if not inside:
                raise InputError(f"{path}: there is no file in the directory")
            found.update(dict.fromkeys(inside))
    return list(found), notes

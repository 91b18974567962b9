"""A file or directory -> Recordings: the reader is chosen by what the input holds, not by its name.

In: a path. Out: one `Recording` for each rank and device. A new kind of input is one line in
`SOURCES`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from overlapwatch.errors import InputError
from overlapwatch.sources.flight_recorder import is_flight_recorder
from overlapwatch.sources.kineto import is_kineto, open_kineto
from overlapwatch.sources.nsight import is_nsight, open_nsight
from overlapwatch.sources.owlog import is_owlog, open_run
from overlapwatch.timeline.model import Recording

Progress = Callable[[int, int], object]
"""(bytes done, bytes in all)."""


class Open(Protocol):
    """Reads one kind of input."""

    def __call__(
        self,
        path: Path,
        *,
        ranks: Collection[int] | None,
        steps: range | None,
        devices: Collection[int] | None,
        patterns: Sequence[str],
        progress: Progress | None,
    ) -> list[Recording]:
        """Return a Recording for each rank and device; what an input does not have is passed over."""


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of input: what it is called, how it is recognised, how it is read."""

    title: str
    recognise: Callable[[Path], bool]
    open: Open


def _open_log(
    path: Path,
    *,
    ranks: Collection[int] | None,
    steps: range | None,
    devices: Collection[int] | None,  # noqa: ARG001 - a log holds one device
    patterns: Sequence[str],  # noqa: ARG001 - a log holds no kernel names
    progress: Progress | None,
) -> list[Recording]:
    return open_run(path, ranks=ranks, steps=steps, progress=progress)


SOURCES = (
    Source("overlapwatch log or run directory (*.owlog)", is_owlog, _open_log),
    Source(
        "Nsight Systems export (.sqlite, parquetdir, arrowdir) or .nsys-rep", is_nsight, open_nsight
    ),
    Source(
        "PyTorch profiler (Kineto) trace (.json, .json.gz), or a directory of them",
        is_kineto,
        open_kineto,
    ),
)


def open_trace(
    path: Path | str,
    *,
    ranks: Collection[int] | None = None,
    steps: range | None = None,
    devices: Collection[int] | None = None,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Recording]:
    """Read whatever `path` is.

    Args:
        path: a log, the directory of a run, or a profile.
        ranks: only these ranks.
        steps: only steps in this range (half-open); a profile is read whole.
        devices: only these device numbers, of a profile.
        patterns: regular expressions of kernel names that are communication too, of a profile.
        progress: called with (bytes done, bytes in all) now and then.

    Raises:
        InputError: there is nothing there, or nothing that can be read.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such file or directory")
    if path.is_file() and is_flight_recorder(path):
        raise InputError(
            f"{path}: a Flight Recorder dump tells in which order collectives were issued, not how "
            "long they took; overlapwatch order reads it"
        )
    for source in SOURCES:
        if source.recognise(path):
            return source.open(
                path,
                ranks=ranks,
                steps=steps,
                devices=devices,
                patterns=patterns,
                progress=progress,
            )
    known = "; ".join(source.title for source in SOURCES)
    if path.is_dir():
        raise InputError(f"{path}: the directory holds nothing that can be read ({known})")
    return open_run(path, ranks=ranks, steps=steps, progress=progress)

"""What the user named -> Analyses: read, select, account; several inputs at once on several cores.

In: paths and a `Request`. Out: Analyses, in the order of ranks. One input of several that cannot be
read, or that does not hold what is asked for, is told in a note and does not stop the others; the
only one does, in one sentence. It computes nothing itself.
"""

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from overlapwatch.accounting.analyse import Analysis, Rules, analyse
from overlapwatch.accounting.selection import Selection, clock_zeros
from overlapwatch.commands.progress import LateProgress
from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError
from overlapwatch.sources import Progress, open_trace
from overlapwatch.timeline.model import Recording

MANY_BYTES = 8_000_000
"""Below this, starting other processes costs more than they save."""
MAX_STEP = (1 << 32) - 1
"""Steps are 32-bit numbers in every record."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of each input.

    Args:
        selection: which steps, moments or phase.
        rules: how steps and phases are told where an input does not mark them.
        ranks, devices: only these; None: all.
        patterns: regular expressions of kernel names that are communication too.

    """

    selection: Selection = field(default_factory=Selection)
    rules: Rules = field(default_factory=Rules)
    ranks: tuple[int, ...] | None = None
    devices: tuple[int, ...] | None = None
    patterns: tuple[str, ...] = ()

    @property
    def steps(self) -> range | None:
        """The steps that must be read, None for all."""
        first, last = self.selection.first_step, self.selection.last_step
        if not self.selection.by_step:
            return None
        return range(first or 0, (MAX_STEP if last is None else last) + 1)


def read_all(paths: Sequence[Path], request: Request) -> list[Analysis]:
    """Return the analyses of all inputs, in the order of ranks.

    Raises:
        ConfigurationError, InputError: nothing of what is asked for can be told; one sentence.

    """
    if len(paths) == 1:
        with LateProgress(f"reading {paths[0]}", sys.stderr) as progress:
            analyses = _read(paths[0], request, progress, only_input=True)
        return _of_ranks(analyses, request.ranks, str(paths[0]))
    found: list[Analysis] = []
    failures: list[OverlapwatchError] = []
    for outcome in _outcomes(paths, request):
        if isinstance(outcome, OverlapwatchError):
            failures.append(outcome)
        else:
            found += outcome
    if not found:
        raise failures[0] if failures else InputError("there is nothing in these inputs")
    found.sort(key=lambda one: (one.origin.rank is None, one.origin.rank or 0))
    found = _of_ranks(found, request.ranks, "these inputs")
    notes = (*(f"left out: {failure}" for failure in failures), *_twice(found))
    return [_noted(found[0], notes), *found[1:]]


def _read(
    path: Path, request: Request, progress: Progress | None, *, only_input: bool = False
) -> list[Analysis]:
    """Return the analyses of one input."""
    recordings = open_trace(
        path,
        ranks=request.ranks,
        steps=request.steps,
        devices=request.devices,
        patterns=request.patterns,
        progress=progress,
    )
    if not recordings:
        raise InputError(f"{path}: {_nothing(request.devices)}")
    return _analysed(recordings, request, alone=only_input and len(recordings) == 1)


def _nothing(devices: Collection[int] | None) -> str:
    if devices is None:
        return "there is no work of a device in it"
    return f"no device {', '.join(map(str, devices))} in it"


def _analysed(recordings: Sequence[Recording], request: Request, *, alone: bool) -> list[Analysis]:
    """Return the analyses of those recordings that hold what is selected; raise where none does."""
    found: list[Analysis] = []
    failures: list[ConfigurationError] = []
    for recording, zero in zip(recordings, clock_zeros(recordings), strict=True):
        selection = replace(request.selection, zero_ns=zero)
        outcome = _analyse(recording, selection, request.rules, alone=alone)
        if isinstance(outcome, ConfigurationError):
            failures.append(outcome)
        else:
            found.append(outcome)
    if not found:
        raise failures[0]
    return [_noted(found[0], [f"left out: {failure}" for failure in failures]), *found[1:]]


def _analyse(
    recording: Recording, selection: Selection, rules: Rules, *, alone: bool
) -> Analysis | ConfigurationError:
    try:
        return analyse(recording, selection, rules, alone=alone)
    except ConfigurationError as error:
        return error


def _outcomes(
    paths: Sequence[Path], request: Request
) -> Iterator[list[Analysis] | OverlapwatchError]:
    """Yield what became of each path, in the order of `paths`."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    workers = min(os.cpu_count() or 1, len(paths))
    with LateProgress(f"reading {len(paths)} inputs", sys.stderr) as progress:
        if workers > 1 and sum(sizes) >= MANY_BYTES:
            try:
                yield from _at_once(paths, request, workers, progress, sizes)
            except BrokenProcessPool:
                # A process was killed, as a rule for its memory: one at a time may fit.
                pass
            else:
                return
        for place, path in enumerate(paths):
            yield _outcome(path, request)
            progress(sum(sizes[: place + 1]), sum(sizes))


def _at_once(
    paths: Sequence[Path],
    request: Request,
    workers: int,
    progress: Progress,
    sizes: Sequence[int],
) -> list[list[Analysis] | OverlapwatchError]:
    # Not forked: a reader's threads may hold locks that a forked child would wait for.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_outcome, path, request): at for at, path in enumerate(paths)}
        done = 0
        for future in as_completed(futures):
            done += sizes[futures[future]]
            progress(done, sum(sizes))
        return [future.result() for future in futures]


def _outcome(path: Path, request: Request) -> list[Analysis] | OverlapwatchError:
    try:
        return _read(path, request, None)
    except OverlapwatchError as error:
        return error


def _of_ranks(
    analyses: list[Analysis], ranks: tuple[int, ...] | None, where: str
) -> list[Analysis]:
    """Return those of the ranks; when some are absent, with a note; when all are, raise."""
    if ranks is None:
        return analyses
    there = dict.fromkeys(one.origin.rank for one in analyses)
    chosen = [one for rank in ranks for one in analyses if one.origin.rank == rank]
    absent = ", ".join(str(rank) for rank in ranks if rank not in there)
    if not chosen:
        known = ", ".join(str(rank) for rank in there if rank is not None)
        holds = f"it holds rank {known}" if known else "it does not say of which rank it is"
        raise InputError(f"{where}: no rank {absent} in it; {holds}")
    if absent:
        chosen[0] = _noted(chosen[0], [f"no rank {absent} in {where}"])
    return chosen


def _twice(analyses: Sequence[Analysis]) -> list[str]:
    """Say which ranks come from several inputs: they may be of different runs."""
    homes = {(one.origin.rank, one.origin.path) for one in analyses}
    count = Counter(rank for rank, _ in homes if rank is not None)
    return [f"rank {rank} is in {inputs} inputs" for rank, inputs in count.items() if inputs > 1]


def _noted(analysis: Analysis, notes: Sequence[str]) -> Analysis:
    return replace(analysis, notes=(*notes, *analysis.notes)) if notes else analysis

"""What the user named -> Analyses: read, select, account; several inputs at once on several cores.

In: paths and a `Request`. Out: Analyses, in the order of ranks, and what a page draws beside them.
One input of several that cannot be read, or that does not hold what is asked for, is told in a note
and does not stop the others; the only one does, in one sentence. It computes nothing itself.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from overlapwatch.accounting.analyse import Analysis, Rules, analyse
from overlapwatch.accounting.selection import Selection, clock_zeros
from overlapwatch.commands.map_files import map_files
from overlapwatch.commands.options import MAX_STEP
from overlapwatch.commands.progress import LateProgress
from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError
from overlapwatch.sources import Progress, open_trace
from overlapwatch.timeline.model import Recording


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


T = TypeVar("T")
Beside = Callable[[Sequence[Recording], Sequence[Analysis], Sequence[Selection], Rules], T]
"""Makes something small of one input where it is read: of its recordings, the analysis and the
selection of each, and the rules. It is sent to other processes: a function of a module."""


@dataclass(frozen=True, slots=True)
class _Input(Generic[T]):
    """One input that was read, and what was made beside its analyses."""

    analyses: list[Analysis]
    beside: T


def read_all(paths: Sequence[Path], request: Request) -> list[Analysis]:
    """Return the analyses of all inputs, in the order of ranks.

    Raises:
        ConfigurationError, InputError: nothing of what is asked for can be told; one sentence.

    """
    return read_beside(paths, request, _nothing_beside)[0]


def _nothing_beside(*_: object) -> None:
    """Make nothing beside the analyses."""


def read_beside(
    paths: Sequence[Path], request: Request, beside: Beside[T]
) -> tuple[list[Analysis], list[T]]:
    """Return the analyses of all inputs, in the order of ranks, and what `beside` makes of each input.

    Raises:
        ConfigurationError, InputError: nothing of what is asked for can be told; one sentence.

    """
    if len(paths) == 1:
        with LateProgress(f"reading {paths[0]}", sys.stderr) as progress:
            one = _read(paths[0], request, beside, progress, only_input=True)
        return _of_ranks(one.analyses, request.ranks, str(paths[0])), [one.beside]
    found: list[Analysis] = []
    made: list[T] = []
    failures: list[OverlapwatchError] = []
    for _, outcome in map_files(partial(_read, request=request, beside=beside), paths):
        if isinstance(outcome, OverlapwatchError):
            failures.append(outcome)
        else:
            found += outcome.analyses
            made.append(outcome.beside)
    if not found:
        raise failures[0] if failures else InputError("there is nothing in these inputs")
    found.sort(key=lambda one: (one.origin.rank is None, one.origin.rank or 0))
    found = _of_ranks(found, request.ranks, "these inputs")
    notes = (*(f"left out: {failure}" for failure in failures), *_twice(found))
    return [_noted(found[0], notes), *found[1:]], made


def recordings_in(
    path: Path, request: Request, progress: Progress | None = None
) -> list[Recording]:
    """Return what one input holds of what is asked for; `choose` still has to find the time in it.

    Raises:
        InputError: it cannot be read.

    """
    return open_trace(
        path,
        ranks=request.ranks,
        steps=request.steps,
        devices=request.devices,
        patterns=request.patterns,
        progress=progress,
    )


def _read(
    path: Path,
    request: Request,
    beside: Beside[T],
    progress: Progress | None = None,
    *,
    only_input: bool = False,
) -> _Input[T]:
    """Return the analyses of one input, and what is made beside them."""
    recordings = recordings_in(path, request, progress)
    if not recordings:
        raise InputError(f"{path}: {_nothing(request.devices)}")
    return _analysed(recordings, request, beside, alone=only_input and len(recordings) == 1)


def _nothing(devices: Collection[int] | None) -> str:
    if devices is None:
        return "there is no work of a device in it"
    return f"no device {', '.join(map(str, devices))} in it"


def _analysed(
    recordings: Sequence[Recording], request: Request, beside: Beside[T], *, alone: bool
) -> _Input[T]:
    """Return the analyses of those recordings that hold what is selected; raise where none does."""
    found: list[Analysis] = []
    chosen: list[tuple[Recording, Selection]] = []
    failures: list[ConfigurationError] = []
    for recording, zero in zip(recordings, clock_zeros(recordings), strict=True):
        selection = replace(request.selection, zero_ns=zero)
        outcome = _analyse(recording, selection, request.rules, alone=alone)
        if isinstance(outcome, ConfigurationError):
            failures.append(outcome)
        else:
            found.append(outcome)
            chosen.append((recording, selection))
    if not found:
        raise failures[0]
    kept, selections = [one for one, _ in chosen], [one for _, one in chosen]
    made = beside(kept, found, selections, request.rules)
    notes = [f"left out: {failure}" for failure in failures]
    return _Input([_noted(found[0], notes), *found[1:]], made)


def _analyse(
    recording: Recording, selection: Selection, rules: Rules, *, alone: bool
) -> Analysis | ConfigurationError:
    try:
        return analyse(recording, selection, rules, alone=alone)
    except ConfigurationError as error:
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

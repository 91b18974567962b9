"""What the user named -> Subjects, one after the other, with what they say together.

In: paths and a `Request`. Out: a `Survey`, and from it Subjects. Several files are read twice: first
on several cores, for a table of collectives and the first moment of each rank (clocks are aligned by
them), then one after the other, to be written. So memory holds one file, however many there are. What
cannot be read is told, and does not stop the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from overlapwatch.accounting.ranks.across import AcrossRanks, across_ranks, unique_labels
from overlapwatch.accounting.ranks.fit import SAME_CLOCK, ClockFit
from overlapwatch.accounting.ranks.table import RankTable, few, rank_table
from overlapwatch.accounting.selection import Selection, clock_zeros
from overlapwatch.commands.inputs import Request, recordings_in
from overlapwatch.commands.map_files import files_of, left_out, map_files
from overlapwatch.errors import ConfigurationError, InputError, OverlapwatchError
from overlapwatch.exports.subject import Subject, subject_of
from overlapwatch.timeline.model import Recording


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One rank on one device, as the first reading found it.

    Args:
        path: its file.
        place: its position among what is chosen of the file.
        first_ns: the first moment that is shown; None without any.
        table: its collectives.

    """

    path: Path
    place: int
    first_ns: int | None
    table: RankTable


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One rank on one device of an export.

    Args:
        found: where it is.
        number: its place in the order of ranks, from 1.
        label: what to call it; unique.
        fit: its clock against the reference; None where it cannot be aligned.

    """

    found: Found
    number: int
    label: str
    fit: ClockFit | None

    @property
    def title(self) -> str:
        """What to call it where there is more room: with its device, process and host."""
        table = self.found.table
        parts = (self.label, *(one for one in (table.device, table.host) if one not in self.label))
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """All that is exported.

    Args:
        members: in the order of ranks.
        across: what they say together; None of one alone.
        notes: sentences for the reader.

    """

    members: tuple[Member, ...]
    across: AcrossRanks | None
    notes: tuple[str, ...]

    def label_of(self, table: RankTable) -> str:
        """Return what a table of `across` is called."""
        return next(one.label for one in self.members if one.found.table is table)

    @property
    def size(self) -> str:
        """How many there are, in words: `1 rank`, `4 devices`."""
        count = len(self.members)
        ranks = {one.found.table.rank for one in self.members}
        thing = "rank" if len(ranks) == count and None not in ranks else "device"
        return f"{count:,} {thing}{'s' * (count != 1)}"

    @property
    def zero_ns(self) -> int:
        """The first moment of all that can be aligned, on the reference clock."""
        known = (
            int(one.fit.to_reference(np.array([one.found.first_ns], np.int64))[0])
            for one in self.members
            if one.fit is not None and one.found.first_ns is not None
        )
        return min(known, default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A Recording that is asked for, and the selection with the zero of its seconds."""

    recording: Recording
    selection: Selection


class Inputs:
    """The files that were named, and what is asked of each.

    Args:
        paths: as they were named.
        request: which time, whose, by which rules.

    """

    def __init__(self, paths: Sequence[Path], request: Request) -> None:
        self._files, self._notes = files_of(paths)
        self._request = request
        self._held: list[Chosen] | None = None

    def survey(self) -> Survey:
        """Return who is there.

        Raises:
            ConfigurationError, InputError: nothing of what is asked for is there.

        """
        request, failures = self._request, list[OverlapwatchError]()
        found: list[Found] = []
        if len(self._files) == 1:  # it need not be read again
            self._held = chosen_in(self._files[0], request)
            found, failures = _found(self._files[0], self._held, request)
        else:
            for _, outcome in map_files(partial(found_in, request=request), self._files):
                if isinstance(outcome, OverlapwatchError):
                    failures.append(outcome)
                else:
                    found += outcome[0]
                    failures += outcome[1]
        if not found:
            raise failures[0] if failures else InputError(_nothing(request))
        found.sort(key=lambda one: (one.table.rank is None, one.table.rank or 0))
        across = across_ranks([one.table for one in found]) if len(found) > 1 else None
        notes = (*self._notes, *left_out(failures), *_absent(found, request))
        return Survey(tuple(_members(found, across)), across, notes)

    def subjects(self, survey: Survey) -> Iterator[tuple[Member, Chosen, Subject]]:
        """Yield each member with what was read of it, file by file.

        Raises:
            ConfigurationError, InputError: a file is no longer what it was.

        """
        of_file: dict[Path, list[Member]] = {}
        for member in survey.members:
            of_file.setdefault(member.found.path, []).append(member)
        for path, members in of_file.items():
            chosen = chosen_in(path, self._request) if self._held is None else self._held
            for member in members:
                if member.found.place >= len(chosen):
                    raise InputError(f"{path}: it is not what it was when it was read first")
                one = chosen[member.found.place]
                yield member, one, subject_of(one.recording, one.selection, self._request.rules)


def chosen_in(path: Path, request: Request) -> list[Chosen]:
    """Return the recordings of one file that are of the ranks and devices asked for.

    Raises:
        ConfigurationError, InputError: it cannot be read.

    """
    recordings = recordings_in(path, request)
    return [
        Chosen(recording, replace(request.selection, zero_ns=zero))
        for recording, zero in zip(recordings, clock_zeros(recordings), strict=True)
        if request.ranks is None or recording.timeline.origin.rank in request.ranks
    ]


def found_in(path: Path, request: Request) -> tuple[list[Found], list[OverlapwatchError]]:
    """Return who is in one file, and why some of it is left out.

    Raises:
        ConfigurationError, InputError: it cannot be read.

    """
    return _found(path, chosen_in(path, request), request)


def _found(
    path: Path, chosen: Sequence[Chosen], request: Request
) -> tuple[list[Found], list[OverlapwatchError]]:
    found: list[Found] = []
    failures: list[OverlapwatchError] = []
    for place, one in enumerate(chosen):
        try:
            subject = subject_of(one.recording, one.selection, request.rules)
        except ConfigurationError as error:
            failures.append(error)
            continue
        table = rank_table(subject.recording, subject.choice, lanes=subject.lanes)
        found.append(Found(path, place, subject.first_ns(), table))
    return found, failures


def _members(found: Sequence[Found], across: AcrossRanks | None) -> Iterator[Member]:
    labels = unique_labels([one.table for one in found])
    places = {id(table): place for place, table in enumerate(across.tables)} if across else {}
    for number, (one, label) in enumerate(zip(found, labels, strict=True), 1):
        fit: ClockFit | None = SAME_CLOCK
        if across is not None:
            place = places.get(id(one.table))
            alignment = across.alignment
            fit = None if place is None else alignment.clocks[alignment.clock_of[place]].fit
        yield Member(one, number, label, fit)


def _absent(found: Sequence[Found], request: Request) -> list[str]:
    there = {one.table.rank for one in found}
    absent = [one for one in request.ranks or () if one not in there]
    return [f"these inputs hold no rank {few(absent)}"] if absent else []


def _nothing(request: Request) -> str:
    if request.ranks is not None:
        return f"these inputs hold no rank {', '.join(map(str, request.ranks))}"
    return "there is no work of a device in these inputs"

"""Why a rank entered a collective late: its way there beside that of the rank in the middle.

In: RankTables, Waiting, an Alignment, one row. Out: an `Excess`: by how much each stretch of the
way was longer than on the middle rank. The stretches add up to the lateness exactly; the longest is
the cause.

Both ways begin with the step, or, where everybody stood still in a collective of the step before,
with its end. On a log the way is cut at the marks that both ranks have:

| from            | to              | what a longer stretch means                                 |
|-----------------|-----------------|-------------------------------------------------------------|
| (the beginning) |                 | began later: the step before, or the optimizer, took longer |
| beginning       | forward begins  | input wait: data loading, or whatever else comes before it  |
| forward begins  | backward begins | late forward                                                |
| backward begins | inputs ready    | late bucket: the backward to there took longer              |
| inputs ready    | launch          | launch delay                                                |
| launch          | entry           | queue                                                       |

In a profile it is cut into computing and not computing (a host gap: the device had nothing to do).
It does not know why a stretch was longer; a collector's pause inside a backward is a late bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from overlapwatch.accounting.ranks.alignment import Alignment
from overlapwatch.accounting.ranks.table import RankTable
from overlapwatch.accounting.ranks.waiting import Waiting
from overlapwatch.timeline.intervals import cover
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import Phase


class Cause(Enum):
    """Which stretch of the way was longer; the value is the word in reports."""

    BEFORE = "began later"
    INPUT = "input wait"
    FORWARD = "late forward"
    BUCKET = "late bucket"
    LAUNCH = "launch delay"
    QUEUE = "queue"
    COMPUTE = "computed longer"
    GAP = "host gap"
    ENTRY = "entered later"


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much longer each stretch was, ns; negative where it was shorter.

    Args:
        lateness_ns: what they add up to.
        parts: in the order of the way, without those of 0 ns.
        because: why the way cannot be cut; "" where it can. Then it is one part, `Cause.ENTRY`.

    """

    lateness_ns: int
    parts: tuple[tuple[Cause, int], ...]
    because: str = ""

    @property
    def cause(self) -> Cause | None:
        """The longest stretch; None where the way could not be cut, or nothing was longer."""
        if self.because or not self.parts:
            return None
        cause, excess = max(self.parts, key=lambda part: part[1])
        return cause if excess > 0 else None


class Ways:
    """Finds the ways; made once for many rows."""

    def __init__(self, tables: Sequence[RankTable], waiting: Waiting, alignment: Alignment) -> None:
        self._tables = tables
        self._waiting = waiting
        self._alignment = alignment
        matches = waiting.matches
        collective = matches.collective
        self._collective = collective
        channel, sequence = matches.channel[collective], matches.sequence[collective]
        self._order = np.lexsort((sequence, channel, matches.table))
        self._place = np.empty(len(self._order), np.int64)
        self._place[self._order] = np.arange(len(self._order))

    def excess(self, row: int) -> Excess:
        """Return how the way of a row differs from that of the middle rank of its collective."""
        collective = int(self._collective[row])
        other = self._middle(collective)
        late = int(self._waiting.entry[row] - self._waiting.entry[other])
        ready = bool(self._record(row)["ready"]) and bool(self._record(other)["ready"])
        mine, theirs = (self._marks(one, ready_known=ready) for one in (row, other))
        if mine is None or theirs is None:
            because = "neither its step nor a collective before it was recorded"
            return Excess(late, ((Cause.ENTRY, late),), because)
        both = [cause for cause in mine if cause in theirs]
        parts: list[tuple[Cause, int]] = []
        at = {"mine": mine[Cause.BEFORE], "theirs": theirs[Cause.BEFORE]}
        parts.append((Cause.BEFORE, at["mine"] - at["theirs"]))
        for cause in both[1:]:
            longer = (mine[cause] - at["mine"]) - (theirs[cause] - at["theirs"])
            parts.append((cause, longer))
            at = {"mine": mine[cause], "theirs": theirs[cause]}
        return Excess(late, tuple(part for part in parts if part[1]))

    def _middle(self, collective: int) -> int:
        """Return the row of the rank that entered in the middle (of two, the first)."""
        first, last = self._waiting.matches.first[collective : collective + 2].tolist()
        rows = np.arange(first, last)
        entry = self._waiting.entry[rows]
        rows = rows[entry != 0]
        rows = rows[np.argsort(self._waiting.entry[rows], kind="stable")]
        return int(rows[(len(rows) - 1) // 2])

    def _record(self, row: int) -> np.void:
        matches = self._waiting.matches
        record: np.void = self._tables[matches.table[row]].records[matches.row[row]]
        return record

    def _marks(self, row: int, *, ready_known: bool) -> dict[Cause, int] | None:
        """Return the ends of the stretches up to a row, on the reference clock, in order."""
        waiting, table = self._waiting, int(self._waiting.matches.table[row])
        told = self._tables[table]
        record = self._record(row)
        entry = int(waiting.entry[row])
        before = self._before(row)
        if told.marks:
            return self._recorded(table, record, entry, before, ready_known=ready_known)
        if before is None:
            return None
        return self._computed(table, row, before, entry)

    def _recorded(
        self, table: int, record: np.void, entry: int, before: int | None, *, ready_known: bool
    ) -> dict[Cause, int] | None:
        steps = self._tables[table].steps
        at = int(np.searchsorted(steps["step"], record["step"]))
        if at >= len(steps) or steps["step"][at] != record["step"]:
            return None
        launch = min(self._moment(table, int(record["launch"])) or entry, entry)
        start = self._moment(table, int(steps["start"][at]))
        if before is not None:
            start = max(start, self._finish(before))
        start = min(start, launch)
        ready = self._moment(table, int(record["ready"])) if ready_known else launch
        backward = self._moment(table, int(steps["backward"][at]))
        if not backward and record["phase"] == Phase.FORWARD:
            backward = ready
        forward = self._moment(table, int(steps["forward"][at]))
        marks = {Cause.QUEUE: entry, Cause.LAUNCH: launch}
        until = launch
        for cause, moment in (
            (Cause.BUCKET, ready),
            (Cause.FORWARD, backward),
            (Cause.INPUT, forward),
            (Cause.BEFORE, start),
        ):
            if moment:
                marks[cause] = until = max(min(moment, until), start)
        return dict(reversed(marks.items()))

    def _computed(self, table: int, row: int, before: int, entry: int) -> dict[Cause, int]:
        """Return the way from the collective before: as long as it computed, then what is left."""
        told = self._tables[table]
        own, earlier = (self._waiting.matches.row[one] for one in (row, before))
        end = np.array([told.records["finish"][earlier]], np.int64)
        begin = told.begin[earlier : earlier + 1]
        until = int(told.computed[earlier] + cover(begin, end, told.hidden)[0])
        busy = max(int(told.computed[own]) - until, 0)
        start = min(self._finish(before), entry)
        return {
            Cause.BEFORE: start,
            Cause.COMPUTE: min(start + busy, entry),
            Cause.GAP: entry,
        }

    def _before(self, row: int) -> int | None:
        """Return the row of the collective before, where everybody stood still in it; else None.

        In a profile any collective before it will do, since nothing else says where a way begins.
        """
        place = int(self._place[row])
        matches = self._waiting.matches
        told = self._waiting.collectives
        while place > 0:
            earlier = int(self._order[place - 1])
            one, two = self._collective[earlier], self._collective[row]
            same = matches.table[earlier] == matches.table[row]
            if not same or told["channel"][one] != told["channel"][two]:
                return None
            marks = self._tables[int(matches.table[row])].marks
            if marks and told["step"][one] != told["step"][two]:
                return None
            if told["chain"][one] != told["chain"][two]:
                return earlier if self._finish(earlier) else None
            place -= 1
        return None

    def _finish(self, row: int) -> int:
        table = int(self._waiting.matches.table[row])
        return self._moment(table, int(self._record(row)["finish"]))

    def _moment(self, table: int, moment: int) -> int:
        if not moment:
            return 0
        one: I64 = np.array([moment], np.int64)
        return int(self._alignment.to_reference(table, one)[0])

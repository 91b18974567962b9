"""One rank on one device as it is exported: what was recorded, and which part of it the numbers speak of.

In: a Recording, a Selection, the rules for steps and phases. Out: a `Subject`. Two stretches of time
are told apart. The *window* is what the numbers of the report are about (of a log: its steps in
statistics). What is *shown* is more: of everything when nothing is selected, else whatever reaches
into the window's stretch, uncut, so that nobody sees a span that is shorter than it was.

    steps      1: unbucketed   2         3 (shadow)   4
    window                     2                      4
    shown      all of them; of `--step 4` what reaches into 4
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import Rules, ruled
from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.selection import Choice, Selection, choose
from overlapwatch.accounting.summarize import summarize
from overlapwatch.timeline.intervals import Intervals, subtract
from overlapwatch.timeline.model import I64, Lane, Recording, Timeline
from overlapwatch.timeline.records import begin_of, has_span
from overlapwatch.vocabulary import RecordFlag

_TIMES = ("ready", "launch", "start", "finish")


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One rank on one device.

    Args:
        recording: its steps and phases are told.
        choice: which of it the numbers speak of.
        lanes: the lanes of the window.
        whole: nothing was selected: all of it is shown.

    """

    recording: Recording
    choice: Choice
    lanes: Lanes
    whole: bool

    @property
    def timeline(self) -> Timeline:
        """The timeline, with everything that was read."""
        return self.recording.timeline

    @property
    def exposed(self) -> Intervals:
        """The exposed segments of the window."""
        return subtract(self.lanes.communication, self.lanes.compute)

    def steps(self) -> NDArray[np.void]:
        """Return the SUMMARY rows of the selected steps: of all that ran, where the input has them."""
        kept = len(self.recording.summaries) > 0
        return self.choice.summaries if kept else summarize(self.choice.timeline)

    def shown(self, lane: Lane) -> Lane:
        """Return the spans of a lane that are shown, by start, whole."""
        keep = self._reaches(lane.start, lane.end)
        order = np.flatnonzero(keep)[np.argsort(lane.start[keep], kind="stable")]
        return Lane(lane.start[order], lane.end[order], lane.name[order], lane.phase[order])

    def collectives(self) -> NDArray[np.void]:
        """Return the RECORDs of the collectives that are shown, with and without a finish.

        Collectives in flight that the timeline does not hold (of a step that was not whole in the
        ring) are among them, unless something was selected.
        """
        records = self.timeline.communication
        if not self.whole:
            begin, end = _extent(records)
            return records[self._reaches(begin, end)]
        missing = self.recording.in_flight
        known = {_key(one) for one in records[records["finish"] == 0]}
        new = np.array([_key(one) not in known for one in missing], np.bool_)
        return np.concatenate((records, missing[new])) if new.any() else records

    def first_ns(self) -> int | None:
        """Return the first moment of anything that is shown, on the subject's clock; None without any."""
        tl = self.timeline
        lanes = (tl.compute, tl.copies, tl.waits, tl.fused, tl.ranges)
        records = self.collectives()
        starts = [self.shown(lane).start for lane in lanes] + [self.steps()["start_ns"]]
        starts += [records[name] for name in _TIMES]
        known = [column[column > 0] for column in starts]
        return min((int(column.min()) for column in known if len(column)), default=None)

    def _reaches(self, start: I64, end: I64) -> NDArray[np.bool_]:
        if self.whole:
            return np.ones(len(start), np.bool_)
        window = self.choice.window
        return np.asarray(
            (start < window.end_ns) & (np.maximum(end, start + 1) > window.start_ns), np.bool_
        )


def subject_of(recording: Recording, selection: Selection, rules: Rules) -> Subject:
    """Return what is exported of a recording.

    Raises:
        ConfigurationError: what is selected is not in it.

    """
    told, _ = ruled(recording, rules)
    choice = choose(told, selection)
    return Subject(told, choice, lanes_of(told.timeline, choice.window), selection.whole)


def unfinished(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say which collectives are still running, as far as the input knows."""
    hidden = records["flags"] & int(RecordFlag.FINISH_UNOBSERVABLE) != 0
    return np.asarray((records["finish"] == 0) & ~hidden, np.bool_)


def _extent(records: NDArray[np.void]) -> tuple[I64, I64]:
    """Return from when to when each collective is shown; one that has no finish goes on for ever."""
    launch, begin = records["launch"], begin_of(records)
    begin = np.where(has_span(records) | (launch == 0), begin, launch)
    end = np.where(unfinished(records), np.iinfo(np.int64).max, records["finish"])
    return begin, end


def _key(record: np.void) -> tuple[int, ...]:
    return tuple(int(record[name]) for name in ("group", "sequence", "owner", "step", "launch"))

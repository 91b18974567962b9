"""A Timeline and a Window -> the two lanes as unions. The one place that does so.

In: a Timeline, a Window. Out: `Lanes`: compute, communication and copies inside the window, and the
span of each collective. It does not know phases or kinds.

Which span stands for a collective is said in `timeline.records`. A record without both ends has no
span: it is counted, as *unfinished* (still running) or *unobservable*, never taken as 0 ns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import Intervals, union
from overlapwatch.timeline.model import I64, Lane, Timeline
from overlapwatch.timeline.records import begin_of, has_span
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """What a window of a timeline holds.

    Args:
        window: the window.
        compute, communication, copies: unions inside it.
        start, end: the spans of the collectives inside the window, ns; a collective that reaches
            over time that was not recorded has several.
        records: the RECORD of each span, uncut.
        index: its position in the timeline's `communication`.
        unfinished: RECORDs launched in the window that are still running.
        unobservable: RECORDs of the window whose span nobody can know.

    """

    window: Window
    compute: Intervals
    communication: Intervals
    copies: Intervals
    start: I64
    end: I64
    records: NDArray[np.void]
    index: I64
    unfinished: NDArray[np.void]
    unobservable: NDArray[np.void]

    @property
    def kind(self) -> NDArray[np.uint8]:
        """The CollectiveKind of each span; UNKNOWN for one that this version does not know."""
        kind = self.records["collective"]
        return np.where(kind > max(CollectiveKind), np.uint8(CollectiveKind.UNKNOWN), kind)

    @property
    def phase(self) -> NDArray[np.uint8]:
        """The recorded Phase of each span; OTHER for one that this version does not know."""
        phase = self.records["phase"]
        return np.where(phase > max(Phase), np.uint8(Phase.OTHER), phase)

    @property
    def collectives(self) -> int:
        """The number of collectives that have a span here."""
        return len(np.unique(self.index))


def lanes_of(tl: Timeline, window: Window) -> Lanes:
    """Return the lanes of the window."""
    records = tl.communication
    whole = has_span(records)
    spans = records[whole]
    start, end, index = window.take(begin_of(spans), spans["finish"])
    rest = records[~whole]
    rest = rest[launched_in(rest, window)]
    running = (rest["finish"] == 0) & (rest["flags"] & int(RecordFlag.FINISH_UNOBSERVABLE) == 0)
    return Lanes(
        window=window,
        compute=_union_of(tl.compute, window),
        communication=union(start, end),
        copies=_union_of(tl.copies, window),
        start=start,
        end=end,
        records=spans[index],
        index=np.flatnonzero(whole)[index],
        unfinished=rest[running],
        unobservable=rest[~running],
    )


def launched_in(records: NDArray[np.void], window: Window) -> NDArray[np.bool_]:
    """Say which records began in the window; one without any moment may have, and counts."""
    begin = np.where(records["launch"] != 0, records["launch"], begin_of(records))
    inside = (begin >= window.start_ns) & (begin < window.end_ns)
    return np.asarray((begin == 0) | inside, np.bool_)


def _union_of(lane: Lane, window: Window) -> Intervals:
    start, end, _ = window.take(lane.start, lane.end)
    return union(start, end)

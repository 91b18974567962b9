"""The rows of one process of a trace: their numbers and names, and spans on them as events.

In: spans on a rank's clock, with the row of each. Out: events. A row is named when it is used first;
numbers of processes and rows ascend in the order to be shown, and none occurs twice in a file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.exports.clocks import Clock, us
from overlapwatch.exports.records import phase_word
from overlapwatch.exports.trace_events import TraceFile, as_json
from overlapwatch.exports.tracks import Places, apart, nested
from overlapwatch.timeline.model import I64, Lane
from overlapwatch.vocabulary import Name

CHUNK = 10_000
"""So many spans are text at a time."""


class Row(IntEnum):
    """The rows of a process, in the order in which they are shown."""

    STEPS = 0
    ACCOUNTED = 1
    COMPUTE = 2
    COMMUNICATION = 3
    NOT_FINISHED = 4
    EXPOSED = 5
    WAITS = 6
    TAIL = 7
    COPIES = 8
    FUSED = 9
    ANNOTATIONS = 10


_TITLES = {
    Row.NOT_FINISHED: "communication, not finished",
    Row.FUSED: "compute and communication in one kernel",
}
_ROWS_OF_A_KIND = 1_000
_ROWS_OF_A_PROCESS = _ROWS_OF_A_KIND * (len(Row) + 1)

Texts = Callable[[slice], Sequence[str]]


def title_of(row: Row) -> str:
    """Return what a row is called."""
    return _TITLES.get(row, row.name.lower())


class Rows:
    """The rows of one process.

    Args:
        file: takes the events.
        number: of the process, from 1, once in a file.
        title: what to call it.
        clock: of its times.
        names: what the names of spans stand for.

    """

    def __init__(
        self, file: TraceFile, number: int, title: str, clock: Clock, names: Mapping[int, Name]
    ) -> None:
        self.clock = clock
        self.number = number * _ROWS_OF_A_PROCESS
        self._file = file
        self._names = names
        self._used: set[int] = set()
        self._name(self.number, "process_name", {"name": title})
        self._name(self.number, "process_sort_index", {"sort_index": number})
        if clock.told:
            self._name(self.number, "process_labels", {"labels": clock.told})

    def _name(self, tid: int, what: str, args: Mapping[str, Any]) -> None:
        self._file.add("M", [f'"pid":{self.number},"tid":{tid},"name":"{what}"{as_args(args)}'])

    def tid(self, row: Row, place: int = 0) -> int:
        """Return the number of a row; it is named when it is used first."""
        tid = self.number + row * _ROWS_OF_A_KIND + min(place, _ROWS_OF_A_KIND - 1) + 1
        if tid not in self._used:
            self._used.add(tid)
            title = title_of(row) + (f" {place + 1}" if place else "")
            self._name(tid, "thread_name", {"name": title})
            self._name(tid, "thread_sort_index", {"sort_index": tid - self.number})
        return tid

    def spans(
        self,
        row: Row,
        spans: tuple[I64, I64],
        places: Places,
        names: Texts,
        args: Texts,
        depth: I64 | None = None,
    ) -> None:
        """Add spans with a beginning and an end."""
        start, end = spans
        for first in range(0, len(start), CHUNK):
            part = slice(first, first + CHUNK)
            begins, lengths = self.clock.texts(
                start[part], end[part], None if depth is None else depth[part]
            )
            tids = [self.tid(row, place) for place in places[part].tolist()]
            more = args(part)
            category = row.name.lower()
            self._file.add(
                "X",
                (
                    f'"ts":{begin},"dur":{length},"pid":{self.number},"tid":{tid},"cat":"{category}","name":{name}{rest}'
                    for begin, length, tid, name, rest in zip(
                        begins, lengths, tids, names(part), more, strict=True
                    )
                ),
            )

    def lane(self, row: Row, lane: Lane, default: str, *, inside: bool = False) -> Places:
        """Add the spans of a lane; return their places."""
        if inside:
            order = np.lexsort((-lane.end, lane.start))
            lane = Lane(lane.start[order], lane.end[order], lane.name[order], lane.phase[order])
            places, depth = nested(lane.start, lane.end)
        else:
            places, depth = apart(lane.start, lane.end), None
        names = _quoted_names(lane.name, self._names)
        phases = {
            one: f',"args":{{"phase":"{phase_word(one)}"}}' if one else ""
            for one in np.unique(lane.phase).tolist()
        }
        alone = {
            one: as_json(phase_word(one) if one else default)
            for one in np.unique(lane.phase).tolist()
        }
        self.spans(
            row,
            (lane.start, lane.end),
            places,
            lambda part: [
                names.get(name) or alone[phase]
                for name, phase in zip(
                    lane.name[part].tolist(), lane.phase[part].tolist(), strict=True
                )
            ],
            lambda part: [phases[phase] for phase in lane.phase[part].tolist()],
            depth,
        )
        return places

    def moments(
        self,
        phase: str,
        tids: Iterable[int],
        moment: I64,
        rest: Iterable[str],
    ) -> None:
        """Add events of one moment each; `rest` is the text of what follows the row of each."""
        self._file.add(
            phase,
            (
                f'"ts":{text},"pid":{self.number},"tid":{tid},{more}'
                for text, tid, more in zip(us(self.clock.on_axis(moment)), tids, rest, strict=True)
            ),
        )


def as_args(facts: Mapping[str, Any]) -> str:
    """Return facts as the text that an event ends with."""
    return f',"args":{as_json(facts)}'


def _quoted_names(ids: NDArray[np.uint32], names: Mapping[int, Name]) -> dict[int, str]:
    return {one: as_json(names[one].text) for one in np.unique(ids).tolist() if one in names}

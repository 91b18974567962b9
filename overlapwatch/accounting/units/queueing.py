"""Queueing on one communicator: what was launched while something else ran, and how long it stood.

In: a Timeline. Out: a `Queued` for each process group, kind that waited and kind that was ahead.
All-gathers and reduce-scatters of a module usually share a communicator, which runs one at a time:
a prefetch can then hold up the gradients, and the other way round.

The time a collective stands in its queue is known in two ways:

| clock  | it stands from     | until  | because                                                      |
|--------|--------------------|--------|--------------------------------------------------------------|
| host   | launch             | start  | a start that was measured or estimated is its turn           |
| device | start, of its      | finish | that event says that its stream came to it; the communicator |
|        | stream             |        | may still be busy on another stream                          |

and is cut by the spans of those of the same group that were there before it:

    reduce-scatter 0-6, all-gather launched 2, start 6, finish 9        all-gather behind reduce-scatter: 4

It does not know the queue of a collective without these times, and counts those.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.chain import label
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.units.modules import owned_by_modules
from overlapwatch.timeline.intervals import counted_again, single, subtract, total, union
from overlapwatch.timeline.model import Timeline, Unknown
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import CollectiveKind, RecordFlag

BEHIND = np.dtype(
    [
        ("waiting", "<i8"),  # positions in the records
        ("ahead", "<i8"),
        ("low", "<i8"),  # ns; the stretch in which the one ahead ran while the other stood
        ("high", "<i8"),
    ]
)
"""One collective that stood behind another."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Collectives of one kind that stood behind those of one kind on the same group.

    Args:
        group: name of the process group; "" when not known.
        kind, ahead: what waited, behind what.
        launched: collectives of `kind` on the group with a known queue; the denominator.
        count: of them, those that stood behind one of `ahead`.
        estimated: of `count`, with a start or finish that was not measured.
        queued_ns: how long, added; what stood behind two at once counts once.
        longest_ns: the longest of one collective.
        longest: whose that was, and behind whose: (module, module).

    """

    group: str
    kind: CollectiveKind
    ahead: CollectiveKind
    launched: int
    count: int
    estimated: int
    queued_ns: int
    longest_ns: int
    longest: tuple[str, str]

    @property
    def crossed(self) -> bool:
        """Whether all-gathers and reductions stood behind each other, not behind their own kind."""
        return self.kind is not self.ahead

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "group": self.group or None,
            "kind": self.kind.title,
            "behind": self.ahead.title,
            "launched": self.launched,
            "count": self.count,
            "estimated": self.estimated,
            "queued_ns": self.queued_ns,
            "longest_ns": self.longest_ns,
            "longest": {"module": self.longest[0], "behind": self.longest[1]},
        }


@dataclass(frozen=True, slots=True)
class Queueing:
    """The queues of the modules' collectives.

    Args:
        rows: longest first.
        stood_ns: time in queues, of all collectives, added.
        seen_ns: the part of it in which some collective ahead ran.
        shared_ns: by how much the rows exceed that, since two kinds ran at once ahead of one.
        nothing_seen_ns: the part in which none was seen to run ahead.
        collectives: of the modules, in the steps.
        without_queue: of them, those whose queue is not known.
        unknown: what cannot be told.

    """

    rows: tuple[Queued, ...]
    stood_ns: int
    seen_ns: int
    shared_ns: int
    nothing_seen_ns: int
    collectives: int
    without_queue: int
    unknown: tuple[Unknown, ...]

    @property
    def crossed_ns(self) -> int:
        """Time that all-gathers and reductions stood behind each other."""
        return sum(row.queued_ns for row in self.rows if row.crossed)

    def checks(self) -> tuple[Check, ...]:
        """Return how the rows add up to the queues."""
        rows = sum(row.queued_ns for row in self.rows)
        return (
            Check(
                "queued behind each kind = behind any + shared", rows, self.seen_ns + self.shared_ns
            ),
            Check(
                "queued behind something seen + behind nothing seen = queued",
                self.seen_ns + self.nothing_seen_ns,
                self.stood_ns,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON-ready values."""
        known = self.without_queue < self.collectives
        return {
            "rows": [row.to_dict() for row in self.rows],
            "crossed_ns": self.crossed_ns if known else None,
            "collectives": self.collectives,
            "queue_not_known": self.without_queue,
        }


def queues(records: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return from when until when each COLLECTIVE stood in its queue, ns.

    (0, 0) where that is not known; on a device the end is its finish, an upper edge.
    """
    device = records["stream"] != 0
    low = np.where(device, records["start"], records["launch"])
    high = np.where(device, records["finish"], records["start"])
    known = (low != 0) & (high >= low)
    return np.where(known, low, 0), np.where(known, high, 0)


def behind(records: NDArray[np.void]) -> NDArray[np.void]:
    """Return each stretch in which one of `records` stood while one that was there before it ran.

    Args:
        records: RECORD rows of collectives of one group.

    """
    low, high = queues(records)
    device = records["stream"] != 0
    # What runs ahead: on the host its turn begins at its start, where that is told.
    begin = np.where(records["start"] != 0, records["start"], begin_of(records))
    arrived = np.where(device, records["start"], records["launch"])
    order = np.lexsort((records["sequence"], arrived))
    found: list[tuple[int, int, int, int]] = []
    running: list[int] = []
    for place in order[arrived[order] != 0].tolist():
        # Whoever has finished by now ran before any of those still to come arrived.
        running = [other for other in running if records["finish"][other] > arrived[place]]
        if low[place]:
            found += _one(place, running, low, high, begin, records)
        if records["finish"][place]:
            running.append(place)
    return np.array(found, BEHIND)


def _one(
    place: int,
    running: list[int],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    begin: NDArray[np.int64],
    records: NDArray[np.void],
) -> Iterator[tuple[int, int, int, int]]:
    for other in running:
        if records["stream"][other] == records["stream"][place] != 0:
            continue  # its stream came to it only when that one had finished
        first = max(int(begin[other]), int(low[place]))
        last = min(int(records["finish"][other]), int(high[place]))
        if last > first:
            yield place, other, first, last


def queueing(tl: Timeline) -> Queueing:
    """Return what the modules' collectives of the timeline queued behind, group by group."""
    records = tl.communication[owned_by_modules(tl.communication, tl.names)]
    rows: list[Queued] = []
    stood = seen = shared = nothing_seen = 0
    for group, mine in parted(records["group"].astype(np.int64)):
        own, name = records[mine], tl.groups.get(group)
        low, high = queues(own)
        stretches = behind(own)
        stood_of: dict[tuple[int, int], list[_Stood]] = {}
        on_host = own["stream"] == 0
        stood += int((high - low)[on_host].sum())
        nothing_seen += int(
            (high - low)[np.setdiff1d(np.flatnonzero(on_host), stretches["waiting"])].sum()
        )
        for place, at in parted(stretches["waiting"]):
            found = stretches[at]
            busy = union(found["low"], found["high"])
            unions = []
            for ahead, some in parted(own["collective"][found["ahead"]].astype(np.int64)):
                unions.append(union(found["low"][some], found["high"][some]))
                took = found["high"][some] - found["low"][some]
                worst = int(found["ahead"][some][took.argmax()])
                key = (int(own["collective"][place]), ahead)
                stood_of.setdefault(key, []).append(_Stood(place, worst, total(unions[-1])))
            seen += total(busy)
            shared += counted_again(unions)
            if on_host[place]:
                queue = single(int(low[place]), int(high[place]))
                nothing_seen += total(subtract(queue, busy))
            else:  # the communicator shows its queue only by what ran on it
                stood += total(busy)
        for (kind, ahead), several in stood_of.items():
            launched = int(((low != 0) & (own["collective"] == kind)).sum())
            told = name.text if name else ""
            rows.append(_row(tl, own, several, told, (kind, ahead), launched))
    rows.sort(key=lambda row: (not row.crossed, -row.queued_ns))
    blind = int((queues(records)[0] == 0).sum())
    return Queueing(
        rows=tuple(rows),
        stood_ns=stood,
        seen_ns=seen,
        shared_ns=shared,
        nothing_seen_ns=nothing_seen,
        collectives=len(records),
        without_queue=blind,
        unknown=_unknown(blind, len(records)),
    )


@dataclass(frozen=True, slots=True)
class _Stood:
    """One collective that stood: its place, that of what held it up the longest, and how long."""

    place: int
    ahead: int
    took_ns: int


def _row(
    tl: Timeline,
    own: NDArray[np.void],
    several: list[_Stood],
    group: str,
    kinds: tuple[int, int],
    launched: int,
) -> Queued:
    worst = max(several, key=lambda one: one.took_ns)
    guessed = int(RecordFlag.START_ESTIMATED | RecordFlag.FINISH_ESTIMATED)
    pairs = [(one.place, one.ahead) for one in several]
    return Queued(
        group=group,
        kind=CollectiveKind(kinds[0]),
        ahead=CollectiveKind(kinds[1]),
        launched=launched,
        count=len(several),
        estimated=sum(bool((own["flags"][list(pair)] & guessed).any()) for pair in pairs),
        queued_ns=sum(one.took_ns for one in several),
        longest_ns=worst.took_ns,
        longest=(label(own[worst.place], tl.names), label(own[worst.ahead], tl.names)),
    )


def _unknown(blind: int, count: int) -> tuple[Unknown, ...]:
    if not blind:
        return ()
    return (
        Unknown(
            f"what {blind} of {count} collectives of modules queued behind",
            "when their turn came is not known",
        ),
    )

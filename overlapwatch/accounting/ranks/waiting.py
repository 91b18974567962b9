"""Each collective on each rank: when it entered, how long it waited for the last rank, who that was.

In: RankTables, Matches, an Alignment. Out: `Waiting`: one row a collective and one a rank in it.

    entry      0 (rank 0)   6 (rank 1)   end 9      stay 9 and 3, transfer 3, waits 6 and 0
    late rank  rank 1, which has the shortest stay; rank 0 has the longest and is its victim

*Stay* (residence) is end − entry on the rank's own clock, so waiting needs no alignment; who entered
last does. The *transfer* is the shortest stay: an upper bound, since even the last rank may have
waited for something. A rank's *lateness* is its entry after that of the middle rank (of two: of the
first), so that two late ranks of eight are both late.

Where a device shows it, the entry is the start of the kernel. On the host nobody sees a collective
begin: the entry is the launch, or, where more were launched than the backend carries out at a time,
the estimated end of the queue; a rank that stood in its queue is not late by it.

Not told: the late rank where two entered at once, where the clocks are less sure than the
difference, or where the last rank stood in its queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.alignment import Alignment, by_table
from overlapwatch.accounting.ranks.groups import identity
from overlapwatch.accounting.ranks.match import Matches
from overlapwatch.accounting.ranks.table import RankTable, steps_out
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.intervals import cover
from overlapwatch.timeline.model import I64, Unknown
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import NOT_KNOWN, RecordFlag


class Why(IntEnum):
    """Why the late rank of a collective is not told."""

    TOLD = 0
    ALONE = 1  # fewer than two entries are known on clocks that can be compared
    TOGETHER = 2  # the last two entered at once
    CLOCKS = 3  # the clocks are not sure enough
    QUEUED = 4  # the last rank stood in its queue


COLLECTIVE = np.dtype(
    [
        ("channel", "<i4"),
        ("sequence", "<i8"),
        ("kind", "u1"),  # CollectiveKind
        ("phase", "u1"),  # Phase
        ("step", "<u4"),
        ("owner", "<i4"),  # place in `owners`
        ("bytes", "<i8"),  # the largest of its rows; 0 = not known
        ("seen", "<i4"),  # ranks that have a row
        ("stays", "<i4"),  # of them with a known stay
        ("late", "<i4"),  # table that entered last; -1 = not told
        ("why", "u1"),  # Why
        ("first", "<i8"),  # first entry, ns on the reference clock; 0 = not known
        ("skew", "<i8"),  # last entry - first entry; NOT_KNOWN
        ("margin", "<i8"),  # last entry - last but one: what the late rank alone cost; NOT_KNOWN
        ("transfer", "<i8"),  # shortest stay; NOT_KNOWN
        ("finish", "<i8"),  # last end, ns on the reference clock; 0 = not known
        (
            "chain",
            "<i4",
        ),  # collectives of a channel of which each was entered before the last ended
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """What the collectives waited for. Row arrays are in the order of `matches.table`.

    Args:
        matches: the collectives and their rows.
        collectives: COLLECTIVE array.
        counted: which of them are told of in sums: not those of steps out of statistics, and, in
            logs, not those outside of any step.
        owners: names of buckets or modules; the first one is "".
        entry: int64 ns on the reference clock; 0 = not known.
        stay, wait: int64 ns; NOT_KNOWN.
        exposed: the part of each wait in which the rank did not compute; NOT_KNOWN.
        lateness: int64 ns after the middle rank's entry, negative before it; NOT_KNOWN_LATENESS.
        queued: whether the rank stood in a queue on the host.
        estimated: how many entries are launches or estimates, not starts that were seen.
        unknown: what cannot be told.

    """

    matches: Matches
    collectives: NDArray[np.void]
    counted: NDArray[np.bool_]
    owners: tuple[str, ...]
    entry: I64
    stay: I64
    wait: I64
    exposed: I64
    lateness: I64
    queued: NDArray[np.bool_]
    estimated: int
    unknown: tuple[Unknown, ...] = field(default=())


NOT_KNOWN_LATENESS = int(np.iinfo(np.int64).min)


def waiting(tables: Sequence[RankTable], matches: Matches, alignment: Alignment) -> Waiting:
    """Return who waited how long for whom."""
    rows = _rows_of(tables, matches, alignment)
    first, count = matches.first[:-1], np.diff(matches.first)
    told = np.zeros(len(matches), COLLECTIVE)
    told["channel"], told["sequence"] = matches.channel, matches.sequence
    told["seen"] = count
    for name in ("kind", "phase", "step", "owner"):
        told[name] = getattr(rows, name)[first]
    if len(matches):
        told["bytes"] = np.maximum.reduceat(rows.bytes, first)
        told["finish"] = np.maximum.reduceat(rows.finish, first)
        known = rows.finish != 0
        told["finish"][np.add.reduceat(known.astype(np.int64), first) < count] = 0
    wait = _transfers(told, rows.stay, first)
    lateness, unknown = _late(told, rows, matches, alignment)
    exposed, still = _stood_still(tables, matches, told, rows, wait)
    _chains(told, matches, rows, still)
    return Waiting(
        matches=matches,
        collectives=told,
        counted=_counted(tables, told),
        owners=rows.owners,
        entry=rows.entry,
        stay=rows.stay,
        wait=wait,
        exposed=exposed,
        lateness=lateness,
        queued=rows.queued,
        estimated=rows.estimated,
        unknown=unknown,
    )


def _counted(tables: Sequence[RankTable], told: NDArray[np.void]) -> NDArray[np.bool_]:
    counted = ~np.isin(told["step"], steps_out(tables))
    if any(one.marks for one in tables):
        counted &= np.isin(told["step"], np.concatenate([one.steps["step"] for one in tables]))
    return np.asarray(counted, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The rows of all collectives, with times on the reference clock."""

    entry: I64
    issued: I64  # when it could have begun, had its turn come; 0 = not known
    finish: I64
    stay: I64
    queued: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    step: NDArray[np.uint32]
    bytes: I64
    owner: NDArray[np.int32]
    owners: tuple[str, ...]
    estimated: int


def entries(records: NDArray[np.void]) -> tuple[I64, NDArray[np.bool_]]:
    """Return when each RECORD row entered, on its own clock (0 = not known), and whether it queued."""
    begin = begin_of(records)
    guessed = (records["flags"] & RecordFlag.START_ESTIMATED != 0) & (records["stream"] == 0)
    queued = guessed & (records["start"] > begin) & (begin != 0)
    return np.where(queued, records["start"], begin), np.asarray(queued, np.bool_)


_NEXT_IN_LINE_NS = 20_000
"""A kernel that starts so soon after the one before it stood behind it, as a rule."""


def _issued(records: NDArray[np.void]) -> I64:
    """Return when each RECORD row could have begun on its own clock; 0 = not known.

    That is when its inputs were ready; where that is not known, on the host its launch, on a device
    its start, unless it follows the kernel before it directly.
    """
    begin = begin_of(records)
    guess = np.where((records["stream"] != 0) & (begin != 0), begin - _NEXT_IN_LINE_NS, begin)
    return np.where(records["ready"] != 0, records["ready"], guess)


def _rows_of(tables: Sequence[RankTable], matches: Matches, alignment: Alignment) -> _Rows:
    count = len(matches.row)
    times = {name: np.zeros(count, np.int64) for name in ("entry", "issued", "finish", "bytes")}
    stay = np.full(count, NOT_KNOWN, np.int64)
    queued = np.zeros(count, np.bool_)
    small = {name: np.zeros(count, np.uint8) for name in ("collective", "phase")}
    step, owner = np.zeros(count, np.uint32), np.zeros(count, np.int32)
    owners = {"": 0}
    estimated = 0
    for place, rows in by_table(matches, len(tables)):
        table = tables[place]
        records = table.records[matches.row[rows]]
        entry, queued[rows] = entries(records)
        ended = (records["finish"] != 0) & (entry != 0)
        stay[rows] = np.where(ended, np.maximum(records["finish"] - entry, 0), NOT_KNOWN)
        times["entry"][rows] = alignment.to_reference(place, entry)
        times["issued"][rows] = alignment.to_reference(place, _issued(records))
        times["finish"][rows] = alignment.to_reference(place, records["finish"])
        times["bytes"][rows] = records["bytes"]
        for name, column in small.items():
            column[rows] = records[name]
        step[rows] = records["step"]
        ids, back = np.unique(records["owner"], return_inverse=True)
        numbers = [
            owners.setdefault(identity(table.names, one), len(owners)) for one in ids.tolist()
        ]
        owner[rows] = np.array(numbers, np.int32)[back]
        seen = (records["start"] != 0) & (records["flags"] & RecordFlag.START_ESTIMATED == 0)
        estimated += int((~seen).sum())
    return _Rows(
        times["entry"],
        times["issued"],
        times["finish"],
        stay,
        queued,
        small["collective"],
        small["phase"],
        step,
        times["bytes"],
        owner,
        tuple(owners),
        estimated,
    )


def _transfers(told: NDArray[np.void], stay: I64, first: I64) -> I64:
    """Fill in the transfer of each collective; return the wait of each row."""
    wait = np.full(len(stay), NOT_KNOWN, np.int64)
    if not len(told):
        return wait
    known = stay != NOT_KNOWN
    far = np.iinfo(np.int64).max
    shortest = np.minimum.reduceat(np.where(known, stay, far), first)
    told["stays"] = np.add.reduceat(known.astype(np.int64), first)
    told["transfer"] = np.where(told["stays"] > 1, shortest, NOT_KNOWN)
    transfer = np.repeat(told["transfer"], told["seen"])
    split = known & (transfer != NOT_KNOWN)
    wait[split] = stay[split] - transfer[split]
    return wait


def _late(
    told: NDArray[np.void], rows: _Rows, matches: Matches, alignment: Alignment
) -> tuple[I64, tuple[Unknown, ...]]:
    """Fill in who entered last, and by how much; return the lateness of each row."""
    lateness = np.full(len(rows.entry), NOT_KNOWN_LATENESS, np.int64)
    told["late"], told["why"] = -1, Why.ALONE
    told["skew"] = told["margin"] = NOT_KNOWN
    collective = matches.collective
    known = np.flatnonzero(rows.entry != 0)
    order = known[np.lexsort((rows.entry[known], collective[known]))]
    owner = collective[order]
    begins = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])) if len(order) else order
    count = np.diff(np.append(begins, len(order)))
    several = count > 1
    begins, count = begins[several], count[several]
    if not len(begins):
        return lateness, ()
    which = owner[begins]
    entry = rows.entry[order]
    last = begins + count - 1
    told["first"][which] = entry[begins]
    told["skew"][which] = entry[last] - entry[begins]
    told["margin"][which] = margin = entry[last] - entry[last - 1]
    member = np.repeat(np.arange(len(begins)), count)
    inside = np.arange(len(member)) + np.repeat(begins - (np.cumsum(count) - count), count)
    middle = entry[begins + (count - 1) // 2]
    mine = order[inside]
    lateness[mine] = entry[inside] - middle[member]
    lateness[mine[rows.queued[mine]]] = np.minimum(lateness[mine[rows.queued[mine]]], 0)
    residual, spans = _uncertainty(matches, alignment, order, begins, count)
    coarse = _too_coarse(told["skew"][which], residual, spans)
    unsure = (margin <= residual) & spans
    why = np.zeros(len(which), np.uint8)
    why[rows.queued[order[last]]] = Why.QUEUED
    why[margin == 0] = Why.TOGETHER
    why[unsure | (coarse & spans)] = Why.CLOCKS
    told["why"][which] = why
    told["late"][which] = np.where(why == Why.TOLD, matches.table[order[last]], -1)
    if not coarse:
        return lateness, ()
    lateness[mine[spans[member]]] = NOT_KNOWN_LATENESS
    skew = median(told["skew"][which][spans]) or 0
    because = (
        f"the ends scatter by {(int(residual.max())) / 1e3:,.1f} µs (p95) around the clocks' "
        f"offset, which is not small against the entry skew of {skew / 1e3:,.1f} µs (median)"
    )
    return lateness, (Unknown("who was late between ranks on different clocks", because),)


def _uncertainty(
    matches: Matches, alignment: Alignment, order: I64, begins: I64, count: I64
) -> tuple[I64, NDArray[np.bool_]]:
    """Return how unsure differences in each collective are, and whether it spans several clocks."""
    clock = np.array(alignment.clock_of, np.int64)[matches.table[order]]
    residual = np.array(
        [alignment.residual_ns(one) for one in range(len(alignment.clock_of))], np.int64
    )[matches.table[order]]
    # `begins` are of groups with several members; what lies between them is alone, and harmless.
    ends = begins + count
    edges = np.stack((begins, np.minimum(ends, len(order) - 1)), axis=1).ravel()
    low = np.minimum.reduceat(clock, edges)[::2]
    high = np.maximum.reduceat(clock, edges)[::2]
    worst = np.maximum.reduceat(residual, edges)[::2]
    # The last group reaches to the end, which reduceat cannot say with an edge.
    tail = slice(int(begins[-1]), int(ends[-1]))
    low[-1], high[-1], worst[-1] = clock[tail].min(), clock[tail].max(), residual[tail].max()
    spans = high > low
    return np.where(spans, worst, 0), np.asarray(spans, np.bool_)


def _too_coarse(skew: I64, residual: I64, spans: NDArray[np.bool_]) -> bool:
    """Say whether the clocks are too unsure, on the whole, for who was late between them."""
    if not spans.any():
        return False
    return 2 * int(residual[spans].max()) > (median(skew[spans]) or 0)


def _stood_still(
    tables: Sequence[RankTable],
    matches: Matches,
    told: NDArray[np.void],
    rows: _Rows,
    wait: I64,
) -> tuple[I64, NDArray[np.bool_]]:
    """Return the exposed part of each wait, and whether the rank stood still until the end.

    It stood still when it computed less than half of the time of the transfer.
    """
    exposed = np.full(len(wait), NOT_KNOWN, np.int64)
    still = np.zeros(len(wait), np.bool_)
    transfer = np.repeat(told["transfer"], told["seen"])
    for place, mine in by_table(matches, len(tables)):
        table, known = tables[place], mine[wait[mine] != NOT_KNOWN]
        end = table.records["finish"][matches.row[known]]
        begin = end - rows.stay[known]
        hidden = cover(begin, begin + wait[known], table.hidden)
        exposed[known] = wait[known] - hidden
        moved = np.maximum(transfer[known], 1)
        still[known] = 2 * cover(end - moved, end, table.hidden) < moved
    return exposed, still


def _chains(
    told: NDArray[np.void], matches: Matches, rows: _Rows, still: NDArray[np.bool_]
) -> None:
    """Number the chains: one ends where most ranks stood still until the end of a collective, and
    all had left it before the next was issued.

    Then lateness begins anew: a rank that is late again has lost more time. Inside a chain (buckets
    sent while the backward goes on) a rank that is late once is late in all that follows, for the
    same reason.
    """
    if not len(told):
        return
    collective = matches.collective
    channel, sequence = matches.channel[collective], matches.sequence[collective]
    order = np.lexsort((sequence, channel, matches.table))
    after, before = order[1:], order[:-1]
    follows = (matches.table[after] == matches.table[before]) & (channel[after] == channel[before])
    left = (rows.finish[before] != 0) & (rows.issued[after] >= rows.finish[before])
    inside = after[follows & ~left]
    open_ = np.zeros(len(told), np.bool_)
    open_[collective[inside]] = True
    share = np.add.reduceat(still.astype(np.int64), matches.first[:-1])
    place = np.lexsort((told["sequence"], told["channel"]))
    mine = told[place]
    begins = np.ones(len(mine), np.bool_)
    begins[1:] = (2 * share >= told["seen"])[place][:-1] & ~open_[place][1:]
    begins[1:] |= mine["channel"][1:] != mine["channel"][:-1]
    begins[1:] |= mine["step"][1:] != mine["step"][:-1]
    told["chain"][place] = np.cumsum(begins) - 1

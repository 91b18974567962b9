"""What one rank contributes to a comparison of ranks: the map of a map and reduce.

In: a Recording and a Choice of it (`accounting.selection.choose`). Out: a `RankTable`: the rank's
collectives as RECORD rows with, beside them, what is needed of everything else, so that neither the
timeline nor its kernels have to be kept. About 80 bytes a collective and 80 a step; it can be
pickled, and holds no view of the arrays it was made from.

    table = rank_table(recording, choose(recording, Selection()))       in one process a file
    result = across_ranks(tables)                                       once

`computed` stands for the compute lane: how much of it lay before each collective began. Between two
collectives of a rank its difference is the time that the rank computed, the rest it did not:

    compute      0-4 . 6-9            collective at    5   10
    computed                                           4    7      from 5 to 10: 3 of 5 computed

`hidden` stands for the overlap: the compute lane inside the communication lane. Taking waiting out
of a collective only shortens it, so this much of the compute lane is enough to account it again.
It does not know other ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.chain import Piece, PieceKind
from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.selection import Choice
from overlapwatch.accounting.tail import StepTail, step_tails
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import Intervals, cover, intersect, total
from overlapwatch.timeline.model import I64, Lane, Recording, Timeline, Unknown
from overlapwatch.timeline.records import begin_of, from_marks
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, CollectiveKind, Name, Phase

RANK_STEP = np.dtype(
    [
        ("step", "<u4"),
        ("flags", "<u4"),  # StepFlag
        ("start", "<i8"),  # ns on the rank's clock
        ("end", "<i8"),
        ("forward", "<i8"),  # where the first forward span of the step begins; 0 = not known
        ("backward", "<i8"),  # where the first backward span begins; 0 = not known
        ("compute_end", "<i8"),  # last end of forward or backward compute; NOT_KNOWN
        ("tail", "<i8"),  # critical tail, ns; NOT_KNOWN
        ("last", "<i4"),  # row of the reduction that finished last; -1 = not known
    ]
)
"""One step of one rank: where its parts begin, and how it ended."""

TAIL_PIECE = np.dtype(
    [
        ("step", "<u4"),
        ("kind", "u1"),  # place in PIECE_KINDS
        ("estimated", "?"),  # one of its edges is an estimated time
        ("row", "<i4"),  # what occupied it; -1 = nothing that is known
        ("start", "<i8"),  # ns on the rank's clock
        ("end", "<i8"),
    ]
)
"""One piece of a tail, as `accounting.chain` cut it."""

PIECE_KINDS = tuple(PieceKind)

LISTED = 16
"""So many ranks are named in a sentence."""

NO_PEER, SEVERAL_PEERS = -1, -2


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank names it.

    Args:
        name: what it is called.
        members: its ranks; empty where not known. Evenly spaced ranks are a `range`: thousands of
            tables of thousands of ranks would be mostly this otherwise.
        ranks: how many; 0 where not known.

    """

    name: str
    members: tuple[int, ...] | range
    ranks: int

    @classmethod
    def of(cls, name: Name) -> "Group":
        """Return the group that a Name describes."""
        members: tuple[int, ...] | range = name.members
        if len(members) > 2 and members[1] > members[0]:
            even = range(members[0], members[-1] + 1, members[1] - members[0])
            members = even if members == tuple(even) else members
        return cls(name.text, members, len(members) or name.elements)


@dataclass(frozen=True, slots=True, eq=False)
class RankTable:
    """One rank on one device, for the comparison with others.

    Args:
        rank, world: as the input says; None where it does not.
        label: what to call it: "rank 3", "pid 7, GPU 1", ... Not unique.
        device: on which device; "" where not known.
        host, clock: whose clock the times are on; "" where not known. Two tables with the same host
            and clock are on one clock.
        run: id of the run; "" where the input has none.
        path, source, state: the input, as in `Origin` and `Recording`.
        marks: whether the compute lane is made of marks (a log), not of kernels (a profile).
        window: the time that `hidden` and the three sums speak of.
        records: RECORD rows of the selected collectives, by launch (where there is none: by start),
            with and without a finish.
        peer: int32 rank of the other side of each point-to-point row; NO_PEER, or SEVERAL_PEERS.
        computed: int64 ns of the window's compute lane before each row began (`begin_of`).
        steps: RANK_STEP rows of the selected steps, in order.
        pieces: TAIL_PIECE rows of their tails, in order.
        names: the owners of the rows, without their members.
        groups: the process groups of the rows.
        hidden: the compute lane inside the communication lane.
        communication_ns, overlap_ns, window_ns: of the window's partition.
        unknown: what the input does not tell.

    """

    rank: int | None
    world: int | None
    label: str
    device: str
    host: str
    clock: str
    run: str
    path: str
    source: str
    state: str
    marks: bool
    window: Window
    records: NDArray[np.void]
    peer: NDArray[np.int32]
    computed: I64
    steps: NDArray[np.void]
    pieces: NDArray[np.void]
    names: Mapping[int, Name]
    groups: Mapping[int, Group]
    hidden: Intervals
    communication_ns: int
    overlap_ns: int
    window_ns: int
    unknown: tuple[Unknown, ...] = ()

    @property
    def begin(self) -> I64:
        """Where each row begins, ns: its start, on the host its launch; 0 = not known."""
        return begin_of(self.records)


def rank_table(
    recording: Recording,
    choice: Choice,
    *,
    lanes: Lanes | None = None,
    tails: Sequence[StepTail] | None = None,
) -> RankTable:
    """Return what this rank contributes.

    Args:
        recording: one rank on one device; its steps and phases are told already (a log's always
            are; of a profile `analyse.ruled` tells them).
        choice: which steps or moments of it.
        lanes: `lanes_of(recording.timeline, choice.window)`, where they were made already.
        tails: `step_tails(choice.timeline)`, where they were made already.

    """
    tl, chosen = recording.timeline, choice.timeline
    lanes = lanes or lanes_of(tl, choice.window)
    tails = step_tails(chosen) if tails is None else tails
    rows = _rows(tl, choice, lanes)
    records = tl.communication[rows]
    hidden = intersect(lanes.compute, lanes.communication)
    steps, pieces = _steps(chosen, records, tails)
    origin = tl.origin
    return RankTable(
        rank=origin.rank,
        world=origin.world,
        label=_label(recording),
        device=origin.device,
        host=origin.host,
        clock=_clock(recording),
        run=recording.about.get("run", ""),
        path=origin.path,
        source=origin.source,
        state=recording.state,
        marks=from_marks(tl),
        window=choice.window,
        records=records,
        peer=_peers(tl, rows),
        computed=_computed(lanes.compute, begin_of(records)),
        steps=steps,
        pieces=pieces,
        names={
            one: Name(one, name.kind, name.text)
            for one in np.unique(records["owner"]).tolist()
            if (name := tl.names.get(one)) is not None
        },
        groups={
            one: Group.of(tl.groups[one])
            for one in np.unique(records["group"]).tolist()
            if one in tl.groups
        },
        hidden=hidden,
        communication_ns=total(lanes.communication),
        overlap_ns=total(hidden),
        window_ns=choice.window.length_ns,
        unknown=tl.unknown,
    )


def _label(recording: Recording) -> str:
    origin = recording.timeline.origin
    if origin.rank is not None:
        return f"rank {origin.rank}"
    return ", ".join(filter(None, (origin.process, origin.device))) or origin.path


def _clock(recording: Recording) -> str:
    """Return what names the clock of the times, "" where they may be on a clock of their own.

    An Nsight session counts from its own beginning, so its clock is that of its file. A profile of
    PyTorch is on the wall clock, which the processes of one host share.
    """
    origin = recording.timeline.origin
    if origin.source.startswith("nsight"):
        return f"session of {origin.path}"
    return recording.about.get("clock", "wall clock" if origin.host else "")


def _rows(tl: Timeline, choice: Choice, lanes: Lanes) -> I64:
    """Return which collectives are told, by launch: those of the selected steps and of the window."""
    records = tl.communication
    others = np.setdiff1d(tl.steps["step"], choice.timeline.steps["step"])
    selected = np.flatnonzero(~np.isin(records["step"], others))
    rows = np.union1d(selected, lanes.index).astype(np.int64)
    launch, start = records["launch"][rows], records["start"][rows]
    order = np.argsort(np.where(launch != 0, launch, start), kind="stable")
    return np.asarray(rows[order], np.int64)


def _computed(busy: Intervals, moment: I64) -> I64:
    """Return how much of the union lies before each moment, ns."""
    if not len(busy):
        return np.zeros(len(moment), np.int64)
    return cover(np.full(len(moment), busy.start[0], np.int64), moment, busy)


def _peers(tl: Timeline, rows: I64) -> NDArray[np.int32]:
    """Return the other side of each row, where the calls that it carries out have one and the same."""
    peer = np.full(len(tl.communication), NO_PEER, np.int32)
    calls = tl.payloads[(tl.payloads["kernel"] >= 0) & (tl.payloads["peer"] >= 0)]
    calls = calls[tl.communication["collective"][calls["kernel"]] == CollectiveKind.SEND_RECV]
    peer[calls["kernel"]] = calls["peer"]
    peer[calls["kernel"][peer[calls["kernel"]] != calls["peer"]]] = SEVERAL_PEERS
    return peer[rows]


def _steps(
    tl: Timeline, records: NDArray[np.void], tails: Sequence[StepTail]
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return RANK_STEP rows and the TAIL_PIECE rows of all of them."""
    steps = np.zeros(len(tl.steps), RANK_STEP)
    for field in ("step", "flags", "start", "end"):
        steps[field] = tl.steps[field]
    steps["forward"] = _first_of(tl.phases, Phase.FORWARD, tl.steps)
    steps["backward"] = _first_of(tl.phases, Phase.BACKWARD, tl.steps)
    steps["last"] = -1
    order = np.argsort(records["step"], kind="stable")
    number = records["step"][order]
    pieces: list[tuple[int, int, bool, int, int, int]] = []
    for row, tail in zip(steps, tails, strict=True):
        row["compute_end"] = _or_not_known(tail.last_compute_end_ns)
        row["tail"] = _or_not_known(tail.tail_ns)
        if tail.last_reduce_end_ns is None:
            continue
        low, high = np.searchsorted(number, (tail.step, tail.step + 1))
        mine = order[low:high]
        row["last"] = last = _last(records, mine, tail)
        for piece in tail.pieces:
            behind = piece.kind is PieceKind.QUEUE
            holder = _behind(records, mine, last, piece) if behind else last
            kind = PIECE_KINDS.index(piece.kind)
            times = piece.start_ns, piece.end_ns
            pieces.append((tail.step, kind, piece.estimated, holder, *times))
    return steps, np.array(pieces, TAIL_PIECE)


def _behind(records: NDArray[np.void], rows: I64, last: int, piece: Piece) -> int:
    """Return the row that the last reduction stood behind, -1 where none is known."""
    if last < 0 or not piece.bucket:
        return -1
    mine = records[rows]
    found = (mine["start"] > 0) & (mine["start"] <= piece.start_ns)
    found &= (mine["finish"] >= piece.end_ns) & (rows != last)
    for field in ("group", "stream"):
        found &= mine[field] == records[field][last]
    return int(rows[found][0]) if found.any() else -1


def _or_not_known(value: int | None) -> int:
    return NOT_KNOWN if value is None else value


def _first_of(lane: Lane, phase: Phase, steps: NDArray[np.void]) -> I64:
    """Return where the first span of a phase begins in each step; 0 where there is none."""
    starts = np.sort(lane.start[lane.phase == phase])
    place = np.searchsorted(starts, steps["start"], "left")
    first = np.append(starts, np.iinfo(np.int64).max)[place]
    return np.where(first < steps["end"], first, 0).astype(np.int64)


def _last(records: NDArray[np.void], rows: I64, tail: StepTail) -> int:
    """Return the row of the reduction that finished last, as `tail` chose it."""
    mine = records[rows]
    found = (mine["finish"] == tail.last_reduce_end_ns) & (mine["owner"] == tail.last_owner)
    rows = rows[found]
    return int(rows[np.argmax(records["start"][rows])]) if len(rows) else -1


def steps_out(tables: Sequence[RankTable]) -> I64:
    """Return the numbers of the steps that are out of statistics on one of the tables or more."""
    found = [
        one.steps["step"][one.steps["flags"] & np.uint32(OUT_OF_STATISTICS) != 0] for one in tables
    ]
    return np.unique(np.concatenate([np.empty(0, np.uint32), *found])).astype(np.int64)


def few(items: Sequence[object]) -> str:
    """Return the items as a list in words; of many, the first ones and how many more."""
    text = ", ".join(str(one) for one in items[:LISTED])
    return text if len(items) <= LISTED else f"{text} and {len(items) - LISTED} more"

"""Prefetch slack: had a module's parameters arrived when compute needed them?

In: the uses of a Timeline (a WAIT for an all-gather, written at each use), its all-gathers. Out: a
`Uses` table of matched rows and a `SlackRow` for each module and phase.

A use consumes the last all-gather of its module that began before the parameters were usable, and
after they were usable the time before. Without one, the parameters were still held.

    slack of a use = its start (compute needs the parameters) − the finish of the all-gather it consumes

| blocks.3   | gather  | use (wait)     | slack | stall | rest of the wait |
|------------|---------|----------------|-------|-------|------------------|
| prefetched | 2 to 6  | 9 to 9         | 3     | 0     | 0                |
| prefetched | 2 to 6  | 4 to 7         | −2    | 2     | 1                |
| on demand  | 4 to 6  | 4 to 7         | −2    | 2     | 1                |

A finish that was stamped after the use had its parameters was stamped late: it counts as the moment
they were usable, and as estimated. The rest of a wait is not the all-gather's: it is copying out
and synchronising. It does not know why an all-gather was late (`order`, `queueing` say).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.model import Timeline, Unknown
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import CollectiveKind, Name, Phase, RecordFlag

USE = np.dtype(
    [
        ("step", "<u4"),
        ("owner", "<u4"),  # the module
        ("phase", "u1"),
        ("known", "?"),  # the finish of its all-gather is known
        ("estimated", "?"),  # that finish is not measured
        ("prefetched", "?"),
        ("gather", "<i8"),  # position of its all-gather in the timeline's communication; -1 = none
        ("start", "<i8"),  # ns; compute needs the parameters
        ("finish", "<i8"),  # ns; they are usable
        ("arrived", "<i8"),  # ns; finish of the all-gather; 0 = not known
    ]
)
"""One use of a module's unsharded parameters, with the all-gather that it consumed."""


@dataclass(frozen=True, slots=True)
class SlackRow:
    """The uses of one module in one phase.

    Args:
        owner, module, phase: of what.
        uses: how many.
        prefetched, on_demand: of them by what issued the all-gather they consumed.
        held: of them without an all-gather: the parameters were still there.
        known: of them with a known slack; the denominator of the next.
        estimated: of the known ones with a finish that was not measured.
        median_ns, least_ns: of the slack; None where none is known.
        stalls: known uses with a negative slack.
        stall_ns: by how much, added.
        beyond_ns: what compute waited beyond the finish of the all-gather, added over known uses.
        wait_ns: what compute waited, added over all uses.

    """

    owner: int
    module: str
    phase: Phase
    uses: int
    prefetched: int
    on_demand: int
    held: int
    known: int
    estimated: int
    median_ns: int | None
    least_ns: int | None
    stalls: int
    stall_ns: int
    beyond_ns: int
    wait_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "module": self.module,
            "phase": self.phase.name.lower(),
            "uses": self.uses,
            "prefetched": self.prefetched,
            "on_demand": self.on_demand,
            "held": self.held,
            "known": self.known,
            "estimated": self.estimated,
            "median_ns": self.median_ns,
            "least_ns": self.least_ns,
            "stalls": self.stalls if self.known else None,
            "stall_ns": self.stall_ns if self.known else None,
            "beyond_ns": self.beyond_ns if self.known else None,
            "wait_ns": self.wait_ns,
        }


@dataclass(frozen=True, slots=True)
class GradientWait:
    """How often and how long compute waited for one module's gradients."""

    module: str
    count: int
    wait_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"module": self.module, "count": self.count, "wait_ns": self.wait_ns}


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """The uses of a timeline.

    Args:
        matched: USE rows, in order of start.
        rows: by module (in order of first use) and phase.
        gradients: waits for gradients, by module, longest first.
        known_wait_ns: what was waited in uses with a known slack, and in those without an
            all-gather: what stalls and the rest must add up to.
        held_wait_ns: the part of it in uses without an all-gather.
        never_used: all-gathers that no use consumed.
        unknown: what cannot be told.

    """

    matched: NDArray[np.void]
    rows: tuple[SlackRow, ...]
    gradients: tuple[GradientWait, ...]
    known_wait_ns: int
    held_wait_ns: int
    never_used: int
    unknown: tuple[Unknown, ...]

    @property
    def stall_ns(self) -> int:
        """What all stalls took, added."""
        return sum(row.stall_ns for row in self.rows)

    @property
    def wait_ns(self) -> int:
        """What compute waited in all uses, added."""
        return sum(row.wait_ns for row in self.rows)

    def checks(self) -> tuple[Check, ...]:
        """Return how the waits add up, and the uses."""
        spent = self.stall_ns + sum(row.beyond_ns for row in self.rows) + self.held_wait_ns
        told = sum(row.prefetched + row.on_demand + row.held for row in self.rows)
        return (
            Check(
                "stalls + what was waited beyond them = waits of uses", spent, self.known_wait_ns
            ),
            Check("prefetched + on demand + held = uses", told, len(self.matched), "uses"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON-ready values."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "gradient_waits": [one.to_dict() for one in self.gradients],
            "stall_ns": self.stall_ns if any(row.known for row in self.rows) else None,
            "wait_ns": self.wait_ns,
            "all_gathers_never_used": self.never_used,
        }


def stall_of(matched: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the stall of each USE row, ns; 0 where the slack is not known or not negative."""
    late = np.where(matched["known"], matched["arrived"] - matched["start"], 0)
    return np.asarray(np.maximum(late, 0), np.int64)


def match(tl: Timeline) -> tuple[NDArray[np.void], int]:
    """Return the uses with the all-gathers they consumed (USE rows, by start), and how many
    all-gathers of used modules none consumed.
    """
    wanted = tl.uses[tl.uses["collective"] == CollectiveKind.ALL_GATHER]
    rows = np.zeros(len(wanted), USE)
    for field in ("step", "owner", "phase", "start", "finish"):
        rows[field] = wanted[field]
    rows["gather"] = -1
    rows = rows[np.argsort(rows["start"], kind="stable")]
    gathers = np.flatnonzero(tl.communication["collective"] == CollectiveKind.ALL_GATHER)
    begin = begin_of(tl.communication[gathers])
    gathers, begin = gathers[begin != 0], begin[begin != 0]
    owner, unused = tl.communication["owner"][gathers], 0
    for one, mine in parted(rows["owner"].astype(np.int64)):
        own = np.flatnonzero(owner == one)
        own = own[np.argsort(begin[own], kind="stable")]
        # The all-gathers that had begun when each use, and the use before it, got the parameters.
        begun = np.searchsorted(begin[own], np.maximum.accumulate(rows["finish"][mine]), "right")
        before = np.concatenate(([0], begun[:-1]))
        found = begun > before
        rows["gather"][mine[found]] = gathers[own[begun[found] - 1]]
        unused += len(own) - int(found.sum())
    _put_arrivals(rows, tl.communication)
    return rows, unused


def _put_arrivals(rows: NDArray[np.void], communication: NDArray[np.void]) -> None:
    there = np.flatnonzero(rows["gather"] >= 0)
    taken = communication[rows["gather"][there]]
    flags, finish, usable = taken["flags"], taken["finish"], rows["finish"][there]
    known = (finish != 0) & (flags & int(RecordFlag.FINISH_UNOBSERVABLE) == 0)
    late = finish > usable
    rows["known"][there] = known
    rows["estimated"][there] = known & (late | (flags & int(RecordFlag.FINISH_ESTIMATED) != 0))
    rows["prefetched"][there] = (flags & int(RecordFlag.PREFETCHED) != 0) | (taken["cause"] != 0)
    rows["arrived"][there] = np.where(known, np.minimum(finish, usable), 0)


def uses(tl: Timeline) -> Uses:
    """Return the uses of the timeline, by module and phase."""
    matched, unused = match(tl)
    names = tl.names
    rows = []
    order = {owner: n for n, owner in enumerate(dict.fromkeys(matched["owner"].tolist()))}
    for key, mine in parted((matched["owner"].astype(np.int64) << 8) | matched["phase"]):
        rows.append(_row(matched[mine], key >> 8, Phase(min(key & 255, max(Phase))), names))
    rows.sort(key=lambda row: (order[row.owner], row.phase))
    told = matched["known"] | (matched["gather"] < 0)
    waited = matched["finish"] - matched["start"]
    return Uses(
        matched=matched,
        rows=tuple(rows),
        gradients=_gradient_waits(tl),
        known_wait_ns=int(waited[told].sum()),
        held_wait_ns=int(waited[matched["gather"] < 0].sum()),
        never_used=unused,
        unknown=_unknown(matched),
    )


def _row(uses: NDArray[np.void], owner: int, phase: Phase, names: Mapping[int, Name]) -> SlackRow:
    consumed = uses["gather"] >= 0
    known = uses[uses["known"]]
    slack, stall = known["start"] - known["arrived"], stall_of(known)
    beyond = known["finish"] - np.maximum(known["start"], known["arrived"])
    name = names.get(owner)
    return SlackRow(
        owner=owner,
        module=name.text if name else f"module {owner}",
        phase=phase,
        uses=len(uses),
        prefetched=int((consumed & uses["prefetched"]).sum()),
        on_demand=int((consumed & ~uses["prefetched"]).sum()),
        held=int((~consumed).sum()),
        known=len(known),
        estimated=int(known["estimated"].sum()),
        median_ns=median(slack),
        least_ns=int(slack.min()) if len(slack) else None,
        stalls=int((stall > 0).sum()),
        stall_ns=int(stall.sum()),
        beyond_ns=int(beyond.sum()),
        wait_ns=int((uses["finish"] - uses["start"]).sum()),
    )


def _gradient_waits(tl: Timeline) -> tuple[GradientWait, ...]:
    waited = tl.uses[tl.uses["collective"] != CollectiveKind.ALL_GATHER]
    rows = []
    for owner, mine in parted(waited["owner"].astype(np.int64)):
        name = tl.names.get(owner)
        took = int((waited["finish"][mine] - waited["start"][mine]).sum())
        rows.append(GradientWait(name.text if name else f"module {owner}", len(mine), took))
    rows.sort(key=lambda row: -row.wait_ns)
    return tuple(rows)


def _unknown(matched: NDArray[np.void]) -> tuple[Unknown, ...]:
    blind = int(((matched["gather"] >= 0) & ~matched["known"]).sum())
    if not blind:
        return ()
    return (
        Unknown(
            f"the prefetch slack of {blind} of {len(matched)} uses of unsharded parameters",
            "the finish of their all-gather is not known",
        ),
    )

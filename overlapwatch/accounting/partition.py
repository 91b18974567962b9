"""The partition of a window into compute only, communication only, overlap and idle.

In: a Timeline, a Window. Out: a `Partition`, whose four parts add up to the window exactly. It does
not know what an idle stretch is spent on: copies are reported beside it. Each part is measured by
itself (none is a difference of others), so that the checks can fail.

    compute        0-4 ......6-8        compute only 0-2 6-8   4
    communication  ..2-5 ........       communication only 4-5 1
    window         0-10                 overlap 2-4            2        idle 5-6 8-10   3
"""

from dataclasses import dataclass

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import intersect, join, subtract, total
from overlapwatch.timeline.model import Timeline, Unknown


@dataclass(frozen=True, slots=True)
class Partition:
    """One window in numbers, ns.

    Args:
        window_ns: recorded length of the window.
        compute_ns, communication_ns: length of each lane's union.
        compute_only_ns, communication_only_ns, overlap_ns, idle_ns: the four exclusive parts.
        copies_only_ns: the part of idle in which copies ran.
        exposed_beyond_copies_ns: the part of communication only in which no copy ran either.
        unfinished: collectives launched in the window and still running.
        unobservable: collectives of the window whose span nobody can know.
        observed: collectives whose spans make up the communication lane.

    """

    window_ns: int
    compute_ns: int
    communication_ns: int
    compute_only_ns: int
    communication_only_ns: int
    overlap_ns: int
    idle_ns: int
    copies_only_ns: int
    exposed_beyond_copies_ns: int
    unfinished: int
    unobservable: int
    observed: int

    @property
    def overlap_ratio(self) -> float | None:
        """Overlap / communication; None without communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None

    @property
    def exposed_fraction(self) -> float | None:
        """Communication only / window; None for an empty window or unknown communication."""
        known = self.window_ns and self.communication_known
        return self.communication_only_ns / self.window_ns if known else None

    @property
    def communication_known(self) -> bool:
        """False when there were collectives and the span of none is known.

        Nothing but compute is told then.
        """
        return self.observed > 0 or not (self.unfinished or self.unobservable)

    def not_known(self) -> tuple[Unknown, ...]:
        """Return what the numbers cannot tell, and why."""
        found = []
        if not self.communication_known:
            what = "communication, overlap and idle time"
        else:
            what = "the whole of communication: its numbers are lower bounds"
        if self.unfinished:
            found.append(Unknown(what, f"{self.unfinished} collectives had not finished"))
        if self.unobservable:
            because = f"the span of {self.unobservable} collectives cannot be observed"
            found.append(Unknown(what, because))
        if not (self.observed or self.unfinished or self.unobservable):
            found.append(Unknown("overlap ratio", "no communication was recognised in the window"))
        return tuple(found)

    def checks(self) -> tuple[Check, ...]:
        """Return how the parts add up."""
        only, exposed, both = self.compute_only_ns, self.communication_only_ns, self.overlap_ns
        return (
            Check("four parts = window", only + exposed + both + self.idle_ns, self.window_ns),
            Check("compute only + overlap = compute", only + both, self.compute_ns),
            Check(
                "communication only + overlap = communication",
                exposed + both,
                self.communication_ns,
            ),
        )

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the partition as plain values, for JSON; null for what is not known."""
        known = self.communication_known
        return {
            "window_ns": self.window_ns,
            "compute_ns": self.compute_ns,
            "communication_ns": self.communication_ns if known else None,
            "compute_only_ns": self.compute_only_ns if known else None,
            "communication_only_ns": self.communication_only_ns if known else None,
            "overlap_ns": self.overlap_ns if known else None,
            "idle_ns": self.idle_ns if known else None,
            "copies_only_ns": self.copies_only_ns if known else None,
            "exposed_beyond_copies_ns": self.exposed_beyond_copies_ns if known else None,
            "overlap_ratio": self.overlap_ratio,
            "exposed_fraction": self.exposed_fraction,
            "unfinished": self.unfinished,
            "unobservable": self.unobservable,
            "observed": self.observed,
        }


def partition(tl: Timeline, window: Window, lanes: Lanes | None = None) -> Partition:
    """Return the partition of the window. `lanes` may be given when they were made already."""
    lanes = lanes or lanes_of(tl, window)
    compute, communication, copies = lanes.compute, lanes.communication, lanes.copies
    exposed = subtract(communication, compute)
    idle = subtract(window.recorded, join(compute, communication))
    return Partition(
        window_ns=window.length_ns,
        compute_ns=total(compute),
        communication_ns=total(communication),
        compute_only_ns=total(subtract(compute, communication)),
        communication_only_ns=total(exposed),
        overlap_ns=total(intersect(compute, communication)),
        idle_ns=total(idle),
        copies_only_ns=total(intersect(copies, idle)),
        exposed_beyond_copies_ns=total(subtract(exposed, copies)),
        unfinished=len(lanes.unfinished),
        unobservable=len(lanes.unobservable),
        observed=lanes.collectives,
    )

"""Communication by call site: which code launched it, and how much of that was exposed.

In: the lanes of a window, the collectives of it without a span, what owner ids stand for. Out: one
`CallSite` an owner: a bucket or module of a log, the ranges around the launch in a profile (linked
by the source through the correlation id). Sites whose collectives run at once each count that time,
so unions do not add up over sites; counts do.

    compute 0-4    site A 2-6, site B 3-5 and 8-9     A: count 1, union 4, hidden 2, exposed 2
                                                      B: count 2, union 3, hidden 1, exposed 2

It does not know who called whom beyond what the name says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.messages import Traffic, parted, traffic
from overlapwatch.timeline.intervals import intersect, subtract, total, union
from overlapwatch.vocabulary import CollectiveKind, Name


@dataclass(frozen=True, slots=True)
class CallSite:
    """The collectives launched from one place.

    Args:
        owner: its id.
        name: what it is called; `what` says of what kind that is: "bucket", "module", "operation".
        kinds: what was launched there, in the order of CollectiveKind.
        traffic: how many, how many bytes, how long from launch to finish.
        union_ns: time of the window in which at least one of them ran.
        overlap_ns, exposed_ns: the part of the union with and without compute.

    """

    owner: int
    name: str
    what: str
    kinds: tuple[CollectiveKind, ...]
    traffic: Traffic
    union_ns: int
    overlap_ns: int
    exposed_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "name": self.name,
            "what": self.what,
            "kinds": [kind.title for kind in self.kinds],
            **self.traffic.to_dict(),
            "union_ns": self.union_ns,
            "overlap_ns": self.overlap_ns,
            "exposed_ns": self.exposed_ns,
        }


@dataclass(frozen=True, slots=True)
class CallSites:
    """The call sites of a window, the most exposed first.

    Args:
        sites: those that are known.
        elsewhere: collectives whose call site is not known.
        collectives: all of them.

    """

    sites: tuple[CallSite, ...]
    elsewhere: int
    collectives: int

    def checks(self) -> tuple[Check, ...]:
        """Return how the sites add up to the collectives, and each to its union."""
        known = sum(site.traffic.count for site in self.sites)
        hidden = sum(site.overlap_ns + site.exposed_ns for site in self.sites)
        unions = sum(site.union_ns for site in self.sites)
        name = "collectives of the call sites + of unknown ones = collectives"
        return (
            Check(name, known + self.elsewhere, self.collectives, "collectives"),
            Check("call sites: overlap + exposed = union", hidden, unions),
        )


def call_sites(launched: NDArray[np.void], lanes: Lanes, names: Mapping[int, Name]) -> CallSites:
    """Return the call sites.

    Args:
        launched: RECORD rows of the window's collectives, each once, with and without a span.
        lanes: the window's lanes.
        names: what owner ids stand for; an id that is not there is not known.

    """
    spans = dict(parted(lanes.records["owner"].astype(np.int64)))
    # Made once: there may be hundreds of sites and millions of kernels.
    without_compute = subtract(lanes.window.recorded, lanes.compute)
    none = np.empty(0, np.int64)
    sites = []
    elsewhere = 0
    for owner, mine in parted(launched["owner"].astype(np.int64)):
        name = names.get(owner)
        if name is None:
            elsewhere += len(mine)
            continue
        here = spans.get(owner, none)
        busy = union(lanes.start[here], lanes.end[here])
        kinds = np.unique(launched["collective"][mine]).tolist()
        sites.append(
            CallSite(
                owner=owner,
                name=name.text,
                what=name.kind.name.lower(),
                kinds=tuple(CollectiveKind(kind) for kind in kinds if kind <= max(CollectiveKind)),
                traffic=traffic(launched[mine]),
                union_ns=total(busy),
                overlap_ns=total(intersect(busy, lanes.compute)),
                exposed_ns=total(intersect(busy, without_compute)),
            )
        )
    sites.sort(key=lambda site: (-site.exposed_ns, -site.union_ns, site.name))
    return CallSites(tuple(sites), elsewhere, len(launched))

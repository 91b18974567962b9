"""How long each recorded collective kept the link busy by itself, and what the link is like.

In: recorded collectives of one step. Out: their service times, ns: what they took less the time in which others of
their channel went first, and, on a shared link, less what those that ran beside them took of it:

    two at once, 0-6 and 2-8        0-2 alone, 2-6 shared, 6-8 alone: 2 + 2 = 4 and 2 + 2 = 4

It does not know what made one slow.
"""

from dataclasses import dataclass

import numpy as np

from overlapwatch.timeline.intervals import counted_again, single, total, union
from overlapwatch.timeline.model import I64
from overlapwatch.whatif.fsdp2_engines import Link

GLOO_THREADS = 2
"""How many collectives of a group gloo runs at once unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Carried:
    """How collectives are carried.

    Args:
        link: as in a simulation.
        apart: whether all-gathers and reductions of one process group have a channel each.
    """

    link: Link
    apart: bool = False

    def channel(self, kind: int, group: int) -> int:
        """Return the channel of a collective: `kind` is its CollectiveKind, `group` the id of its group."""
        return group * 256 + (kind if self.apart else 0)


def candidates(*, device: bool, at_once: int, ranks: int) -> list[Carried]:
    """Return what the link may be like, the likeliest first; where collectives met, the recording decides.

    On a device a communicator runs one at a time, in the order of the host; all-gathers and reductions may have
    communicators of their own, although they are of one group. On a host gloo runs several at once over one connection
    to each peer. Between two ranks an all-gather is one message, and messages go one after another; with more ranks it
    is several, between which those of another one go.

    Args:
        device: whether the times are a device's.
        at_once: how many collectives of one group were seen under way at once.
        ranks: of the group.
    """
    if device:
        one_by_one = Link(width=1, shared=False, in_order=True)
        return [Carried(one_by_one), Carried(one_by_one, apart=True)]
    queued, shared = Carried(Link(width=1)), Carried(Link(width=max(at_once, GLOO_THREADS)))
    return [queued, shared] if ranks <= 2 else [shared, queued]


def met(begin: I64, finish: I64) -> float:
    """Return the share of the time in which any of these spans ran that several did."""
    busy = total(union(begin, finish))
    again = counted_again(
        [single(low, high) for low, high in zip(begin.tolist(), finish.tolist(), strict=True)]
    )
    return again / busy if busy else 0.0


def most_at_once(begin: I64, finish: I64) -> int:
    """Return how many of these spans ran at once, at most."""
    moments = np.concatenate((finish, begin))
    change = np.repeat([-1, 1], len(begin))
    order = np.lexsort((change, moments))
    return int(np.cumsum(change[order]).max(initial=0))


def services(begin: I64, finish: I64, channel: I64, link: Link) -> I64:
    """Return how long each would have taken alone, ns.

    Args:
        begin: when each had been sent by all ranks.
        finish: when it had finished.
        channel: what it queued in.
        link: how it was carried; `in_order`: in the order of the arrays.
    """
    if link.in_order:
        return _one_by_one(begin, finish, channel)
    alone = np.zeros(len(begin), np.float64)
    edges = np.unique(np.concatenate((begin, finish)))
    order = np.argsort(begin, kind="stable")
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        here = order[(begin[order] <= low) & (finish[order] >= high)]
        running: list[int] = []
        count: dict[int, int] = {}
        for one in here.tolist():
            queue = int(channel[one])
            count[queue] = count.get(queue, 0) + 1
            if count[queue] <= link.width:
                running.append(one)
        share = max(len(running), 1) if link.shared else 1
        alone[running] += (high - low) / share
    return np.asarray(np.rint(alone), np.int64)


def _one_by_one(begin: I64, finish: I64, channel: I64) -> I64:
    alone = np.zeros(len(begin), np.int64)
    for one in np.unique(channel).tolist():
        mine = np.flatnonzero(channel == one)
        before = np.concatenate((begin[mine[:1]], np.maximum.accumulate(finish[mine])[:-1]))
        alone[mine] = finish[mine] - np.maximum(begin[mine], before)
    return np.maximum(alone, 0)

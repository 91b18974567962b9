"""Rates of a profile's collectives, where the counts close; else the counts, and no rate.

In: calls (PAYLOAD) and kernels of one rank in one window, the communicators, the number of steps.
Out: one `Rate` for each kind and communicator. algbw = S / t and busbw = algbw × factor, with the
sizes and factors of nccl-tests; GB = 10^9 bytes, so bytes per ns are GB/s.

| collective            | bytes of a call are     | S             | factor    |
|-----------------------|-------------------------|---------------|-----------|
| AllReduce             | the buffer              | the same      | 2(n-1)/n  |
| AllGather             | its own part            | n times that  | (n-1)/n   |
| ReduceScatter         | what it receives        | n times that  | (n-1)/n   |
| AllToAll              | what it sends to a peer | n times that  | (n-1)/n   |
| Gather, Scatter       | one rank's part         | n times that  | (n-1)/n   |
| Broadcast, Reduce     | the buffer              | the same      | 1         |
| SendRecv              | one way                 | the same      | 1         |

A rate needs: as many calls as sizes and as kernels, a whole number of them in each step, and one
known number of ranks. t is the kernels' time, added, which holds the waiting for other ranks, so a
rate is a *wait-inclusive lower bound*. It does not know link traffic: bytes are logical. Only
calls and kernels of the same rank meet here: calls of ranks whose devices were not recorded are
never set against the kernels of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.messages import parted
from overlapwatch.timeline.model import I64
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import CollectiveKind, Name

LABEL = "wait-inclusive lower bound"

_SHARED = {
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
}
"""A call is given one rank's part; all ranks' parts are moved."""
_WHOLE = {CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.SEND_RECV}


def moved_bytes(kind: CollectiveKind, given: int, ranks: int) -> int:
    """Return S of `given` bytes, as calls are given them, in a group of `ranks`."""
    return given * ranks if kind in _SHARED else given


def bus_factor(kind: CollectiveKind, ranks: int) -> Fraction | None:
    """Return busbw / algbw in a group of `ranks` (at least 1); None for what has no rate."""
    if kind is CollectiveKind.ALL_REDUCE:
        return Fraction(2 * (ranks - 1), ranks)
    if kind in _SHARED:
        return Fraction(ranks - 1, ranks)
    return Fraction(1) if kind in _WHOLE else None


@dataclass(frozen=True, slots=True)
class Rate:
    """The collectives of one kind on one communicator, and their rate where the counts close.

    Args:
        kind: what they are.
        group: name of the communicator; "" where not known, or where kernels and calls cannot be
            told apart by it.
        ranks: ranks in it; None where not known.
        kernels, calls, sized: of the window: kernels, host calls, calls with a size.
        steps: steps of the window; None where none are known.
        bytes: S, added over the calls; None without a rate.
        time_ns: the kernels' time, added.
        because: why there is no rate; "" where there is one.

    """

    kind: CollectiveKind
    group: str
    ranks: int | None
    kernels: int
    calls: int
    sized: int
    steps: int | None
    bytes: int | None
    time_ns: int
    because: str

    @property
    def algbw_gb_s(self) -> float | None:
        """S / t, GB/s; None without a rate."""
        return None if self.bytes is None else self.bytes / self.time_ns

    @property
    def busbw_gb_s(self) -> float | None:
        """S / t × factor, GB/s; None without a rate."""
        factor = bus_factor(self.kind, self.ranks) if self.ranks else None
        if self.bytes is None or factor is None:
            return None
        return float(Fraction(self.bytes, self.time_ns) * factor)

    @property
    def closes(self) -> bool:
        """Whether kernels, calls and sizes agree, and are a whole number in each step."""
        return self.kernels == self.calls == self.sized and not (
            self.steps and self.kernels % self.steps
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "kind": self.kind.title,
            "group": self.group or None,
            "ranks": self.ranks,
            "kernels": self.kernels,
            "calls": self.calls,
            "sized_calls": self.sized,
            "steps": self.steps,
            "closes": self.closes,
            "bytes": self.bytes,
            "time_ns": self.time_ns,
            "algbw_gb_s": self.algbw_gb_s,
            "busbw_gb_s": self.busbw_gb_s,
            "label": LABEL if self.bytes is not None else None,
            "because": self.because or None,
        }


def rates(
    payloads: NDArray[np.void],
    lanes: Lanes,
    groups: Mapping[int, Name],
    steps: int | None,
    world: int | None = None,
    *,
    moved: bool = False,
) -> tuple[Rate, ...]:
    """Return the rates of a window, by kind, then communicator.

    Args:
        payloads: PAYLOAD rows of the window.
        lanes: the window's lanes; only collectives with a span are kernels.
        groups: communicators; their members, else their `elements`, are the number of ranks.
        steps: how many steps the window is made of; None where none are known.
        world: ranks of the job, an upper limit to the size of any communicator; None not known.
        moved: the bytes of `payloads` are S already, not what the calls were given.

    """
    first = np.unique(lanes.index, return_index=True)[1]
    records = lanes.records[first]
    time = records["finish"] - begin_of(records)
    index = lanes.index[first]
    of_kernel = _by_calls(payloads, "group", index, records["group"].astype(np.int64))
    kind = _by_calls(payloads, "collective", index, records["collective"].astype(np.int64))
    kernels = dict(parted(np.where(kind > max(CollectiveKind), 0, kind)))
    made = dict(parted(payloads["collective"].astype(np.int64)))
    found: list[Rate] = []
    for one in sorted(kernels.keys() | made.keys()):
        if one > max(CollectiveKind):
            continue
        mine = kernels.get(one, np.empty(0, np.int64))
        calls = payloads[made.get(one, np.empty(0, np.int64))]
        told = _Told(CollectiveKind(one), of_kernel[mine], time[mine], calls, moved)
        found += told.rates(groups, steps, world)
    return tuple(found)


def _by_calls(payloads: NDArray[np.void], field: str, index: I64, own: I64) -> I64:
    """Return what the calls of each kernel say in `field`, where they agree; else its own value.

    A kernel is named after what it is made of: an AllToAll runs as SendRecv.
    """
    calls = payloads[(payloads["kernel"] >= 0) & (payloads[field] != 0)]
    calls = calls[np.lexsort((calls[field], calls["kernel"]))]
    first = np.searchsorted(calls["kernel"], index, "left")
    last = np.searchsorted(calls["kernel"], index, "right") - 1
    told = np.flatnonzero(last >= first)
    values = calls[field].astype(np.int64)
    agreed = told[values[first[told]] == values[last[told]]]
    result = own.copy()
    result[agreed] = values[first[agreed]]
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """Kernels and calls of one kind: (communicator, ns) of each kernel, PAYLOAD rows, `moved`."""

    kind: CollectiveKind
    group: I64
    time: I64
    calls: NDArray[np.void]
    moved: bool

    def rates(self, groups: Mapping[int, Name], steps: int | None, world: int | None) -> list[Rate]:
        ids = np.union1d(self.group, self.calls["group"].astype(np.int64)).tolist()
        if 0 in ids and len(ids) > 1:
            # Kernels without a communicator beside calls with one: told by kind alone.
            sizes = {_ranks(groups.get(one), world) for one in ids if one}
            return [self._rate("", sizes.pop() if len(sizes) == 1 else None, steps, self)]
        found = []
        for one in ids:
            calls = self.calls[self.calls["group"] == one]
            mine = self.group == one
            part = _Told(self.kind, self.group[mine], self.time[mine], calls, self.moved)
            name = groups.get(one)
            found.append(self._rate(name.text if name else "", _ranks(name, world), steps, part))
        return found

    def _rate(self, group: str, ranks: int | None, steps: int | None, part: "_Told") -> Rate:
        sized = part.calls["bytes"][part.calls["bytes"] >= 0]
        time = int(part.time.sum())
        counts = (len(part.time), len(part.calls), len(sized))
        because = _why_not(self.kind, ranks, counts, steps, time)
        given = int(sized.sum())
        total = given if self.moved else moved_bytes(self.kind, given, ranks or 1)
        return Rate(
            kind=self.kind,
            group=group,
            ranks=ranks,
            kernels=counts[0],
            calls=counts[1],
            sized=counts[2],
            steps=steps,
            bytes=None if because else total,
            time_ns=time,
            because=because,
        )


def _ranks(name: Name | None, world: int | None) -> int | None:
    if name is None:
        return None
    size = len(name.members) or name.elements
    return size if size and not (world and size > world) else None


def _why_not(
    kind: CollectiveKind,
    ranks: int | None,
    counts: tuple[int, int, int],
    steps: int | None,
    time_ns: int,
) -> str:
    kernels, calls, sized = counts
    reasons = (
        (bus_factor(kind, 1) is None, "this kind has no rate"),
        (kernels and not calls, "no call of it was recorded"),
        (calls and not kernels, "no kernel of it was recorded"),
        (kernels == calls and not sized, "the sizes of its calls are not known"),
        (not kernels == calls == sized, "kernels, calls and sizes do not agree"),
        (steps and kernels % steps, f"{kernels} in {steps} steps is not a whole number in each"),
        (not ranks, "the number of ranks is not known"),
        (not time_ns, "the kernels have no length"),
    )
    return next((because for applies, because in reasons if applies), "")

"""Does compute run slower while communication runs? The same work, with and without, and the spread of both.

In: a Timeline and the lanes of a window. Out: a `Contention`: a ratio of medians with its interval, and
the same for each kernel or module that says most. A span is *under* communication when its middle lies
in some collective, else *clear*; the middle, since whether a span touches communication anywhere
depends on its length, and long spans would be called slow.

Only the same work is compared. What that is:

| steps known, a name as often in each | the k-th span of that name in a step, over steps     |
| else, launch shapes known            | all kernels of that name with the same grid and block |
| else                                 | nothing: one name stands for work of many sizes       |

In a log the spans are modules' phases without the waits inside them, in a profile kernels. Grid and
block hide a size that a kernel is given as an argument; such a kernel spreads on both sides alike.

    GEMM, third in its step      under 1.9 2.0 2.1 ms      clear 1.1 1.1 1.2 ms      1.82 times

The interval is that of the bootstrap (resampling each side of each work), at 99 %. The median of a
resample of n values is the value at the place that the median of n uniform numbers, a Beta variable,
says; so no value is drawn twice. Spans of one run are not independent: the interval is rather too narrow,
and a difference below `LEAST` is not claimed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.spread import percentile
from overlapwatch.timeline.intervals import contained_spans, cover, union
from overlapwatch.timeline.model import I64, Lane, Timeline, Unknown
from overlapwatch.timeline.records import from_marks
from overlapwatch.vocabulary import Phase

MIN_SPANS = 3
"""Fewer on a side have no spread."""
LEAST = 0.01
"""A smaller difference is within what the method cannot tell."""
CONTRAST = 0.5
"""Spans under communication must be covered so much more than clear ones, as a share of their time."""
RESAMPLES = 1000
CONFIDENCE = 0.99
SHOWN = 10
_SEED = 20_240_607  # any: the same input shall give the same report

Matching = Literal["name and place in the step", "name and launch shape", "none"]
Verdict = Literal["slower", "faster", "not distinguishable", "not known"]


@dataclass(frozen=True, slots=True)
class Side:
    """Spans on one side: how many, their quartiles, and how much of their time communication covered."""

    count: int
    p25_ns: int
    median_ns: int
    p75_ns: int
    covered_ns: int
    total_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "count": self.count,
            "p25_ns": self.p25_ns,
            "median_ns": self.median_ns,
            "p75_ns": self.p75_ns,
            "covered_ns": self.covered_ns,
            "total_ns": self.total_ns,
        }


@dataclass(frozen=True, slots=True)
class Work:
    """One name, all its places in the step, or launch shapes, together.

    Args:
        name: the kernel, or the module and phase.
        places: how many places or shapes were compared.
        under, clear: its compared spans.
        ratio: median under over median clear, places weighted by their spans under communication.

    """

    name: str
    places: int
    under: Side
    clear: Side
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "name": self.name,
            "places": self.places,
            "under": self.under.to_dict(),
            "clear": self.clear.to_dict(),
            "ratio": self.ratio,
        }


@dataclass(frozen=True, slots=True)
class Contention:
    """How much longer the same work takes under communication.

    Args:
        matched_by: what counts as the same work.
        ratio, low, high: over all work, each weighted by its time under communication, and its
            interval; None where nothing could be compared.
        under_ns: what the compared spans under communication took, each at its median.
        clear_ns: what as many clear spans would have taken.
        spans: compute spans of the window.
        compared: those on one side or the other of some compared work.
        under, clear: how many of these on each side.
        unmatched: spans of work that was not found on both sides often enough.
        work: the names with the most time under communication, at most `SHOWN`.
        because: why nothing could be compared; "".

    """

    matched_by: Matching
    ratio: float | None
    low: float | None
    high: float | None
    under_ns: int
    clear_ns: int
    spans: int
    compared: int
    under: int
    clear: int
    unmatched: int
    work: tuple[Work, ...]
    because: str = ""

    @property
    def verdict(self) -> Verdict:
        """What the interval allows to say."""
        if self.ratio is None or self.low is None or self.high is None:
            return "not known"
        if self.low > 1 and self.ratio >= 1 + LEAST:
            return "slower"
        if self.high < 1 and self.ratio <= 1 - LEAST:
            return "faster"
        return "not distinguishable"

    def checks(self) -> tuple[Check, ...]:
        """Return how the spans add up."""
        return (
            Check(
                "contention: compared + unmatched spans = compute spans",
                self.compared + self.unmatched,
                self.spans,
                "spans",
            ),
            Check(
                "contention: spans under + clear of communication = compared",
                self.under + self.clear,
                self.compared,
                "spans",
            ),
        )

    def not_known(self) -> tuple[Unknown, ...]:
        """Return why contention cannot be told, where it cannot."""
        return (Unknown("contention", self.because),) if self.because else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "verdict": self.verdict,
            "matched_by": self.matched_by,
            "ratio": self.ratio,
            "interval": None if self.low is None else [self.low, self.high],
            "confidence": CONFIDENCE,
            "under_ns": self.under_ns,
            "clear_ns": self.clear_ns,
            "spans": self.spans,
            "compared": self.compared,
            "under": self.under,
            "clear": self.clear,
            "unmatched": self.unmatched,
            "work": [one.to_dict() for one in self.work],
        }


def contention(tl: Timeline, lanes: Lanes) -> Contention:
    """Return how compute under communication compares with compute clear of it, in the lanes' window."""
    spans = _Spans.of(tl, lanes)
    if not len(lanes.communication):
        return _nothing(len(spans.length), "there is no communication with a span")
    placed = _places(spans, tl.steps)
    attempts: Iterable[tuple[Matching, I64]] = (
        ("name and place in the step", placed),
        ("name and launch shape", spans.shape),
    )
    for matched_by, place in attempts:
        pairs = _pairs(spans, place)
        if pairs:
            return _compared(tl, spans, pairs, matched_by)
    return _nothing(len(spans.length), _why_none(spans))


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Compute spans of the window: name, start, length without waits, and what of it was covered."""

    name: I64
    shape: I64
    start: I64
    length: I64
    covered: I64
    under: NDArray[np.bool_]

    @staticmethod
    def of(tl: Timeline, lanes: Lanes) -> "_Spans":
        lane = tl.phases if from_marks(tl) else tl.compute
        start, end, index = contained_spans(lane.start, lane.end, lanes.window.recorded)
        waits = union(tl.waits.start, tl.waits.end)
        length = end - start - cover(start, end, waits)
        middle = start + (end - start) // 2
        covered = cover(start, end, lanes.communication)
        if from_marks(tl):  # what was waited for is no compute under communication
            length = np.maximum(length, 1)
            covered = np.minimum(covered, length)
        good = length > 0
        return _Spans(
            name=_named(lane, index)[good],
            shape=_shapes(lane, index)[good],
            start=start[good],
            length=length[good],
            covered=covered[good],
            under=(cover(middle, middle + 1, lanes.communication) > 0)[good],
        )


def _shapes(lane: Lane, index: I64) -> I64:
    """Return a number for each launch shape, from 0; -1 where it or the name is not known."""
    if lane.shape is None:
        return np.full(len(index), -1, np.int64)
    shape = lane.shape[index]
    number = np.unique(shape, return_inverse=True)[1].astype(np.int64)
    return np.where((shape != 0) & (lane.name[index] != 0), number, -1)


def _named(lane: Lane, index: I64) -> I64:
    """Return what must be equal in the same work: the name, and of a mark the phase."""
    return lane.name[index].astype(np.int64) * len(Phase) + lane.phase[index]


def _places(spans: _Spans, steps: NDArray[np.void]) -> I64:
    """Return of each span how many of its name began before it in its step; -1 where that says nothing.

    A name says something in the steps that have it as often as most steps do.
    """
    place = np.full(len(spans.name), -1, np.int64)
    if not len(steps):
        return place
    order = np.argsort(steps["start"], kind="stable")
    begins, ends = steps["start"][order], steps["end"][order]
    step = np.searchsorted(begins, spans.start, side="right") - 1
    inside = (step >= 0) & (spans.start < ends[np.maximum(step, 0)])
    inside &= spans.name != 0
    usable = np.flatnonzero(inside)
    usable = usable[np.lexsort((spans.start[usable], step[usable]))]
    for _, of_name in parted(spans.name[usable]):
        mine = usable[of_name]
        numbers, first, count = np.unique(step[mine], return_index=True, return_counts=True)
        if len(numbers) < 2 * MIN_SPANS:
            continue
        usual = int(np.bincount(count).argmax())
        for begin, many in zip(first.tolist(), count.tolist(), strict=True):
            if many == usual:
                place[mine[begin : begin + many]] = np.arange(many)
    return place


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """One work on both sides: the positions of its spans."""

    name: int
    under: I64
    clear: I64


def _pairs(spans: _Spans, place: I64) -> list[_Pair]:
    """Return the work that is found on both sides, with a contrast between them."""
    usable = np.flatnonzero(place >= 0)
    if not len(usable):
        return []
    width = int(place.max()) + 1
    found = []
    for key, mine in parted(spans.name[usable] * width + place[usable]):
        at = usable[mine]
        under, clear = at[spans.under[at]], at[~spans.under[at]]
        if min(len(under), len(clear)) >= MIN_SPANS and _contrast(spans, under, clear):
            found.append(_Pair(key // width, under, clear))
    return found


def _contrast(spans: _Spans, under: I64, clear: I64) -> bool:
    shares = [spans.covered[side].sum() / spans.length[side].sum() for side in (under, clear)]
    return bool(shares[0] - shares[1] >= CONTRAST)


def _compared(tl: Timeline, spans: _Spans, pairs: list[_Pair], matched_by: Matching) -> Contention:
    rng = np.random.default_rng(_SEED)
    under_ns = clear_ns = 0
    resampled = np.zeros((2, RESAMPLES))
    by_name: dict[int, list[_Pair]] = {}
    for pair in pairs:
        weight = len(pair.under)
        under, clear = np.sort(spans.length[pair.under]), np.sort(spans.length[pair.clear])
        under_ns += weight * percentile(under, 50)
        clear_ns += weight * percentile(clear, 50)
        resampled[0] += weight * _medians(under, rng)
        resampled[1] += weight * _medians(clear, rng)
        by_name.setdefault(pair.name, []).append(pair)
    edge = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(resampled[0] / resampled[1], (edge, 100 - edge)).tolist()
    under_count = sum(len(pair.under) for pair in pairs)
    clear_count = sum(len(pair.clear) for pair in pairs)
    work = [_work(tl, spans, name, some) for name, some in by_name.items()]
    work.sort(key=lambda one: (-one.under.total_ns, one.name))
    return Contention(
        matched_by=matched_by,
        ratio=under_ns / clear_ns,
        low=low,
        high=high,
        under_ns=under_ns,
        clear_ns=clear_ns,
        spans=len(spans.length),
        compared=len(np.unique(np.concatenate([_both(pair) for pair in pairs]))),
        under=under_count,
        clear=clear_count,
        unmatched=len(spans.length) - under_count - clear_count,
        work=tuple(work[:SHOWN]),
    )


def _both(pair: _Pair) -> I64:
    return np.concatenate((pair.under, pair.clear))


def _medians(ordered: I64, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return medians of resamples of ascending values."""
    count = len(ordered)
    middle = (count + 1) // 2
    place = (rng.beta(middle, count - middle + 1, RESAMPLES) * count).astype(np.int64)
    return ordered[np.minimum(place, count - 1)].astype(np.float64)


def _work(tl: Timeline, spans: _Spans, name: int, pairs: list[_Pair]) -> Work:
    medians = [
        (
            len(pair.under),
            percentile(np.sort(spans.length[pair.under]), 50),
            percentile(np.sort(spans.length[pair.clear]), 50),
        )
        for pair in pairs
    ]
    ratio = sum(n * under for n, under, _ in medians) / sum(n * clear for n, _, clear in medians)
    return Work(
        name=_title(tl, name),
        places=len(pairs),
        under=_side(spans, np.concatenate([pair.under for pair in pairs])),
        clear=_side(spans, np.concatenate([pair.clear for pair in pairs])),
        ratio=ratio,
    )


def _title(tl: Timeline, name: int) -> str:
    number, phase = divmod(name, len(Phase))
    known = tl.names.get(number)
    if not from_marks(tl):
        return known.text if known else "kernels without a name"
    words = Phase(phase).name.lower()
    return f"{known.text}, {words}" if known else words


def _side(spans: _Spans, mine: I64) -> Side:
    ordered = np.sort(spans.length[mine])
    return Side(
        count=len(ordered),
        p25_ns=percentile(ordered, 25),
        median_ns=percentile(ordered, 50),
        p75_ns=percentile(ordered, 75),
        covered_ns=int(spans.covered[mine].sum()),
        total_ns=int(ordered.sum()),
    )


def _why_none(spans: _Spans) -> str:
    if not len(spans.length):
        return "there is no compute in the window"
    under = int(spans.under.sum())
    if not under:
        return "no compute ran under communication"
    if under == len(spans.under):
        return "all compute ran under communication"
    return (
        f"no work is found {MIN_SPANS} times both under communication and clear of it (the same place "
        "in its step, or the same kernel and launch shape)"
    )


def _nothing(spans: int, because: str) -> Contention:
    return Contention("none", None, None, None, 0, 0, spans, 0, 0, 0, spans, (), because)

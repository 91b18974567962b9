"""Memory held by unsharded parameters over time: a step function, its peak, and one prefetch more.

In: the HELD records of a Timeline, a Window. Out: a `Residency`.

    blocks.0 (8 bytes) held 0-4, blocks.1 (8) 3-7, blocks.2 (4) 6-9

    from    0  3  4  6  7  9        peak 16 at 3, by blocks.0 and blocks.1
    bytes   8 16  8 12  4  0

One prefetch more would gather, at any moment, the module that is gathered next in that step as
well. `with_next_bytes` is the largest sum over all moments of what was held and of that module:

    next    1  2  2  -              8+8, 16+4, 8+4, 12: at most 20

It is an upper estimate: the next module would not be held so early at every moment. What that
module holds already counts once. It speaks of unsharded parameters only; activations, gradients and
buffers of collectives are not in it.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.messages import parted
from overlapwatch.accounting.spread import median
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import Intervals, total, union
from overlapwatch.timeline.model import I64, Timeline, Unknown
from overlapwatch.vocabulary import RecordFlag


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A step function: from `at_ns[i]` on, `bytes[i]` are held; the last is 0."""

    at_ns: I64
    bytes: I64


@dataclass(frozen=True, slots=True, eq=False)
class Residency:
    """What unsharded parameters held in a window.

    Args:
        level: over the window; `at_ns` on the timeline's clock.
        all_bytes: of all modules that were held at some time, once each.
        held: how many holds, in the window.
        open: of them, those whose end nobody saw; they count to the end of their step.
        byte_ns: bytes × ns under the step function.
        summed_byte_ns: the same, module by module, for the check.
        unknown: what cannot be told.
        peak_bytes: the most that was held at once; None where nothing is known.
        peak_step, peak_ns: where it was first reached, and when after the start of that step.
        peak_modules: (module, bytes) held then, largest first.
        median_peak_bytes: of the steps' peaks.
        mean_bytes: over the time of the window, rounded down.
        with_next_bytes: at most held with one more module prefetched at each moment.
        next_module: whose gather that is, at the moment of `with_next_bytes`; "" where none.
        at_peak_next_bytes: what one more would add at the peak itself; 0 where nothing followed.

    """

    level: Level
    all_bytes: int
    held: int
    open: int
    byte_ns: int
    summed_byte_ns: int
    unknown: tuple[Unknown, ...] = ()
    peak_bytes: int | None = None
    peak_step: int | None = None
    peak_ns: int | None = None
    peak_modules: tuple[tuple[str, int], ...] = ()
    median_peak_bytes: int | None = None
    mean_bytes: int | None = None
    with_next_bytes: int | None = None
    next_module: str = ""
    at_peak_next_bytes: int | None = None

    def course(self, start_ns: int, end_ns: int, slices: int) -> list[tuple[int, int]]:
        """Return the start of each of `slices` equal parts of a stretch, and the most held in it."""
        edges = [start_ns + (end_ns - start_ns) * place // slices for place in range(slices + 1)]
        return [(low, _most_held(self.level, low, high)) for low, high in itertools.pairwise(edges)]

    def checks(self) -> tuple[Check, ...]:
        """Return how the step function adds up to what each module held."""
        return (
            Check(
                "bytes held over time = holds of the modules, added",
                self.byte_ns,
                self.summed_byte_ns,
                "byte·ns",
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "peak_bytes": self.peak_bytes,
            "peak_step": self.peak_step,
            "peak_after_step_start_ns": self.peak_ns,
            "peak_modules": [
                {"module": module, "bytes": size} for module, size in self.peak_modules
            ],
            "median_peak_bytes": self.median_peak_bytes,
            "mean_bytes": self.mean_bytes,
            "one_more_prefetch": {
                "at_most_bytes": self.with_next_bytes,
                "module": self.next_module or None,
                "added_at_the_peak_bytes": self.at_peak_next_bytes,
            },
            "all_modules_bytes": self.all_bytes if self.held else None,
            "held": self.held,
            "open": self.open,
        }


def residency(tl: Timeline, window: Window, steps: NDArray[np.void]) -> Residency:
    """Return what was held in the window.

    Args:
        tl: the timeline.
        window: the time.
        steps: STEP rows of the steps that the window is made of, in order.

    """
    held = tl.held[tl.held["finish"] > tl.held["start"]]
    start, end, index = window.take(held["start"], held["finish"])
    holds = held[np.unique(index)]
    size = {one: int(holds["bytes"][mine].max()) for one, mine in parted(_owners(holds))}
    spans: dict[tuple[int, int], Intervals] = {}
    # A module may keep a part of its parameters when it is resharded: a smaller hold of its own.
    for one, mine in parted(_owners(held[index])):
        for count, some in parted(held["bytes"][index][mine]):
            spans[one, count] = union(start[mine][some], end[mine][some])
    level = _level(spans)
    area = int((level.bytes[:-1] * np.diff(level.at_ns)).sum()) if len(level.bytes) else 0
    left_open = int((holds["flags"] & int(RecordFlag.FINISH_ESTIMATED) != 0).sum())
    base = Residency(
        level=level,
        all_bytes=sum(size.values()),
        held=len(holds),
        open=left_open,
        byte_ns=area,
        summed_byte_ns=sum(count * total(busy) for (_, count), busy in spans.items()),
        unknown=_unknown(left_open, len(holds)),
    )
    if not len(level.bytes):
        return base
    peak = int(level.bytes.argmax())
    at = int(level.at_ns[peak])
    there = [key for key, busy in spans.items() if _covered(busy, level.at_ns[[peak]])[0]]
    there.sort(key=lambda key: (-key[1], key[0]))
    # What is held, and what comes next in the same step, changes at no other moments.
    moments = np.unique(np.concatenate((level.at_ns, holds["start"], steps["start"], [at])))
    moments = moments[(moments >= level.at_ns[0]) & (moments <= level.at_ns[-1])]
    follower, added = _one_more(holds, spans, moments, steps)
    sums = level.bytes[np.searchsorted(level.at_ns, moments, side="right") - 1] + added
    most, then = int(sums.argmax()), int(np.searchsorted(moments, at))
    step = steps[(steps["start"] <= at) & (steps["end"] > at)]
    return replace(
        base,
        peak_bytes=int(level.bytes[peak]),
        peak_step=int(step["step"][0]) if len(step) else None,
        peak_ns=at - int(step["start"][0]) if len(step) else None,
        peak_modules=tuple((_name(tl, one), count) for one, count in there),
        median_peak_bytes=_median_peak(level, steps),
        mean_bytes=area // window.length_ns if window.length_ns else None,
        with_next_bytes=int(sums[most]),
        next_module=_name(tl, int(holds["owner"][follower[most]])) if added[most] else "",
        at_peak_next_bytes=int(added[then]),
    )


def _owners(holds: NDArray[np.void]) -> I64:
    return np.asarray(holds["owner"], np.int64)


def _name(tl: Timeline, owner: int) -> str:
    name = tl.names.get(owner)
    return name.text if name else f"module {owner}"


def _level(spans: Mapping[tuple[int, int], Intervals]) -> Level:
    """Return the sum of the spans, whose keys end with their bytes."""
    moment = [column for busy in spans.values() for column in (busy.start, busy.end)]
    change = [
        np.full(len(busy), count * sign, np.int64)
        for (_, count), busy in spans.items()
        for sign in (1, -1)
    ]
    if not moment:
        return Level(np.empty(0, np.int64), np.empty(0, np.int64))
    at, place = np.unique(np.concatenate(moment), return_inverse=True)
    changes = np.zeros(len(at), np.int64)
    np.add.at(changes, place, np.concatenate(change))
    return Level(at, np.cumsum(changes))


def _one_more(
    holds: NDArray[np.void],
    spans: Mapping[tuple[int, int], Intervals],
    moments: I64,
    steps: NDArray[np.void],
) -> tuple[I64, I64]:
    """Return, for each moment, which hold begins next in the same step (-1: none does), and the
    bytes it would add then: none of what its module holds already.
    """
    follower = _next_holds(holds, moments, steps)
    added = np.where(follower < 0, 0, holds["bytes"][follower])
    owner = np.where(follower < 0, 0, holds["owner"][follower])
    for (one, count), busy in spans.items():
        mine = owner == one
        added[mine] -= count * _covered(busy, moments[mine])
    return follower, np.maximum(added, 0)


def _covered(busy: Intervals, at: I64) -> NDArray[np.bool_]:
    """Say which moments lie in the union."""
    begun = np.searchsorted(busy.start, at, side="right")
    ends = np.concatenate(([np.iinfo(np.int64).min], busy.end))[begun]
    return np.asarray(ends > at, np.bool_)


def _next_holds(holds: NDArray[np.void], at: I64, steps: NDArray[np.void]) -> I64:
    """Return, for each moment, which hold begins next in the same step; -1 where none does."""
    # `holds` are in order of start: those of a timeline are.
    following = np.searchsorted(holds["start"], at, side="right")
    step = np.searchsorted(steps["start"], at, side="right") - 1
    until = np.concatenate((steps["end"], [0]))[step]
    begins = np.concatenate((holds["start"], [np.iinfo(np.int64).max]))[following]
    return np.where((at < until) & (begins < until), following, -1)


def _median_peak(level: Level, steps: NDArray[np.void]) -> int | None:
    """Return the median over the steps of the most that was held in each."""
    spans = zip(steps["start"].tolist(), steps["end"].tolist(), strict=True)
    return median(np.array([_most_held(level, low, high) for low, high in spans], np.int64))


def _most_held(level: Level, low: int, high: int) -> int:
    """Return the most that was held in `[low, high)`."""
    first = max(int(np.searchsorted(level.at_ns, low, side="right")) - 1, 0)
    after = int(np.searchsorted(level.at_ns, high, side="left"))
    return int(level.bytes[first:after].max()) if after > first else 0


def _unknown(left_open: int, held: int) -> tuple[Unknown, ...]:
    if not left_open:
        return ()
    return (
        Unknown(
            f"how long {left_open} of {held} holds of unsharded parameters lasted",
            "their end was not seen; they count to the end of their step",
        ),
    )

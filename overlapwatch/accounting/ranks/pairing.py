"""Two ranks' collectives of one channel, paired by when they ended.

In: ends and signatures (kind and size) of two ranks, in any order, on clocks that may differ by an
unknown offset and drift. Out: a `Pairing`: which rows are one collective, and the clock fit that
says so, or why there is none. A record that one side lacks leaves the other's alone; nothing behind
it is shifted:

    ends here     10   20   30   45   60              offset 5; the end at 35 has no partner: 30 + 5
    ends there    15   25        50   65              is nearest to none that it is nearest to

First, an offset is looked for when the clocks differ: the i-th here is held against the (i + s)-th
there for each small s. At the right s many differences are nearly the same, although records are
missing. Then ends are paired that are each other's nearest, and the clock fitted to the pairs, until
nothing changes. The pairing counts when most of what the two have in common is paired closely: at
random ends lie anywhere between their neighbours. It does not know what was not recorded by either.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.fit import SAME_CLOCK, ClockFit, fit_clock
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.model import I64

SHIFTS = 200
"""So many missing records in a row, at one end, can be found with clocks that differ."""
LOOKED_AT = 4000
"""The offset is looked for in this many rows at most."""
NEARLY_SAME = 0.3
"""The part of the differences that must be nearly the same at the right shift."""
CLOSE = 4
"""A pair is close when its ends differ by at most a quarter of the way to the nearest neighbour."""
CLOSE_NS = 1_000
ENOUGH = 0.8
"""The part of the rows in common that must be paired."""
ROUNDS = 8
FEW = 3
"""With fewer pairs on clocks that differ, any ends would fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The collectives of one rank in one channel, by end.

    Args:
        end: int64 ns on the rank's clock, ascending.
        sign: int64; rows of one collective have the same.
        step: step numbers, 0 where not known; they only decide between alignments that fit equally.

    """

    end: I64
    sign: I64
    step: I64

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """Which rows of two ranks are one collective.

    Args:
        here, there: positions in the two `Ends`, pair by pair.
        fit: the clock of there against that of here.
        because: why nothing is paired; "" where it is.

    """

    here: I64
    there: I64
    fit: ClockFit
    because: str = ""

    def __len__(self) -> int:
        return len(self.here)


def pair_by_ends(here: Ends, there: Ends, *, same_clock: bool) -> Pairing:
    """Return the pairing of the two, verified, or an empty one that says why."""
    if not len(here) or not len(there):
        return _none("no ends of collectives are known")
    if same_clock:
        here_rows, there_rows = _nearest_pairs(here, there, SAME_CLOCK)
        found = Pairing(here_rows, there_rows, SAME_CLOCK)
        return found if _share(here, there, found) >= ENOUGH else _none(_NOT_TOGETHER)
    candidates = [_refined(here, there, fit) for fit in _offsets(here, there)]
    good = [one for one in candidates if len(one) >= FEW and _share(here, there, one) >= ENOUGH]
    if not good:
        return _none(_NOT_TOGETHER if candidates else "they are too few to align their clocks")
    good.sort(key=lambda one: (-len(one), one.fit.p50_ns or 0))
    # Several shifts lead to the same alignment.
    good = list({(one.here.tobytes(), one.there.tobytes()): one for one in reversed(good)}.values())
    good.reverse()
    best = good[0]
    rivals = [one for one in good if len(one) >= 0.98 * len(best)]
    rivals = [one for one in rivals if _as_tight(one.fit, best.fit)]
    if len(rivals) > 1:
        agreed = [_same_steps(here, there, one) for one in rivals]
        top = max(agreed)
        rivals = [one for one, share in zip(rivals, agreed, strict=True) if share >= top]
    if len(rivals) == 1 or _whole(here, there, rivals[0]):
        return rivals[0]
    return _none("several alignments of their ends fit equally well")


_NOT_TOGETHER = "their ends do not fall together"


def _none(because: str) -> Pairing:
    none = np.empty(0, np.int64)
    return Pairing(none, none, SAME_CLOCK, because)


def _as_tight(one: ClockFit, best: ClockFit) -> bool:
    return (one.p50_ns or 0) <= 3 * (best.p50_ns or 0) + CLOSE_NS


def _same_steps(here: Ends, there: Ends, pairing: Pairing) -> float:
    same = here.step[pairing.here] == there.step[pairing.there]
    return float(same.mean())


def _whole(here: Ends, there: Ends, pairing: Pairing) -> bool:
    """Say whether nothing is left over: then there is nothing that could be shifted."""
    return len(here) == len(there) == len(pairing)


def _offsets(here: Ends, there: Ends) -> Iterator[ClockFit]:
    """Yield the offsets at which many ends fall together, a few of the best."""
    mine, other = here.end[:LOOKED_AT], there.end[:LOOKED_AT]
    least = min(len(mine), len(other))
    limit = min(SHIFTS, max(len(mine), len(other)) - 1)
    found: list[tuple[int, int, int]] = []  # (width, how far it is shifted, centre)
    for shift in range(-limit, limit + 1):
        low, high = max(0, -shift), min(len(mine), len(other) - shift)
        if high <= low:
            continue
        alike = here.sign[low:high] == there.sign[low + shift : high + shift]
        apart = np.sort((other[low + shift : high + shift] - mine[low:high])[alike])
        need = max(2, round(NEARLY_SAME * least))
        if len(apart) < need or len(apart) < 2:
            continue
        width = apart[need - 1 :] - apart[: len(apart) - need + 1]
        at = int(np.argmin(width))
        found.append((int(width[at]), abs(shift), int(apart[at + need // 2])))
    found.sort()
    for width, _, centre in found[:12]:
        if width <= 20 * found[0][0] + 100 * CLOSE_NS:
            yield ClockFit(int(mine[0]), centre)


def _refined(here: Ends, there: Ends, fit: ClockFit) -> Pairing:
    """Pair and fit until the pairs stay the same: a drift is followed outward from the offset."""
    before = -1
    rows, others = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(ROUNDS):
        rows, others = _nearest_pairs(here, there, fit)
        if len(rows) < 2:
            break
        close = _close(here, there, rows, others, fit)
        kept = close if close.sum() >= 2 else np.ones(len(rows), np.bool_)
        moment = here.end[rows[kept]]
        fit = fit_clock(moment, there.end[others[kept]] - moment)
        if int(kept.sum()) == before:
            break
        before = int(kept.sum())
    rows, others = _nearest_pairs(here, there, fit)
    return Pairing(rows, others, fit)


def _nearest_pairs(here: Ends, there: Ends, fit: ClockFit) -> tuple[I64, I64]:
    """Return the rows that are each other's nearest and have the same signature."""
    moved = fit.to_reference(there.end)
    onward = _nearest(here.end, moved)
    back = _nearest(moved, here.end)
    rows = np.flatnonzero(back[onward] == np.arange(len(here)))
    others = onward[rows]
    alike = here.sign[rows] == there.sign[others]
    return rows[alike], others[alike]


def _nearest(moments: I64, among: I64) -> I64:
    """Return, for each moment, the position of the nearest of `among` (ascending, not empty)."""
    after = np.clip(np.searchsorted(among, moments), 0, len(among) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.abs(among[before] - moments) <= np.abs(among[after] - moments)
    return np.asarray(np.where(closer, before, after), np.int64)


def _close(here: Ends, there: Ends, rows: I64, others: I64, fit: ClockFit) -> NDArray[np.bool_]:
    """Say which pairs lie much closer to each other than to their neighbours."""
    apart = np.abs(fit.to_reference(there.end[others]) - here.end[rows])
    room = np.minimum(_room(here.end)[rows], _room(there.end)[others])
    return np.asarray(apart * CLOSE <= np.maximum(room, CLOSE * CLOSE_NS), np.bool_)


def _room(end: I64) -> I64:
    """Return how far it is from each end to the nearest other one."""
    far = np.iinfo(np.int64).max // 8
    gap = np.diff(end)
    return np.minimum(np.concatenate(([far], gap)), np.concatenate((gap, [far])))


def _share(here: Ends, there: Ends, pairing: Pairing) -> float:
    """Return the part of the rows of the time that both cover which is paired closely."""
    if not len(pairing):
        return 0.0
    moved = pairing.fit.to_reference(there.end)
    slack = median(np.diff(here.end)) or 0
    low, high = max(here.end[0], moved[0]) - slack, min(here.end[-1], moved[-1]) + slack
    common = min(
        int(((here.end >= low) & (here.end <= high)).sum()),
        int(((moved >= low) & (moved <= high)).sum()),
    )
    close = int(_close(here, there, pairing.here, pairing.there, pairing.fit).sum())
    return close / common if common else 0.0

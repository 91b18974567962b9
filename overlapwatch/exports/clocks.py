"""From the clock of each rank to one axis, and from ns to the decimal µs of a trace.

In: moments in ns on a rank's clock. Out: text in µs, counted from the axis' zero, with three decimals;
every digit is that of the integer (a float64 of µs since 1970 would lose the ns).

    ns           1_234      0        -1         2_129_499_999
    text         1.234      0.000    -0.001     2129499.9991

Viewers read the text as a float64, and some do worse with it than others. A fourth digit, of tenths
of a ns, makes up for that; rounded to the ns, every text is exact.

* A *moment*: some multiply by 1000 and cut. 2129499.999 would become 2129499998 ns, and reach into the
  span before; a tenth more is written where that would happen.
* A *length*: some add it to the beginning, and compare the sum with where the next span begins. One or
  two tenths less are written where the sum of the floats would lie beyond; more for a span in another,
  which must not outlive it.
"""

from dataclasses import dataclass

import numpy as np

from overlapwatch.accounting.ranks.fit import SAME_CLOCK, ClockFit
from overlapwatch.timeline.model import I64


@dataclass(frozen=True, slots=True)
class Clock:
    """How one rank's moments lie on the axis of a trace.

    Args:
        zero_ns: the axis' zero, on the reference clock.
        fit: the rank's clock against the reference.
        told: what is to be said about it, in words.

    """

    zero_ns: int
    fit: ClockFit = SAME_CLOCK
    told: str = ""

    def on_axis(self, moment: I64) -> I64:
        """Return known moments of the rank's clock as ns on the axis."""
        return self.fit.to_reference(moment) - self.zero_ns

    def texts(self, start: I64, end: I64, depth: I64 | None = None) -> tuple[list[str], list[str]]:
        """Return the beginning and the length of spans with two known ends, in µs.

        Args:
            start: on the rank's clock.
            end: the same.
            depth: in how many spans of its row each lies; None: in none.

        """
        begin, finish = self.on_axis(start), self.on_axis(end)
        return us(begin), _lengths(begin, finish, depth)

    def text(self, moment: int) -> str:
        """Return one known moment in µs."""
        return us(self.on_axis(np.array([moment], np.int64)))[0]


def us(ns: I64) -> list[str]:
    """Write moments in ns as decimal µs, which rounded, and cut, to the ns give them back."""
    return _texts(ns * 10 + _cut_short(ns))


_DEEP = 2
"""A span in a span in a span: deeper ones are written like these."""


def _lengths(begin: I64, finish: I64, depth: I64 | None) -> list[str]:
    """Write lengths in µs: as floats, added to the text of the beginning, they do not reach beyond the end."""
    length = finish - begin
    more = _cut_short(begin) - _cut_short(finish)  # of the texts, in tenths
    tenths = length * 10
    beyond = (begin * 10 + _cut_short(begin)) / 10_000 + tenths / 10_000 > (
        finish * 10 + _cut_short(finish)
    ) / 10_000
    less = np.where(beyond, more + 1, 0)
    if depth is not None:
        less = np.where(depth > 0, more + 1 + np.minimum(depth, _DEEP), less)
    return _texts(np.where(length > 0, tenths - less, tenths))


def _cut_short(ns: I64) -> I64:
    """Return 1 where the float nearest to a moment in µs, by 1000 and cut, is not the moment; else 0."""
    size = np.abs(ns)
    lost = (size / 1000 * 1000).astype(np.int64) != size
    return np.where(lost, np.sign(ns), 0)


def _texts(tenths: I64) -> list[str]:
    """Write tenths of a ns as decimal µs: three decimals, and the fourth where it is not 0."""
    size = np.abs(tenths)
    ns, tenth = np.divmod(size, 10)
    whole, rest = np.divmod(ns, 1000)
    texts = [f"{high}.{low:03d}" for high, low in zip(whole.tolist(), rest.tolist(), strict=True)]
    for place in np.flatnonzero(tenth).tolist():
        texts[place] += str(tenth[place])
    for place in np.flatnonzero(tenths < 0).tolist():
        texts[place] = f"-{texts[place]}"
    return texts

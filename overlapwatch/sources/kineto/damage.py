"""Which device events cannot have run as they are recorded.

In: DEVICE rows of one device, and when the host was last heard of. Out: for each why it is left out,
or nothing. Three signs, and only these, since a last kernel may well wait long for other ranks, and
two kernels may well overlap on one stream (dependent launches, ROCm, graphs):

| sign                      | rule                                                                  |
|---------------------------|-----------------------------------------------------------------------|
| a time of another age     | it starts over a day from the median start                            |
| it outruns the capture    | past the last sign of the host it lasts longer than all the rest did  |
| it outruns its successors | the next two of its stream begin and end inside it                    |

Without host events the second rule asks for 100 times all the rest.

    stream 7    a 0-9   b 1-2   c 3-4   d 10-11        a covers b and c: left out
    stream 7    a 0-5   b 4-8   c 8-9                  a only overlaps b: kept

Where a stream number does not mean an order (stream 0 of ROCm holds several queues, a graph's nodes
run at once) the last rule asks besides that it lasts 100 times as long as nine in ten do.
"""

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import I64

DAY_NS = 24 * 3600 * 10**9

FOREIGN = "their time lies over a day from the rest of the capture"
OUTRUNS_CAPTURE = "they outrun the capture: longer than all the rest of it"
OUTRUNS_STREAM = "they outrun their successors on the same stream"

_OUTLIER = 100
_JUDGED = 3  # fewer events than this say nothing about each other


def implausible(
    rows: NDArray[np.void], host_end: int | None = None
) -> dict[str, NDArray[np.bool_]]:
    """Return, for each reason, which rows are left out for it; no row has two reasons.

    Args:
        rows: DEVICE rows.
        host_end: the last moment of any host event, ns; None without host events.
    """
    left_out = np.zeros(len(rows), np.bool_)
    found: dict[str, NDArray[np.bool_]] = {}
    for reason, rule in (
        (FOREIGN, _foreign),
        (OUTRUNS_CAPTURE, _outruns_capture),
        (OUTRUNS_STREAM, _outruns_stream),
    ):
        kept = np.flatnonzero(~left_out)
        if len(kept) < _JUDGED:
            break
        bad = np.zeros(len(rows), np.bool_)
        bad[kept] = rule(rows[kept], host_end)
        if bad.any():
            found[reason] = bad
            left_out |= bad
    return found


def _foreign(rows: NDArray[np.void], _: int | None) -> NDArray[np.bool_]:
    start = rows["start"]
    middle = int(np.sort(start)[len(start) // 2])
    return np.asarray(np.abs(start - middle) > DAY_NS, np.bool_)


def _outruns_capture(rows: NDArray[np.void], host_end: int | None) -> NDArray[np.bool_]:
    """One after the other, from the one that ends last: each is judged by all that end before it."""
    bad = np.zeros(len(rows), np.bool_)
    order = np.argsort(rows["end"], kind="stable")
    start, end = rows["start"][order], rows["end"][order]
    first = np.minimum.accumulate(start)
    for place in range(len(order) - 1, 0, -1):
        last = int(end[place - 1])
        rest = last - int(first[place - 1])
        overrun = int(end[place]) - max(last, host_end if host_end is not None else last)
        if overrun <= rest * (1 if host_end is not None else _OUTLIER):
            break
        bad[order[place]] = True
    # Where one in ten would go, the capture is short rather than damaged.
    return bad if bad.sum() * 10 <= len(rows) else np.zeros(len(rows), np.bool_)


def _outruns_stream(rows: NDArray[np.void], _: int | None) -> NDArray[np.bool_]:
    bad = np.zeros(len(rows), np.bool_)
    streams: I64 = rows["stream"]
    for stream in np.unique(streams).tolist():
        mine = np.flatnonzero(streams == stream)
        mine = mine[np.lexsort((rows["end"][mine], rows["start"][mine]))]
        start, end = rows["start"][mine], rows["end"][mine]
        covers = np.zeros(len(mine), np.bool_)
        # Strictly: two events with the same times are one event written twice, not damage.
        covers[:-2] = (start[1:-1] > start[:-2]) & (np.maximum(end[1:-1], end[2:]) < end[:-2])
        unordered = (rows["graph"][mine] != 0) | (stream == 0)
        if unordered.any():
            length = end - start
            usual = float(np.percentile(length, 90))
            covers &= ~unordered | (length > _OUTLIER * max(usual, 1.0))
        bad[mine[covers]] = True
    return bad

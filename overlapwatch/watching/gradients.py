"""Places DDP's own gradient-ready times on the clock of the records.

In: what DDP's statistics said after a backward (ns since a base that DDP keeps to itself), and when its buckets were
launched. Out: ready times, flagged *estimated*; for a bucket, the last of its parameters: the gating one.

The base lies between the beginning and the end of the forward, normally microseconds before its end. A bucket cannot
be launched before its last gradient is ready, which moves the base earlier where DDP did long work after setting it
(`find_unused_parameters` walks the graph there). A parameter that took no part keeps an old value in DDP's statistics:
what would put a gradient after its bucket's launch is not believed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.hooks.recorder import BackwardReport
from overlapwatch.vocabulary import GRADIENT_READY


@dataclass(frozen=True, slots=True)
class BucketReady:
    """When one launched bucket was complete, and which parameter it had to wait for."""

    slot: int
    ready_ns: int
    gating_parameter: int


def place(report: BackwardReport) -> tuple[NDArray[np.void], list[BucketReady]]:
    """Return (GRADIENT_READY array in the reducer's order, one BucketReady per bucket that could be told)."""
    after = dict(zip(report.parameters, report.ready_after_ns, strict=False))
    base = report.base_latest_ns
    for _, launch, members in report.buckets:
        last = max((after.get(p, 0) for p in members), default=0)
        if last and report.base_earliest_ns <= launch - last < base:
            base = launch - last
    launch_of = {p: launch for _, launch, members in report.buckets for p in members}
    rows = [
        (report.step, parameter, min(base + ns, launch_of[parameter]))
        for parameter, ns in after.items()
        if ns > 0 and parameter in launch_of and base + ns <= launch_of[parameter] + _SLACK_NS
    ]
    gradients = np.array(rows, GRADIENT_READY) if rows else np.empty(0, GRADIENT_READY)
    ready_at = {parameter: ready for _, parameter, ready in rows}
    buckets = []
    for slot, _, members in report.buckets:
        known = [(ready_at[p], p) for p in members if p in ready_at]
        if known:
            ready, gating = max(known)
            buckets.append(BucketReady(slot, ready, gating))
    return gradients, buckets


_SLACK_NS = 1_000_000
"""How far behind its bucket's launch an estimate may fall and still be taken (as the launch itself)."""

"""Communication by phase and kind: what was sent in backward, and how much of that was hidden.

In: a Timeline, a Window. Out: a `Split` with one cell per phase and kind that occurs.

Two rules, and the result says which. Where records carry a phase (a timeline of marks), it decides:
a bucket launched in backward is backward's although its tail runs after it. Where none does
(kernels of a profile) the phases lane decides by time, and a collective that spans two phases is
cut between them; it is counted once, where it begins.

    phases      forward 0-4, backward 4-9        AllReduce 3-6
    by time     forward 3-4 (counted), backward 4-6

A moment in the spans of several phases is backward's first (a forward recomputed for checkpointing,
an optimizer that steps inside backward), then optimizer's, then forward's.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.split import Split, split
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import (
    Intervals,
    intersect_spans,
    join,
    single,
    subtract,
    union,
)
from overlapwatch.timeline.model import Lane, Timeline
from overlapwatch.vocabulary import CollectiveKind, Phase

_ORDER = (Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD)


def phases(tl: Timeline, window: Window, lanes: Lanes | None = None) -> Split:
    """Return the split by phase and kind. `lanes` may be given when they were made already."""
    lanes = lanes or lanes_of(tl, window)
    if tl.communication["phase"].any():
        pieces = (lanes.start, lanes.end, np.arange(len(lanes.start), dtype=np.int64))
        told = split(lanes, pieces, lanes.phase, f"{tl.phase_rule}, phase of the launch")
        return replace(told, unseen=_unseen(lanes.unobservable))
    start, end, index, phase = [], [], [], []
    for one, moments in phase_unions(tl.phases, window).items():
        cut = intersect_spans(lanes.start, lanes.end, moments)
        start.append(cut[0])
        end.append(cut[1])
        index.append(cut[2])
        phase.append(np.full(len(cut[0]), one, np.uint8))
    pieces = (np.concatenate(start), np.concatenate(end), np.concatenate(index))
    rule = f"{tl.phase_rule}, by time" if len(tl.phases) else "no phases known"
    return split(lanes, pieces, np.concatenate(phase), rule)


def _unseen(records: NDArray[np.void]) -> tuple[tuple[Phase, CollectiveKind, int], ...]:
    """Return how many of the records there are of each phase and kind."""
    phase = np.where(records["phase"] > max(Phase), 0, records["phase"]).astype(np.int64)
    kind = np.where(records["collective"] > max(CollectiveKind), 0, records["collective"])
    keys, counts = np.unique(phase * 256 + kind, return_counts=True)
    return tuple(
        (Phase(key // 256), CollectiveKind(key % 256), count)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
    )


def phase_unions(lane: Lane, window: Window) -> dict[Phase, Intervals]:
    """Return the moments of each phase: disjoint, and together at least the whole window."""
    taken = join()
    moments: dict[Phase, Intervals] = {}
    for phase in _ORDER:
        mine = lane.phase == phase
        moments[phase] = subtract(union(lane.start[mine], lane.end[mine]), taken)
        taken = join(taken, moments[phase])
    moments[Phase.OTHER] = subtract(single(window.start_ns, window.end_ns), taken)
    return moments

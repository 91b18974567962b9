"""Communication by collective kind: how long each kind ran, and how much of it was hidden.

In: a Timeline, a Window. Out: a `Split` with one cell per kind that occurs. Collectives without a
span (unfinished, unobservable) are in no cell: the partition counts them.
"""

import numpy as np

from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.split import Split, split
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.model import Timeline

RULE = "by kind"


def kinds(tl: Timeline, window: Window, lanes: Lanes | None = None) -> Split:
    """Return the split by kind. `lanes` may be given when they were made already."""
    lanes = lanes or lanes_of(tl, window)
    pieces = (lanes.start, lanes.end, np.arange(len(lanes.start), dtype=np.int64))
    return split(lanes, pieces, None, RULE)

"""Our own logs and rings, followed from outside a job while it runs, hangs or dies.

In: the directory of a run. Out: a `RunNow`, again and again, each for the cost of what is new.
"""

from overlapwatch.sources.live.run import LiveRun

__all__ = ["LiveRun"]

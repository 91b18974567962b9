"""Which steps and which time a report speaks of.

In: a Recording and what was asked for. Out: a `Choice`: the window, the timeline and the summaries
of the selected steps, and a note where the answer is not what one would expect.

| asked           | window of a log                                 | window of a profile |
|-----------------|-------------------------------------------------|---------------------|
| nothing         | its steps in statistics                         | the whole capture   |
| steps A to B    | those of A to B in statistics                   | the same            |
| trim A to B     | seconds A to B after the first moment           | the same            |

Where no selected step is in statistics, all of them are the window, and a note says so.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.partition import Partition, partition
from overlapwatch.accounting.window import Boundary, Window, capture_window, trim_window
from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.intervals import intersect, single, subtract, union
from overlapwatch.timeline.model import Recording, Timeline
from overlapwatch.vocabulary import OUT_OF_STATISTICS, StepFlag

_NO_EVENTS = StepFlag.SHADOW


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for.

    Args:
        first_step, last_step: step numbers, inclusive; None is no limit.
        boundary: what happens to a span that crosses the window's edge, "clip" or "contained".
        trim: (from, to) in seconds after the first moment of the capture, instead of steps.

    """

    first_step: int | None = None
    last_step: int | None = None
    boundary: Boundary = "clip"
    trim: tuple[float, float] | None = None

    @property
    def by_step(self) -> bool:
        """Whether steps are asked for."""
        return self.first_step is not None or self.last_step is not None


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a report speaks of.

    Args:
        window: the time.
        timeline: the timeline with the selected steps and their collectives only.
        summaries: SUMMARY rows of the selected steps.
        steps: numbers of the steps that the window is made of; empty when it is made of time.
        notes: sentences for the reader.

    """

    window: Window
    timeline: Timeline
    summaries: NDArray[np.void]
    steps: NDArray[np.uint32]
    notes: tuple[str, ...] = ()


def choose(recording: Recording, selection: Selection) -> Choice:
    """Return what `selection` asks for.

    Raises:
        ConfigurationError: it asks for steps and a trim at once, or for steps or a time that are
            not there.

    """
    if selection.trim is not None:
        return _by_time(recording, selection, selection.trim)
    tl = _of_steps(recording.timeline, selection)
    summaries = _within(recording.summaries, selection)
    recorded = tl.steps[tl.steps["flags"] & _NO_EVENTS == 0]
    if selection.by_step and not len(recorded):
        raise ConfigurationError(_not_there(recording, selection, len(summaries)))
    by_capture = recording.state == "profile" and not selection.by_step
    if by_capture or not len(recorded):
        none = np.empty(0, np.uint32)
        return Choice(capture_window(tl, selection.boundary), tl, summaries, none)
    counted = recorded[recorded["flags"] & OUT_OF_STATISTICS == 0]
    notes: tuple[str, ...] = ()
    if not len(counted):
        notes = ("no selected step is in statistics: the window is made of those that are not",)
    chosen = counted if len(counted) else recorded
    what = "in statistics" if len(counted) else "out of statistics"
    window = window_of_steps(chosen, selection.boundary, what)
    return Choice(window, tl, summaries, chosen["step"], notes)


def window_of_steps(steps: NDArray[np.void], boundary: Boundary = "clip", what: str = "") -> Window:
    """Return the window that is made of `steps` (STEP rows, at least one) and of nothing between
    them.

    Args:
        steps: they may have gaps between them.
        boundary: rule for spans that cross an edge; steps that touch have no edge between them.
        what: said of the steps in the window's rule.

    """
    low, high = int(steps["start"].min()), int(steps["end"].max())
    gaps = subtract(single(low, high), union(steps["start"], steps["end"]))
    first, last = int(steps["step"].min()), int(steps["step"].max())
    count = f"{len(steps)} steps" if len(steps) > 1 else "1 step"
    rule = " ".join(filter(None, (count, what))) + (
        f", {first} to {last}" if last > first else f": {first}"
    )
    return Window(low, high, rule, boundary, gaps)


def partition_of_steps(tl: Timeline, steps: NDArray[np.void]) -> Partition:
    """Return the partition of the time of `steps` (STEP rows): the sum of the steps' partitions."""
    return partition(tl, window_of_steps(steps))


def _by_time(recording: Recording, selection: Selection, trim: tuple[float, float]) -> Choice:
    if selection.by_step:
        raise ConfigurationError("choose steps or a trim in seconds, not both")
    tl = recording.timeline
    capture = capture_window(tl, selection.boundary)
    low, high = (capture.start_ns + round(seconds * 1e9) for seconds in trim)
    if high <= capture.start_ns or low >= capture.end_ns:
        length = (capture.end_ns - capture.start_ns) / 1e9
        raise ConfigurationError(
            f"{tl.origin.path}: nothing was captured from {trim[0]} to {trim[1]} s; the capture is {length:.3f} s long"
        )
    window = trim_window(low, high, selection.boundary)
    gaps = intersect(capture.not_recorded, single(low, high))
    inside = tl.steps[(tl.steps["start"] >= low) & (tl.steps["end"] <= high)]
    rows = recording.summaries
    rows = rows[(rows["start_ns"] >= low) & (rows["end_ns"] <= high)]
    none = np.empty(0, np.uint32)
    return Choice(replace(window, not_recorded=gaps), _only(tl, inside), rows, none)


def _of_steps(tl: Timeline, selection: Selection) -> Timeline:
    return _only(tl, _within(tl.steps, selection)) if selection.by_step else tl


def _only(tl: Timeline, steps: NDArray[np.void]) -> Timeline:
    """Return the timeline with these steps, and without the collectives of its other steps.

    Collectives without a step stay: a profile may not say.
    """
    others = np.setdiff1d(tl.steps["step"], steps["step"])
    kept = ~np.isin(tl.communication["step"], others)
    return replace(tl, steps=steps, communication=tl.communication[kept])


def _within(rows: NDArray[np.void], selection: Selection) -> NDArray[np.void]:
    low, high = selection.first_step, selection.last_step
    chosen = np.ones(len(rows), np.bool_)
    if low is not None:
        chosen &= rows["step"] >= low
    if high is not None:
        chosen &= rows["step"] <= high
    inside: NDArray[np.void] = rows[chosen]
    return inside


def _not_there(recording: Recording, selection: Selection, ran: int) -> str:
    low, high = selection.first_step, selection.last_step
    if low is not None and high is not None:
        asked = f"step {low}" if low == high else f"steps {low} to {high}"
    else:
        asked = f"steps from {low}" if high is None else f"steps up to {high}"
    path, steps = recording.timeline.origin.path, recording.timeline.steps
    steps = steps[steps["flags"] & _NO_EVENTS == 0]["step"]
    if not len(steps):
        return f"{path}: the events of no step were kept, so {asked} cannot be reported"
    held = f"events were kept of {len(steps)} steps from {steps.min()} to {steps.max()}"
    if not ran:
        return f"{path}: {asked} not found; {held}"
    nearest = np.unique(steps[np.argsort(np.abs(steps.astype(np.int64) - (low or high or 0)))[:2]])
    near = " and ".join(str(number) for number in nearest)
    return f"{path}: {asked} ran, but without their events; {held}, the nearest are {near}"

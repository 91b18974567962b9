"""Which stretch of time is accounted, by which rule, and what happens at its edges.

In: a Timeline (for its steps and its extent) or two moments. Out: a `Window`. A recording that
keeps only some steps knows nothing of the time between them; that time is in no window
(`not_recorded`), or it would be told as idle.

    steps kept      1: 0-10   2: 10-20   5: 50-60        (3 and 4 ran, unrecorded, at 20-50)
    whole capture   0-60 without 20-50: 30 ns
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.intervals import (
    Intervals,
    Spans,
    contained_spans,
    intersect,
    intersect_spans,
    nothing,
    single,
    subtract,
    total,
    union,
)
from overlapwatch.timeline.model import I64, Timeline
from overlapwatch.timeline.records import begin_of, from_marks, has_span
from overlapwatch.vocabulary import StepFlag

Boundary = Literal["clip", "contained"]


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time on one timeline's clock.

    Args:
        start_ns, end_ns: half-open.
        rule: what chose it, in words.
        boundary: "clip" cuts spans at the edges (the parts cover the window without loss);
            "contained" keeps only spans that lie wholly inside.
        not_recorded: time inside it of which nothing was recorded; it belongs to no part.

    """

    start_ns: int
    end_ns: int
    rule: str
    boundary: Boundary = "clip"
    not_recorded: Intervals = field(default_factory=nothing, compare=False)

    @property
    def recorded(self) -> Intervals:
        """The window as a union, without what was not recorded."""
        whole = single(self.start_ns, self.end_ns)
        return subtract(whole, self.not_recorded) if len(self.not_recorded) else whole

    @property
    def length_ns(self) -> int:
        """The recorded length, which the parts of the window add up to."""
        return total(self.recorded)

    def take(self, start: I64, end: I64) -> Spans:
        """Return the spans of the window, cut or chosen by its boundary rule, and their indices."""
        if self.boundary == "contained":
            return contained_spans(start, end, self.recorded)
        return intersect_spans(start, end, self.recorded)

    def to_dict(self) -> dict[str, int | str]:
        """Return the window as plain values, for JSON."""
        return {
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "rule": self.rule,
            "boundary": self.boundary,
            "not_recorded_ns": self.end_ns - self.start_ns - self.length_ns,
        }


def capture_window(tl: Timeline, boundary: Boundary = "clip") -> Window:
    """Return the whole capture: the first start to the last end of anything on the device.

    Nothing is dropped for lying outside a step. In a timeline of marks the steps, phases, waits and
    launches count as well: moments that were recorded, although no kernel may lie there. Without
    any span the window is empty.
    """
    lanes = [tl.compute, tl.fused, tl.copies]
    collectives = tl.communication[has_span(tl.communication)]
    starts, ends = [begin_of(collectives)], [collectives["finish"]]
    rule = "whole capture, first kernel to last"
    if from_marks(tl):
        lanes += [tl.phases, tl.waits]
        launch = tl.communication["launch"]
        launch = launch[launch != 0]  # the last sign of life of a job that hangs
        starts += [tl.steps["start"], launch]
        ends += [tl.steps["end"], launch + 1]
        rule = "whole recording, first mark to last"
    start = np.concatenate([*starts, *(lane.start for lane in lanes)])
    end = np.concatenate([*ends, *(lane.end for lane in lanes)])
    if not len(start):
        return Window(0, 0, rule, boundary)
    return _window(tl, int(start.min()), int(end.max()), rule, boundary)


def steps_window(tl: Timeline, first: int, last: int, boundary: Boundary = "clip") -> Window:
    """Return the window from the start of step `first` to the end of step `last`, inclusive.

    Steps of the range that the timeline does not hold are left out; the rule says how many are in.

    Raises:
        ConfigurationError: the timeline holds no step of the range; the message says what it holds.

    """
    number = tl.steps["step"]
    chosen = tl.steps[(number >= first) & (number <= last)]
    asked = f"step {first}" if first == last else f"steps {first} to {last}"
    if not len(chosen):
        held = f"holds steps {number.min()} to {number.max()}" if len(number) else "has no steps"
        raise ConfigurationError(f"{tl.origin.path}: {asked} not found: the timeline {held}")
    there = len(np.unique(chosen["step"]))
    wanted = last - first + 1
    rule = asked if there == wanted else f"{asked}, {there} of {wanted} recorded"
    return _window(tl, int(chosen["start"].min()), int(chosen["end"].max()), rule, boundary)


def trim_window(start_ns: int, end_ns: int, boundary: Boundary = "clip") -> Window:
    """Return the window between two moments of the timeline's clock.

    Raises:
        ConfigurationError: the end does not lie after the start.

    """
    if end_ns <= start_ns:
        raise ConfigurationError(
            f"the window must end after it starts: {start_ns} ns to {end_ns} ns"
        )
    return Window(start_ns, end_ns, "trimmed", boundary)


def _window(tl: Timeline, start: int, end: int, rule: str, boundary: Boundary) -> Window:
    holes = intersect(_not_recorded(tl), single(start, end)) if from_marks(tl) else nothing()
    return Window(start, end, rule, boundary, holes)


def _not_recorded(tl: Timeline) -> Intervals:
    """Return the steps without events (shadow), and the time where step numbers jump."""
    steps = tl.steps
    shadow = steps[steps["flags"] & int(StepFlag.SHADOW) != 0]
    jump = np.flatnonzero(
        steps["step"][1:].astype(np.int64) > steps["step"][:-1].astype(np.int64) + 1
    )
    return union(
        np.concatenate((shadow["start"], steps["end"][jump])),
        np.concatenate((shadow["end"], steps["start"][jump + 1])),
    )

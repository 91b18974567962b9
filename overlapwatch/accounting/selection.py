"""Which steps and which time a report speaks of.

In: a Recording and what was asked for. Out: a `Choice`: the window, the timeline and the summaries
of the selected steps, and a note where the answer is not what one would expect.

| asked           | window of a log                                 | window of a profile |
|-----------------|-------------------------------------------------|---------------------|
| nothing         | its steps in statistics                         | the whole capture   |
| steps A to B    | those of A to B in statistics                   | the same            |
| trim A to B     | seconds A to B of the input's clock             | the same            |
| phase           | of any of these, the moments of one phase       | the same            |

Where no selected step is in statistics, all of them are the window, and a note says so.

Seconds of a trim count from the start of the session where the input's clock does (Nsight Systems
shows them so), else from the first event of the input (`clock_zeros`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.partition import Partition, partition
from overlapwatch.accounting.phases import phase_unions
from overlapwatch.accounting.window import Boundary, Window, capture_window, trim_window
from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.intervals import intersect, join, single, subtract, union
from overlapwatch.timeline.model import Recording, Timeline
from overlapwatch.vocabulary import OUT_OF_STATISTICS, Phase, StepFlag

_NO_EVENTS = StepFlag.SHADOW
_SESSION_CLOCK = "nsight"
"""Timelines of these sources count from the start of the session."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for.

    Args:
        first_step, last_step: step numbers, inclusive; None is no limit.
        boundary: what happens to a span that crosses the window's edge, "clip" or "contained".
        trim: (from, to) in seconds after `zero_ns`, instead of steps.
        zero_ns: where the seconds of a trim count from, on the timeline's clock; None: the first
            moment of the capture.
        phase: only the moments of this phase.

    """

    first_step: int | None = None
    last_step: int | None = None
    boundary: Boundary = "clip"
    trim: tuple[float, float] | None = None
    zero_ns: int | None = None
    phase: Phase | None = None

    @property
    def by_step(self) -> bool:
        """Whether steps are asked for."""
        return self.first_step is not None or self.last_step is not None

    @property
    def whole(self) -> bool:
        """Whether nothing is asked for: all that there is."""
        return not self.by_step and self.trim is None and self.phase is None


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
        ConfigurationError: it asks for steps and a trim at once, or for steps, a time or a phase
            that are not there.

    """
    if selection.trim is not None:
        choice = _by_time(recording, selection, selection.trim)
    else:
        choice = _by_steps(recording, selection)
    return choice if selection.phase is None else _of_phase(choice, selection.phase)


def clock_zeros(recordings: Sequence[Recording]) -> list[int]:
    """Return, for each recording of one input, the moment from which its seconds count, ns.

    That is 0 where the clock itself counts from the start of the session, else the first moment of
    anything that the input holds: device spans, ranges and calls of the host, of all its devices.
    """
    first = min((moment for one in recordings for moment in _moments(one.timeline)), default=0)
    return [
        0 if one.timeline.origin.source.startswith(_SESSION_CLOCK) else first for one in recordings
    ]


def _moments(tl: Timeline) -> list[int]:
    capture = capture_window(tl)
    found = [capture.start_ns] if capture.end_ns else []
    for column in (tl.ranges.start, tl.payloads["start"], tl.communication["launch"]):
        known = column[column > 0]
        found += [int(known.min())] if len(known) else []
    return found


def _of_phase(choice: Choice, phase: Phase) -> Choice:
    """Return the choice with the window cut to the moments of one phase."""
    tl, window = choice.timeline, choice.window
    word = phase.name.lower()
    if not len(tl.phases):
        launched = bool(tl.communication["phase"].any())
        because = "the phases of this input are known of launches only, not of time"
        if not launched:
            reasons = [one.because for one in tl.unknown if one.what == "phases"]
            because = reasons[0] if reasons else "this input has no phases"
        raise ConfigurationError(f"{tl.origin.path}: no window of {word}: {because}")
    moments = phase_unions(tl.phases, window)[phase]
    whole = single(window.start_ns, window.end_ns)
    inside = intersect(moments, window.recorded)
    if not len(inside):
        raise ConfigurationError(f"{tl.origin.path}: no moment of {word} in {window.rule}")
    gaps = join(window.not_recorded, subtract(whole, inside))
    cut = replace(window, rule=f"{word} of {window.rule} ({tl.phase_rule})", not_recorded=gaps)
    note = "only the window is of that phase: steps and tails are told whole"
    none = np.empty(0, np.uint32)
    return replace(choice, window=cut, steps=none, notes=(*choice.notes, note))


def _by_steps(recording: Recording, selection: Selection) -> Choice:
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
    zero = capture.start_ns if selection.zero_ns is None else selection.zero_ns
    low, high = (zero + round(seconds * 1e9) for seconds in trim)
    if high <= capture.start_ns or low >= capture.end_ns:
        first, last = ((moment - zero) / 1e9 for moment in (capture.start_ns, capture.end_ns))
        raise ConfigurationError(
            f"{tl.origin.path}: nothing was captured from {trim[0]:g} to {trim[1]:g} s; "
            f"the capture of {_who(tl)} reaches from {first:.3f} to {last:.3f} s"
        )
    window = trim_window(low, high, selection.boundary)
    window = replace(window, rule=f"{trim[0]:g} to {trim[1]:g} s")
    beyond = max(0, capture.start_ns - low) + max(0, high - capture.end_ns)
    notes: tuple[str, ...] = ()
    if 100 * beyond > high - low:
        notes = (f"{beyond / 1e9:.3f} s of the trim lie outside of the capture, and count as idle",)
    gaps = intersect(capture.not_recorded, single(low, high))
    inside = tl.steps[(tl.steps["start"] >= low) & (tl.steps["end"] <= high)]
    rows = recording.summaries
    rows = rows[(rows["start_ns"] >= low) & (rows["end_ns"] <= high)]
    none = np.empty(0, np.uint32)
    return Choice(replace(window, not_recorded=gaps), _only(tl, inside), rows, none, notes)


def _who(tl: Timeline) -> str:
    origin = tl.origin
    return f"rank {origin.rank}" if origin.rank is not None else origin.device or "it"


def _of_steps(tl: Timeline, selection: Selection) -> Timeline:
    return _only(tl, _within(tl.steps, selection)) if selection.by_step else tl


def _only(tl: Timeline, steps: NDArray[np.void]) -> Timeline:
    """Return the timeline with these steps, without the collectives and uses of its other steps.

    Collectives without a step stay: a profile may not say.
    """
    others = np.setdiff1d(tl.steps["step"], steps["step"])
    kept = ~np.isin(tl.communication["step"], others)
    used = ~np.isin(tl.uses["step"], others)
    return replace(tl, steps=steps, communication=tl.communication[kept], uses=tl.uses[used])


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

"""Phases of a profile: which rule tells forward from backward and optimizer, and what it says.

In: a Timeline, the rule asked for. Out: the Timeline with phases and `phase_rule`, the words for
what decided. A rule that finds nothing says so in `unknown`, never in a phase.

| rule    | what decides                                                                  |
|---------|-------------------------------------------------------------------------------|
| marks   | phases that were recorded, kept as they are                                   |
| ranges  | ranges (NVTX, user annotations) that name a phase, around the host's launch   |
| anchors | kernels known to be of one phase: first forward to first backward anchor, ... |
| none    | nothing: phases are taken away                                                |
| auto    | the first of marks, ranges, anchors that tells                                |

*Ranges* give each launch a phase, so a kernel counts where it was sent from, however late it ran;
auto takes them when they tell the phase of at least half of the collectives. A launch inside
backward is backward's, whatever else encloses it (a forward recomputed for checkpointing).

*Anchors*, in each step, `f` and `b`:

    f f f b b b ..    forward: first f to first b; backward: to the end of the last b; then optimizer
    f f b f b b       the short run of f in the backward is recomputed there: backward
    f f b b f f b b   a run as long as the first is the forward of another micro-batch
"""

import re
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.intervals import Intervals, cover, union
from overlapwatch.timeline.model import I64, Lane, Timeline, Unknown, empty_lane
from overlapwatch.timeline.records import begin_of, from_marks, has_span
from overlapwatch.timeline.step_rules import AnchorRule, Anchors, find_anchors
from overlapwatch.vocabulary import Phase

PhaseRule = Literal["auto", "marks", "ranges", "anchors", "none"]
PHASE_RULES: tuple[PhaseRule, ...] = get_args(PhaseRule)

NONE_RULE = "none"
_NO_MARKS = "this input has no recorded phases"
_NO_RANGES = "no range around a launch names one"
_NO_ANCHORS = "no anchor kernels of both forward and backward ran"
_NOTHING: dict[PhaseRule, str] = {
    "auto": f"{_NO_MARKS}, few or no ranges around its launches name one, and {_NO_ANCHORS}",
    "marks": _NO_MARKS,
    "ranges": _NO_RANGES,
    "anchors": _NO_ANCHORS,
}
BY_RANGES = "ranges around the launch"
BY_RANGES_IN_TIME = "ranges open at the launch"

_BACKWARD = re.compile(r"(?i:backward)|(?<![A-Za-z])(?i:bwd)|^autograd::engine::")
_OPTIMIZER = re.compile(
    r"(?i:optimi[sz]er)|(?i:optim[._ ]?step)|(?i:adamw?[._ ]step)|(?i:\bstep_microstep)"
    r"|(?i:\bweight[_ ]update)|DeepSpeedEngine\.step"
)
_FORWARD = re.compile(r"(?i:forward)|(?<![A-Za-z])(?i:fwd)")
_PRIORITY = (Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD)


def phase_of(text: str) -> Phase:
    """Return the phase that the name of one range tells; OTHER for none, or for several.

    | name                                           | phase     |
    |------------------------------------------------|-----------|
    | `autograd::engine::evaluate_function: MulBackward0` | backward |
    | `Optimizer.step#AdamW.step`                    | optimizer |
    | `transformer_engine.Linear.forward`            | forward   |
    | `forward-backward`                             | other     |
    """
    backward, forward = _BACKWARD.search(text), _FORWARD.search(text)
    if _OPTIMIZER.search(text):
        return Phase.OTHER if forward and backward else Phase.OPTIMIZER
    if backward and not forward:
        return Phase.BACKWARD
    return Phase.FORWARD if forward and not backward else Phase.OTHER


def phase_of_stack(names: list[str]) -> Phase:
    """Return the phase of a launch inside these ranges: backward's before optimizer's, forward's."""
    found = {phase_of(name) for name in names}
    return next((phase for phase in _PRIORITY if phase in found), Phase.OTHER)


def with_phases(
    tl: Timeline, rule: PhaseRule = "auto", anchors: AnchorRule | None = None
) -> Timeline:
    """Return the timeline with phases by `rule`.

    Args:
        tl: its steps, where it has any, bound the phases that anchors tell.
        rule: see the table above.
        anchors: what the anchor kernels are called.

    """
    if rule == "none":
        return _without(tl, "no phases were asked for")
    if rule in {"auto", "marks"} and len(tl.phases):
        return tl
    told = _by_ranges(tl) if rule in {"auto", "ranges"} else None
    if told is not None and (rule == "ranges" or _half_told(told)):
        return told
    found = find_anchors(tl, anchors or AnchorRule())
    if rule in {"auto", "anchors"} and found.usable and not from_marks(tl):
        return _by_anchors(tl, found)
    return _without(tl, _NOTHING[rule])


def _without(tl: Timeline, because: str) -> Timeline:
    records = tl.communication.copy()
    records["phase"] = Phase.OTHER
    return replace(
        tl,
        communication=records,
        phases=empty_lane(),
        phase_rule=NONE_RULE,
        unknown=(*tl.unknown, Unknown("phases", because)),
    )


# -- ranges --------------------------------------------------------------------------------------


def _half_told(tl: Timeline) -> bool:
    phase = tl.communication["phase"] if len(tl.communication) else tl.compute.phase
    return 2 * int(np.count_nonzero(phase)) >= len(phase)


def _by_ranges(tl: Timeline) -> Timeline | None:
    """Return the timeline with the phases of its launches; None where no range tells any.

    The source may have told them already, launch by launch (of kernels too, which gives the phases
    their time); else the call site of a collective does, and where it has none, the ranges that are
    open when it is launched.
    """
    if tl.compute.phase.any():
        rule = tl.phase_rule if tl.phase_rule != NONE_RULE else BY_RANGES
        return replace(tl, phases=_runs(_device_work(tl)), phase_rule=rule)
    if tl.communication["phase"].any():
        rule = tl.phase_rule if tl.phase_rule != NONE_RULE else BY_RANGES
        return replace(tl, phases=empty_lane(), phase_rule=rule)
    phase, rule = _of_call_sites(tl), BY_RANGES
    if not phase.any():
        phase, rule = _of_open_ranges(tl), BY_RANGES_IN_TIME
    if not phase.any():
        return None
    records = tl.communication.copy()
    records["phase"] = phase
    return replace(tl, communication=records, phases=empty_lane(), phase_rule=rule)


def _of_call_sites(tl: Timeline) -> NDArray[np.uint8]:
    owner = tl.communication["owner"]
    ids, place = np.unique(owner, return_inverse=True)
    told = [
        phase_of_stack(tl.names[number].text.split(STACK_SEPARATOR))
        if number in tl.names
        else Phase.OTHER
        for number in ids.tolist()
    ]
    return np.array(told, np.uint8)[place] if len(ids) else np.empty(0, np.uint8)


STACK_SEPARATOR = " > "
"""Between the ranges of a call site's name, outermost first."""


def _of_open_ranges(tl: Timeline) -> NDArray[np.uint8]:
    """Return the phase at each launch by the ranges open then, on whatever thread."""
    launch = tl.communication["launch"]
    phase = np.zeros(len(launch), np.uint8)
    names = {number: phase_of(name.text) for number, name in tl.names.items()}
    for one in reversed(_PRIORITY):
        ids = [number for number, told in names.items() if told is one]
        mine = np.isin(tl.ranges.name, np.array(ids, np.uint32))
        open_then = union(tl.ranges.start[mine], tl.ranges.end[mine])
        phase[(launch != 0) & _inside(launch, open_then)] = one
    return phase


def _inside(moment: I64, iv: Intervals) -> NDArray[np.bool_]:
    return cover(moment, moment + 1, iv) > 0


def _device_work(tl: Timeline) -> Lane:
    """Return computation and collectives as one lane, each with the phase of its launch."""
    sent = tl.communication[has_span(tl.communication)]
    return Lane(
        np.concatenate((tl.compute.start, begin_of(sent))),
        np.concatenate((tl.compute.end, sent["finish"])),
        np.concatenate((tl.compute.name, sent["owner"])),
        np.concatenate((tl.compute.phase, sent["phase"])),
    )


def _runs(lane: Lane) -> Lane:
    """Return the spans of uninterrupted work of one phase, by start.

    work      f 0-2  f 3-4  b 4-6  . 6-7  b 8-9        f 0-4, b 4-9 (`.`, of no phase, breaks no run)
    """
    told = np.flatnonzero(lane.phase != Phase.OTHER)
    if not len(told):
        return empty_lane()
    told = told[np.argsort(lane.start[told], kind="stable")]
    phase = lane.phase[told]
    first = np.concatenate(([0], np.flatnonzero(phase[1:] != phase[:-1]) + 1))
    return Lane(
        lane.start[told][first],
        np.maximum.reduceat(lane.end[told], first),
        np.zeros(len(first), np.uint32),
        phase[first],
    )


# -- anchors -------------------------------------------------------------------------------------


def _by_anchors(tl: Timeline, anchors: Anchors) -> Timeline:
    records = tl.communication.copy()
    records["phase"] = Phase.OTHER
    return replace(
        tl,
        communication=records,
        phases=anchor_phases(anchors, tl.steps),
        phase_rule=f"anchor kernels ({int((~anchors.backward).sum()):,} forward, "
        f"{int(anchors.backward.sum()):,} backward)",
    )


def anchor_phases(anchors: Anchors, steps: NDArray[np.void]) -> Lane:
    """Return the phases that anchors tell, in each of `steps` (STEP rows); see the module."""
    spans: list[tuple[int, int, Phase]] = []
    first = np.searchsorted(anchors.start, steps["start"], "left")
    last = np.searchsorted(anchors.start, steps["end"], "left")
    for low, high, end in zip(first.tolist(), last.tolist(), steps["end"].tolist(), strict=True):
        mine = slice(low, high)
        one = Anchors(anchors.start[mine], anchors.end[mine], anchors.backward[mine])
        spans += _phases_of_step(one, end)
    columns = list(zip(*spans, strict=True)) or [(), (), ()]
    return Lane(
        np.array(columns[0], np.int64),
        np.array(columns[1], np.int64),
        np.zeros(len(spans), np.uint32),
        np.array(columns[2], np.uint8),
    )


def _phases_of_step(anchors: Anchors, end: int) -> list[tuple[int, int, Phase]]:
    """Return (start, end, phase) of one step: its micro-batches, then the optimizer."""
    if not len(anchors):
        return []
    backward = anchors.backward
    begins = np.concatenate(([0], np.flatnonzero(backward[1:] != backward[:-1]) + 1))
    length = np.diff(np.append(begins, len(anchors)))
    forward_runs = ~backward[begins]
    usual = int(length[forward_runs][0]) if forward_runs.any() else 0
    spans: list[tuple[int, int, Phase]] = []
    phase, since = None, int(anchors.start[0])
    for place, run in zip(begins.tolist(), length.tolist(), strict=True):
        now = Phase.BACKWARD if backward[place] else Phase.FORWARD
        recomputed = now is Phase.FORWARD and phase is Phase.BACKWARD and run < usual
        if now is phase or recomputed:
            continue
        moment = int(anchors.start[place])
        if phase is not None:
            spans.append((since, moment, phase))
        phase, since = now, moment
    if phase is Phase.BACKWARD:
        done = int(anchors.end[backward].max())
        spans.append((since, done, phase))
        if end > done:
            spans.append((done, end, Phase.OPTIMIZER))
    elif phase is not None:  # the capture ends in a forward
        spans.append((since, end, phase))
    return spans

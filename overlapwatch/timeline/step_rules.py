"""Steps of a profile that marks none: from anchor kernels, and which step a collective is of.

In: a Timeline. Out: the Timeline with steps, and the rule that made them in words. Steps that the
source gave are kept. An anchor is a kernel that a step is known to run in forward or in backward
(attention, by default). A gap between anchors that is longer than `AnchorRule.step_gap_ns` starts a
step; a step reaches to the first anchor of the next, the last one to the end of the capture:

    anchors     f f b b ........ f f b b .. (end)       gap of 8: a step begins after it
    steps       [   1           [   2      )

What lies before the first anchor is in no step. A first or last step with fewer anchors than the
others is cut by the capture: it is PARTIAL, and out of statistics. It does not know iterations of
a data loader, and takes a pause of the job for the end of a step.
"""

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.model import I64, STEP, Timeline, Unknown
from overlapwatch.timeline.records import begin_of
from overlapwatch.vocabulary import StepFlag

FORWARD_ANCHOR = r"flash_?fwd|flash_fprop|fmha.*(fwd|fprop)|fmha_cutlassF|_attn_fwd"
BACKWARD_ANCHOR = r"flash_?bwd|flash_bprop|fmha.*(bwd|bprop|dgrad)|fmha_cutlassB|_attn_bwd"
STEP_GAP_NS = 300_000_000

RECORDED = "as recorded"
NO_STEPS = "none"


@dataclass(frozen=True, slots=True)
class AnchorRule:
    """What the anchor kernels are called, and the gap between them that starts a step.

    Args:
        forward, backward: regular expressions, searched in kernel names, any case.
        step_gap_ns: from the end of one anchor to the start of the next, above 0.

    Raises:
        ConfigurationError: an expression cannot be compiled, or the gap is not above 0.

    """

    forward: str = FORWARD_ANCHOR
    backward: str = BACKWARD_ANCHOR
    step_gap_ns: int = STEP_GAP_NS

    def __post_init__(self) -> None:
        _compiled("forward", self.forward)
        _compiled("backward", self.backward)
        if self.step_gap_ns <= 0:
            raise ConfigurationError(f"the step gap must be above 0, not {self.step_gap_ns} ns")


def _compiled(what: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        message = f"the {what} anchor {text!r} is no regular expression: {error}"
        raise ConfigurationError(message) from None


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """The anchor kernels of a timeline, by start; `backward` says which are of the backward."""

    start: I64
    end: I64
    backward: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def usable(self) -> bool:
        """Whether both kinds occur: forward alone is inference, and tells no phases."""
        return bool(self.backward.any() and not self.backward.all())


def find_anchors(tl: Timeline, rule: AnchorRule) -> Anchors:
    """Return the compute kernels whose names are anchors; a name that is both is backward."""
    backward = np.isin(tl.compute.name, _named(tl, rule.backward))
    found = backward | np.isin(tl.compute.name, _named(tl, rule.forward))
    order = np.flatnonzero(found)
    order = order[np.argsort(tl.compute.start[order], kind="stable")]
    return Anchors(tl.compute.start[order], tl.compute.end[order], backward[order])


def _named(tl: Timeline, pattern: str) -> NDArray[np.uint32]:
    search = re.compile(pattern, re.IGNORECASE).search
    ids = [number for number in np.unique(tl.compute.name).tolist() if number in tl.names]
    return np.array([number for number in ids if search(tl.names[number].text)], np.uint32)


def with_steps(tl: Timeline, rule: AnchorRule) -> tuple[Timeline, str]:
    """Return the timeline with steps where they can be told, its collectives numbered by them.

    The second value is the rule: `RECORDED`, the anchors in words, or `NO_STEPS`, of which the
    timeline's `unknown` says why.
    """
    if len(tl.steps):
        return _numbered(tl), RECORDED
    anchors = find_anchors(tl, rule)
    if not anchors.usable:
        because = "the input marks none, and no anchor kernels of both forward and backward ran"
        return replace(tl, unknown=(*tl.unknown, Unknown("steps", because))), NO_STEPS
    steps = anchor_steps(anchors, rule.step_gap_ns, capture_end(tl))
    words = f"anchor kernels, a gap of over {rule.step_gap_ns / 1e6:g} ms starts a step"
    return _numbered(replace(tl, steps=steps)), words


def capture_end(tl: Timeline) -> int:
    """Return the end of the last span on the device, ns; 0 without any."""
    ends = (tl.compute.end, tl.copies.end, tl.fused.end, tl.communication["finish"])
    return max((int(column.max()) for column in ends if len(column)), default=0)


def anchor_steps(anchors: Anchors, gap_ns: int, end_ns: int) -> NDArray[np.void]:
    """Return the STEP rows that the anchors tell, numbered from 1.

    Args:
        anchors: at least one.
        gap_ns: the gap that starts a step.
        end_ns: where the last step ends.

    """
    reached = np.maximum.accumulate(anchors.end)
    first = np.concatenate(([0], np.flatnonzero(anchors.start[1:] - reached[:-1] > gap_ns) + 1))
    steps = np.zeros(len(first), STEP)
    steps["step"] = np.arange(1, len(first) + 1)
    steps["start"] = anchors.start[first]
    steps["end"] = np.append(anchors.start[first[1:]], max(end_ns, int(reached[-1])))
    count = np.diff(np.append(first, len(anchors)))
    usual = int(np.median(count))
    for edge in {0, len(steps) - 1}:
        if count[edge] < usual:
            steps["flags"][edge] = StepFlag.PARTIAL
    return steps


def _numbered(tl: Timeline) -> Timeline:
    """Return the timeline with the step of each collective, by where it begins, if none is told."""
    records = tl.communication
    if records["step"].any() or not len(records):
        return tl
    numbered = records.copy()
    numbered["step"] = step_at(tl.steps, begin_of(records))
    return replace(tl, communication=numbered)


def step_at(steps: NDArray[np.void], moment: I64) -> NDArray[np.uint32]:
    """Return the number of the step that holds each moment, 0 where none does.

    Args:
        steps: STEP rows by start, which do not overlap.
        moment: int64 ns.

    """
    if not len(steps):
        return np.zeros(len(moment), np.uint32)
    place = np.searchsorted(steps["start"], moment, side="right") - 1
    inside = (place >= 0) & (moment < steps["end"][place])
    return np.where(inside, steps["step"][place], 0).astype(np.uint32)

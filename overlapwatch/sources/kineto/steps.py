"""ProfilerStep annotations -> the steps of a device, and of the host.

In: the annotations, and what was launched on a device and when. Out: STEP rows that tile. The host
is ahead of the device, so a step of the device is not where the annotation is. It begins with the
first device event that was launched in the annotation and ends where the next step begins; the last
one ends with the last event that was launched in it:

    host     |step 4 : launches a b|step 5 : launches c d|
    device              a   b             c     d
    steps               [ 4               [ 5     )

A collective of step 4 that still runs when `c` begins reaches into step 5, as it did. Steps in which
nothing was launched are no steps of the device. A host timeline takes the annotations as they are.
"""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import I64, STEP

_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")


def step_number(name: str) -> int | None:
    """Return the number in the name of a step's annotation; None for any other name."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


def host_steps(ranges: NDArray[np.void], names: Mapping[int, str]) -> NDArray[np.void]:
    """Return the steps of the host as STEP rows, by start.

    Args:
        ranges: HOST rows of annotations.
        names: what their name ids stand for.
    """
    numbers = {one: step_number(names[one]) for one in np.unique(ranges["name"]).tolist()}
    known = {one: number for one, number in numbers.items() if number is not None}
    rows = ranges[np.isin(ranges["name"], np.array(sorted(known), np.uint32))]
    rows = rows[np.argsort(rows["start"], kind="stable")]
    steps = np.zeros(len(rows), STEP)
    steps["step"] = [known[one] for one in rows["name"].tolist()]
    steps["start"] = rows["start"]
    # A step is over when the next begins, even where annotations of two threads overlap.
    steps["end"] = np.minimum(rows["end"], np.append(rows["start"][1:], np.iinfo(np.int64).max))
    return steps


def step_of(steps: NDArray[np.void], moment: I64) -> NDArray[np.int64]:
    """Return the place of the step that holds each moment; -1 = none. A moment of 0 is not known."""
    if not len(steps):
        return np.full(len(moment), -1, np.int64)
    place = np.searchsorted(steps["start"], moment, side="right") - 1
    inside = (place >= 0) & (moment < steps["end"][place]) & (moment != 0)
    return np.where(inside, place, -1)


def device_steps(
    steps: NDArray[np.void], launched_in: NDArray[np.int64], start: I64, end: I64
) -> NDArray[np.void]:
    """Return the steps of a device as STEP rows.

    Args:
        steps: the steps of the host, by start.
        launched_in: for each device event the place of its step, -1 = none.
        start: of each device event, ns.
        end: the same.
    """
    known = launched_in >= 0
    where, begin, finish = launched_in[known], start[known], end[known]
    first = np.full(len(steps), np.iinfo(np.int64).max)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, where, begin)
    np.maximum.at(last, where, finish)
    used = np.flatnonzero(first <= last)
    found = steps[used].copy()
    if not len(found):
        return found
    # An early copy of a step on another stream does not make the step before it begin later.
    begins = np.minimum.accumulate(first[used][::-1])[::-1]
    found["start"] = begins
    found["end"] = np.append(begins[1:], max(int(last[used][-1]), int(begins[-1])))
    return found[found["end"] > found["start"]]

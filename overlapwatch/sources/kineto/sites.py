"""Around a launch: the call site of a collective, the phase of a kernel.

In: the host's rows, and where and when things were launched. Out: for each collective the
annotations around its launch, outermost first, joined to one name; for each launch the phase that a
span around it names. Both by the launching thread, never by time alone. It does not know what runs
on the device.

    DistributedDataParallel.forward > my block > (launch)      site "DistributedDataParallel.forward > my block"
    autograd::engine::evaluate_function: ... > (launch)        phase backward

Where no annotation is around a launch the outermost operator stands for it. Steps and the backend's
own annotations (`nccl:all_reduce`) are not sites: they say what was launched, not from where.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import DEVICE_BACKENDS, HOST_BACKENDS
from overlapwatch.sources.kineto.columns import What
from overlapwatch.sources.kineto.lanes import Launches
from overlapwatch.sources.kineto.stacks import by_thread, innermost, outermost, parents_of
from overlapwatch.sources.kineto.steps import step_number
from overlapwatch.timeline.intervals import cover, union
from overlapwatch.timeline.phase_rules import STACK_SEPARATOR, phase_of
from overlapwatch.vocabulary import Phase

PHASE_RULE = "annotations and autograd around the launch"
FORWARD_RULE = f"{PHASE_RULE}; forward: in a step before its first backward launch"

_ORDER = (Phase.FORWARD, Phase.OPTIMIZER, Phase.BACKWARD)  # the last that fits counts


def call_sites(host: NDArray[np.void], names: Sequence[str], launches: Launches) -> list[str]:
    """Return the call site of each launch; "" where nothing is around it, or it is not known."""
    told = [_is_site(name) for name in names]
    here = host[np.isin(host["thread"], np.unique(launches.thread))]
    sites = _stacks(here[here["what"] == What.RANGE], names, told, launches)
    if all(sites):
        return sites
    operators = here[here["what"] == What.OPERATOR]
    outer = _stacks(operators[outermost(operators)], names, told, launches)
    return [site or operator for site, operator in zip(sites, outer, strict=True)]


def _stacks(
    spans: NDArray[np.void], names: Sequence[str], told: Sequence[bool], launches: Launches
) -> list[str]:
    inner = innermost(spans, launches.thread, launches.moment)
    inner[launches.moment == 0] = -1
    if not (inner >= 0).any():
        return [""] * len(inner)
    parent = parents_of(spans).tolist()
    ids = spans["name"].tolist()
    known: dict[int, str] = {-1: ""}
    sites = []
    for place in inner.tolist():
        if place not in known:
            stack: list[str] = []
            at = place
            while at >= 0:
                if told[ids[at] - 1]:
                    stack.append(names[ids[at] - 1])
                at = parent[at]
            known[place] = STACK_SEPARATOR.join(reversed(stack))
        sites.append(known[place])
    return sites


def _is_site(name: str) -> bool:
    backend = name.startswith(DEVICE_BACKENDS + HOST_BACKENDS) or name == "record_param_comms"
    return not backend and step_number(name) is None


def phases_of(
    host: NDArray[np.void],
    names: Sequence[str],
    launches: Launches,
    step: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], str]:
    """Return the Phase of each launch, and the rule that told it.

    Args:
        host: HOST rows.
        names: of the rows.
        launches: when and on which thread.
        step: place of the step of each launch, -1 = none.
    """
    phase = np.full(len(launches.moment), Phase.OTHER, np.uint8)
    known = launches.moment != 0
    by_name = np.array([phase_of(name) for name in names], np.uint8)
    spans = host[(host["what"] == What.RANGE) | (host["what"] == What.OPERATOR)]
    told = by_name[spans["name"] - 1] if len(spans) else np.empty(0, np.uint8)
    for one in _ORDER:
        mine = spans[told == one]
        for thread, rows in by_thread(mine["thread"]):
            here = np.flatnonzero(known & (launches.thread == thread))
            busy = union(mine["start"][rows], mine["end"][rows])
            moment = launches.moment[here]
            phase[here[cover(moment, moment + 1, busy) > 0]] = one
    if not phase.any():
        return phase, "none"
    if (phase == Phase.FORWARD).any() or not (phase == Phase.BACKWARD).any():
        return phase, PHASE_RULE
    backward = np.flatnonzero((phase == Phase.BACKWARD) & (step >= 0))
    if not len(backward):
        return phase, PHASE_RULE
    first = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    first[np.unique(step[backward])] = np.iinfo(np.int64).max
    np.minimum.at(first, step[backward], launches.moment[backward])
    before = known & (step >= 0) & (phase == Phase.OTHER)
    before[before] = launches.moment[before] < first[step[before]]
    phase[before] = Phase.FORWARD
    return phase, FORWARD_RULE

"""Columns of one trace -> Recordings: one timeline for each device, or one for the host.

In: a `Trace`. Out: Recordings. A trace without any device event is one of the host: its operators
are the compute lane. Collectives that run on the host (gloo) are communication beside the kernels
of the device, when there is one device; with several nobody can say whose they are.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
import re

import numpy as np
from numpy.typing import NDArray

from overlapwatch.rules import KernelClass
from overlapwatch.sources.kineto import host as on_host
from overlapwatch.sources.kineto.calls import DEVICE_BACKENDS
from overlapwatch.sources.kineto.columns import Columns, What
from overlapwatch.sources.kineto.damage import implausible
from overlapwatch.sources.kineto.lanes import (
    Launches,
    calls_made,
    class_of,
    communication_of,
    lane,
    launches_of,
)
from overlapwatch.sources.kineto.sites import call_sites, phases_of
from overlapwatch.sources.kineto.steps import device_steps, host_steps, step_of
from overlapwatch.timeline.classify import Classes, classify, none_recognised
from overlapwatch.timeline.model import Lane, Origin, Recording, Skipped, Timeline, Unknown
from overlapwatch.vocabulary import PAYLOAD, RECORD, Name, NameKind

COMPUTE_RULE = "kernels that are not known to communicate"


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One trace file.

    Args:
        origin: without a device.
        columns: its events.
        base_ns: what their times count from.
        groups: process groups.
        device_names: by device number.
        about, notes, unknown: as in a Recording.
    """

    origin: Origin
    columns: Columns
    base_ns: int
    groups: Mapping[int, Name]
    device_names: Mapping[int, str]
    about: Mapping[str, str]
    notes: tuple[str, ...]
    unknown: tuple[Unknown, ...]


def recordings_of(
    trace: Trace, patterns: Sequence[re.Pattern[str]], devices: Collection[int] | None
) -> list[Recording]:
    """Return the Recordings of a trace, by device number."""
    columns = trace.columns
    device, host = columns.device, columns.host
    for rows in (device, host):
        rows["start"] += trace.base_ns
        rows["end"] += trace.base_ns
    maker = _Maker(trace, host, columns.names.texts(), patterns)
    work = device[np.isin(device["what"], (What.KERNEL, What.COPY))]
    numbers = np.unique(work["device"]).tolist()
    if not numbers:
        return [maker.of_host()]
    chosen = [number for number in numbers if devices is None or number in devices]
    return [
        maker.of_device(number, work[work["device"] == number], alone=len(numbers) == 1)
        for number in chosen
    ]

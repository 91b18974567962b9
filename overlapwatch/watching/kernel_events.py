"""What a profiler kept of one step -> compute spans on the clock of the records.

In: PyTorch's Kineto events, and marks that both clocks have stamped. Out: a union of spans, with a bound on how far it
may lie off. Nothing here starts or stops a profiler.

A host span counts as compute by its name and by what it calls. In the order of their calls, on one thread:

| event                     | calls                    | counts                                          |
|---------------------------|--------------------------|-------------------------------------------------|
| evaluate_function: Addmm… | AddmmBackward0           | no: a frame                                     |
| AddmmBackward0            | aten::mm, aten::t        | no: a frame                                     |
| aten::mm                  | anything                 | whole: an operator                              |
| NapBackward               | nothing that is recorded | whole: an autograd function written in Python   |
| c10d::allreduce_          | anything                 | no, and it is cut out of what it lies in        |
| Optimizer.step#SGD.step   | aten::add_, …            | passed over: an annotation, not a thing that ran |
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from overlapwatch.rules import KernelClass
from overlapwatch.timeline.classify import classify
from overlapwatch.timeline.intervals import Intervals, join, nothing, subtract, union
from overlapwatch.timeline.model import I64

ANCHOR = "overlapwatch: anchor"
"""Name of the marks that place the profiler's clock."""
_CHUNK = 256

_NAMESPACE = re.compile(r"(\w+)::\w")
_FRAMES = {"torch", "autograd"}
_COMMUNICATES = re.compile(r"(c10d|_?c10d_functional\w*|symm_mem|gloo|nccl)\b|record_param_comms")
_NO_KERNEL = re.compile(r"Memcpy|Memset|(Context|Stream|Event|Device) Sync|Stream Wait")

Place = Callable[[I64], I64]
"""The profiler's ns -> ns on the clock of the records."""


class What(IntEnum):
    """What an event is, by its name."""

    FRAME = 0  # compute only if it calls nothing
    COMPUTE = 1  # an operator, or a kernel
    COMMUNICATION = 2
    NOTHING = 3  # an annotation, a copy, a wait of the device
    ANCHOR = 4


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """Events as columns: int64 ns on the profiler's clock, the profiler's number of the thread, `What`."""

    start: I64
    end: I64
    thread: I64
    what: NDArray[np.uint8]

    def only(self, chosen: NDArray[np.bool_]) -> "Ran":
        """Return the chosen events."""
        return Ran(self.start[chosen], self.end[chosen], self.thread[chosen], self.what[chosen])


def read_events(events: Iterable[Any], *, on_device: bool) -> Ran:
    """Return the events as columns, without annotations.

    Args:
        events: `_KinetoEvent`s.
        on_device: keep the kernels of a device rather than what the host's threads did; anchors are always kept.
    """
    rows: list[tuple[int, int, int, int]] = []
    known: dict[str, What] = {}
    host = torch._C._autograd.DeviceType.CPU  # noqa: SLF001 - what the events themselves answer with
    for number, event in enumerate(events):
        name = event.name()
        what = known.get(name)
        if what is None:
            what = known[name] = _what(name, event, host=host, on_device=on_device)
        if what is not What.NOTHING:
            rows.append((event.start_ns(), event.end_ns(), event.start_thread_id(), what))
        if number % _CHUNK == _CHUNK - 1:
            time.sleep(0)  # gives the GIL away
    table = np.array(rows, np.int64).reshape(-1, 4)
    return Ran(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.uint8))


def _what(name: str, event: Any, *, host: Any, on_device: bool) -> What:
    if name == ANCHOR:
        return What.ANCHOR
    if event.is_user_annotation() or (event.device_type() != host) is not on_device:
        return What.NOTHING
    if on_device:
        compute = not _NO_KERNEL.match(name) and classify([name]).kernel[0] == KernelClass.COMPUTE
        return What.COMPUTE if compute else What.NOTHING  # fused kernels are in neither lane
    if _COMMUNICATES.match(name):
        return What.COMMUNICATION
    space = _NAMESPACE.match(name)
    return What.COMPUTE if space is not None and space[1] not in _FRAMES else What.FRAME


def device_spans(ran: Ran) -> Intervals:
    """Return the union of the kernels."""
    kernels = ran.only(ran.what == What.COMPUTE)
    return union(kernels.start, kernels.end)


def host_spans(ran: Ran) -> Intervals:
    """Return the union of what the threads of the training computed, by the table above."""
    found = nothing()
    for thread in np.unique(ran.thread):
        here = ran.only((ran.thread == thread) & (ran.what != What.ANCHOR))
        here = here.only(here.end > here.start)
        order = np.lexsort((-here.end, here.start))  # a caller comes before what it calls
        start, end, what = here.start[order], here.end[order], here.what[order]
        calls = np.append(start[1:] < end[:-1], False)  # the next event begins inside this one
        counts = (what == What.COMPUTE) | ((what == What.FRAME) & ~calls)
        sends = what == What.COMMUNICATION
        computed = subtract(union(start[counts], end[counts]), union(start[sends], end[sends]))
        found = join(found, computed)
    return found


def place_clock(before: I64, after: I64, ran: Ran) -> tuple[Place, int]:
    """Return how to place the profiler's times on the clock of the records, and the bound of the error in ns.

    Each anchor lies between two readings of our clock, so the offset (ours - the profiler's) lies between
    `before - its start` and `after - its end`. One half of the anchors was left when the profiler started and one
    half when it stopped; in between, the offset is taken to move linearly.

        before 100, after 190, the profiler says 1120-1150        offset between -1020 and -960
        before 200, after 240, the profiler says 1205-1230        offset between -1005 and -990: -998 with error 8

    Args:
        before: int64 ns, our reading before each anchor, in order.
        after: our reading after it.
        ran: events that hold the anchors.

    Raises:
        ValueError: the profiler did not keep every anchor.
    """
    anchors = ran.only(ran.what == What.ANCHOR)
    order = np.argsort(anchors.start, kind="stable")
    start, end = anchors.start[order], anchors.end[order]
    if len(start) != len(before) or len(start) < 2:
        raise ValueError(f"the profiler kept {len(start)} of {len(before)} clock marks")
    low, high, half = before - start, after - end, len(start) // 2
    offsets, errors = [], []
    for part in (slice(None, half), slice(half, None)):
        least, most = int(low[part].max()), int(high[part].min())
        offsets.append((least + most) // 2)
        errors.append((abs(most - least) + 1) // 2)
    first, last = int(start[0]), int(start[-1])
    moved = (offsets[1] - offsets[0]) / max(last - first, 1)

    def place(ns: I64) -> I64:
        return np.asarray(ns + offsets[0] + np.rint((ns - first) * moved), np.int64)

    return place, max(errors)

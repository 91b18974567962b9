"""Parts of a trace -> columns: what ran on devices, what the host called, what it annotated.

In: `Part`s, each read of one chunk of events, in the order of the file. Out: one numpy array for each
of the three, and the names that their ids stand for. A part has ids of its own; here they become those
of the whole trace, the same ones whatever the chunks were and whoever read them. It does not know
kernels from collectives.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import Call, Calls, Group

NOT_JSON = ("events", "they are not valid JSON")


class What(IntEnum):
    """What an event is, by its category."""

    KERNEL = 0
    COPY = 1
    SYNC = 2  # the device waited: neither lane
    DEVICE_RANGE = 3
    RUNTIME = 4
    OPERATOR = 5
    RANGE = 6


ON_DEVICE = (What.KERNEL, What.COPY, What.SYNC, What.DEVICE_RANGE)

CATEGORIES: dict[str, What] = {
    "kernel": What.KERNEL,
    "concurrent_kernel": What.KERNEL,
    "gpu_memcpy": What.COPY,
    "gpu_memset": What.COPY,
    "memcpy": What.COPY,
    "memset": What.COPY,
    "cuda_sync": What.SYNC,
    "gpu_user_annotation": What.DEVICE_RANGE,
    "cuda_runtime": What.RUNTIME,
    "cuda_driver": What.RUNTIME,
    "runtime": What.RUNTIME,
    "xpu_runtime": What.RUNTIME,
    "xpu_driver": What.RUNTIME,
    "mtia_runtime": What.RUNTIME,
    "privateuse1_runtime": What.RUNTIME,
    "privateuse1_driver": What.RUNTIME,
    "cpu_op": What.OPERATOR,
    "operator": What.OPERATOR,
    "user_annotation": What.RANGE,
}
"""Categories in lower case: older releases wrote some with a capital."""

DEVICE = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("name", "<u4"),  # id of a name
        ("what", "u1"),
        ("graph", "u1"),  # launched by a CUDA graph
        ("shape", "<u4"),  # code of the launch's grid and block; 0 = not known
        ("device", "<i4"),
        ("call", "<i4"),  # index of the call that its own arguments tell; -1 = none
        ("stream", "<i8"),
        ("correlation", "<i8"),  # 0 = none
        ("external", "<i8"),  # 0 = none
    ]
)
HOST = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("name", "<u4"),
        ("what", "u1"),
        ("thread", "<u4"),  # number of a (process, thread)
        ("call", "<i4"),
        ("external", "<i8"),
    ]
)
RUNTIME = np.dtype(
    [
        ("start", "<i8"),
        ("thread", "<u4"),
        ("process", "<u4"),  # number of a process: correlation ids are its own
        ("correlation", "<i8"),
    ]
)


class Names:
    """Texts and their numbers, from 1."""

    def __init__(self) -> None:
        self.ids: dict[Hashable, int] = {}

    def numbers(self, texts: Sequence[Hashable]) -> NDArray[np.uint32]:
        """Return the number of each text; those not seen before get the next ones."""
        ids = self.ids
        for text in texts:
            if text not in ids:
                ids[text] = len(ids) + 1
        return np.array([ids[text] for text in texts], np.uint32)

    def texts(self) -> list[str]:
        """Return the texts in the order of their numbers, which begin with 1."""
        return [text if isinstance(text, str) else str(text) for text in self.ids]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one chunk of a trace holds, in the order of the file.

    Its ids of names, threads and processes count from 1 in the lists here; a `call` is an index.

    Args:
        device: DEVICE rows.
        host: HOST rows of operators and annotations.
        runtime: RUNTIME rows.
        host_end: the last end of any event of the host, ns; None without one.
        names: of kernels, operators and annotations.
        threads: (process, thread) as values.
        processes: as the file writes them.
        calls: what the arguments of collectives told.
        groups: the process groups of those; the first has number 1.
        skipped: (what, why) -> how many.
        unreadable: events that are no JSON.
        repaired: whether some had to be repaired first.
    """

    device: NDArray[np.void]
    host: NDArray[np.void]
    runtime: NDArray[np.void]
    host_end: int | None
    names: list[Hashable]
    threads: list[Hashable]
    processes: list[Hashable]
    calls: list[Call]
    groups: list[Group]
    skipped: Counter[tuple[str, str]]
    unreadable: int
    repaired: bool


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """What a trace holds, in the order of the file.

    Args:
        device: DEVICE rows.
        host: HOST rows of operators and annotations.
        runtime: RUNTIME rows: calls of the device's runtime and driver.
        host_end: the last end of any event of the host, ns; None without one.
    """

    device: NDArray[np.void]
    host: NDArray[np.void]
    runtime: NDArray[np.void]
    host_end: int | None


class Columns:
    """Takes parts, in the order of the file; gives arrays.

    Attributes:
        names: of kernels, operators and annotations.
        calls: what the arguments of collectives told.
        skipped: (what, why) -> how many.
        repaired: whether some events had to be repaired to be read.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.calls = Calls()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.repaired = False
        self._threads = Names()
        self._processes = Names()
        self._device: list[NDArray[np.void]] = []
        self._host: list[NDArray[np.void]] = []
        self._runtime: list[NDArray[np.void]] = []
        self._host_end: int | None = None
        self._unreadable = 0

    def take(self, part: Part) -> None:
        """Take the next part. Its arrays are changed and kept."""
        device, host, runtime = part.device, part.host, part.runtime
        names = self.names.numbers(part.names)
        threads = self._threads.numbers(part.threads)
        processes = self._processes.numbers(part.processes)
        calls = np.array([*self.calls.take(part.calls, part.groups), -1], np.int32)
        for rows in (device, host):
            if len(rows):
                rows["name"] = names[rows["name"] - 1]
                rows["call"] = calls[rows["call"]]  # -1, the last one, stays -1
        for rows in (host, runtime):
            if len(rows):
                rows["thread"] = threads[rows["thread"] - 1]
        if len(runtime):
            runtime["process"] = processes[runtime["process"] - 1]
        self._device.append(device)
        self._host.append(host)
        self._runtime.append(runtime)
        if part.host_end is not None:
            end = self._host_end
            self._host_end = part.host_end if end is None else max(end, part.host_end)
        self.skipped.update(part.skipped)
        self._unreadable += part.unreadable
        self.repaired |= part.repaired

    def arrays(self, base_ns: int) -> Arrays:
        """Return all that was taken, with times counted from `base_ns`. Called once, at the end."""
        if self._unreadable:
            self.skipped[NOT_JSON] += self._unreadable
        device, host, runtime = (
            _joined(parts, dtype)
            for parts, dtype in (
                (self._device, DEVICE),
                (self._host, HOST),
                (self._runtime, RUNTIME),
            )
        )
        for rows in (device, host, runtime):
            rows["start"] += base_ns
        for rows in (device, host):
            rows["end"] += base_ns
        end = None if self._host_end is None else self._host_end + base_ns
        return Arrays(device, host, runtime, end)


def _joined(parts: list[NDArray[np.void]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the parts as one array, and let go of them."""
    rows = np.concatenate([np.empty(0, dtype), *parts])
    parts.clear()
    return rows

"""Events -> columns: what ran on devices, what the host called, what it annotated.

In: blocks of decoded events. Out: one numpy array for each of the three, and the names that their ids
stand for. Nothing is judged here but the form: an event without a time, or with a negative length, is
counted by its reason and left out. It does not know kernels from collectives.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import Calls
from overlapwatch.sources.kineto.events import NO_ARGS, Event
from overlapwatch.sources.kineto.times import ns_array
from overlapwatch.timeline.model import I64

NOT_A_TIME = "their time or length is not a number"
NEGATIVE = "their length is negative"


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
        ("correlation", "<i8"),
        ("external", "<i8"),
    ]
)


class Names:
    """Texts and their numbers, from 1."""

    def __init__(self) -> None:
        self.ids: dict[Hashable, int] = {}

    def __getitem__(self, text: Any) -> int:
        try:
            found = self.ids.get(text)
        except TypeError:  # a list or an object where a name belongs
            text = str(text)
            found = self.ids.get(text)
        if found is None:
            found = self.ids[text] = len(self.ids) + 1
        return found

    def texts(self) -> list[str]:
        """Return the texts in the order of their numbers, which begin with 1."""
        return [text if isinstance(text, str) else str(text) for text in self.ids]


class Columns:
    """Takes blocks of events; gives arrays.

    Attributes:
        names: of kernels, operators and annotations.
        threads: (process, thread).
        calls: what the arguments of collectives told.
        seen: events by category, those of no use included.
        skipped: (what, why) -> how many.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Names()
        self.calls = Calls()
        self.seen: Counter[str] = Counter()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self._device: list[NDArray[np.void]] = []
        self._host: list[NDArray[np.void]] = []

    @property
    def device(self) -> NDArray[np.void]:
        """DEVICE rows."""
        return np.concatenate(self._device) if self._device else np.empty(0, DEVICE)

    @property
    def host(self) -> NDArray[np.void]:
        """HOST rows."""
        return np.concatenate(self._host) if self._host else np.empty(0, HOST)

    def add(self, events: Iterable[Event]) -> None:
        """Take one block of events."""
        device: list[Event] = []
        host: list[Event] = []
        device_what: list[int] = []
        host_what: list[int] = []
        kinds = _KINDS
        for event in events:
            if event.ph != "X":
                continue
            category = event.cat
            try:
                what = kinds.get(category)
            except TypeError:
                continue
            if what is None:
                what = _kind(category)
                if what is None:
                    continue
            if what <= What.DEVICE_RANGE:
                device.append(event)
                device_what.append(what)
            else:
                host.append(event)
                host_what.append(what)
        if device:
            self._add_device(device, np.array(device_what, np.uint8))
        if host:
            self._add_host(host, np.array(host_what, np.uint8))

    def _add_device(self, events: list[Event], what: NDArray[np.uint8]) -> None:
        rows = np.zeros(len(events), DEVICE)
        good = self._times(events, rows, "device events")
        args = [event.args or NO_ARGS for event in events]
        names = self.names
        rows["what"] = what
        rows["name"] = [names[event.name] for event in events]
        rows["device"] = _numbers(
            [
                one.device if one.device is not None else event.pid
                for one, event in zip(args, events, strict=True)
            ],
            2**31 - 1,
        )
        rows["stream"] = _numbers(
            [
                one.stream if one.stream is not None else _stream(event.tid)
                for one, event in zip(args, events, strict=True)
            ]
        )
        rows["correlation"] = _numbers([one.correlation for one in args])
        rows["external"] = _externals(args)
        rows["graph"] = [bool(one.graph_node) for one in args]
        calls = self.calls
        rows["call"] = [calls.read(one) if one.collective is not None else -1 for one in args]
        self._device.append(rows[good])

    def _add_host(self, events: list[Event], what: NDArray[np.uint8]) -> None:
        rows = np.zeros(len(events), HOST)
        good = self._times(events, rows, "host events")
        args = [event.args or NO_ARGS for event in events]
        names, threads = self.names, self.threads
        rows["what"] = what
        rows["name"] = [names[event.name] for event in events]
        rows["thread"] = [threads[_key(event.pid), _key(event.tid)] for event in events]
        rows["correlation"] = _numbers([one.correlation for one in args])
        rows["external"] = _externals(args)
        calls = self.calls
        rows["call"] = [
            calls.read(one)
            if one.collective is not None
            else calls.read_named(event.name, one)
            if event.name.__class__ is str and ":" in event.name
            else -1
            for one, event in zip(args, events, strict=True)
        ]
        self._host.append(rows[good])

    def _times(
        self, events: list[Event], rows: NDArray[np.void], what: str
    ) -> NDArray[np.bool_]:
        start, known = ns_array([bytes(event.ts) for event in events])
        length, measured = ns_array([bytes(event.dur) for event in events])
        known &= measured
        positive = known & (length >= 0)
        rows["start"], rows["end"] = start, start + length
        self._skip(what, NOT_A_TIME, int((~known).sum()))
        self._skip(what, NEGATIVE, int((known & ~positive).sum()))
        return positive

    def _skip(self, what: str, why: str, count: int) -> None:
        if count:
            self.skipped[what, why] += count


_KINDS: dict[Any, What] = {name: what for name, what in CATEGORIES.items()}


def _kind(category: Any) -> What | None:
    return CATEGORIES.get(category.lower()) if isinstance(category, str) else None


def _key(value: Any) -> Hashable:
    """Return a process or thread as one value: some files write 12, others "12"."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else str(value)


def _stream(thread: Any) -> Any:
    """Return the stream that the row of a trace viewer is named after: 7, "7", "stream 7"."""
    return thread.removeprefix("stream ") if isinstance(thread, str) else thread


def _externals(args: list[Any]) -> I64:
    return _numbers(
        [one.external if one.external is not None else one.external_old for one in args]
    )


def _numbers(values: list[Any], limit: int = 2**62) -> I64:
    """Return whole numbers; 0 for whatever is none."""
    return np.array([_number(value, limit) for value in values], np.int64)


def _number(value: Any, limit: int) -> int:
    if value.__class__ is not int:
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError):
            return 0
    return value if -limit < value < limit else 0

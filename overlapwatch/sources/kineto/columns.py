"""Events -> columns: what ran on devices, what the host called, what it annotated.

In: blocks of decoded events. Out: one numpy array for each of the three, and the names that their ids
stand for. Nothing is judged here but the form: an event without a time, or with a negative length, is
counted by its reason and left out. It does not know kernels from collectives.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import DEVICE_BACKENDS, HOST_BACKENDS, Calls
from overlapwatch.sources.kineto.events import NO_ARGS, Event, Other
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
    """Texts and their numbers, from 1. `ids` may be looked up directly: it holds what was seen."""

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

    def numbers(self, texts: list[Any]) -> list[int]:
        """Return the number of each text."""
        known = self.ids.get
        try:
            return [known(text) or self[text] for text in texts]
        except TypeError:
            return [self[text] for text in texts]

    def texts(self) -> list[str]:
        """Return the texts in the order of their numbers, which begin with 1."""
        return [text if isinstance(text, str) else str(text) for text in self.ids]


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
    """Takes blocks of events; gives arrays.

    Attributes:
        names: of kernels, operators and annotations.
        threads: (process, thread) as numbers.
        processes: as the file writes them.
        calls: what the arguments of collectives told.
        skipped: (what, why) -> how many.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Names()
        self.processes = Names()
        self.calls = Calls()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self._rows = Names()  # (process, thread) as the file writes them
        self._threads: list[int] = []  # the thread of each
        self._named: list[int] = []
        self._looked_at = 0
        self._device: list[NDArray[np.void]] = []
        self._host: list[NDArray[np.void]] = []
        self._runtime: list[NDArray[np.void]] = []
        self._host_end: int | None = None

    def arrays(self, base_ns: int) -> Arrays:
        """Return all that was taken, with times counted from `base_ns`. Called once, at the end."""
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

    def add(self, events: Iterable[Event | Other]) -> None:
        """Take one block of events."""
        device: list[Event] = []
        device_what: list[int] = []
        runtime: list[Event] = []
        host: list[Event] = []
        host_what: list[int] = []
        known = CATEGORIES
        for event in events:
            if event.__class__ is not Event:
                continue
            try:
                what = known[event.cat]
            except (KeyError, TypeError):
                other = _what(event.cat)
                if other is None:
                    continue
                what = other
            if what <= 3:  # What.DEVICE_RANGE, the last of a device
                device.append(event)
                device_what.append(what)
            elif what == 4:  # What.RUNTIME
                runtime.append(event)
            else:
                host.append(event)
                host_what.append(what)
        if device:
            self._add_device(device, device_what)
        if runtime:
            self._add_runtime(runtime)
        if host:
            self._add_host(host, host_what)

    def _add_device(self, events: list[Event], what: list[int]) -> None:
        rows = np.zeros(len(events), DEVICE)
        rows["start"], rows["end"], good = self._times(events, "device events")
        args = [event.args or NO_ARGS for event in events]
        calls = self.calls
        rows["what"] = what
        rows["name"] = self.names.numbers([event.name for event in events])
        rows["device"] = _numbers(
            [
                event.pid if one.device is None else one.device
                for one, event in zip(args, events, strict=True)
            ],
            2**31 - 1,
        )
        rows["stream"] = _numbers(
            [
                _stream(event.tid) if one.stream is None else one.stream
                for one, event in zip(args, events, strict=True)
            ]
        )
        rows["correlation"] = _numbers([one.correlation for one in args])
        rows["external"] = _externals(args)
        rows["graph"] = [bool(one.graph_node) for one in args]
        rows["call"] = [-1 if one.collective is None else calls.read(one) for one in args]
        self._device.append(rows[good])

    def _add_runtime(self, events: list[Event]) -> None:
        rows = np.zeros(len(events), RUNTIME)
        start, end, good = self._times(events, "host events")
        rows["start"] = start
        rows["thread"] = self._threads_of(events)
        rows["process"] = self.processes.numbers([event.pid for event in events])
        rows["correlation"] = _numbers([(event.args or NO_ARGS).correlation for event in events])
        self._reach(end[good])
        self._runtime.append(rows[good])

    def _add_host(self, events: list[Event], what: list[int]) -> None:
        rows = np.zeros(len(events), HOST)
        rows["start"], rows["end"], good = self._times(events, "host events")
        rows["what"] = what
        rows["name"] = self.names.numbers([event.name for event in events])
        rows["thread"] = self._threads_of(events)
        rows["call"] = -1
        for index in np.flatnonzero(np.isin(rows["name"], self._collectives())).tolist():
            event = events[index]
            args = event.args or NO_ARGS
            external = args.external if args.external is not None else args.external_old
            rows["external"][index] = _number(external)
            if args.collective is not None:
                rows["call"][index] = self.calls.read(args)
            else:
                rows["call"][index] = self.calls.read_named(event.name, args)
        self._reach(rows["end"][good])
        self._host.append(rows[good])

    def _reach(self, end: I64) -> None:
        if len(end):
            last = int(end.max())
            self._host_end = last if self._host_end is None else max(self._host_end, last)

    def _threads_of(self, events: list[Event]) -> list[int]:
        """Return the number of each event's thread, whether its ids are numbers or texts."""
        seen = self._rows.numbers([(event.pid, event.tid) for event in events])
        new = list(self._rows.ids)[len(self._threads) :]
        self._threads += [
            self.threads[_key(one[0]), _key(one[1])]
            if isinstance(one, tuple)
            else self.threads[one]
            for one in new
        ]
        return [self._threads[number - 1] for number in seen]

    def _collectives(self) -> list[int]:
        """Return the numbers of names that calls of collectives have."""
        new = list(self.names.ids)[self._looked_at :]
        for number, name in enumerate(new, self._looked_at + 1):
            if name == "record_param_comms" or (
                isinstance(name, str) and name.startswith(HOST_BACKENDS + DEVICE_BACKENDS)
            ):
                self._named.append(number)
        self._looked_at = len(self.names.ids)
        return self._named

    def _times(self, events: list[Event], what: str) -> tuple[I64, I64, NDArray[np.bool_]]:
        """Return start and end of each event, ns, and whether it has them; count those without."""
        start, known = ns_array([event.ts for event in events])
        length, measured = ns_array([event.dur for event in events])
        known &= measured
        positive = known & (length >= 0)
        self._skip(what, NOT_A_TIME, int((~known).sum()))
        self._skip(what, NEGATIVE, int((known & ~positive).sum()))
        return start, start + length, positive

    def _skip(self, what: str, why: str, count: int) -> None:
        if count:
            self.skipped[what, why] += count


def _joined(parts: list[NDArray[np.void]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the parts as one array, and let go of them."""
    rows = np.concatenate([np.empty(0, dtype), *parts])
    parts.clear()
    return rows


def _what(category: Any) -> What | None:
    """Return what a category is that is not spelled as in the table."""
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
    try:  # nearly always all are
        numbers = np.array(values, np.int64).reshape(len(values))  # not of lists
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([_number(value) for value in values], np.int64)
    return np.where((numbers > -limit) & (numbers < limit), numbers, 0)


def _number(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if abs(number) < 2**62 else 0

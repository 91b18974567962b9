"""A chunk of events -> a Part: arrays of what ran on devices, what the host called, what it annotated.

In: a chunk as text. Out: its rows, with ids of its own for names, threads and calls. It depends on the
chunk alone, so that any process can do it. Nothing is judged here but the form: an event that is no
JSON, without a time, or with a negative length is counted by its reason and left out. It does not know
kernels from collectives.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.kineto.calls import DEVICE_BACKENDS, HOST_BACKENDS, Calls
from overlapwatch.sources.kineto.columns import (
    CATEGORIES,
    DEVICE,
    HOST,
    RUNTIME,
    Part,
    What,
)
from overlapwatch.sources.kineto.events import (
    EMPTY,
    AnyArgs,
    Args,
    ArgsReader,
    Event,
    LaunchArgs,
    Other,
    decode,
)
from overlapwatch.sources.kineto.stream import Chunk
from overlapwatch.sources.kineto.times import ns_array
from overlapwatch.timeline.model import I64

NOT_A_TIME = "their time or length is not a number"
NEGATIVE = "their length is negative"

_ALL_ARGS = ArgsReader(Args)
_LAUNCH_ARGS = ArgsReader(LaunchArgs)


def read_part(chunk: Chunk) -> Part:
    """Return what a chunk of a trace holds."""
    events, unreadable, repaired = decode(chunk.text)
    part = _Reading(*_sorted(events))
    return Part(
        device=part.device,
        host=part.host,
        runtime=part.runtime,
        host_end=part.host_end,
        names=part.names,
        threads=part.threads,
        processes=part.processes,
        calls=part.calls.all,
        groups=part.calls.seen,
        skipped=part.skipped,
        unreadable=unreadable,
        # The event that the end of the file tears is never JSON: that is told otherwise.
        repaired=(repaired or part.repaired) and not chunk.torn,
    )


class _Reading:
    """Makes the arrays of one chunk."""

    def __init__(self, device: list[Event], runtime: list[Event], host: list[Event]) -> None:
        self.calls = Calls()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.repaired = False
        self.host_end: int | None = None
        self.names, names = _numbered([event.name for part in (device, host) for event in part])
        self.threads, threads = _threads([*runtime, *host])
        self.processes, processes = _numbered([event.pid for event in runtime])
        self.device = self._of_device(device, names[: len(device)])
        self.runtime = self._of_runtime(runtime, threads[: len(runtime)], processes)
        self.host = self._of_host(host, names[len(device) :], threads[len(runtime) :])

    def _of_device(self, events: list[Event], names: list[int]) -> NDArray[np.void]:
        rows = np.zeros(len(events), DEVICE)
        rows["start"], rows["end"], good = self._times(events, "device events")
        args = self._args(_ALL_ARGS, events)
        calls = self.calls
        rows["what"] = [_what(event.cat) for event in events]
        rows["name"] = names
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
        rows["external"] = _numbers([_external(one) for one in args])
        rows["graph"] = [bool(one.graph_node) for one in args]
        rows["shape"] = [
            0 if one.grid is EMPTY else crc32(one.block, crc32(one.grid)) for one in args
        ]
        rows["call"] = [-1 if one.collective is None else calls.read(one) for one in args]
        return rows[good]

    def _of_runtime(
        self, events: list[Event], threads: NDArray[np.int64], processes: list[int]
    ) -> NDArray[np.void]:
        rows = np.zeros(len(events), RUNTIME)
        start, end, good = self._times(events, "host events")
        rows["start"] = start
        rows["thread"] = threads
        rows["process"] = processes
        rows["correlation"] = _numbers(
            [one.correlation for one in self._args(_LAUNCH_ARGS, events)]
        )
        self._reach(end[good])
        return rows[good]

    def _of_host(
        self, events: list[Event], names: list[int], threads: NDArray[np.int64]
    ) -> NDArray[np.void]:
        rows = np.zeros(len(events), HOST)
        rows["start"], rows["end"], good = self._times(events, "host events")
        rows["what"] = [_what(event.cat) for event in events]
        rows["name"] = names
        rows["thread"] = threads
        rows["call"] = -1
        collective = np.array([_is_collective(name) for name in self.names], np.bool_)
        called = np.flatnonzero(collective[rows["name"] - 1]).tolist() if len(rows) else []
        args = self._args(_ALL_ARGS, [events[index] for index in called])
        for index, one in zip(called, args, strict=True):
            rows["external"][index] = _number(_external(one))
            if one.collective is not None:
                rows["call"][index] = self.calls.read(one)
            else:
                rows["call"][index] = self.calls.read_named(events[index].name, one)
        self._reach(rows["end"][good])
        return rows[good]

    def _args(self, reader: ArgsReader[AnyArgs], events: list[Event]) -> list[AnyArgs]:
        args, repaired = reader.read([event.args for event in events])
        self.repaired |= repaired
        return args

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

    def _reach(self, end: I64) -> None:
        if len(end):
            last = int(end.max())
            self.host_end = last if self.host_end is None else max(self.host_end, last)


def _sorted(events: list[Event | Other]) -> tuple[list[Event], list[Event], list[Event]]:
    """Return the spans of devices, of the runtime and of the host; what else there is is left out."""
    device: list[Event] = []
    runtime: list[Event] = []
    host: list[Event] = []
    put = _Put(device, runtime, host)
    for event in events:
        if event.__class__ is Event:  # half the time of isinstance
            category = event.cat
            # A list or an object where a category belongs is none.
            put[category if category.__class__ is str else ""](event)
    return device, runtime, host


class _Put(dict[str, Callable[[Event], object]]):
    """Category -> what puts an event of it where it belongs; found out when one is met first."""

    def __init__(self, device: list[Event], runtime: list[Event], host: list[Event]) -> None:
        super().__init__()
        self._lists = device, runtime, host

    def __missing__(self, category: str) -> Callable[[Event], object]:
        what = _what(category)
        device, runtime, host = self._lists
        if what < 0:
            found: Callable[[Event], object] = _ignore
        elif what == What.RUNTIME:
            found = runtime.append
        else:
            found = device.append if what < What.RUNTIME else host.append
        self[category] = found
        return found


def _ignore(event: Event) -> None:
    pass


@cache
def _what(category: str) -> int:
    """Return the What of a category; -1 for what is not looked at."""
    return int(CATEGORIES.get(category, CATEGORIES.get(category.lower(), -1)))


def _numbered(values: list[Any]) -> tuple[list[Hashable], list[int]]:
    """Return the different values as they first occur, and of each value its number, from 1."""
    try:
        different = dict.fromkeys(values)
    except TypeError:  # a list or an object where a name belongs
        values = [_hashable(value) for value in values]
        different = dict.fromkeys(values)
    numbers = dict(zip(different, range(1, len(different) + 1), strict=True))
    return list(different), list(map(numbers.__getitem__, values))


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return str(value)
    return value  # type: ignore[no-any-return]


def _threads(events: list[Event]) -> tuple[list[Hashable], NDArray[np.int64]]:
    """Return the threads, and the number of each event's, whether its ids are numbers or texts."""
    pids, pid = _numbered([event.pid for event in events])
    tids, tid = _numbered([event.tid for event in events])
    # One number for each pair: tuples of so many events would take longer than all else here.
    pair = np.array(pid, np.int64) * (len(tids) + 1) + np.array(tid, np.int64)
    _, first, place = np.unique(pair, return_index=True, return_inverse=True)
    order = np.argsort(first)
    threads, numbers = _numbered(
        [
            (_key(pids[pid[index] - 1]), _key(tids[tid[index] - 1]))
            for index in first[order].tolist()
        ]
    )
    by_place = np.zeros(len(first), np.int64)
    by_place[order] = numbers
    return threads, by_place[place]


def _key(value: Any) -> Hashable:
    """Return a process or thread as one value: some files write 12, others "12"."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else str(value)


def _is_collective(name: Any) -> bool:
    """Say whether calls of collectives have this name."""
    return name == "record_param_comms" or (
        isinstance(name, str) and name.startswith(HOST_BACKENDS + DEVICE_BACKENDS)
    )


def _stream(thread: Any) -> Any:
    """Return the stream that the row of a trace viewer is named after: 7, "7", "stream 7"."""
    return thread.removeprefix("stream ") if isinstance(thread, str) else thread


def _external(args: Args) -> Any:
    """Return the id of the operator that an event belongs to; 0 without one."""
    found = args.external if args.external is not None else args.external_old
    return 0 if found is None else found


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

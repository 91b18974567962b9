"""The frames of an `.owlog`: their types, their bytes, and the checks on the way in.

In: one frame, as a frozen dataclass. Out: its bytes, or the reverse. A file is `MAGIC` and then
frames; a frame is

    u32 length of the payload | u32 CRC-32 of the payload | payload = msgpack [type, ...]

with little-endian numbers. A payload begins with the msgpack head of a short array and a small type
number, which is what a reader that lost its way looks for. Every length and count is bounded before
anything is allocated. docs/owlog.md has the fields; a change there and here is one change.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from struct import Struct
from typing import Any, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from overlapwatch.vocabulary import GRADIENT_READY, RECORD, SUMMARY, Name, NameKind

MAGIC = b"\x89OWLOG\r\n"
MAJOR, MINOR = 1, 0
FRAME_HEAD = Struct("<II")
MAX_FRAME_BYTES = 64 << 20
MAX_ITEMS = 1 << 14
MAX_TEXT = 1 << 14
"""Characters that are kept of a text; one is at most 8 bytes."""


class FrameError(ValueError):
    """The payload is not what its type promises; the text says how."""


class NewerFormatError(FrameError):
    """The log was written by a newer major version."""

    def __init__(self, major: int) -> None:
        super().__init__(
            f"written by log format {major}; this overlapwatch reads {MAJOR}: upgrade overlapwatch"
        )


class FrameType(IntEnum):
    """The first item of every payload."""

    HEADER = 1
    NAMES = 2
    EVENTS = 3
    GRADIENTS = 4
    SUMMARIES = 5
    COUNTERS = 6
    CLOCK = 7
    NOTE = 8
    END = 9


@dataclass(frozen=True, slots=True)
class ClockPair:
    """The rank's clock and the wall clock, read together; two pairs far apart show the drift."""

    monotonic_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote the log, of which run, with what.

    Args:
        rank, world, local_rank, host, pid, run_id: the process.
        created: both clocks when the log was opened.
        clock: what the record times are read from: "perf_counter", ...
        mode: how the model is watched.
        device: "cpu", or the accelerator's name.
        ring: path of the ring on that host, "" when it is private memory.
        versions: of overlapwatch, python, torch, NCCL.
        settings: the effective settings, as text.
        environment: the variables that decide overlap, from an allowlist of the writer's caller.
    """

    rank: int
    world: int
    local_rank: int
    host: str
    pid: int
    run_id: str
    created: ClockPair
    clock: str = "perf_counter"
    mode: str = ""
    device: str = ""
    ring: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Names:
    """What ids stand for. GROUP names have a numbering of their own."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Records of steps `first_step` to `last_step` (inclusive), usually one, and its StepFlags."""

    first_step: int
    last_step: int
    flags: int
    records: NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """GRADIENT_READY array."""

    rows: NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Summaries:
    """SUMMARY array."""

    rows: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Counters:
    """What the recorder counted about itself up to `at_ns` (rank's clock). The last one counts."""

    at_ns: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Clock:
    """Another reading of both clocks."""

    pair: ClockPair


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence for the reader, at `at_ns` on the rank's clock."""

    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The log was closed in order: why, when, and the last counters."""

    reason: str
    at_ns: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A frame of a type that a newer minor version added; its content is passed over."""

    type: int


Frame: TypeAlias = (
    Header | Names | Events | Gradients | Summaries | Counters | Clock | Note | End | UnknownFrame
)


def encode(frame: Frame) -> bytes:
    """Return the whole frame: length, CRC, payload.

    Raises:
        ValueError: it is an UnknownFrame, or longer than `MAX_FRAME_BYTES`.
    """
    payload: bytes = msgpack.packb(_items(frame), unicode_errors="backslashreplace")
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(payload)} bytes is too long")
    return FRAME_HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def decode(payload: bytes) -> Frame:
    """Return the frame in a payload whose CRC has been checked.

    Items behind those known here were added by a newer minor version and are passed over.

    Raises:
        NewerFormatError: it is the header of a newer major version.
        FrameError: something else is wrong with it.
    """
    try:
        items = msgpack.unpackb(
            payload,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_str_len=8 * MAX_TEXT,
            max_bin_len=MAX_FRAME_BYTES,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise FrameError(f"not valid msgpack ({type(error).__name__})") from None
    if not isinstance(items, list) or not items:
        raise FrameError("the payload is not an array")
    kind = _int(items[0], 0, 127)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return UnknownFrame(kind)
    try:
        return decoder(items[1:])
    except IndexError:
        raise FrameError(f"{FrameType(kind).name} frame with too few items") from None


def whole_prefix(frames: bytes, length: int) -> int:
    """Return how many of the first `length` bytes of consecutive frames are whole frames."""
    end = 0
    while end + FRAME_HEAD.size <= length:
        following = end + FRAME_HEAD.size + FRAME_HEAD.unpack_from(frames, end)[0]
        if following > length:
            break
        end = following
    return end


def _items(frame: Frame) -> list[Any]:  # noqa: PLR0911 - one for each type
    match frame:
        case Header():
            return [FrameType.HEADER, MAJOR, MINOR, _header_fields(frame)]
        case Names():
            return [FrameType.NAMES, [_name_items(name) for name in frame.names]]
        case Events():
            span = (int(frame.first_step), int(frame.last_step), int(frame.flags))
            return [FrameType.EVENTS, *span, frame.records.tobytes()]
        case Gradients():
            return [FrameType.GRADIENTS, frame.rows.tobytes()]
        case Summaries():
            return [FrameType.SUMMARIES, frame.rows.tobytes()]
        case Counters():
            return [FrameType.COUNTERS, frame.at_ns, _plain_counts(frame.counts)]
        case Clock():
            return [FrameType.CLOCK, frame.pair.monotonic_ns, frame.pair.wall_ns]
        case Note():
            return [FrameType.NOTE, frame.at_ns, frame.text[:MAX_TEXT]]
        case End():
            counts = _plain_counts(frame.counts)
            return [FrameType.END, frame.reason[:MAX_TEXT], frame.at_ns, counts]
        case UnknownFrame():
            raise ValueError(f"a frame of type {frame.type} cannot be written")


def _header_fields(header: Header) -> dict[str, Any]:
    values = {spec.name: getattr(header, spec.name) for spec in fields(header)}
    created = [header.created.monotonic_ns, header.created.wall_ns]
    texts = {
        key: {name: text[:MAX_TEXT] for name, text in values[key].items()}
        for key in ("versions", "settings", "environment")
    }
    return values | texts | {"created": created}


def _name_items(name: Name) -> list[Any]:
    members = np.asarray(name.members, "<u4").tobytes()
    text = name.text[:MAX_TEXT]
    return [name.id, name.kind, text, members, name.elements, name.bytes, name.dtype]


def _plain_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: int(count) for name, count in counts.items()}


def _decode_header(items: list[Any]) -> Header:
    major = _int(items[0], 0, 1 << 16)
    if major > MAJOR:
        raise NewerFormatError(major)
    _int(items[1], 0, 1 << 16)
    values = items[2]
    if not isinstance(values, dict):
        raise FrameError("the header's fields are not a map")
    try:
        created = values["created"]
        return Header(
            rank=_int(values["rank"], 0, 1 << 31),
            world=_int(values["world"], 1, 1 << 31),
            local_rank=_int(values["local_rank"], 0, 1 << 31),
            host=_text(values["host"]),
            pid=_int(values["pid"], 0, 1 << 31),
            run_id=_text(values["run_id"]),
            created=ClockPair(_ns(created[0]), _ns(created[1])),
            clock=_text(values["clock"]),
            mode=_text(values["mode"]),
            device=_text(values["device"]),
            ring=_text(values["ring"]),
            versions=_texts(values["versions"]),
            settings=_texts(values["settings"]),
            environment=_texts(values["environment"]),
        )
    except (KeyError, TypeError) as error:
        raise FrameError(f"the header lacks {error}") from None


def _decode_names(items: list[Any]) -> Names:
    if not isinstance(items[0], list):
        raise FrameError("the names are not an array")
    return Names(tuple(_name(entry) for entry in items[0]))


def _name(entry: Any) -> Name:
    if not isinstance(entry, list):
        raise FrameError("a name is not an array")
    kind = _int(entry[1], 0, 255)
    if kind not in set(NameKind):
        raise FrameError(f"unknown kind of name {kind}")
    return Name(
        id=_int(entry[0], 0, (1 << 32) - 1),
        kind=NameKind(kind),
        text=_text(entry[2]),
        members=tuple(_rows(entry[3], np.dtype("<u4")).tolist()),
        elements=_ns(entry[4]),
        bytes=_ns(entry[5]),
        dtype=_text(entry[6]),
    )


def _decode_events(items: list[Any]) -> Events:
    first, last = (_int(items[place], 0, (1 << 32) - 1) for place in (0, 1))
    if last < first:
        raise FrameError(f"events of steps {first} to {last}")
    return Events(first, last, _int(items[2], 0, (1 << 32) - 1), _rows(items[3], RECORD))


_DECODERS: Mapping[int, Callable[[list[Any]], Frame]] = {
    FrameType.HEADER: _decode_header,
    FrameType.NAMES: _decode_names,
    FrameType.EVENTS: _decode_events,
    FrameType.GRADIENTS: lambda items: Gradients(_rows(items[0], GRADIENT_READY)),
    FrameType.SUMMARIES: lambda items: Summaries(_rows(items[0], SUMMARY)),
    FrameType.COUNTERS: lambda items: Counters(_ns(items[0]), _counts(items[1])),
    FrameType.CLOCK: lambda items: Clock(ClockPair(_ns(items[0]), _ns(items[1]))),
    FrameType.NOTE: lambda items: Note(_ns(items[0]), _text(items[1])),
    FrameType.END: lambda items: End(_text(items[0]), _ns(items[1]), _counts(items[2])),
}


def _int(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise FrameError(f"a number between {low} and {high} was expected")
    return value


def _ns(value: Any) -> int:
    return _int(value, -(1 << 63), (1 << 63) - 1)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FrameError("a text was expected")
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise FrameError("a map was expected")
    return {_text(key): _text(text) for key, text in value.items()}


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise FrameError("a map was expected")
    return {_text(key): _ns(count) for key, count in value.items()}


def _rows(value: Any, dtype: "np.dtype[Any]") -> NDArray[Any]:
    if not isinstance(value, bytes) or len(value) % dtype.itemsize:
        raise FrameError(f"rows of {dtype.itemsize} bytes were expected")
    return np.frombuffer(value, dtype)

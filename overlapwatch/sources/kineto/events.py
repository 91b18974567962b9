"""Bytes of trace events -> decoded events, repaired where JSON does not allow what a profiler wrote.

In: a chunk: the inside of a JSON array of events, without its brackets. Out: the events, and how many
could not be read. Only the fields that the reader needs are decoded; times and arguments stay text,
since most arguments are never looked at: `ArgsReader` reads those that are. A chunk that is not JSON is
repaired (bytes that are not UTF-8, control characters, `inf` and `nan`) and decoded again; where that
fails too, its events are decoded one by one and the bad ones counted.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, Union

import msgspec

EMPTY = msgspec.Raw(b"")
NULL = msgspec.Raw(b"null")


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are read. Anything may stand in them."""

    correlation: Any = 0
    external: Any = msgspec.field(name="External id", default=None)
    external_old: Any = msgspec.field(name="external id", default=None)
    device: Any = None
    stream: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = None
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_id: Any = msgspec.field(name="Process Group ID", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    rank_start: Any = msgspec.field(name="Global rank start", default=None)
    rank_stride: Any = msgspec.field(name="Global rank stride", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    source: Any = msgspec.field(name="Src Rank", default=None)
    destination: Any = msgspec.field(name="Dst Rank", default=None)
    root: Any = msgspec.field(name="Root rank", default=None)
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    grid: msgspec.Raw = EMPTY
    block: msgspec.Raw = EMPTY


class LaunchArgs(msgspec.Struct, gc=False):
    """The one argument of a runtime call that is read; 0 = none."""

    correlation: Any = 0


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A span of the trace; `ts` and `dur` (in µs) and `args` are the text of the file."""

    cat: Any = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = EMPTY
    dur: msgspec.Raw = EMPTY
    args: msgspec.Raw = NULL


class Other(msgspec.Struct, gc=False):
    """An event that is no span: an arrow, an instant, a counter, a name of a row."""


def _other(tag: str) -> type[msgspec.Struct]:
    return msgspec.defstruct(f"Other_{ord(tag)}", [], bases=(Other,), tag_field="ph", tag=tag)


NO_ARGS = Args()

_SPAN = "X"
_OTHERS = tuple(_other(tag) for tag in "sftMiIBEbenCPNODRcvSTpF()")
_ANY = Event | Union[_OTHERS]  # type: ignore[valid-type]  # noqa: UP007 - of a computed tuple
_DECODER: msgspec.json.Decoder[list[Event | Other]] = msgspec.json.Decoder(list[_ANY])
_ONE: msgspec.json.Decoder[Event | Other] = msgspec.json.Decoder(_ANY)
_FAILURES = (msgspec.MsgspecError, ValueError, RecursionError)

# `"memory bandwidth (GB/s)": inf` is written by several releases of PyTorch. The quote before the
# colon ends a key: inside a string it would be escaped.
_NOT_A_NUMBER = re.compile(
    rb'(?<!\\)("\s*:\s*)[+-]?(?:inf(?:inity)?|nan)\b(?:\([^)]*\))?', re.IGNORECASE
)
_CONTROL = bytes(range(9)) + b"\x0b\x0c" + bytes(range(14, 32)) + b"\x7f"
_SPACES = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_BREAKS = bytes.maketrans(b"\t\n\r", b"   ")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"ph"\s*:)')
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|"', re.DOTALL)
_OPEN_STRING = b'"'
"""A quote that none follows: what stands after it is in a string whose end is not in the text."""


def decode(chunk: bytes | memoryview) -> tuple[list[Event | Other], int, bool]:
    """Return the events of a chunk, how many could not be read, and whether it had to be repaired."""
    body = b"".join((b"[", chunk, b"]"))
    try:
        return _DECODER.decode(body), 0, False
    except _FAILURES:
        pass
    body = repaired(body)
    try:
        return _DECODER.decode(body), 0, True
    except _FAILURES:
        pass
    events: list[Event | Other] = []
    bad = 0
    for piece in _pieces(body[1:-1]):
        event = _decode_one(piece)
        inside = [] if event is not None else [_decode_one(one) for one in objects(piece)]
        found = [one for one in (event, *inside) if one is not None]
        events += found
        bad += max(len(inside), 1) - len(found)
    return events, bad, True


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield the events of an array's inside, whole or damaged.

    They are cut where one ends and the next begins with `"ph"`, which no string can contain, so that
    a quote that is missing in one event does not swallow the others. A piece may hold several events
    where they do not begin so.
    """
    pieces = _BETWEEN.split(text)
    for place, piece in enumerate(pieces, 1):
        whole = piece if place == len(pieces) else piece + b"}"
        if whole.strip():
            yield whole.strip(b", \t\r\n")


def repaired(text: bytes) -> bytes:
    """Return the text as JSON allows it: UTF-8, no control characters, `null` for what is no number."""
    text = text.translate(_SPACES)
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
    text = _NOT_A_NUMBER.sub(rb"\1null", text)
    return _STRING.sub(lambda match: match[0].translate(_BREAKS), text)


def objects(text: bytes) -> Iterator[bytes]:
    """Yield the complete objects at the top of an array's inside, in order.

    A bracket inside a string is none. Text that no bracket closes yields nothing.
    """
    depth, start = 0, -1
    for match in _MARKS.finditer(text):
        mark = match[0]
        if mark in {b"{", b"["}:
            if depth == 0:
                start = match.start()
            depth += 1
        elif mark in {b"}", b"]"}:
            depth -= 1
            if depth == 0 and start >= 0:
                yield text[start : match.end()]
            depth = max(depth, 0)
        elif mark == _OPEN_STRING:
            return


def end_of_array(text: bytes) -> int:
    """Return where the array ends whose inside begins `text`; -1 where it does not end in it."""
    depth = 0
    for match in _MARKS.finditer(text):
        mark = match[0]
        if mark in {b"{", b"["}:
            depth += 1
        elif mark in {b"}", b"]"}:
            if depth == 0:
                return match.start() if mark == b"]" else -1
            depth -= 1
        elif mark == _OPEN_STRING:
            break
    return -1


def end_of_objects(text: bytes) -> int:
    """Return where the last complete object at the top of an array's inside ends; -1 without one."""
    depth, end = 0, -1
    for match in _MARKS.finditer(text):
        mark = match[0]
        if mark in {b"{", b"["}:
            depth += 1
        elif mark in {b"}", b"]"}:
            depth -= 1
            if depth < 0:
                break
            if depth == 0:
                end = match.end()
        elif mark == _OPEN_STRING:
            break
    return end


def _decode_one(text: bytes) -> Event | Other | None:
    try:
        return _ONE.decode(text)
    except _FAILURES:
        pass
    try:  # the standard library takes what is left: lone surrogates, doubled commas it does not
        plain = json.loads(text, strict=False, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict):
        return None
    if plain.get("ph") != _SPAN:
        return Other()
    return Event(
        cat=plain.get("cat"),
        name=plain.get("name", ""),
        pid=plain.get("pid"),
        tid=plain.get("tid"),
        ts=_raw(plain.get("ts")),
        dur=_raw(plain.get("dur")),
        args=msgspec.Raw(json.dumps(plain.get("args")).encode()),
    )


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(value.encode("utf-8", "replace")) if isinstance(value, str) else EMPTY


AnyArgs = TypeVar("AnyArgs", bound=msgspec.Struct)


class ArgsReader(Generic[AnyArgs]):
    """Text of the arguments of events -> those of them that a struct names."""

    def __init__(self, struct: type[AnyArgs]) -> None:
        self._struct = struct
        self._none = struct()
        self._many: msgspec.json.Decoder[list[AnyArgs | None]] = msgspec.json.Decoder(
            list[struct | None]  # type: ignore[valid-type]
        )
        self._one: msgspec.json.Decoder[AnyArgs | None] = msgspec.json.Decoder(struct | None)
        self._fields = {
            one.encode_name: one.name
            for one in msgspec.structs.fields(struct)
            if one.type is not msgspec.Raw
        }

    def read(self, texts: Sequence[msgspec.Raw]) -> tuple[list[AnyArgs], bool]:
        """Return the arguments of each event, and whether any had to be repaired."""
        none = self._none
        try:
            found = self._many.decode(b"".join((b"[", b",".join(texts), b"]")))
        except _FAILURES:
            return [self._damaged(bytes(text)) or none for text in texts], True
        return [args or none for args in found], False

    def _damaged(self, text: bytes) -> AnyArgs | None:
        with suppress(*_FAILURES):
            return self._one.decode(text)
        with suppress(*_FAILURES):
            return self._one.decode(repaired(text))
        try:
            plain = json.loads(repaired(text), strict=False, parse_float=str, parse_int=str)
        except (ValueError, RecursionError):
            return None
        if not isinstance(plain, dict):
            return None
        known = self._fields
        return self._struct(**{known[key]: plain[key] for key in plain.keys() & known.keys()})

"""PyTorch Flight Recorder dumps -> what a rank issued. For the check of the order, and for nothing else.

In: a file that `TORCH_FR_DUMP_TEMP_FILE` names (NCCL's watchdog writes it when a job hangs), or the
bytes of `torch._C._distributed_c10d._dump_fr_trace()`, or the text of `_dump_fr_trace_json()`. Out:
an `Issued`. There is no `Recording`: on gloo the recorder never learns when anything started or
finished, so no time of it is used.

A dump is a pickle, which can run code. It is read only when every instruction in it builds a plain
value (numbers, texts, lists, dicts); nothing is ever imported or called for it.

| entry                       | becomes                                                             |
|-----------------------------|---------------------------------------------------------------------|
| process_group ("1", "pair") | the group "pair (1)"; members where pg_config has them (NCCL)       |
| collective_seq_id           | the place in the group's order                                      |
| profiling_name              | the kind: "nccl:_all_gather_base" is an AllGather                   |
| input_sizes, output_sizes   | elements, of the side on which all ranks say the same               |
| several with one number     | one coalesced operation                                             |
| is_p2p                      | counted only                                                        |
"""

import io
import pickle
import pickletools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from overlapwatch.errors import InputError
from overlapwatch.timeline.issued import (
    ANY_SIZE,
    ISSUED,
    GroupKey,
    Issued,
    IssuedGroup,
    code_of,
    in_order,
    texts_of,
)
from overlapwatch.vocabulary import CollectiveKind

MAX_BYTES = 1 << 30
NEWEST_MAJOR = 2
"""Major version of the dump's own format that is known here."""

_HEAD_BYTES = 1 << 12
_PICKLE = b"\x80"
_SIGNS = (b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version", b"collective_seq_id")
_JSON_SIGNS = (b'"pg_status"', b'"comm_lib_version"', b'"collective_seq_id"')
_SIGNS_OF_A_TRACE = (b'"traceEvents"', b'"distributedInfo"', b'"schemaVersion"')
_MAX_TEXT = 120
_LAST_KNOWN = (1 << 62) - 1

_PLAIN_WORDS = """
PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1
LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE
BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1
TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET GET BINGET LONG_BINGET
PUT BINPUT LONG_BINPUT MEMOIZE
"""
_PLAIN = frozenset(_PLAIN_WORDS.split())
"""Instructions of a pickle that only build plain values."""
_REMEMBERS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})

_KINDS = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "gather": CollectiveKind.GATHER,
    "scatter": CollectiveKind.SCATTER,
    "barrier": CollectiveKind.BARRIER,
    "allreducebarrier": CollectiveKind.BARRIER,
}
_VARIANT = re.compile(r"(_base|_into|_tensor|_single|_coalesced|_sparse|_)+")
_OUTPUT_AGREES = (CollectiveKind.ALL_GATHER, CollectiveKind.SCATTER)
_FREE = (CollectiveKind.ALL_TO_ALL, CollectiveKind.BARRIER, CollectiveKind.UNKNOWN)


def is_flight_recorder(path: Path) -> bool:
    """Say whether the file looks like a dump: by its beginning, not by its name."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    if head[:1] == _PICKLE:
        return any(sign in head for sign in _SIGNS)
    # A profiler's trace of the same job has a pg_config too.
    trace = any(sign in head for sign in _SIGNS_OF_A_TRACE)
    return head.lstrip()[:1] == b"{" and not trace and any(one in head for one in _JSON_SIGNS)


def open_flight_recorder(path: Path) -> Issued:
    """Read one rank's dump.

    Raises:
        InputError: it cannot be read, is no dump, or holds more than plain values.

    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path}: {size:,} bytes are too many for a Flight Recorder dump")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    dump = _from_pickle(path, data) if data[:1] == _PICKLE else _from_json(path, data)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise InputError(f"{path}: not a Flight Recorder dump")
    if not any(sign.decode() in dump for sign in (*_SIGNS, b"entries")):
        raise InputError(f"{path}: not a Flight Recorder dump: it has neither entries nor groups")
    _check_version(path, dump.get("version"))
    return _issued(path, dump)


# -- bytes -> plain values -----------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain values. The instructions were looked at before; this is the second lock."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")


def _from_pickle(path: Path, data: bytes) -> Any:
    try:
        _refuse_code(path, data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, ValueError, TypeError, LookupError, EOFError) as error:
        raise InputError(f"{path}: the dump is damaged or cut short ({error})") from None
    except (AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: the dump is damaged ({type(error).__name__})") from None


def _refuse_code(path: Path, data: bytes) -> None:
    """Raise InputError unless every instruction of the pickle builds a plain value."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in _PLAIN:
            raise InputError(
                f"{path}: refused: a Flight Recorder dump holds plain values only, and this "
                f"pickle would run code ({opcode.name})"
            )
        # A made-up place in the memo would have gigabytes allocated for it.
        if opcode.name in _REMEMBERS and not 0 <= int(argument or 0) <= len(data):
            raise InputError(f"{path}: refused: damaged, or made to exhaust the memory")


def _from_json(path: Path, data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: the dump is damaged or cut short ({error})") from None


def _check_version(path: Path, version: object) -> None:
    major = str(version).split(".")[0] if version is not None else "1"
    if major.isdecimal() and len(major) < 9 and int(major) > NEWEST_MAJOR:
        raise InputError(
            f"{path}: written by Flight Recorder format {major}; this overlapwatch reads up to "
            f"{NEWEST_MAJOR}: upgrade overlapwatch"
        )


# -- plain values -> what was issued --------------------------------------------------------------


def _issued(path: Path, dump: Mapping[str, Any]) -> Issued:
    members = _members(dump.get("pg_config"))
    by_group: dict[GroupKey, dict[int, list[Mapping[str, Any]]]] = defaultdict(dict)
    point_to_point = unusable = 0
    entries: Sequence[Any] = dump.get("entries", [])
    for entry in entries:
        number = _number(entry) if isinstance(entry, dict) else None
        if number is None:
            unusable += 1
        elif entry.get("is_p2p") is True:
            point_to_point += 1
        else:
            by_group[_group(entry, members)].setdefault(number, []).append(entry)
    texts: list[str] = []
    groups = {key: _rows(numbers, texts) for key, numbers in by_group.items()}
    first = entries[0].get("record_id") if entries and isinstance(entries[0], dict) else 0
    notes = []
    if isinstance(first, int) and first > 0:
        notes.append(f"{first:,} earlier entries were overwritten (TORCH_FR_BUFFER_SIZE)")
    if unusable:
        notes.append(f"{unusable:,} entries without a group or a number were left out")
    if not entries:
        notes.append("the dump holds no entries: TORCH_FR_BUFFER_SIZE was not set")
    return Issued(
        rank=_rank_in(path.name),
        path=str(path),
        source="flight recorder",
        state="dump",
        unit="elements",
        groups=groups,
        texts=texts_of(texts),
        point_to_point=point_to_point,
        unnumbered=unusable,
        end_unknown="" if entries else "its dump is empty",
        notes=tuple(notes),
    )


def _number(entry: Mapping[str, Any]) -> int | None:
    """Return the place in the group's order; format 1 had it under another name."""
    value = entry.get("collective_seq_id", entry.get("seq_id"))
    usable = type(value) is int and 0 <= value < _LAST_KNOWN
    named = isinstance(entry.get("process_group"), (list, tuple)) or "pg_id" in entry
    return value if usable and named else None


def _group(entry: Mapping[str, Any], members: Mapping[str, tuple[int, ...]]) -> GroupKey:
    named = entry.get("process_group")
    words = (
        [str(word)[:_MAX_TEXT] for word in named[:2]] if isinstance(named, (list, tuple)) else []
    )
    name = words[0] if words else f"{entry.get('pg_id')}"[:_MAX_TEXT]
    described = words[1] if len(words) > 1 else ""
    if described == "default_pg":
        return GroupKey("default", members.get(name, ()))
    plain = not described or described in {"undefined", name}
    return GroupKey(f"group {name}" if plain else f"{described} ({name})", members.get(name, ()))


def _members(config: object) -> dict[str, tuple[int, ...]]:
    """Return the global ranks of the groups that tell them."""
    found = {}
    for name, one in config.items() if isinstance(config, dict) else ():
        told = one.get("ranks") if isinstance(one, dict) else None
        if isinstance(told, (str, list, tuple)):
            ranks = tuple(int(digits) for digits in re.findall(r"\d{1,9}", str(told)))
            if ranks:
                found[str(name)] = ranks
    return found


def _rows(numbers: Mapping[int, list[Mapping[str, Any]]], texts: list[str]) -> IssuedGroup:
    rows = np.zeros(len(numbers), ISSUED)
    for row, (number, entries) in zip(rows, sorted(numbers.items()), strict=True):
        kind, size, dtype, operation = _told(entries)
        texts += [dtype, operation]
        row["sequence"], row["kind"], row["size"] = number, kind, size
        row["dtype"], row["operation"] = code_of(dtype), code_of(operation)
    return in_order(rows, int(rows["sequence"].max()) if len(rows) else None)


def _told(entries: Sequence[Mapping[str, Any]]) -> tuple[CollectiveKind, int, str, str]:
    """Return kind, elements, dtype and operation of what has one number: one entry, or a coalesced batch."""
    if len(entries) == 1:
        kind, operation = _kind(entries[0])
        return kind, _elements(entries[0], kind), _dtypes(entries[0]), operation
    parts: dict[str, int] = {}
    for entry in entries:
        kind, operation = _kind(entry)
        if operation == "coalesced":
            continue  # the batch as a whole, beside its parts
        size = _elements(entry, kind)
        text = (operation or kind.title) + (f" of {size}" if size != ANY_SIZE else "")
        parts[text] = parts.get(text, 0) + 1
    listed = ", ".join(f"{text} ×{count}" for text, count in parts.items())
    return CollectiveKind.UNKNOWN, ANY_SIZE, "", f"coalesced: {listed}"[:_MAX_TEXT]


def _kind(entry: Mapping[str, Any]) -> tuple[CollectiveKind, str]:
    name = str(entry.get("profiling_name", ""))[:_MAX_TEXT].rpartition(":")[2].strip()
    kind = _KINDS.get(_VARIANT.sub("", name))
    return (kind, "") if kind is not None else (CollectiveKind.UNKNOWN, name or "without a name")


def _elements(entry: Mapping[str, Any], kind: CollectiveKind) -> int:
    if kind in _FREE:
        return ANY_SIZE
    sizes = entry.get("output_sizes" if kind in _OUTPUT_AGREES else "input_sizes")
    if not isinstance(sizes, list):
        return ANY_SIZE
    total = 0
    for shape in sizes[: 1 << 16]:
        elements = 1
        for extent in shape[:64] if isinstance(shape, list) else ():
            if type(extent) is not int or not 0 <= extent < 1 << 48:
                return ANY_SIZE
            elements *= extent
        total += elements
    return total if total < _LAST_KNOWN else ANY_SIZE


def _dtypes(entry: Mapping[str, Any]) -> str:
    told = entry.get("input_dtypes") or entry.get("output_dtypes")
    if not isinstance(told, list):
        return ""
    return "+".join(sorted({str(one)[:32] for one in told[: 1 << 16]}))[:_MAX_TEXT]


def _rank_in(name: str) -> int | None:
    """Return the rank that a file's name ends in, as PyTorch names its dumps: `..._rank_12`."""
    match = re.search(r"rank[_-]?(\d{1,9})", name) or re.search(r"(\d{1,9})(?:\.\w+)*$", name)
    return int(match[1]) if match else None

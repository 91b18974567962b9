"""Arguments of a collective -> what was called: kind, process group, bytes.

In: the arguments that `record_param_comms` and, in newer releases, the kernels themselves carry; or
the name `nccl:all_reduce` of the annotation around a call, where a release wrote no arguments. Out:
`Call`s, each once however often it was made, and the process groups as Names. What was read of several
parts of a trace is joined by `take`.

Two sizes are told, both logical: `given` is what the call was handed, by the rule of payloads (an
AllGather its own part, a ReduceScatter what it receives, an AllToAll what goes to one peer), `moved`
is S of the definitions: the larger of input and output.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from overlapwatch.sources.kineto.events import Args
from overlapwatch.timeline.classify import kind_of
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind, Name, NameKind

HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
"""An annotation of theirs spans the collective itself, from launch to finish, not the call."""
DEVICE_BACKENDS = ("nccl:", "rccl:", "hccl:", "xccl:")
"""An annotation of theirs spans the call that enqueues the collective."""

MOST_GROUPS = 65535
"""Numbers of groups have 16 bits."""

_OPENS, _CLOSES = "startcoalesced", "endcoalesced"

_SIZES = {
    1: "byte char bool uint8 int8 unsignedchar signedchar quint8 qint8",
    2: "half bfloat16 short float16 int16 uint16 unsignedshort",
    4: "float int float32 int32 uint32 unsignedint complexhalf",
    8: "double long float64 int64 uint64 longint unsignedlong complexfloat longlong",
    16: "complexdouble",
}
_BYTES = {word: size for size, words in _SIZES.items() for word in words.split()}


@dataclass(frozen=True, slots=True)
class Call:
    """One way of calling a collective.

    Args:
        kind: what it does; UNKNOWN for what is none, such as a wait.
        told: whether arguments said so, rather than the name of an annotation.
        opens, closes: it begins or ends a group of calls that are launched as one.
        group: number of its process group; 0 = not known.
        peer: rank it sends to or receives from, -1 = none.
        given: bytes the call was handed; -1 = not known.
        moved: logical message bytes; 0 = not known.
        sequence: its place in the group's order; 0 = not known.
    """

    kind: CollectiveKind
    told: bool
    opens: bool = False
    closes: bool = False
    group: int = 0
    peer: int = -1
    given: int = NOT_KNOWN
    moved: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, as the first of its calls told it.

    Args:
        key: what the trace calls it.
        text: what a report calls it.
        ranks: its members, where they are listed.
        size: how many they are; 0 = not known.
    """

    key: str
    text: str
    ranks: tuple[int, ...]
    size: int


class Calls:
    """Reads arguments; keeps each different call, and the groups, under a number.

    Attributes:
        all: the calls; a number is an index.
        seen: the groups; the first has number 1.
    """

    def __init__(self) -> None:
        self.all: list[Call] = []
        self.seen: list[Group] = []
        self._numbers: dict[Call, int] = {}
        self._named: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    def read(self, args: Args) -> int:
        """Return the number of the call that these arguments tell."""
        return self._number(self._call(args))

    def read_named(self, name: str, args: Args) -> int:
        """Return the number of the call that an annotation's name tells; -1 when it tells none."""
        if args.dims is not None:
            return self._read_sized(name, _tensor_bytes(args.dims, args.types))
        found = self._named.get(name)
        if found is None:
            found = self._named[name] = self._read_sized(name, None)
        return found

    def take(self, calls: Sequence[Call], groups: Sequence[Group]) -> list[int]:
        """Take what another one read; return the number that each of its calls has here."""
        numbers = [0, *(self._group_number(group) for group in groups)]
        return [
            self._number(
                call
                if numbers[call.group] == call.group
                else replace(call, group=numbers[call.group])
            )
            for call in calls
        ]

    def groups(self, about: Mapping[str, Any]) -> dict[int, Name]:
        """Return the process groups; ranks that an argument abbreviated are taken from `about`."""
        listed = _listed_groups(about)
        groups = {}
        for number, group in enumerate(self.seen, 1):
            ranks = listed.get(group.key) or group.ranks
            size = len(ranks) or group.size
            groups[number] = Name(number, NameKind.GROUP, group.text, members=ranks, elements=size)
        return groups

    def _read_sized(self, name: str, size: int | None) -> int:
        if not name.startswith(HOST_BACKENDS + DEVICE_BACKENDS):
            return -1
        kind = kind_of(name.partition(":")[2])
        if kind is CollectiveKind.UNKNOWN:
            return -1
        sized = kind in {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE}
        if not sized or size is None:
            return self._number(Call(kind, told=False))
        return self._number(Call(kind, told=False, given=size, moved=size))

    def _number(self, call: Call) -> int:
        found = self._numbers.get(call)
        if found is None:
            found = self._numbers[call] = len(self.all)
            self.all.append(call)
        return found

    def _call(self, args: Args) -> Call:
        word = args.collective if isinstance(args.collective, str) else ""
        kind = kind_of(word)
        plain = word.replace("_", "").lower()
        ranks = _whole(args.group_size) or 0
        size = _BYTES.get(_plain_type(args.dtype))
        received, sent = _whole(args.out_elements), _whole(args.in_elements)
        given, moved = _bytes(kind, sent, received, size, ranks)
        source, target = _whole(args.source), _whole(args.destination)
        return Call(
            kind=kind,
            told=True,
            opens=plain.startswith(_OPENS),
            closes=plain.startswith(_CLOSES),
            group=self._group(args, ranks),
            peer=_peer(plain, source, target),
            given=given,
            moved=moved,
            sequence=_in_u4(_whole(args.sequence)),
        )

    def _group(self, args: Args, size: int) -> int:
        name = args.group_name if args.group_name is not None else args.group_id
        if name is None or isinstance(name, (list, dict)):
            return 0
        key = str(name)
        known = self._groups.get(key)
        if known is not None:
            return known
        described = args.group_description
        told = isinstance(described, str) and described not in {"", "undefined"}
        text = f"{described} ({key})" if told else f"group {key}"
        return self._group_number(Group(key, text, _ranks(args, size), size))

    def _group_number(self, group: Group) -> int:
        """Return the number of a group; 0 beyond the last that a record can hold."""
        number = self._groups.get(group.key)
        if number is None:
            if len(self.seen) == MOST_GROUPS:
                return 0
            self.seen.append(group)
            number = self._groups[group.key] = len(self.seen)
        return number


def _bytes(
    kind: CollectiveKind, sent: int | None, received: int | None, size: int | None, ranks: int
) -> tuple[int, int]:
    """Return (given, moved) of a call that was handed so many elements of `size` bytes."""
    known = [count for count in (sent, received) if count is not None]
    if size is None or not known:
        return NOT_KNOWN, 0
    sent, received = known[0], known[-1]
    moved = max(known) * size
    if kind in {CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER}:
        return received * size, moved
    if kind is CollectiveKind.ALL_TO_ALL:
        # Uneven splits have no such size.
        return (moved // ranks if ranks and moved % ranks == 0 else NOT_KNOWN), moved
    if kind in {CollectiveKind.ALL_GATHER, CollectiveKind.GATHER}:
        return sent * size, moved
    return moved, moved


def _peer(word: str, source: int | None, target: int | None) -> int:
    peer = source if word.startswith("recv") else target if word.startswith("send") else None
    return peer if peer is not None and peer < 2**31 else -1


def _tensor_bytes(dims: Any, types: Any) -> int | None:
    """Return the bytes of the one tensor that an operator was given; None when that is not told.

    [[2, 3]], ["float"] -> 24
    """
    if not (isinstance(dims, list) and isinstance(types, list) and len(dims) == len(types) == 1):
        return None
    size, shape = _BYTES.get(_plain_type(types[0])), dims[0]
    if size is None or not isinstance(shape, list):
        return None
    for length in shape:
        if not isinstance(length, int) or length < 0:
            return None
        size *= length
    return size if shape and size < 2**54 else None


def _plain_type(value: Any) -> str:
    return _plain_word(value) if isinstance(value, str) else ""


@cache
def _plain_word(text: str) -> str:
    word = re.sub(r"c10::|torch\.|[ _]|_t\b", "", text).lower()
    return "byte" if word.startswith("float8") else word


def _ranks(args: Args, size: int) -> tuple[int, ...]:
    """Return the ranks of a group: as they are listed, else by first rank and stride."""
    listed = args.group_ranks
    if isinstance(listed, str):
        found = [int(word) for word in re.findall(r"\d{1,9}", listed)]
        whole = "..." not in listed
    elif isinstance(listed, list):
        found, whole = [one for one in listed if isinstance(one, int)], True
    else:
        found, whole = [], False
    if whole and found and (not size or len(found) == size):
        return tuple(found)
    first, stride = _whole(args.rank_start), _whole(args.rank_stride)
    if first is not None and stride and 0 < size <= 1_000_000:
        return tuple(range(first, first + stride * size, stride))
    return ()


def _listed_groups(about: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group that the trace lists, by its name."""
    info = about.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[str, tuple[int, ...]] = {}
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, dict):
            continue
        name, ranks = one.get("pg_name"), one.get("ranks")
        if name is None or not isinstance(ranks, list):
            continue
        if ranks and all(isinstance(rank, int) for rank in ranks):
            groups[str(name)] = tuple(ranks)
    return groups


def _whole(value: Any) -> int | None:
    """Return a number of 0 or more; None for whatever is none."""
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**50 else None


def _in_u4(value: int | None) -> int:
    return value if value is not None and value < 2**32 else 0

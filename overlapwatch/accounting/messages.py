"""Collectives by process group and by message size; and those still in flight.

In: RECORDs and what their ids stand for. Out: rows, each with a `Traffic`: how many, how many
bytes, how long from launch to finish. That time holds queueing and waiting for peers: it is not the
communication time, and no rate is made of it.

| records (kind, bytes)                       | rows by size                          |
|---------------------------------------------|---------------------------------------|
| AllReduce 4, AllReduce 4, AllReduce 8       | AllReduce 4: 2, AllReduce 8: 1        |

It does not know link traffic: bytes are logical, and a size of 0 is a size that was not recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.chain import label
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.spread import Spread, spread
from overlapwatch.vocabulary import CollectiveKind, Name


@dataclass(frozen=True, slots=True)
class Traffic:
    """Some collectives in numbers.

    Args:
        count: how many.
        finished: of them with a known launch and finish; the denominator of the spread.
        bytes: logical bytes of all, added; None when no record tells.
        launch_to_finish: its spread; None without finished ones.

    """

    count: int
    finished: int
    bytes: int | None
    launch_to_finish: Spread | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "count": self.count,
            "finished": self.finished,
            "bytes": self.bytes,
            "launch_to_finish": self.launch_to_finish.to_dict() if self.launch_to_finish else None,
        }


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The collectives of one process group; `name` is "" and `ranks` empty when the input does not say."""

    group: int
    name: str
    ranks: tuple[int, ...]
    traffic: Traffic

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        ranks = list(self.ranks)
        return {"name": self.name or None, "ranks": ranks, **self.traffic.to_dict()}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """The collectives of one kind and one exact size; `size_bytes` is None where it was not recorded."""

    kind: CollectiveKind
    size_bytes: int | None
    traffic: Traffic

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        size = self.size_bytes
        return {"kind": self.kind.title, "size_bytes": size, **self.traffic.to_dict()}


@dataclass(frozen=True, slots=True)
class InFlight:
    """One collective that was launched and had not finished when the input was read.

    Args:
        kind: what it is.
        name: its bucket or module, else its kind and sequence.
        group: name of its process group; "" when not known.
        step, sequence: its step, and its place in the group's order (0 when not known).
        bytes: logical bytes; None when not known.
        launch_ns: on this rank's clock; None when not known.
        age_ns: from its launch to the newest time seen anywhere in the input.

    """

    kind: CollectiveKind
    name: str
    group: str
    step: int
    sequence: int
    bytes: int | None
    launch_ns: int | None
    age_ns: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "kind": self.kind.title,
            "name": self.name,
            "group": self.group or None,
            "step": self.step,
            "sequence": self.sequence or None,
            "bytes": self.bytes,
            "launch_ns": self.launch_ns,
            "age_ns": self.age_ns,
        }


@dataclass(frozen=True, slots=True)
class Messages:
    """Collectives, told in two ways.

    Args:
        total: all of them.
        groups: by process group.
        sizes: by kind and exact size, largest first.

    """

    total: Traffic
    groups: tuple[GroupRow, ...]
    sizes: tuple[MessageRow, ...]

    def checks(self) -> tuple[Check, ...]:
        """Return how the rows add up to all collectives."""
        unit = "collectives"
        return (
            Check("groups", sum(row.traffic.count for row in self.groups), self.total.count, unit),
            Check("sizes", sum(row.traffic.count for row in self.sizes), self.total.count, unit),
            Check(
                "bytes of the groups = bytes",
                sum(row.traffic.bytes or 0 for row in self.groups),
                self.total.bytes or 0,
                "bytes",
            ),
        )


def messages(records: NDArray[np.void], groups: Mapping[int, Name]) -> Messages:
    """Return `records` (RECORD rows of collectives) by group and size."""
    group_rows = []
    for group, mine in parted(records["group"].astype(np.int64)):
        name = groups.get(group)
        group_rows.append(
            GroupRow(
                group,
                name.text if name else "",
                name.members if name else (),
                traffic(records[mine]),
            )
        )
    sizes = []
    for kind, of_kind in parted(_kinds(records).astype(np.int64)):
        for size, mine in parted(records["bytes"][of_kind]):
            sent = traffic(records[of_kind][mine])
            sizes.append(MessageRow(CollectiveKind(kind), size or None, sent))
    sizes.sort(key=lambda row: (-(row.size_bytes or 0), row.kind))
    return Messages(traffic(records), tuple(group_rows), tuple(sizes))


def in_flight(
    records: NDArray[np.void],
    names: Mapping[int, Name],
    groups: Mapping[int, Name],
    newest_ns: int,
) -> tuple[InFlight, ...]:
    """Return the collectives in flight, in the order of `records`.

    Args:
        records: RECORD rows without a finish.
        names: what owner ids stand for.
        groups: what group ids stand for.
        newest_ns: the newest time seen in the input; 0 when there is none.

    """
    rows = []
    for record, kind in zip(records, _kinds(records).tolist(), strict=True):
        launch = int(record["launch"])
        group = groups.get(int(record["group"]))
        rows.append(
            InFlight(
                kind=CollectiveKind(kind),
                name=label(record, names),
                group=group.text if group else "",
                step=int(record["step"]),
                sequence=int(record["sequence"]),
                bytes=int(record["bytes"]) or None,
                launch_ns=launch or None,
                age_ns=max(0, newest_ns - launch) if launch and newest_ns else None,
            )
        )
    return tuple(rows)


def _kinds(records: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return the CollectiveKind of each record; UNKNOWN for one that this version does not know."""
    kind = records["collective"]
    return np.where(kind > max(CollectiveKind), np.uint8(CollectiveKind.UNKNOWN), kind)


def parted(key: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each value of `key`, ascending, with the positions that hold it."""
    order = np.argsort(key, kind="stable")
    values, first = np.unique(key[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, first[1:]), strict=True) if len(key) else ()


def traffic(records: NDArray[np.void]) -> Traffic:
    """Return `records` (RECORD rows of collectives) in numbers."""
    finished = records[(records["launch"] != 0) & (records["finish"] >= records["launch"])]
    size = int(records["bytes"].sum())
    return Traffic(
        count=len(records),
        finished=len(finished),
        bytes=size or None,
        launch_to_finish=spread(finished["finish"] - finished["launch"]),
    )

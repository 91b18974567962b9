"""Communication of the window by kind and phase, by message size, by process group."""

from collections.abc import Iterator
from typing import Any

from overlapwatch.accounting.messages import Traffic
from overlapwatch.accounting.split import Split
from overlapwatch.exports.columns import Batch, Column, Type, table
from overlapwatch.exports.records import phase_word
from overlapwatch.exports.tables.told import Told

KINDS = table(
    "kinds_phases",
    "communication of the window by kind, and by phase and kind",
    Column("split", "by kind, or by phase and kind", Type.TEXT),
    Column("row", "cell; or remainder: by how much the cells exceed the whole", Type.TEXT),
    Column("phase", "of a cell by phase", Type.TEXT),
    Column("kind", "of a cell", Type.TEXT),
    Column("count", "collectives"),
    Column("total_bytes", "logical bytes of all of them"),
    Column("summed_ns", "lengths of the spans, added"),
    Column("union_ns", "time in which at least one ran"),
    Column("overlap_ns", "of it: compute ran"),
    Column("exposed_ns", "of it: no compute ran"),
)


def kinds(one: Told) -> Iterator[Batch]:
    """Yield its cells and remainders."""
    for name, split in (("kind", one.analysis.kinds), ("phase and kind", one.analysis.phases)):
        yield KINDS.rows([{**one.who, "split": name, **row} for row in _cells(split)])


def _cells(split: Split) -> Iterator[dict[str, Any]]:
    for cell in split.cells:
        yield {
            "row": "cell",
            "phase": None if cell.phase is None else phase_word(cell.phase),
            "kind": cell.kind.title,
            "count": cell.count,
            "total_bytes": cell.bytes,
            "summed_ns": cell.summed_ns,
            "union_ns": cell.union_ns,
            "overlap_ns": cell.overlap_ns,
            "exposed_ns": cell.exposed_ns,
        }
    rest = split.remainder
    yield {
        **dict.fromkeys(("phase", "kind", "count", "total_bytes", "summed_ns")),
        "row": "remainder",
        "union_ns": rest.union_ns,
        "overlap_ns": rest.overlap_ns,
        "exposed_ns": rest.exposed_ns,
    }


_TRAFFIC = (
    Column("count", "collectives"),
    Column("finished", "of them with a known launch and finish"),
    Column("total_bytes", "logical bytes of all of them"),
    Column("launch_to_finish_p50_ns", "not communication time: it holds the queue"),
    Column("launch_to_finish_p95_ns", "the same"),
    Column("launch_to_finish_p99_ns", "the same"),
    Column("launch_to_finish_max_ns", "the same"),
)
MESSAGES = table(
    "messages",
    "collectives of the window of one kind and one exact size",
    Column("kind", "AllReduce, AllGather, ...", Type.TEXT),
    Column("message_bytes", "logical bytes of each"),
    *_TRAFFIC,
)
GROUPS = table(
    "groups",
    "collectives of the window of one process group",
    Column("group", "name", Type.TEXT),
    Column("group_ranks", "global ranks in it, words", Type.TEXT),
    *_TRAFFIC,
)


def messages(one: Told) -> Iterator[Batch]:
    """Yield its messages."""
    yield MESSAGES.rows(
        [
            {
                **one.who,
                "kind": row.kind.title,
                "message_bytes": row.size_bytes,
                **_traffic(row.traffic),
            }
            for row in one.analysis.messages.sizes
        ]
    )


def groups(one: Told) -> Iterator[Batch]:
    """Yield its process groups."""
    yield GROUPS.rows(
        [
            {
                **one.who,
                "group": row.name or None,
                "group_ranks": " ".join(map(str, row.ranks)) or None,
                **_traffic(row.traffic),
            }
            for row in one.analysis.messages.groups
        ]
    )


def _traffic(traffic: Traffic) -> dict[str, int | None]:
    spread = traffic.launch_to_finish
    return {
        "count": traffic.count,
        "finished": traffic.finished,
        "total_bytes": traffic.bytes,
        "launch_to_finish_p50_ns": spread.p50_ns if spread else None,
        "launch_to_finish_p95_ns": spread.p95_ns if spread else None,
        "launch_to_finish_p99_ns": spread.p99_ns if spread else None,
        "launch_to_finish_max_ns": spread.max_ns if spread else None,
    }

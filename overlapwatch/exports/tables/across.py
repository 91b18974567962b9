"""Waits: each collective that several ranks have, on each of them.

In: an AcrossRanks, and what to call each of its tables. Out: rows, a rank each. Moments are on the
reference clock; a wait needs no common clock.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.accounting.ranks.waiting import NOT_KNOWN_LATENESS, Why
from overlapwatch.exports.columns import Batch, Column, Type, parts, table
from overlapwatch.exports.records import kind_title, or_none, phase_word
from overlapwatch.exports.tables.told import not_known, where

WAITS = table(
    "waits",
    "one collective that several ranks have, on one of them",
    Column("collective", "number in this table, the same on all ranks"),
    Column("group", "process group", Type.TEXT),
    Column("sequence", "position in the order of the group, recorded or found"),
    Column("kind", "AllReduce, AllGather, ...", Type.TEXT),
    Column("phase", "in which it was launched", Type.TEXT),
    Column("step", "number of its step"),
    Column("owner", "bucket or module", Type.TEXT),
    Column("message_bytes", "logical bytes; the largest of the ranks"),
    Column("ranks_seen", "ranks that have it"),
    Column("counted", "the sums of the report count it", Type.BOOLEAN),
    Column("entry_ns", "when the rank entered, on the reference clock"),
    Column("stay_ns", "from its entry to its end: wait_ns + transfer_ns"),
    Column("wait_ns", "it waited for the last rank"),
    Column("exposed_wait_ns", "of the wait: it did not compute"),
    Column("transfer_ns", "shortest stay of all ranks; an upper bound of the transfer"),
    Column("lateness_ns", "entry after that of the middle rank; negative before it"),
    Column("queued", "it stood in a queue on the host", Type.BOOLEAN),
    Column("entry_skew_ns", "last entry - first entry"),
    Column("margin_ns", "last entry - last but one"),
    Column("late_timeline", "who entered last", Type.TEXT),
    Column("late_not_told", "why that is not told: alone, together, clocks, queued", Type.TEXT),
)


def waits(across: AcrossRanks, labels: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows.

    Args:
        across: what the ranks say together.
        labels: what to call each of its tables.

    """
    matches, waiting = across.matches, across.waiting
    ranks = [one.rank for one in across.tables]
    groups = [channel.title for channel in matches.channels]
    numbers = np.concatenate([one.steps["step"] for one in across.tables])
    collective = matches.collective
    for part in parts(len(matches.row)):
        of, table_of = collective[part], matches.table[part].tolist()
        told = waiting.collectives[of]
        lateness = waiting.lateness[part].tolist()
        yield WAITS.batch(
            timeline=[labels[one] for one in table_of],
            rank=[ranks[one] for one in table_of],
            collective=of.tolist(),
            group=[groups[one] for one in told["channel"].tolist()],
            sequence=told["sequence"].tolist(),
            kind=[kind_title(one) for one in told["kind"].tolist()],
            phase=[phase_word(one) for one in told["phase"].tolist()],
            step=where(np.isin(told["step"], numbers), told["step"]),
            owner=[waiting.owners[one] or None for one in told["owner"].tolist()],
            message_bytes=or_none(told["bytes"]),
            ranks_seen=told["seen"].tolist(),
            counted=waiting.counted[of].tolist(),
            entry_ns=or_none(waiting.entry[part]),
            stay_ns=not_known(waiting.stay[part]),
            wait_ns=not_known(waiting.wait[part]),
            exposed_wait_ns=not_known(waiting.exposed[part]),
            transfer_ns=not_known(told["transfer"]),
            lateness_ns=[None if one == NOT_KNOWN_LATENESS else one for one in lateness],
            queued=waiting.queued[part].tolist(),
            entry_skew_ns=not_known(told["skew"]),
            margin_ns=not_known(told["margin"]),
            late_timeline=[labels[one] if one >= 0 else None for one in told["late"].tolist()],
            late_not_told=[Why(one).name.lower() if one else None for one in told["why"].tolist()],
        )

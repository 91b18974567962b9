"""The tables of an export: one row a step, a collective, an exposed segment, a tail, ... of each rank.

In: a `Told` (a Subject and its Analysis), an AcrossRanks. Out: `Batch`es of rows. The numbers are those
of the report and add up as it does. Times are ns on the clock of their rank; `timelines` says how far
that is from the reference clock.
"""

from collections.abc import Callable, Iterator, Mapping

from overlapwatch.exports.columns import Batch, Table
from overlapwatch.exports.tables import collectives, communication, steps, whole
from overlapwatch.exports.tables.across import WAITS, waits
from overlapwatch.exports.tables.told import Told

__all__ = ["OF_EACH", "TABLES", "WAITS", "Told", "waits"]

OF_EACH: Mapping[str, tuple[Table, Callable[[Told], Iterator[Batch]]]] = {
    table.name: (table, batches)
    for table, batches in (
        (whole.TIMELINES, whole.timelines),
        (steps.STEPS, steps.steps),
        (collectives.COLLECTIVES, collectives.collectives),
        (collectives.EXPOSED, collectives.exposed),
        (communication.KINDS, communication.kinds),
        (communication.MESSAGES, communication.messages),
        (communication.GROUPS, communication.groups),
        (steps.TAILS, steps.tails),
        (steps.TAIL_PIECES, steps.tail_pieces),
        (whole.REMARKS, whole.remarks),
    )
}
"""Tables to which each rank and device adds its rows."""

TABLES: Mapping[str, Table] = {
    **{name: table for name, (table, _) in OF_EACH.items()},
    WAITS.name: WAITS,
}
"""All tables, by name."""

"""Sentences that the live watch and the reports share.

In: a record and the tables its ids refer to, or who was late. Out: one sentence in plain words.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from overlapwatch.vocabulary import CollectiveKind, Name

if TYPE_CHECKING:  # every rank of a job imports this module, and one of them tells late ranks
    from overlapwatch.accounting.ranks.live_lateness import LiveLateness


def in_flight_sentence(
    record: np.void, names: Mapping[int, Name], groups: Mapping[int, Name], now_ns: int
) -> str:
    """Say of a collective that it was launched and has not finished.

    Args:
        record: one COLLECTIVE record.
        names: what owner ids stand for.
        groups: what group ids stand for.
        now_ns: the moment to count its age to, on the record's clock.
    """
    kind = CollectiveKind(int(record["collective"])).title
    owner, group = names.get(int(record["owner"])), groups.get(int(record["group"]))
    what = f"{kind} {owner.text}" if owner else kind
    where = f" on group {group.text}" if group else ""
    age = (now_ns - int(record["launch"])) / 1e9
    return (
        f"{what} ({int(record['bytes']):,} bytes, sequence {int(record['sequence'])}{where}, "
        f"step {int(record['step'])}) was launched {age:.1f} s ago and has not finished"
    )


def lateness_words(told: "LiveLateness") -> str:
    """Return the words: `  step 118: rank 2 last by 12.3 ms  worst: rank 2, late in 43 of 50 steps by 12.0 ms`."""
    if told.late_rank is None or told.late_ns is None:
        last = f"step {told.step}: no rank late"
    else:
        last = f"step {told.step}: rank {told.late_rank} last by {told.late_ns / 1e6:.1f} ms"
    if told.worst_rank is None or told.worst_ns is None:
        worst = f"of {told.ranks} ranks none stands out in {told.judged} steps"
    else:
        worst = (
            f"worst: rank {told.worst_rank}, late in {told.worst_steps} of {told.judged} steps "
            f"by {told.worst_ns / 1e6:.1f} ms"
        )
    return f"  {last}  {worst}"

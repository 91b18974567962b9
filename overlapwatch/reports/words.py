"""Sentences that the live watch and the reports share.

In: a record and the tables its ids refer to. Out: one sentence in plain words.
"""

from collections.abc import Mapping

import numpy as np

from overlapwatch.vocabulary import CollectiveKind, Name


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

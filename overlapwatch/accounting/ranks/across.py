"""Everything a report tells of several ranks in time: the reduce over their tables.

In: `RankTable`s, in any order. Out: one frozen `AcrossRanks`. What does not belong together (other
runs, a rank twice) is left out, and said; what is missing is said; the rest is judged on what the
ranks have in common. It only puts together what the other modules of this folder compute.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.ranks.alignment import Alignment, align
from overlapwatch.accounting.ranks.lateness import Lateness, lateness
from overlapwatch.accounting.ranks.match import Matches, match
from overlapwatch.accounting.ranks.overlap import RankOverlap, rank_overlaps
from overlapwatch.accounting.ranks.owners import OwnerRow, RankWaits, owner_rows, rank_waits
from overlapwatch.accounting.ranks.table import RankTable, few
from overlapwatch.accounting.ranks.tails import RankTails, rank_tails
from overlapwatch.accounting.ranks.traffic import GroupRate, group_rates
from overlapwatch.accounting.ranks.waiting import Waiting, Why, waiting
from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind

CELLS = 1_000_000
"""More waits than this (collectives × ranks) are not listed one by one in JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class AcrossRanks:
    """What several ranks say together.

    Args:
        tables: those that were compared, by rank; positions in all that follows are in these.
        labels: what to call each; unique.
        matches, alignment, waiting: see their modules.
        waits: each rank's waiting, in the order of `tables`.
        owners: waiting by bucket, module or kind.
        lateness: who was late over the steps.
        overlaps: each rank's overlap with waiting taken out, in the order of `tables`.
        tails: the tails of all ranks.
        rates: bytes and rates by kind and group.
        notes: what was left out or is missing, in sentences.
        unknown: what cannot be told, and why.

    """

    tables: tuple[RankTable, ...]
    labels: tuple[str, ...]
    matches: Matches
    alignment: Alignment
    waiting: Waiting
    waits: tuple[RankWaits, ...]
    owners: tuple[OwnerRow, ...]
    lateness: Lateness
    overlaps: tuple[RankOverlap, ...]
    tails: RankTails
    rates: tuple[GroupRate, ...]
    notes: tuple[str, ...]
    unknown: tuple[Unknown, ...]

    def checks(self) -> tuple[Check, ...]:
        """Return every closure check over the ranks."""
        return (*self._counts(), *(one for told in self.overlaps for one in told.checks()),
                *self.tails.checks())  # fmt: skip

    def _counts(self) -> tuple[Check, ...]:
        waiting, told = self.waiting, self.waiting.collectives
        rows = sum(len(table.records) for table in self.tables)
        matched = len(self.matches.row)
        known = waiting.wait != NOT_KNOWN
        transfers = np.repeat(told["transfer"], told["seen"])[known] if len(told) else told["late"]
        decided = sum(int((told["why"] == one).sum()) for one in Why)
        owned = sum(one.collectives for one in self.owners)
        return (
            Check("matched + unmatched records = records",
                  matched + sum(self.matches.alone), rows, "records"),
            Check("wait + transfer = stay",
                  int(waiting.wait[known].sum() + transfers.sum()), int(waiting.stay[known].sum())),
            Check("late rank told or not, and why = collectives", decided, len(told), "collectives"),
            Check("collectives by owner = counted collectives",
                  owned, int(waiting.counted.sum()), "collectives"),
            Check("waits by rank = waits by owner",
                  sum(one.wait_ns for one in self.waits), sum(one.wait_ns for one in self.owners)),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return `across_ranks` of the JSON of a report; what is not known is null."""
        labels = self.labels
        listed = len(self.matches.row) <= CELLS
        return {
            "ranks": [
                {"rank": one.rank, "label": label, "device": one.device or None,
                 "host": one.host or None, "path": one.path, "records": len(one.records),
                 "unmatched": alone}
                for one, label, alone in zip(
                    self.tables, labels, self.matches.alone, strict=True)
            ],
            "matched": {"collectives": len(self.matches), "by_ends": self.matches.by_ends,
                        "counted": int(self.waiting.counted.sum())},
            "alignment": self.alignment.to_dict(labels),
            "collectives": self._collectives() if listed else None,
            "waits": [one.to_dict(labels) for one in self.waits],
            "owners": [one.to_dict(labels) for one in self.owners],
            "lateness": self.lateness.to_dict(labels),
            "overlap": [one.to_dict(labels) for one in self.overlaps],
            "tails": self.tails.to_dict(labels),
            "rates": [one.to_dict() for one in self.rates],
            "order": None,
            "closure": [one.to_dict() for one in self.checks()],
            "notes": list(self.notes),
        }  # fmt: skip

    def _collectives(self) -> list[dict[str, Any]]:
        told, matches, waiting = self.waiting.collectives, self.matches, self.waiting
        found = []
        for place, one in enumerate(told):
            rows = range(int(matches.first[place]), int(matches.first[place + 1]))
            kind = min(int(one["kind"]), int(max(CollectiveKind)))
            found.append(
                {
                    "group": matches.channels[one["channel"]].title,
                    "sequence": int(one["sequence"]),
                    "kind": CollectiveKind(kind).title,
                    "step": int(one["step"]) or None,
                    "counted": bool(waiting.counted[place]),
                    "owner": waiting.owners[one["owner"]] or None,
                    "bytes": int(one["bytes"]) or None,
                    "ranks": [int(matches.table[row]) for row in rows],
                    "late_rank": self.labels[one["late"]] if one["late"] >= 0 else None,
                    "not_told": Why(one["why"]).name.lower() if one["why"] else None,
                    "entry_skew_ns": _known(one["skew"]),
                    "margin_ns": _known(one["margin"]),
                    "transfer_ns": _known(one["transfer"]),
                    "waits_ns": [_known(waiting.wait[row]) for row in rows],
                }
            )
        return found


def _known(value: np.int64) -> int | None:
    return None if value == NOT_KNOWN else int(value)


def across_ranks(tables: Sequence[RankTable]) -> AcrossRanks:
    """Return what the ranks say together.

    Args:
        tables: one or more; with fewer than two that belong together, hardly anything is known.

    """
    chosen, notes = admitted(tables)
    labels = unique_labels(chosen)
    matches = match(chosen)
    alignment = align(chosen, matches, labels)
    told = waiting(chosen, matches, alignment)
    late = lateness(chosen, told, alignment, labels)
    unknown = [*matches.unknown, *alignment.unknown, *told.unknown, *late.unknown]
    if len(chosen) < 2:
        unknown = [Unknown("who was late, and what was waiting", "one rank alone cannot tell")]
    elif not len(matches):
        unknown.append(
            Unknown("who was late, and what was waiting", "no collective is in two of the inputs")
        )
    overlaps = rank_overlaps(chosen, told)
    whole = sum(one.unsplit for one in overlaps)
    if whole and len(matches):
        every = whole + sum(one.split for one in overlaps)
        unknown.append(
            Unknown(
                f"how much of {whole} of {every} records was waiting",
                "they have no match, or no end that was observed: they count as recorded",
            )
        )
    return AcrossRanks(
        tables=chosen,
        labels=labels,
        matches=matches,
        alignment=alignment,
        waiting=told,
        waits=rank_waits(told, len(chosen)),
        owners=owner_rows(told),
        lateness=late,
        overlaps=overlaps,
        tails=rank_tails(chosen, told, alignment),
        rates=group_rates(chosen, told),
        notes=(*notes, *_missing(chosen), *matches.notes, *_gaps(matches), *alignment.notes),
        unknown=tuple(dict.fromkeys(unknown)),
    )


def admitted(tables: Sequence[RankTable]) -> tuple[tuple[RankTable, ...], list[str]]:
    """Return the tables that belong to one run, each rank and device once, and what was left out."""
    notes = []
    runs = Counter(one.run for one in tables if one.run)
    chosen = list(tables)
    if len(runs) > 1:
        run = max(runs, key=lambda one: (runs[one], -list(runs).index(one)))
        others = [one for one in tables if one.run and one.run != run]
        chosen = [one for one in tables if not one.run or one.run == run]
        notes.append(
            f"run {run} is compared; left out: {few([_where(one) for one in others])}, "
            "of other runs"
        )
    kept: dict[tuple[object, ...], RankTable] = {}
    for one in chosen:
        key = (one.rank, one.device) if one.rank is not None else (one.path, one.label)
        other = kept.get(key)
        if other is None:
            kept[key] = one
            continue
        more, less = (one, other) if len(one.records) > len(other.records) else (other, one)
        kept[key] = more
        notes.append(f"{one.label} is there twice: {more.path} is compared, {less.path} left out")
    order = sorted(kept.values(), key=lambda one: (one.rank is None, one.rank or 0, one.device))
    return tuple(order), notes


def _where(one: RankTable) -> str:
    return f"{one.path} ({one.run})"


def unique_labels(tables: Sequence[RankTable]) -> tuple[str, ...]:
    """Return the labels, with the device or the path where several are called the same."""
    names = [one.label for one in tables]
    count = Counter(names)
    longer = [
        name if count[name] == 1 else f"{name}, {one.device or one.path}"
        for name, one in zip(names, tables, strict=True)
    ]
    again = Counter(longer)
    return tuple(
        name if again[name] == 1 else f"{name}, input {place + 1}"
        for place, name in enumerate(longer)
    )


def _gaps(matches: Matches) -> list[str]:
    """Say how many collectives lack the record of a rank that is in their channel."""
    if not len(matches):
        return []
    channel = matches.channel[matches.collective].astype(np.int64)
    pairs = np.unique(channel * 2**32 + matches.table)
    ranks = np.bincount(pairs >> 32, minlength=len(matches.channels))
    short = int((np.diff(matches.first) < ranks[matches.channel]).sum())
    if not short:
        return []
    what = f"{short} of {len(matches)} collectives lack the record of a rank"
    return [f"{what}: what they took without waiting may be told too long"]


def _missing(tables: Sequence[RankTable]) -> list[str]:
    """Say which ranks have no input, and whose steps end before the others'."""
    notes = []
    worlds = {one.world for one in tables if one.world is not None}
    there = {one.rank for one in tables}
    if len(worlds) > 1:
        notes.append(f"the inputs tell different numbers of ranks: {few(sorted(worlds))}")
    elif worlds and None not in there:
        absent = [one for one in range(max(worlds)) if one not in there]
        if absent:
            notes.append(
                f"judged on {len(there)} of {max(worlds)} ranks: no input of rank {few(absent)}"
            )
    ends = {one.label: int(one.steps["step"].max()) for one in tables if len(one.steps)}
    last = max(ends.values(), default=0)
    short = [f"{label} ends with step {end}" for label, end in ends.items() if end < last]
    if short:
        notes.append(f"{few(short)}, the others with step {last}: judged on what they share")
    counts = {one.label: len(one.steps) for one in tables if len(one.steps)}
    if not short and len(set(counts.values())) > 1:
        least = min(counts, key=lambda label: counts[label])
        notes.append(
            f"events were kept of {counts[least]} steps on {least}, of {max(counts.values())} on "
            "others: judged on what they share"
        )
    return notes

"""The lanes of the steps as JSON: compute over communication, for each rank, on one clock where there is one.

In: what was drawn of each input, the Analyses, and how the ranks compare in time. Out: a dict of
plain values for the page, with sentences that say what was thinned. Times are integer ns after the
zero of their step: the earliest start of the step on any rank that is shown. Ranks whose clocks
cannot be brought together are drawn from their own start of the step, and a sentence says so.

At most `RANKS` ranks and `WEIGHT` of blocks (`drawn.weight_of`) are on a page, so that it opens in a moment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import Analysis, flag_words
from overlapwatch.accounting.blocks import MOST, Blocks, longest, provenance_letters
from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.accounting.tail import StepTail
from overlapwatch.reports.format import counted, duration
from overlapwatch.reports.html.drawn import Drawn, RankDrawn, weight_of
from overlapwatch.reports.layout import clean
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import NOT_KNOWN, CollectiveKind, Name, Phase, RecordFlag

RANKS = 16
WEIGHT = 100_000
NAME_CHARACTERS = 200
_TIMES = ("ready", "launch", "start", "finish")
_MARKS = ("first_ready_ns", "first_reduce_start_ns", "last_compute_end_ns", "last_reduce_end_ns")
_HOW = (RecordFlag.SYNCHRONOUS, RecordFlag.PREFETCHED, RecordFlag.FAILED)


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """One rank that has lanes: its place in the report, what was drawn, and how far its clock is off."""

    place: int
    analysis: Analysis
    drawn: RankDrawn
    table: int | None  # its place among the compared tables, where its clock is known
    tails: dict[int, StepTail]

    def blocks(self) -> dict[int | None, Blocks]:
        return {one.step: one for one in self.drawn.blocks}


@dataclass(slots=True)
class _Texts:
    """Strings of the page, each once."""

    entries: list[list[str]] = field(default_factory=list)
    places: dict[tuple[str, ...], int] = field(default_factory=dict)

    def place(self, *text: str) -> int:
        if text not in self.places:
            self.places[text] = len(self.entries)
            self.entries.append(list(text))
        return self.places[text]


def lanes(
    analyses: Sequence[Analysis], drawn: Iterable[Drawn], across: AcrossRanks | None
) -> dict[str, Any]:
    """Return the lanes of the page.

    Args:
        analyses: of the report, in its order.
        drawn: of each input.
        across: how the ranks compare in time; None of one alone.

    """
    found = {one.origin: one for part in drawn for one in part.ranks}
    shown = [
        _Shown(place, one, found[one.origin], _table(one, across), {t.step: t for t in one.tails})
        for place, one in enumerate(analyses)
        if one.origin in found and found[one.origin].blocks
    ]
    chosen = _chosen(shown, across)
    together = len(chosen) < 2 or all(one.table is not None for one in chosen)
    texts = _Texts()
    steps = [_step(number, chosen, across, texts, together=together) for number in _numbers(chosen)]
    return {
        "steps": steps,
        "texts": texts.entries,
        "phases": [phase.name.lower() for phase in Phase],
        "ranks": [one.place for one in chosen],
        "together": together,
        "thinned": _thinned(shown, chosen, len(steps), together=together),
    }


def _table(analysis: Analysis, across: AcrossRanks | None) -> int | None:
    if across is None:
        return None
    for place, table in enumerate(across.tables):
        if table is analysis.table:
            return place if across.alignment.known(place) else None
    return None


def _chosen(shown: Sequence[_Shown], across: AcrossRanks | None) -> list[_Shown]:
    """Return the ranks that have lanes: all, or of many those that were late and the first ones."""
    late = (
        [place for one in across.lateness.ranks[: RANKS // 2] for place in one.tables]
        if across
        else []
    )
    order = sorted(shown, key=lambda one: (late.index(one.table) if one.table in late else RANKS,))
    chosen: list[_Shown] = []
    left = WEIGHT
    for one in order[:RANKS]:
        left -= weight_of(one.drawn.blocks[0])
        if chosen and left < 0:
            break
        chosen.append(one)
    return sorted(chosen, key=lambda one: one.place)


def _numbers(chosen: Sequence[_Shown]) -> list[int | None]:
    """Return the steps of the page, most wanted first, as many as there is room for."""
    by_rank = [one.blocks() for one in chosen]
    wanted: dict[int | None, None] = {}
    for turn in range(max((len(one.drawn.blocks) for one in chosen), default=0)):
        for one in chosen:
            if turn < len(one.drawn.blocks):
                wanted[one.drawn.blocks[turn].step] = None
    numbers: list[int | None] = []
    left = WEIGHT
    for number in wanted:
        left -= sum(weight_of(blocks[number]) for blocks in by_rank if number in blocks)
        if left < 0 and numbers:
            break
        numbers.append(number)
    return numbers


def _step(
    number: int | None,
    chosen: Sequence[_Shown],
    across: AcrossRanks | None,
    texts: _Texts,
    *,
    together: bool,
) -> dict[str, Any]:
    there = [(one, blocks) for one in chosen if (blocks := one.blocks().get(number)) is not None]
    starts = [
        _on_reference(one, blocks.start_ns, across) if together else 0 for one, blocks in there
    ]
    zero = min(starts)
    flags = 0
    for one, _ in there:
        rows = one.analysis.rows
        flags |= int(np.bitwise_or.reduce(rows["flags"][rows["step"] == (number or 0)], initial=0))
    return {
        "step": number,
        "flags": [word for word in flag_words(flags) if word != "events_kept"],
        "ranks": [
            _rank(one, blocks, start - zero, texts)
            for (one, blocks), start in zip(there, starts, strict=True)
        ],
    }


def _on_reference(one: _Shown, moment: int, across: AcrossRanks | None) -> int:
    if across is None or one.table is None:
        return moment
    return int(across.alignment.to_reference(one.table, np.array([moment], np.int64))[0])


def _rank(one: _Shown, blocks: Blocks, start: int, texts: _Texts) -> dict[str, Any]:
    """Return one rank of one step; `start` is where its step begins, ns after zero."""
    shift = start - blocks.start_ns
    tail = one.tails.get(blocks.step) if blocks.step is not None else None
    names = one.drawn.names
    parts = longest(blocks.exposed.end - blocks.exposed.start, MOST)
    return {
        "rank": one.place,
        "profile": one.analysis.state == "profile",
        "start": start,
        "end": blocks.end_ns + shift,
        "compute": _compute(blocks, shift, names, texts),
        "sent": _sent(blocks, shift, one.drawn, texts),
        "exposed": _pairs(blocks.exposed.start[parts], blocks.exposed.end[parts], shift),
        "waits": _pairs(blocks.waits.start[:MOST], blocks.waits.end[:MOST], shift),
        "marks": {mark: _moment(tail, mark, shift) for mark in _MARKS} if tail else {},
        "tail_ns": tail.tail_ns if tail else None,
        "tail_because": tail.because if tail else "",
        "left_out": _left_out(blocks),
    }


def _moment(tail: StepTail, mark: str, shift: int) -> int | None:
    moment: int | None = getattr(tail, mark)
    return None if moment is None else moment + shift


def _compute(
    blocks: Blocks, shift: int, names: dict[int, Name], texts: _Texts
) -> dict[str, list[int]]:
    lane = blocks.compute
    place = {
        number: texts.place(*_text(names.get(number), names))
        for number in np.unique(lane.name).tolist()
    }
    columns = {
        "start": (lane.start + shift).tolist(),
        "length": (lane.end - lane.start).tolist(),
        "name": [place[number] for number in lane.name.tolist()],
        "phase": np.minimum(lane.phase, max(Phase)).tolist(),
    }
    if blocks.merged:
        columns["count"] = blocks.count.tolist()
    return columns


def _sent(blocks: Blocks, shift: int, drawn: RankDrawn, texts: _Texts) -> dict[str, list[Any]]:
    records = blocks.records
    names, groups = drawn.names, drawn.groups

    def moments(column: I64) -> list[int | None]:
        known = (column != 0).tolist()
        return [
            moment if there else None
            for moment, there in zip((column + shift).tolist(), known, strict=True)
        ]

    def place(field: str, table: dict[int, Name]) -> list[int]:
        known = {
            number: texts.place(*_text(table.get(number), names))
            for number in np.unique(records[field]).tolist()
        }
        return [known[number] for number in records[field].tolist()]

    kinds = np.minimum(records["collective"], max(CollectiveKind)).tolist()
    return {
        "name": place("owner", names),
        "group": place("group", groups),
        "cause": place("cause", names),
        "kind": [texts.place(CollectiveKind(kind).title, "") for kind in kinds],
        "how": [_how(flags) for flags in records["flags"].tolist()],
        "phase": np.minimum(records["phase"], max(Phase)).tolist(),
        "step": records["step"].tolist(),
        "stream": records["stream"].tolist(),
        "sequence": records["sequence"].tolist(),
        "bytes": [size or None for size in records["bytes"].tolist()],
        "provenance": provenance_letters(records),
        "begin": moments(blocks.begin),
        **{name: moments(records[name]) for name in _TIMES},
        "hidden": _known(blocks.hidden),
        "waited": _known(blocks.waited),
    }


def _how(flags: int) -> str:
    return ", ".join((flag.name or "").lower() for flag in _HOW if flag & flags)


def _known(column: I64) -> list[int | None]:
    return [None if value == NOT_KNOWN else value for value in column.tolist()]


def _pairs(start: I64, end: I64, shift: int) -> list[list[int]]:
    both: NDArray[np.int64] = np.stack((start, end), axis=1) + shift
    pairs: list[list[int]] = both.tolist()
    return pairs


def _text(name: Name | None, names: dict[int, Name]) -> tuple[str, str]:
    """Return what a name is called, and what more is known of it."""
    if name is None:
        return "", ""
    text = clean(name.text)
    text = text if len(text) <= NAME_CHARACTERS else text[: NAME_CHARACTERS - 1] + "…"
    ends = [names[edge].text for edge in (*name.members[:1], *name.members[-1:]) if edge in names]
    if not ends:
        return text, ""
    held = counted(len(name.members), "parameter")
    span = " … ".join(dict.fromkeys(clean(one)[:NAME_CHARACTERS] for one in ends))
    return text, ", ".join(filter(None, (held, span, name.dtype)))


def _left_out(blocks: Blocks) -> list[str]:
    """Say what of this step is not drawn one by one."""
    found = []
    if blocks.merged:
        found.append(
            f"{blocks.merged:,} compute spans are drawn together where the gap between them is at "
            f"most {duration(blocks.gap_ns)}"
        )
    if blocks.left_out:
        found.append(f"the {counted(blocks.left_out, 'shortest collective')} are not drawn")
    if len(blocks.exposed) > MOST:
        found.append(f"only the {MOST:,} longest exposed stretches are drawn")
    return found


def _thinned(
    shown: Sequence[_Shown], chosen: Sequence[_Shown], steps: int, *, together: bool
) -> list[str]:
    found = []
    recorded = max((one.drawn.recorded for one in chosen), default=0)
    if steps < recorded:
        found.append(
            f"{steps:,} of the {counted(recorded, 'step')} with events are drawn: one of middle "
            "length, those with the longest tails, the longest, and others spread over the run; "
            "overlapwatch report INPUT --step N --html FILE draws any other"
        )
    if len(chosen) < len(shown):
        found.append(
            f"{len(chosen)} of {counted(len(shown), 'rank')} have lanes here; "
            "--rank N,M chooses others"
        )
    if not together:
        found.append(
            "the clocks of these ranks could not be brought together: each is drawn from its own "
            "start of the step"
        )
    return found

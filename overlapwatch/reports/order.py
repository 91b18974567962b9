"""Do the ranks issue the same collectives: as people read it.

In: an `OrderCheck`. Out: Rich renderables, or plain text of a given width. It does not compute.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from overlapwatch.accounting.ranks.order_result import GroupOrder, Mismatch, OrderCheck, Shift
from overlapwatch.reports.closing import closure
from overlapwatch.reports.format import counted, ranges
from overlapwatch.reports.layout import (
    DEFAULT_WIDTH,
    facts,
    gap,
    heading,
    note,
    sentence,
    table,
    to_text,
)

MANY_NOTES = 20
MANY_GROUPS = 40
"""More groups that agree are counted, not listed."""


def order(check: OrderCheck) -> Iterator[RenderableType]:
    """Yield the report."""
    yield Text("overlapwatch order", style="bold")
    yield gap()
    yield sentence(_verdict(check), "bold")
    yield from _groups(check.groups)
    for one in check.groups:
        if one.mismatch is not None:
            yield from _differs(one, one.mismatch)
        if len(one.positions) > 1:
            yield from _behind(one, check.states)
    yield from _limits(check)
    yield gap()
    yield from closure(check.checks())


def plain(check: OrderCheck, width: int = DEFAULT_WIDTH) -> str:
    """Return the report as plain text."""
    return to_text(order(check), width)


def who(ranks: Sequence[int]) -> str:
    """Write `rank 3`, `ranks 0–6, 9`."""
    return f"rank{'s' * (len(ranks) != 1)} {ranges(list(ranks))}"


def _verdict(check: OrderCheck) -> str:
    ranks = f"{counted(len(check.ranks), 'rank')} ({ranges(list(check.ranks))})"
    differing = [one.group.name for one in check.groups if one.mismatch]
    if differing:
        return f"{ranks}: they issue different collectives in {_listed(differing)}"
    compared = [one for one in check.groups if one.compared]
    if not compared:
        return f"{ranks}: nothing could be compared"
    same = f"they issue the same collectives in {counted(len(compared), 'group')}"
    behind = [one.group.name for one in check.groups if one.behind]
    if behind:
        return f"{ranks}: {same}, as far as they got; not all are equally far in {_listed(behind)}"
    return f"{ranks}: {same}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _groups(groups: Sequence[GroupOrder]) -> Iterator[RenderableType]:
    if not groups:
        return
    told = [one for one in groups if one.verdict in {"differs", "behind"}]
    rest = [one for one in groups if one not in told]
    shown = told + rest[: max(0, MANY_GROUPS - len(told))]
    yield heading("Groups")
    yield table(
        ("group", "ranks", "compared", "known of all", "verdict"),
        [
            (one.group.name, ranges(list(one.ranks)), f"{one.compared:,}", _span(one), _says(one))
            for one in shown
        ],
        words=(0, 1, 3, 4),
    )
    if len(shown) < len(groups):
        yield note(f"and {counted(len(groups) - len(shown), 'more group')} without a difference")


def _span(one: GroupOrder) -> str:
    if one.first is None or one.last is None:
        return "none"
    whole = one.last - one.first + 1
    span = f"{one.first}–{one.last}" if whole > 1 else str(one.first)
    return span if one.on_all == whole else f"{one.on_all:,} of {span}"


def _says(one: GroupOrder) -> str:
    if one.mismatch is not None:
        return f"differs at {one.mismatch.sequence}"
    if one.behind:
        return f"{counted(sum(len(place.ranks) for place in one.behind), 'rank')} behind"
    if one.compared:
        return "agrees"
    return "one rank seen" if len(one.ranks) == 1 else "not compared"


def _differs(one: GroupOrder, mismatch: Mismatch) -> Iterator[RenderableType]:
    yield heading(f"{one.group.name}: collective {mismatch.sequence} is not the same on all ranks")
    yield table(
        ("ranks", f"issue as collective {mismatch.sequence}"),
        [(ranges(list(side.ranks)), side.what.text) for side in mismatch.sides],
        words=(0, 1),
    )
    if mismatch.minority:
        yield sentence(
            f"{who(mismatch.minority)} {_differ(mismatch.minority)} from the "
            f"{len(mismatch.sides[-1].ranks)} that agree: look there first"
        )
    else:
        yield sentence("as many ranks issue one as the other: neither side is the odd one")
    if mismatch.shift is not None:
        yield sentence(_shifted(mismatch.shift))


def _differ(ranks: Sequence[int]) -> str:
    return "differs" if len(ranks) == 1 else "differ"


def _shifted(shift: Shift) -> str:
    count = abs(shift.left_out)
    more = f" and {counted(count - 1, 'more')}" if count > 1 else ""
    more = more.replace("mores", "more")
    verb = "left out" if shift.left_out > 0 else "issued besides"
    return (
        f"{who(shift.ranks)} {verb} {shift.what.text}{more}: without that, the next "
        f"{counted(shift.compared, 'collective')} of both sides are the same"
    )


def _behind(one: GroupOrder, states: Sequence[str]) -> Iterator[RenderableType]:
    front = one.positions[-1]
    ranks = sum(len(place.ranks) for place in one.behind)
    yield heading(f"{one.group.name}: {counted(ranks, 'rank')} behind")
    rows = [
        (
            f"{place.sequence}" if place.sequence else "none",
            ranges(list(place.ranks)),
            f"{front.sequence - place.sequence:,} behind" if place is not front else "furthest",
        )
        for place in one.positions
    ]
    yield table(("issued last", "ranks", ""), rows, words=(1, 2))
    few = one.minority
    if few is front:
        yield sentence(f"only {who(few.ranks)} got that far")
    elif few is not None:
        yield sentence(f"the fewest are at {few.sequence or 'none'}: {who(few.ranks)}")
    if "running" in states:
        yield note(
            "the job runs: ranks are read one after another, so a difference of a few says nothing; "
            "read it again to see whether it stands still"
        )


def _limits(check: OrderCheck) -> Iterator[RenderableType]:
    told: list[tuple[str, str]] = []
    for one in check.groups:
        name = one.group.name
        told += [
            (name, f"{who(start.ranks)}: nothing is known before {start.sequence}")
            for start in (one.late_starts if one.compared else ())
        ]
        for because, ranks in one.end_unknown:
            why = because or "the input does not say"
            told.append((name, f"{who(ranks)}: how far it got is not known: {why}"))
        if one.absent:
            told.append((name, f"no input of {who(one.absent)}"))
    if "dump" in check.states:
        told.append(
            ("times", "a Flight Recorder dump tells the order only: no time in it is used here")
        )
    told += [(one.what, one.because) for one in check.unknown]
    if not (told or check.notes):
        return
    yield heading("What this rests on")
    yield facts(_once(told))
    for text in check.notes[:MANY_NOTES]:
        yield sentence(text)
    if len(check.notes) > MANY_NOTES:
        yield note(
            f"and {counted(len(check.notes) - MANY_NOTES, 'more remark')}; --json has them all"
        )


def _once(told: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each remark once: groups of the same ranks would repeat it."""
    groups: dict[str, list[str]] = {}
    for name, text in told:
        groups.setdefault(text, []).append(name)
    for text, names in groups.items():
        yield _listed(names), text

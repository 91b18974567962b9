"""Which steps of an input a page shows, and what is drawn of them.

In: the Recordings of one input with their Analyses. Out: `Drawn`: the blocks of the chosen steps of
each rank, and the what-if of the input. It is made where the input is read (maybe in another
process) and is small: whatever the input's size, at most `STEPS` steps and `WEIGHT` of blocks a rank.

| chosen, in this order                | why                                                  |
|--------------------------------------|------------------------------------------------------|
| a step with a collective in flight   | where the job is now, or hangs                       |
| the step of middle length            | what a step is usually like                          |
| the longest tails, the longest steps | what to look at first                                |
| the others, spread over the run      | the same numbers on each rank, so that ranks compare |

An input without steps is drawn as one stretch, the window of the report.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import Analysis, Rules, ruled
from overlapwatch.accounting.blocks import Blocks, Drawing
from overlapwatch.accounting.selection import Choice, Selection, choose
from overlapwatch.reports.html.whatif import whatif_payload
from overlapwatch.timeline.model import Origin, Recording, Timeline
from overlapwatch.vocabulary import Name, StepFlag

STEPS = 200
"""Steps of one rank."""
WEIGHT = 100_000
"""Of the blocks of one rank (`weight_of`): a step that would exceed it is not drawn, the first one always is."""
COLLECTIVE_WEIGHT = 5
"""A collective takes so many times the place of a compute block."""


@dataclass(frozen=True, slots=True, eq=False)
class RankDrawn:
    """What is drawn of one rank on one device.

    Args:
        origin: which; the origin of its Analysis.
        blocks: of the chosen steps, most wanted first.
        recorded: how many steps could have been chosen; 0 where the input has no steps.
        names, groups: what the ids in the blocks stand for, and nothing else.

    """

    origin: Origin
    blocks: tuple[Blocks, ...]
    recorded: int
    names: dict[int, Name]
    groups: dict[int, Name]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a page shows of one input beside its Analyses."""

    ranks: tuple[RankDrawn, ...]
    whatif: dict[str, Any]


def draw(
    recordings: Sequence[Recording],
    analyses: Sequence[Analysis],
    selections: Sequence[Selection],
    rules: Rules,
) -> Drawn:
    """Return what is drawn of one input.

    Args:
        recordings: as the source read them.
        analyses: one for each of them.
        selections: what was selected of each; it is there, since it was analysed.
        rules: how steps and phases are told where the input does not mark them.

    """
    told = [ruled(recording, rules)[0] for recording in recordings]
    choices = [choose(one, selection) for one, selection in zip(told, selections, strict=True)]
    wanted = list(dict.fromkeys(step for one in analyses for step in _wanted(one)))
    ranks = tuple(
        _rank(recording, choice, wanted) for recording, choice in zip(told, choices, strict=True)
    )
    return Drawn(ranks, whatif_payload(told, analyses))


def _wanted(analysis: Analysis) -> Iterator[int]:
    """Yield the steps that this rank says should be looked at."""
    yield from (one.step for one in analysis.in_flight)
    told = analysis.steps
    middle = told.duration.p50_ns if told.duration else None
    rows = analysis.rows[np.isin(analysis.rows["step"], [tail.step for tail in analysis.tails])]
    if middle is not None and len(rows):
        length = rows["end_ns"] - rows["start_ns"]
        yield int(rows["step"][np.argmin(np.abs(length - middle))])
    yield from (tail.step for tail in analysis.tail.worst)
    yield from (fact.step for fact in (*told.longest_tails, *told.longest))


def _rank(recording: Recording, choice: Choice, wanted: Sequence[int]) -> RankDrawn:
    tl = recording.timeline
    drawing = Drawing(tl)
    steps = choice.timeline.steps
    steps = steps[steps["flags"] & np.uint32(StepFlag.SHADOW) == 0]
    blocks: list[Blocks] = []
    if len(steps):
        left = WEIGHT
        for row in _in_order(steps, wanted)[:STEPS]:
            one = drawing.step(row)
            left -= weight_of(one)
            if left < 0 and blocks:
                break
            blocks.append(one)
    elif choice.window.length_ns:
        blocks.append(drawing.stretch(choice.window.start_ns, choice.window.end_ns))
    return RankDrawn(tl.origin, tuple(blocks), len(steps), *_names(tl, blocks))


def weight_of(blocks: Blocks) -> int:
    """Return what a stretch takes on a page: about 20 bytes for each unit."""
    return len(blocks.count) + COLLECTIVE_WEIGHT * len(blocks.records)


def _in_order(steps: NDArray[np.void], wanted: Sequence[int]) -> list[np.void]:
    """Return the STEP rows, wanted ones first, then the rest: first, last, and halves of what lies between.

    Which of the rest come first depends on the numbers alone (how often 2 divides them), so that
    ranks which kept the same steps show the same ones.
    """
    place = {step: at for at, step in reversed(list(enumerate(wanted)))}
    numbers = steps["step"].tolist()
    rounds = [(step & -step).bit_length() if step else 33 for step in numbers]
    order = sorted(
        range(len(steps)),
        key=lambda at: (place.get(numbers[at], len(wanted)), -rounds[at], numbers[at]),
    )
    return [steps[at] for at in order]


def _names(tl: Timeline, blocks: Sequence[Blocks]) -> tuple[dict[int, Name], dict[int, Name]]:
    """Return the names that the blocks use, with the parameters at the ends of each bucket."""
    used: set[int] = set()
    groups: set[int] = set()
    for one in blocks:
        used.update(np.unique(one.compute.name).tolist())
        used.update(np.unique(one.records["owner"]).tolist())
        used.update(np.unique(one.records["cause"]).tolist())
        groups.update(np.unique(one.records["group"]).tolist())
    names = {number: tl.names[number] for number in used if number in tl.names}
    ends = {edge for name in names.values() for edge in (*name.members[:1], *name.members[-1:])}
    names |= {number: tl.names[number] for number in ends if number in tl.names}
    return names, {number: tl.groups[number] for number in groups if number in tl.groups}

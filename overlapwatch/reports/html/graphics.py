"""The numbers that the page draws: parts of the window, bands, steps, ranks' waiting.

In: Analyses. Out: JSON-ready dicts whose numbers are those of `to_dict`, and the few figures that
open a rank's report, in words. It does not compute; of very many steps it picks those that are
drawn (`picked`), and says how.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.accounting.steps import StepFact
from overlapwatch.reports.format import NOT_KNOWN_TEXT, counted, ms, percent
from overlapwatch.reports.where_time_went import ratio_words
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, StepFlag

SERIES = ("overlap_ns", "communication_only_ns", "tail_ns")
"""Drawn of each step beside its duration."""


def figures(analysis: Analysis) -> list[dict[str, str]]:
    """Return the numbers that open a rank's report: what they are, and of what."""
    steps, parts = analysis.steps, analysis.partition
    known = parts.communication_known and parts.observed > 0
    found = []
    for word, ratio, ns, of in (
        ("hidden", steps.overlap, parts.overlap_ns, parts.communication_ns),
        ("exposed", steps.exposed_fraction, parts.communication_only_ns, parts.window_ns),
    ):
        whole = "communication" if word == "hidden" else "the steps' time"
        if ratio.denominator_ns and steps.overlap.denominator_ns:
            share, _, sides = ratio_words(ratio).partition(" (")
            found.append(_figure(word, share, f"of {whole}: {sides.removesuffix(')')}"))
        else:
            whole = "communication" if word == "hidden" else "the window"
            told = percent(ns, of) if known else NOT_KNOWN_TEXT
            sides = f"of {whole}: {ms(ns)} / {ms(of)} ms" if known else ""
            found.append(_figure(word, told, sides))
    if steps.tail is not None:
        tail = steps.tail
        told = (
            f"p50 of {counted(tail.count, 'step')}; p99 {ms(tail.p99_ns)}, max {ms(tail.max_ns)} ms"
        )
        found.append(_figure("tail", f"{ms(tail.p50_ns)} ms", told))
    else:
        reasons = [one.because for one in analysis.unknown if "tail" in one.what]
        found.append(_figure("tail", NOT_KNOWN_TEXT, reasons[0] if reasons else ""))
    if steps.duration is not None:
        step = steps.duration
        told = (
            f"p50 of {counted(step.count, 'step')}; p99 {ms(step.p99_ns)}, max {ms(step.max_ns)} ms"
        )
        found.append(_figure("step", f"{ms(step.p50_ns)} ms", told))
    else:
        found.append(_figure("window", f"{ms(parts.window_ns)} ms", analysis.window.rule))
    return found


def _figure(name: str, value: str, of: str) -> dict[str, str]:
    return {"name": name, "value": value, "of": of}


def parts(analysis: Analysis) -> dict[str, Any]:
    """Return the partition of the window, as it is in the JSON of a report."""
    return analysis.partition.to_dict()


def bands(analysis: Analysis) -> dict[str, Any]:
    """Return the exposed segments, as they are in the JSON of a report."""
    return analysis.exposed.to_dict()


def series(analysis: Analysis, most: int) -> dict[str, Any]:
    """Return the steps in statistics as columns, at most about `most` of them."""
    rows = analysis.rows
    counted_rows = rows[rows["flags"] & np.uint32(OUT_OF_STATISTICS) == 0]
    counted_rows = counted_rows[counted_rows["end_ns"] >= counted_rows["start_ns"]]
    counted_rows = counted_rows[np.argsort(counted_rows["step"], kind="stable")]
    chosen = counted_rows[picked(counted_rows, most)]
    length = chosen["end_ns"] - chosen["start_ns"]
    thinned = ""
    if len(chosen) < len(counted_rows):
        thinned = (
            f"{len(chosen):,} of {counted(len(counted_rows), 'step')} are drawn: of each stretch "
            "of neighbours the one with the longest tail and the longest one"
        )
    return {
        "step": chosen["step"].tolist(),
        "duration_ns": length.tolist(),
        **{name: _known(chosen[name]) for name in SERIES},
        "thinned": thinned,
    }


def picked(rows: NDArray[np.void], most: int) -> NDArray[np.intp]:
    """Return the places of at most `most` rows: of each stretch the longest tail and the longest step.

    rows 0..9, most 4        stretches 0-4 and 5-9, two of each at most
    """
    count = len(rows)
    if count <= most:
        return np.arange(count)
    stretches = max(1, most // 2)
    edges = np.linspace(0, count, stretches + 1).astype(np.int64)
    tail, length = rows["tail_ns"], rows["end_ns"] - rows["start_ns"]
    found: set[int] = set()
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        found.add(low + int(np.argmax(tail[low:high])))
        found.add(low + int(np.argmax(length[low:high])))
    return np.array(sorted(found), np.intp)


def recorded(analysis: Analysis) -> list[list[int]]:
    """Return the numbers of the selected steps whose events are in the input, as `runs`."""
    return runs([tail.step for tail in analysis.tails if not tail.flags & StepFlag.SHADOW])


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return ascending numbers as evenly spaced runs: first, distance, count.

    1 2 3 10 20 30 31        [1, 1, 3] [10, 10, 3] [31, 1, 1]
    """
    found: list[list[int]] = []
    for number in numbers:
        if found:
            first, distance, count = found[-1]
            if count == 1:
                found[-1] = [first, number - first, 2]
                continue
            if number == first + distance * count:
                found[-1][2] += 1
                continue
        found.append([number, 1, 1])
    return found


def _known(column: NDArray[np.int64]) -> list[int | None]:
    return [None if value == NOT_KNOWN else value for value in column.tolist()]


def worst(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the steps worth a look: the longest tails, with and without their events, and the longest steps."""
    told = analysis.steps
    kept = {tail.step: tail for tail in analysis.tails}
    facts = dict.fromkeys((*told.longest_tails, *told.longest))
    return [_worst(fact, kept) for fact in facts]


def _worst(fact: StepFact, kept: dict[int, Any]) -> dict[str, Any]:
    tail = kept.get(fact.step)
    spent = tail.dominant if tail is not None else None
    return {
        **fact.to_dict(),
        "events": tail is not None,
        "last_bucket": tail.last_bucket or None if tail is not None else None,
        "mostly": spent[0].value if spent else None,
        "mostly_ns": spent[1] if spent else None,
    }


def waits(across: AcrossRanks) -> list[dict[str, Any]]:
    """Return each rank's time in collectives, as it is in the JSON of a report."""
    return [one.to_dict(across.labels) for one in across.waits if one.stay_ns]


def checks(analyses: Sequence[Analysis], across: AcrossRanks | None) -> list[dict[str, Any]]:
    """Return every closure check with the place of its timeline (None: of the ranks together)."""
    found: list[dict[str, Any]] = [
        {**check.to_dict(), "timeline": place}
        for place, one in enumerate(analyses)
        for check in one.checks
    ]
    if across is not None:
        found += [{**check.to_dict(), "timeline": None} for check in across.checks()]
    return found

"""Everything that a page shows, as one dict of plain values.

In: the Analyses of a report, what was drawn of each input, and how the ranks compare in time. Out:
JSON-ready values. At most `IN_FULL` ranks are told in full and `POINTS` steps drawn over all of
them; what is left out is said in `thinned`. All text is data: the page never takes it for markup.

| key      | what it holds                                                            |
|----------|--------------------------------------------------------------------------|
| title    | the inputs                                                               |
| alerts   | what must be said before any number: jobs that run or were killed        |
| ranks    | one entry a rank and device: figures, parts, bands, series, worst, sections |
| beside   | the ranks side by side; null of one alone                                |
| across   | the ranks together in time: sections, waits; null of one alone           |
| lanes    | see `lanes`                                                              |
| whatif   | see `whatif`                                                             |
| checks   | every closure check of the ranks in full, and every one that failed      |
| not_known | what cannot be told, why, and of which rank (null: of all)              |
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.reports import opening, profiles
from overlapwatch.reports.format import counted
from overlapwatch.reports.html import graphics, sections
from overlapwatch.reports.html.drawn import Drawn
from overlapwatch.reports.html.lanes import lanes
from overlapwatch.reports.layout import clean

SCHEMA = 1
IN_FULL = 32
POINTS = 40_000
POINTS_A_RANK = 2_000


def payload(
    analyses: Sequence[Analysis], drawn: Sequence[Drawn], across: AcrossRanks | None = None
) -> dict[str, Any]:
    """Return what the page of these analyses shows.

    Args:
        analyses: at least one, in the order of the report.
        drawn: of each input that was read.
        across: how the ranks compare in time; None of one alone.

    """
    shown = _in_full(analyses)
    places = {id(one): place for place, one in enumerate(shown)}
    order = [*shown, *(one for one in analyses if id(one) not in places)]
    picture = lanes(order, drawn, across)
    points = min(POINTS_A_RANK, max(100, POINTS // len(shown)))
    thinned = picture.pop("thinned")
    if len(shown) < len(analyses):
        thinned.append(
            f"{len(shown)} of {counted(len(analyses), 'rank')} are told in full here; the tables "
            "of all ranks hold the others, and --rank N,M chooses them"
        )
    checks = graphics.checks(order, across)
    return {
        "schema": SCHEMA,
        "title": _title(analyses),
        "alerts": sections.sentences(opening.alerts(analyses)),
        "ranks": [
            _rank(one, name, points) for one, name in zip(shown, opening.labels(shown), strict=True)
        ],
        "labels": [clean(name) for name in opening.labels(order)],
        "beside": _beside(analyses),
        "across": _across(across),
        "lanes": picture,
        "whatif": _whatif(drawn),
        "thinned": thinned,
        "checks": [
            one
            for one in checks
            if not one["ok"] or one["timeline"] is None or one["timeline"] < len(shown)
        ],
        "checks_made": len(checks),
        "not_known": _not_known(shown, across),
    }


def _in_full(analyses: Sequence[Analysis]) -> list[Analysis]:
    """Return the analyses that are told in full: in a profile, those with communication first."""
    if len(analyses) <= IN_FULL:
        return list(analyses)
    talking = [one for one in analyses if one.partition.observed]
    return (talking or list(analyses))[:IN_FULL]


def _title(analyses: Sequence[Analysis]) -> str:
    paths = list(dict.fromkeys(one.origin.path for one in analyses))
    if len(paths) == 1:
        return clean(paths[0])
    homes = {str(PurePath(path).parent) for path in paths}
    what = f"{counted(len(paths), 'file')}, {counted(len(analyses), 'timeline')}"
    return (
        f"{clean(homes.pop())}: {what}"
        if len(homes) == 1
        else f"{clean(paths[0])} and {len(paths) - 1} more"
    )


def _rank(analysis: Analysis, label: str, points: int) -> dict[str, Any]:
    return {
        "label": clean(label),
        "figures": graphics.figures(analysis),
        "parts": graphics.parts(analysis),
        "exposed": graphics.bands(analysis),
        "series": graphics.series(analysis, points),
        "worst": graphics.worst(analysis),
        "recorded": graphics.recorded(analysis),
        "sections": sections.of_analysis(analysis),
    }


def _beside(analyses: Sequence[Analysis]) -> dict[str, Any] | None:
    if len(analyses) < 2:
        return None
    profile = all(one.state == "profile" for one in analyses)
    return sections.side_by_side(profiles.devices(analyses) if profile else opening.ranks(analyses))


def _across(across: AcrossRanks | None) -> dict[str, Any] | None:
    if across is None:
        return None
    return {"sections": sections.of_ranks(across), "waits": graphics.waits(across)}


def _whatif(drawn: Sequence[Drawn]) -> dict[str, Any]:
    found = [one.whatif for one in drawn]
    return next((one for one in found if one["run"] is not None), found[0])


def _not_known(shown: Sequence[Analysis], across: AcrossRanks | None) -> list[dict[str, Any]]:
    """Return each thing once, with the ranks that it is not known of."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, one in enumerate(shown):
        for unknown in one.unknown:
            found.setdefault((clean(unknown.what), clean(unknown.because)), []).append(place)
    together: dict[tuple[str, str], list[int]] = {
        (clean(one.what), clean(one.because)): [] for one in (across.unknown if across else ())
    }
    return [
        {"what": what, "because": because, "ranks": None if (what, because) in together else places}
        for (what, because), places in (found | together).items()
    ]

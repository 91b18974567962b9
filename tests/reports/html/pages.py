"""Pages of recordings, as the command makes them of inputs."""

from collections.abc import Sequence
from typing import Any

from overlapwatch.accounting.analyse import Analysis, Rules, analyse
from overlapwatch.accounting.ranks.across import AcrossRanks, across_ranks
from overlapwatch.accounting.selection import Selection
from overlapwatch.reports.html.drawn import Drawn, draw
from overlapwatch.reports.html.payload import payload
from overlapwatch.timeline.model import Recording


def told(recordings: Sequence[Recording]) -> tuple[list[Analysis], list[Drawn], AcrossRanks | None]:
    """What the report of one input with these ranks is made of."""
    analyses = [analyse(one) for one in recordings]
    drawn = draw(recordings, analyses, [Selection()] * len(recordings), Rules())
    tables = [one.table for one in analyses if one.table is not None]
    return analyses, [drawn], across_ranks(tables) if len(recordings) > 1 else None


def data_of(*recordings: Recording) -> dict[str, Any]:
    """The data of the page of these ranks."""
    return payload(*told(recordings))

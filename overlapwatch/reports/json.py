"""The report that scripts read: one JSON object, versioned by `schema`.

In: Analyses, and what is known of the files they come from. Out: a dict of plain values, or text.
Times are integer ns; what is not known is null, with an entry in `not_known` that says why. Keys
are added, not renamed or removed; a change of meaning raises `SCHEMA`.

| key          | what it holds                                                              |
|--------------|----------------------------------------------------------------------------|
| schema       | 1                                                                          |
| inputs       | the files: path, source, sha256 of their first MiB, what was skipped       |
| timelines    | one entry a rank and device: partition, kinds, phases, exposed, tail, ...  |
| devices      | the timelines side by side: least, median and most of each number          |
| across_ranks | what several ranks say together; null of one alone                         |
| closure      | every check, both sides, and the timeline it belongs to (null: the ranks)  |
| not_known    | what cannot be told, why, and the timeline it speaks of (null: all)        |
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.devices import side_by_side
from overlapwatch.accounting.ranks.across import AcrossRanks

SCHEMA = 1

_ALONE = {
    "what": "across_ranks",
    "because": "one rank alone cannot be compared",
    "timeline": None,
}


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file that was read.

    Args:
        path: as it was given or found.
        sha256_head: of its first MiB, hex; None where it could not be read again.
        size_bytes: its size; None where not known.

    """

    path: str
    sha256_head: str | None
    size_bytes: int | None


def to_dict(
    analyses: Sequence[Analysis],
    files: Iterable[InputFile] = (),
    across: AcrossRanks | None = None,
) -> dict[str, Any]:
    """Return the report as plain values.

    Args:
        analyses: one a rank and device.
        files: what is known of the files they come from.
        across: how the ranks compare in time.

    """
    known = {file.path: file for file in files}
    paths = dict.fromkeys(one.origin.path for one in analyses)
    return {
        "schema": SCHEMA,
        "inputs": [_input(path, known.get(path), analyses) for path in paths],
        "timelines": [one.to_dict() for one in analyses],
        "devices": side_by_side(analyses).to_dict(),
        "across_ranks": across.to_dict() if across else None,
        "closure": [
            *(
                {**check.to_dict(), "timeline": place}
                for place, one in enumerate(analyses)
                for check in one.checks
            ),
            *(
                {**check.to_dict(), "timeline": None}
                for check in (across.checks() if across else ())
            ),
        ],
        "not_known": [
            *(
                {"what": unknown.what, "because": unknown.because, "timeline": place}
                for place, one in enumerate(analyses)
                for unknown in one.unknown
            ),
            *_between(across),
        ],
    }


def _between(across: AcrossRanks | None) -> list[dict[str, Any]]:
    """Return what cannot be told of the ranks together."""
    if across is None:
        return [_ALONE]
    return [{"what": one.what, "because": one.because, "timeline": None} for one in across.unknown]


def _input(path: str, file: InputFile | None, analyses: Sequence[Analysis]) -> dict[str, Any]:
    mine = [one for one in analyses if one.origin.path == path]
    return {
        "path": path,
        "source": mine[0].origin.source,
        "sha256_head": file.sha256_head if file else None,
        "size_bytes": file.size_bytes if file else None,
        "read": {
            "timelines": len(mine),
            "steps": sum(one.steps.steps for one in mine),
            "collectives": sum(one.messages.total.count for one in mine),
        },
        "skipped": [
            {"what": skipped.what, "count": skipped.count, "because": skipped.because}
            for one in mine
            for skipped in one.skipped
        ],
        "notes": [text for one in mine for text in one.notes],
    }


def to_text(
    analyses: Sequence[Analysis],
    files: Iterable[InputFile] = (),
    across: AcrossRanks | None = None,
) -> str:
    """Return the report as JSON text, indented, with a final newline.

    Raises:
        ValueError: a value is not a number that JSON has (a fault of ours, never written out).

    """
    return json.dumps(to_dict(analyses, files, across), indent=1, allow_nan=False) + "\n"

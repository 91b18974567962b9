"""What a RECORD of a collective says, in words: how each of its times came to be, whose it is.

In: RECORD arrays and what their ids stand for. Out: lists of plain values, None where not known.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.buckets import ESTIMATED, Provenance
from overlapwatch.exports.subject import unfinished
from overlapwatch.timeline.records import has_span
from overlapwatch.vocabulary import CollectiveKind, Name, NameKind, Phase, RecordFlag

MARKS = tuple(ESTIMATED)
"""The four times of a collective, in order."""
FINISHED, RUNNING, UNOBSERVABLE, DAMAGED = "finished", "running", "unobservable", "damaged"

_KINDS = tuple(kind.title for kind in CollectiveKind)
_PHASES = tuple(phase.name.lower() for phase in Phase)


def kind_title(kind: int) -> str:
    """Return `AllReduce`, ...; `Unknown` for a kind that this version does not know."""
    return _KINDS[kind] if kind < len(_KINDS) else _KINDS[0]


def kinds(records: NDArray[np.void]) -> list[str]:
    """Return the kind of each collective."""
    return [kind_title(kind) for kind in _plain(records, "collective")]


def phase_word(phase: int) -> str:
    """Return `forward`, `backward`, `optimizer` or `other`."""
    return _PHASES[phase] if phase < len(_PHASES) else _PHASES[0]


def provenance(records: NDArray[np.void], mark: str) -> list[str]:
    """Return how one of the four times of each collective came to be."""
    told = np.full(len(records), Provenance.NOT_RECORDED.value, "<U12")
    known = records[mark] != 0
    told[known] = Provenance.MEASURED.value
    told[known & (records["flags"] & int(ESTIMATED[mark]) != 0)] = Provenance.ESTIMATED.value
    if mark == "finish":
        told[~known] = Provenance.UNOBSERVABLE.value
        told[unfinished(records)] = Provenance.UNFINISHED.value
    words: list[str] = told.tolist()
    return words


def states(records: NDArray[np.void]) -> list[str]:
    """Say of each collective whether it has a span, runs, cannot be observed, or is damaged."""
    told = np.full(len(records), DAMAGED, "<U12")
    told[records["flags"] & int(RecordFlag.FINISH_UNOBSERVABLE) != 0] = UNOBSERVABLE
    told[unfinished(records)] = RUNNING
    told[has_span(records)] = FINISHED
    words: list[str] = told.tolist()
    return words


def flagged(records: NDArray[np.void], flag: RecordFlag) -> list[bool]:
    """Say which records carry a flag."""
    told: list[bool] = (records["flags"] & int(flag) != 0).tolist()
    return told


def texts(ids: NDArray[np.integer], names: Mapping[int, Name]) -> list[str | None]:
    """Return what the ids stand for; None for 0 and for an id without a name."""
    return [names[one].text if one in names else None for one in ids.tolist()]


def owner_kinds(records: NDArray[np.void], names: Mapping[int, Name]) -> list[str | None]:
    """Return what the owner of each collective is: `bucket`, `module`, `call site`, ..."""
    words = {kind: kind.name.lower() for kind in NameKind}
    words[NameKind.OPERATION] = "call site"
    owners: list[int] = _plain(records, "owner")
    return [words[names[one].kind] if one in names else None for one in owners]


def or_none(column: NDArray[np.integer]) -> list[int | None]:
    """Return numbers of which 0 means that they are not known."""
    return [value or None for value in column.tolist()]


def _plain(records: NDArray[np.void], field: str) -> list[int]:
    values: list[int] = records[field].tolist()
    return values

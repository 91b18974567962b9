"""Who was late, from the steps' summaries alone: what a running job can know of its other ranks.

In: SUMMARY rows of several ranks. Out: a `LiveLateness`: the late rank of the newest common step, and
the rank that is late again and again over the latest steps. The rules are those of `lateness` (material,
in more than half of the steps, beyond chance); only the entries are fewer: one a step, into the last
reduction.

No clock is compared. All ranks leave the last reduction together, so a rank that entered it later has
the shorter tail (last reduce end − last compute end), by just that much:

| tails in ms of ranks 0..3 | middle | late rank | by |
|---------------------------|--------|-----------|----|
| 17, 18, 5, 18             | 18     | 2         | 13 |

A rank that was late earlier in the step and made up for it is not seen here; the report tells it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.ranks.chance import at_least
from overlapwatch.accounting.ranks.late_steps import JITTERS, LEAST_SHARE
from overlapwatch.accounting.ranks.lateness import CHANCE, FEW_STEPS
from overlapwatch.accounting.spread import median
from overlapwatch.timeline.model import I64
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS


@dataclass(frozen=True, slots=True)
class LiveLateness:
    """Who was late.

    Args:
        step: the newest step that all `ranks` have summed up; None where there is none.
        ranks: ranks that were compared.
        late_rank, late_ns: who was materially late in that step, and by how much; None: nobody.
        judged: steps that were judged.
        worst_rank: the rank that is late again and again; None: no rank is.
        worst_steps: in how many of the judged steps it was materially late.
        worst_ns: the median of these; None without.
        material_ns: lateness that matters.

    """

    step: int | None
    ranks: int
    late_rank: int | None
    late_ns: int | None
    judged: int
    worst_rank: int | None
    worst_steps: int
    worst_ns: int | None
    material_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


NOBODY = LiveLateness(None, 0, None, None, 0, None, 0, None, 0)
"""Nothing can be said."""


def live_lateness(summaries: Mapping[int, NDArray[np.void]]) -> LiveLateness:
    """Return who was late.

    Args:
        summaries: SUMMARY rows by rank, of the latest steps, or rows with its step, flags, start_ns,
            end_ns and tail_ns; ranks without rows are not judged.

    """
    known = {rank: rows[_usable(rows)] for rank, rows in summaries.items()}
    known = {rank: rows for rank, rows in sorted(known.items()) if len(rows)}
    if len(known) < 2:
        return NOBODY
    steps, tails, lengths = _common(known)
    if not len(steps):
        return NOBODY
    ranks = list(known)
    ordered = np.sort(tails, axis=1)
    # The middle rank in the order of entry, which is that of falling tails; of two ranks, the first.
    middle = ordered[:, len(ranks) // 2]
    late = middle[:, None] - tails
    jitter = median(ordered[:, -1] - middle) if len(ranks) > 2 else 0
    material = max(round(LEAST_SHARE * (median(lengths) or 0)), JITTERS * (jitter or 0), 1)
    last = late.argmax(axis=1)
    newest = int(late[-1, last[-1]])
    worst = _worst(late, last, material)
    count = 0 if worst is None else int((late[:, worst] >= material).sum())
    return LiveLateness(
        step=int(steps[-1]),
        ranks=len(ranks),
        late_rank=ranks[int(last[-1])] if newest >= material else None,
        late_ns=newest if newest >= material else None,
        judged=len(steps),
        worst_rank=None if worst is None else ranks[worst],
        worst_steps=count,
        worst_ns=None if worst is None else median(late[late[:, worst] >= material, worst]),
        material_ns=material,
    )


def _usable(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    counted = rows["flags"] & np.uint32(OUT_OF_STATISTICS) == 0
    return np.asarray(counted & (rows["tail_ns"] != NOT_KNOWN), np.bool_)


def _common(known: Mapping[int, NDArray[np.void]]) -> tuple[NDArray[np.uint32], I64, I64]:
    """Return the steps that all ranks have, their tails (steps × ranks) and their lengths."""
    steps = np.unique(next(iter(known.values()))["step"])
    for rows in known.values():
        steps = np.intersect1d(steps, rows["step"])
    tails = np.empty((len(steps), len(known)), np.int64)
    lengths = np.empty_like(tails)
    for place, rows in enumerate(known.values()):
        first = np.unique(rows["step"], return_index=True)
        mine = rows[first[1][np.isin(first[0], steps)]]
        tails[:, place] = mine["tail_ns"]
        lengths[:, place] = mine["end_ns"] - mine["start_ns"]
    return steps, tails, lengths.ravel()


def _worst(late: I64, last: NDArray[np.intp], material: int) -> int | None:
    """Return the place of the rank that is late in most steps, beyond chance."""
    count, ranks = late.shape
    if count < FEW_STEPS:
        return None
    materially = late >= material
    often = materially.sum(axis=0)
    worst = int(np.lexsort((-late.sum(axis=0), -often))[0])
    was_last = int(((last == worst) & materially[:, worst]).sum())
    behind = (ranks - (ranks + 1) // 2) / ranks
    by_last = at_least(was_last, count, 1 / ranks) * ranks
    by_late = at_least(int(often[worst]), count, behind) * ranks
    persistent = (by_last < CHANCE and 2 * was_last > count) or (
        by_late < CHANCE and 2 * int(often[worst]) > count
    )
    return worst if persistent else None

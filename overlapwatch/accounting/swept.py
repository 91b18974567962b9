"""Which options a sweep changed while the run went on: what was configured at its start says nothing of those.

In: the notes of a log. Out: names of options, and an `Unknown` for each. What it does not know: when which value held.
"""

from collections.abc import Iterable, Sequence

from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import SWEPT

_OPTIONS = ("merge_bucket_groups", "overlap_grad_reduce", "overlap_param_gather")


def swept(notes: Sequence[str]) -> frozenset[str]:
    """Return Megatron-Core's options that a sweep changed."""
    text = " ".join(note for note in notes if note.startswith(SWEPT))
    return frozenset(option for option in _OPTIONS if option in text)


def not_judged(options: Iterable[str]) -> tuple[Unknown, ...]:
    """Return what cannot be told of these options."""
    because = "a sweep changed it in this run; what is listed was in force when the watch began"
    return tuple(Unknown(f"what came of {option}", because) for option in sorted(options))

"""Timelines with a name and a closed-form answer, for every test that accounts.

`record`, `records`, `lane` and `profile` build a timeline of kernels from times in ms; each named scenario returns a
`Scenario`, whose answers were worked out by hand. All times lie after `BASE_NS`: a time of 0 means "not known".
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import STEP, Lane, Origin, Timeline
from overlapwatch.vocabulary import RECORD, CollectiveKind, Phase, RecordKind

MS = 1_000_000
BASE_NS = 1_000_000_000

Span = tuple[float, float]


def at(ms: float) -> int:
    """Return the clock's ns at a time of the scenario in ms."""
    return BASE_NS + round(ms * MS)


def record(**fields: int) -> NDArray[np.void]:
    """Return an array of one RECORD; fields that are not given are 0, times are ns as they are given."""
    row = np.zeros(1, RECORD)
    for name, value in fields.items():
        row[name] = value
    return row


def records(rows: Iterable[NDArray[np.void]]) -> NDArray[np.void]:
    """Return the rows as one RECORD array."""
    return np.concatenate([np.empty(0, RECORD), *rows])


def collective(
    start: float,
    finish: float,
    *,
    ready: float | None = None,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    phase: Phase = Phase.OTHER,
    size: int = 1000,
    **fields: int,
) -> NDArray[np.void]:
    """Return a finished COLLECTIVE from times in ms; it is ready and launched at `ready`, or at its start."""
    begun = start if ready is None else ready
    times = {"ready": at(begun), "launch": at(begun), "start": at(start), "finish": at(finish)}
    base = {"kind": RecordKind.COLLECTIVE, "collective": kind, "phase": phase, "bytes": size}
    return record(**{**base, **times, **fields})


def lane(spans: Iterable[Span], phase: Phase = Phase.OTHER) -> Lane:
    """Return a lane of spans in ms, all of one phase."""
    spans = list(spans)
    return Lane(
        np.array([at(start) for start, _ in spans], np.int64),
        np.array([at(end) for _, end in spans], np.int64),
        np.zeros(len(spans), np.uint32),
        np.full(len(spans), phase, np.uint8),
    )


def lanes(*several: Lane) -> Lane:
    """Return several lanes as one."""
    columns = (
        np.concatenate([getattr(one, field) for one in several])
        for field in ("start", "end", "name", "phase")
    )
    return Lane(*columns)


def step_rows(rows: Iterable[tuple[int, float, float]], flags: int = 0) -> NDArray[np.void]:
    """Return a STEP array from (number, start, end) in ms."""
    return np.array([(number, flags, at(start), at(end)) for number, start, end in rows], STEP)


def profile(
    compute: Iterable[Span] = (),
    communication: Iterable[NDArray[np.void] | Span] = (),
    copies: Iterable[Span] = (),
    **fields: object,
) -> Timeline:
    """Return a timeline of kernels, times in ms. A communication pair is an AllReduce without queueing."""
    rows = (one if isinstance(one, np.ndarray) else collective(*one) for one in communication)
    return Timeline(
        origin=Origin("scenario", "scenario"),
        compute=lane(compute),
        communication=records(rows),
        copies=lane(copies),
        compute_rule="kernels",
        **fields,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Scenario:
    """A timeline and its answers for the whole capture, in ms. `ratio` is None without communication."""

    timeline: Timeline
    window: float
    compute_only: float
    communication_only: float
    overlap: float
    idle: float
    ratio: float | None
    tail: float


def nothing() -> Scenario:
    """No span at all."""
    return Scenario(profile(), 0, 0, 0, 0, 0, None, 0)


def no_communication() -> Scenario:
    """Two kernels with a gap."""
    return Scenario(profile([(0, 3), (4, 6)]), 6, 5, 0, 0, 1, None, 0)


def serial() -> Scenario:
    """Compute, then communication: nothing hidden."""
    return Scenario(profile([(0, 6)], [(6, 10)]), 10, 6, 4, 0, 0, 0.0, 4)


def perfect_overlap() -> Scenario:
    """Communication inside compute, from start to end."""
    return Scenario(profile([(0, 10)], [(2, 5), (6, 9)]), 10, 4, 0, 6, 0, 1.0, 0)


def half_exposed() -> Scenario:
    """Communication of 4 ms, of which 2 run under compute."""
    return Scenario(profile([(0, 6)], [(4, 8)]), 8, 4, 2, 2, 0, 0.5, 2)


def worked(send_ms: int, *, overlapped: bool) -> Scenario:
    """Return the worked example of the definitions: three compute blocks of 2 ms, each sent when computed.

    Answers are those of the definitions (9 -> 7 ms for 1 ms sends, 18 -> 14 ms for 4 ms sends); the times are those of
    one engine for both lanes (serial) or of two.
    """
    compute: list[Span] = []
    sends = []
    computed = sent = 0
    for sequence in (1, 2, 3):
        begin = computed if overlapped else sent
        computed = begin + 2
        compute.append((begin, computed))
        start = max(computed, sent)
        sent = start + send_ms
        fields = {"sequence": sequence, "owner": sequence, "phase": Phase.BACKWARD}
        sends.append(collective(start, sent, ready=computed, **fields))
    answer = {
        (1, False): (9, 6, 3, 0, 0, 0.0, 1),
        (1, True): (7, 4, 1, 2, 0, 2 / 3, 1),
        (4, False): (18, 6, 12, 0, 0, 0.0, 4),
        (4, True): (14, 2, 8, 4, 0, 1 / 3, 8),
    }[send_ms, overlapped]
    return Scenario(profile(compute, sends), *answer)


SCENARIOS = {
    "nothing": nothing,
    "no_communication": no_communication,
    "serial": serial,
    "perfect_overlap": perfect_overlap,
    "half_exposed": half_exposed,
    "worked 1 ms serial": lambda: worked(1, overlapped=False),
    "worked 1 ms overlapped": lambda: worked(1, overlapped=True),
    "worked 4 ms serial": lambda: worked(4, overlapped=False),
    "worked 4 ms overlapped": lambda: worked(4, overlapped=True),
}

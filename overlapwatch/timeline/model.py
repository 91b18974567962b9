"""The waist: one Timeline is what one rank did on one device, whatever recorded it.

In: whatever a source or the live assembler knows. Out: numpy columns, int64 ns, half-open intervals `[start, end)`,
all on one clock. Accounting sees nothing else. What could not be known is listed, never filled in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from overlapwatch.vocabulary import GRADIENT_READY, PAYLOAD, RECORD, SUMMARY, Name

I64 = NDArray[np.int64]

STEP = np.dtype([("step", "<u4"), ("flags", "<u4"), ("start", "<i8"), ("end", "<i8")])
"""One step of the timeline; `flags` are StepFlag."""


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Spans of one kind, in any order, possibly overlapping one another.

    Args:
        start, end: int64 ns, half-open.
        name: ids into `Timeline.names`, 0 where there is none.
        phase: Phase of each span.
        shape: of kernels: a code of grid and block, 0 where not known; None: of none is it known.
    """

    start: I64
    end: I64
    name: NDArray[np.uint32]
    phase: NDArray[np.uint8]
    shape: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.start)


def empty_lane() -> Lane:
    """Return a lane without spans."""
    return Lane(
        np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint8)
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a timeline came from. `rank`, `world` are None when the input does not say."""

    source: str
    path: str
    rank: int | None = None
    world: int | None = None
    device: str = ""
    process: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """One thing this input cannot tell, and why."""

    what: str
    because: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a source read and could not use: how many, of what, why."""

    what: str
    count: int
    because: str


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One rank on one device.

    Args:
        origin: where it came from.
        compute: the compute lane (kernels, or marked spans minus waits).
        communication: RECORD array of COLLECTIVE records; a finish of 0 is still running or unobservable.
        copies: memcpy and memset spans, and copies into and out of collectives; neither lane.
        waits: spans in which compute stood still for communication.
        uses: RECORD array of the WAIT records that name a collective: each use of a module's unsharded
            parameters, however short the wait, and each wait for its gradients; in order of start.
        held: RECORD array of HELD records, in order of start: when which unsharded parameters were held. One that was
            still held when its step was last seen ends there, and its finish is flagged as estimated.
        fused: kernels that compute and communicate at once: reported beside both lanes.
        ranges: annotations of the host (NVTX, user annotations), named, on the profile's clock.
        payloads: PAYLOAD array: calls of the communication library, where the profile has them.
        phases: spans with a phase each (forward, backward, optimizer), from which the phase of a moment is told.
        phase_rule: what decided the phases, in words: "recorded marks", "NVTX ranges", ...
        compute_rule: what the compute lane is made of, in words.
        steps: STEP array, in order.
        gradients: GRADIENT_READY array of sampled steps.
        names: what `owner` and `cause` ids stand for.
        groups: what `group` ids stand for.
        skipped, unknown: what was left out, and what cannot be told.
    """

    origin: Origin
    compute: Lane = field(default_factory=empty_lane)
    communication: NDArray[np.void] = field(default_factory=lambda: np.empty(0, RECORD))
    copies: Lane = field(default_factory=empty_lane)
    waits: Lane = field(default_factory=empty_lane)
    uses: NDArray[np.void] = field(default_factory=lambda: np.empty(0, RECORD))
    held: NDArray[np.void] = field(default_factory=lambda: np.empty(0, RECORD))
    fused: Lane = field(default_factory=empty_lane)
    ranges: Lane = field(default_factory=empty_lane)
    payloads: NDArray[np.void] = field(default_factory=lambda: np.empty(0, PAYLOAD))
    phases: Lane = field(default_factory=empty_lane)
    phase_rule: str = "none"
    compute_rule: str = ""
    steps: NDArray[np.void] = field(default_factory=lambda: np.empty(0, STEP))
    gradients: NDArray[np.void] = field(default_factory=lambda: np.empty(0, GRADIENT_READY))
    names: Mapping[int, Name] = field(default_factory=dict)
    groups: Mapping[int, Name] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Everything one input says about one rank on one device: its timeline, and what goes beyond it.

    Args:
        timeline: the spans that were kept (a log keeps whole steps, not all of them).
        summaries: SUMMARY array, one row for every step that ran, kept or not; empty when the source has none.
        in_flight: COLLECTIVE records launched and not finished when the input was read, oldest first.
        state: "closed" (ended in order), "running", "killed" (the process is gone without a word) or "profile".
        read_ns: when it was read, on the clock of the records; None unless the process still runs on this host.
        about: facts to print beside the numbers: versions, settings, environment variables that decide overlap.
        counters: what the recorder counted about itself: records lost, log bytes, steps dropped, ...
        notes: sentences for the reader (a torn log tail, a ring that could not be reached).
    """

    timeline: Timeline
    summaries: NDArray[np.void] = field(default_factory=lambda: np.empty(0, SUMMARY))
    in_flight: NDArray[np.void] = field(default_factory=lambda: np.empty(0, RECORD))
    state: str = "profile"
    read_ns: int | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

"""Records as the ring and the log hold them -> a Timeline.

In: a RECORD array of one rank, in any order, with the tables that its ids refer to. Out: the
Timeline of marks: steps, phases, waits, copies around collectives, parameters held, communication,
and a compute lane that is made of marks (`COMPUTE_RULE`), since nobody saw kernels. That lane is an
over-estimate where launches leave gaps. A copy on the compute lane's own queue (stream 0) is cut
out of compute, since it is neither lane; one on another stream runs beside compute and is not.
What has not finished ends, for now, 1 ns after the last moment that any record of its step has seen
(spans are half-open: the moment is inside); a collective without a finish stays without one.

    phase   backward  0-10          compute   backward  0-4
    wait              4-6           compute   backward  6-10        phases keeps 0-10
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.intervals import subtract_spans, union
from overlapwatch.timeline.model import (
    I64,
    STEP,
    Lane,
    Origin,
    Skipped,
    Timeline,
    Unknown,
)
from overlapwatch.vocabulary import (
    GRADIENT_READY,
    RECORD,
    Name,
    Phase,
    RecordFlag,
    RecordKind,
    StepFlag,
)

COMPUTE_RULE = "marked forward, backward and optimizer spans minus waits"
COMPUTE_RULE_COPIES = f"{COMPUTE_RULE} and copies around collectives"
PHASE_RULE = "recorded marks"

_TIMES = ("ready", "launch", "start", "finish")
_COMPUTING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_BAD_SPAN = "they have no start, or a finish before it"
_UNKNOWN_KIND = "their kind is not known to this version"


def join_records(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Return several RECORD arrays as one. As plain bytes: numpy compares structured types field by field."""
    plain = [np.ascontiguousarray(part).view(f"V{RECORD.itemsize}") for part in parts]
    return np.concatenate(plain).view(RECORD) if plain else np.empty(0, RECORD)


def from_marks(tl: Timeline) -> bool:
    """Say whether the compute lane is made of marks, so that the steps bound what was recorded."""
    return tl.compute_rule in {COMPUTE_RULE, COMPUTE_RULE_COPIES}


def begin_of(records: NDArray[np.void]) -> I64:
    """Return where the span of each COLLECTIVE begins, ns; 0 = not known.

    On a device (stream not 0) that is its start, measured or estimated: the host's launch runs
    ahead of the device and says nothing about it. On the host it is the start where that was
    measured, else the launch, since nobody sees a host-side collective begin.
    """
    start, launch = records["start"], records["launch"]
    told = (records["flags"] & RecordFlag.START_ESTIMATED == 0) | (records["stream"] != 0)
    return np.where(((start != 0) & told) | (launch == 0), start, launch)


def has_span(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say which COLLECTIVE records have both ends, in order.

    A finish before the beginning is damage, not a span.
    """
    begin = begin_of(records)
    return np.asarray((begin != 0) & (records["finish"] >= begin), np.bool_)


def from_records(
    records: NDArray[np.void],
    *,
    origin: Origin,
    gradients: NDArray[np.void] | None = None,
    names: Mapping[int, Name] | None = None,
    groups: Mapping[int, Name] | None = None,
    step_flags: Mapping[int, int] | None = None,
    skipped: Iterable[Skipped] = (),
    unknown: Iterable[Unknown] = (),
) -> Timeline:
    """Assemble the Timeline of one rank.

    Args:
        records: RECORD array. NONE and MARK records are no spans and are passed over.
        origin: where the records came from.
        gradients: GRADIENT_READY array.
        names: what owner and cause ids stand for; an id that is not there stays an id.
        groups: what group ids stand for.
        step_flags: StepFlag of each step number, from the summaries; a step without one has none.
        skipped: what the source left out; what is left out here is added.
        unknown: what the source cannot tell.

    """
    kind = records["kind"]
    latest = _Latest(records)
    steps, bad_steps = _spans(records[kind == RecordKind.STEP], latest)
    phases, bad_phases = _spans(records[kind == RecordKind.PHASE], latest)
    waits, bad_waits = _spans(records[kind == RecordKind.WAIT], latest)
    copy_records = records[kind == RecordKind.COPY]
    copies, bad_copies = _spans(copy_records, latest)
    in_line, _ = _spans(copy_records[copy_records["stream"] == 0], latest)
    communication = records[kind == RecordKind.COLLECTIVE]
    uses, _ = _whole(records[(kind == RecordKind.WAIT) & (records["collective"] != 0)], latest)
    held, bad_held = _whole(records[kind == RecordKind.HELD], latest)
    stops = _lane(np.concatenate((waits, _stops(communication, latest))))
    phase_lane = _lane(phases)
    found = (
        Skipped("step, phase and wait records", bad_steps + bad_phases + bad_waits, _BAD_SPAN),
        Skipped("copy and held records", bad_copies + bad_held, _BAD_SPAN),
        Skipped("records", int((kind > max(RecordKind)).sum()), _UNKNOWN_KIND),
    )
    return Timeline(
        origin=origin,
        compute=_compute(phase_lane, stops, in_line),
        communication=communication,
        copies=_lane(copies),
        waits=stops,
        uses=uses,
        held=held,
        phases=phase_lane,
        phase_rule=PHASE_RULE,
        compute_rule=COMPUTE_RULE_COPIES if len(in_line) else COMPUTE_RULE,
        steps=_steps(steps, step_flags or {}),
        gradients=np.empty(0, GRADIENT_READY) if gradients is None else gradients,
        names=dict(names or {}),
        groups=dict(groups or {}),
        skipped=(*skipped, *(one for one in found if one.count)),
        unknown=tuple(unknown),
    )


_SPAN = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("step", "<u4"),
        ("name", "<u4"),
        ("phase", "u1"),
        ("open", "?"),  # it had no finish: `end` is where its step has been seen to
    ]
)


class _Latest:
    """The end of what has been seen of a step, looked up when something in it has no finish."""

    def __init__(self, records: NDArray[np.void]) -> None:
        self._records = records

    def __call__(self, step: NDArray[np.uint32]) -> I64:
        moments = np.zeros(len(step), np.int64)
        if not len(step):  # as a rule: `unique` of nothing costs 20 microseconds
            return moments
        for number in np.unique(step):  # the steps of what is unfinished: rarely more than one
            rows = self._records[self._records["step"] == number]
            moments[step == number] = max(int(rows[field].max()) for field in _TIMES) + 1
        return moments


def _spans(records: NDArray[np.void], latest: _Latest) -> tuple[NDArray[np.void], int]:
    """Return the records that are spans, unfinished ones closed, and how many are not."""
    spans = np.empty(len(records), _SPAN)
    if not len(records):
        return spans, 0
    spans["start"], spans["end"] = records["start"], records["finish"]
    spans["step"], spans["name"], spans["phase"] = (
        records["step"],
        records["owner"],
        records["phase"],
    )
    spans["open"] = spans["end"] == 0
    spans["end"][spans["open"]] = latest(spans["step"][spans["open"]])
    good = (spans["start"] != 0) & (spans["end"] >= spans["start"])
    return spans[good], int((~good).sum())


def _whole(records: NDArray[np.void], latest: _Latest) -> tuple[NDArray[np.void], int]:
    """Return the records that are spans, in order of start, whole; and how many are not.

    One that is open ends where its step has been seen to, and its finish is flagged as estimated.
    """
    if not len(records):
        return records, 0
    records = records.copy()
    unended = records["finish"] == 0
    records["finish"][unended] = latest(records["step"][unended])
    records["flags"][unended] |= np.uint8(RecordFlag.FINISH_ESTIMATED)
    good = (records["start"] != 0) & (records["finish"] >= records["start"])
    whole = records[good]
    return whole[np.argsort(whole["start"], kind="stable")], int((~good).sum())


def _stops(communication: NDArray[np.void], latest: _Latest) -> NDArray[np.void]:
    """Return the waits nobody recorded: the caller of a synchronous collective stands still."""
    flags = communication["flags"]
    held = (flags & int(RecordFlag.SYNCHRONOUS) != 0) & (
        flags & int(RecordFlag.FINISH_UNOBSERVABLE) == 0
    )
    calls = communication[held].copy()
    # On the host the caller stands from its launch on; on a device from where its stream got there.
    on_host = (calls["stream"] == 0) | (calls["start"] == 0)
    calls["start"] = np.where((calls["launch"] != 0) & on_host, calls["launch"], calls["start"])
    return _spans(calls, latest)[0]


def _lane(spans: NDArray[np.void]) -> Lane:
    spans = spans[np.argsort(spans["start"], kind="stable")]
    columns = (np.ascontiguousarray(spans[field]) for field in ("start", "end", "name", "phase"))
    return Lane(*columns)


def _compute(phases: Lane, waits: Lane, copies: NDArray[np.void]) -> Lane:
    """Cut waits and copies out of each marked span; each piece keeps its module and phase."""
    kept = np.flatnonzero(np.isin(phases.phase, _COMPUTING))
    cut_start, cut_end = waits.start, waits.end
    if len(copies):
        cut_start = np.concatenate((cut_start, copies["start"]))
        cut_end = np.concatenate((cut_end, copies["end"]))
    start, end, index = subtract_spans(
        phases.start[kept], phases.end[kept], union(cut_start, cut_end)
    )
    return Lane(start, end, phases.name[kept][index], phases.phase[kept][index])


def _steps(spans: NDArray[np.void], flags: Mapping[int, int]) -> NDArray[np.void]:
    spans = spans[np.argsort(spans["start"], kind="stable")]
    steps = np.empty(len(spans), STEP)
    steps["step"], steps["start"], steps["end"] = spans["step"], spans["start"], spans["end"]
    steps["flags"] = [flags.get(int(number), 0) for number in spans["step"]]
    steps["flags"][spans["open"]] |= np.uint32(StepFlag.PARTIAL)
    return steps

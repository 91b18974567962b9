"""A rank and device as a whole: its window and how that divides; what is to be said beside numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from overlapwatch.exports.columns import Batch, Column, Type, table
from overlapwatch.exports.tables.told import Told

_PARTITION = (
    ("window_ns", "recorded length of the window; the four parts add up to it"),
    ("compute_ns", "union of the compute lane"),
    ("communication_ns", "union of the communication lane"),
    ("compute_only_ns", "part: compute, no communication"),
    ("communication_only_ns", "part: communication, no compute (exposed)"),
    ("overlap_ns", "part: both (hidden)"),
    ("idle_ns", "part: neither"),
    ("copies_only_ns", "of idle: copies ran"),
)
_COUNTS = (
    ("observed", "collectives whose spans make up the communication lane"),
    ("unfinished", "collectives launched in the window and still running"),
    ("unobservable", "collectives of the window whose span nobody can know"),
)

TIMELINES = table(
    "timelines",
    "one rank on one device: its window and how that divides",
    Column("world", "ranks in all"),
    Column("device", "on which device", Type.TEXT),
    Column("process", "process of the input", Type.TEXT),
    Column("host", "host", Type.TEXT),
    Column("source", "what recorded it", Type.TEXT),
    Column("path", "file", Type.TEXT),
    Column("state", "closed, running, killed, profile", Type.TEXT),
    Column("window_rule", "what chose the window", Type.TEXT),
    Column("boundary", "spans at its edge: clip or contained", Type.TEXT),
    Column("window_start_ns", "on the clock of the rank"),
    Column("window_end_ns", "on the clock of the rank"),
    *(Column(name, about) for name, about in _PARTITION),
    Column("overlap_ratio", "overlap_ns / communication_ns", Type.REAL),
    Column("exposed_fraction", "communication_only_ns / window_ns", Type.REAL),
    *(Column(name, about) for name, about in _COUNTS),
    Column("compute_rule", "what the compute lane is made of", Type.TEXT),
    Column("phase_rule", "what decided the phases", Type.TEXT),
    Column("step_rule", "what told the steps", Type.TEXT),
    Column("clock_offset_ns", "how far its clock is ahead of the reference, at clock_offset_at_ns"),
    Column("clock_offset_at_ns", "the moment on the reference clock at which the offset holds"),
    Column("clock_drift_ppm", "by which it gains on the reference", Type.REAL),
    Column("clock_residual_p95_ns", "how unsure a time between the two clocks is"),
)


def timelines(one: Told) -> Iterator[Batch]:
    """Yield its one row."""
    analysis, fit = one.analysis, one.fit
    origin, window, parted = analysis.origin, analysis.window, analysis.partition.to_dict()
    known = {name: parted[name] for name, _ in (*_PARTITION, *_COUNTS)}
    row = {
        "timeline": one.label,
        "rank": origin.rank,
        "world": origin.world,
        "device": origin.device or None,
        "process": origin.process or None,
        "host": origin.host or None,
        "source": origin.source,
        "path": origin.path,
        "state": analysis.state,
        "window_rule": window.rule,
        "boundary": window.boundary,
        "window_start_ns": window.start_ns,
        "window_end_ns": window.end_ns,
        **known,
        "overlap_ratio": parted["overlap_ratio"],
        "exposed_fraction": parted["exposed_fraction"],
        "compute_rule": analysis.compute_rule or None,
        "phase_rule": analysis.phase_rule,
        "step_rule": analysis.step_rule,
        "clock_offset_ns": fit.offset_ns if fit else None,
        "clock_offset_at_ns": fit.at_ns if fit else None,
        "clock_drift_ppm": fit.drift * 1e6 if fit else None,
        "clock_residual_p95_ns": fit.p95_ns if fit else None,
    }
    yield TIMELINES.rows([row])


REMARKS = table(
    "remarks",
    "what cannot be told, what was left out, and other sentences for the reader",
    Column("about", "not known, skipped, note", Type.TEXT),
    Column("what", "what cannot be told, or was skipped", Type.TEXT),
    Column("count", "of what was skipped"),
    Column("because", "why; or the note", Type.TEXT),
)


def remarks(one: Told) -> Iterator[Batch]:
    """Yield what is to be said of it."""
    rows: list[Mapping[str, Any]] = [
        {"about": "not known", "what": unknown.what, "count": None, "because": unknown.because}
        for unknown in one.analysis.unknown
    ]
    rows += [
        {"about": "skipped", "what": skip.what, "count": skip.count, "because": skip.because}
        for skip in one.analysis.skipped
    ]
    rows += [
        {"about": "note", "what": None, "count": None, "because": note}
        for note in one.analysis.notes
    ]
    yield REMARKS.rows([{**one.who, **row} for row in rows])

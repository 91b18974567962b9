"""A simulated step as a Timeline, so that the accounting of recorded steps tells its numbers too.

In: the courses of several steps of one rank. Out: a Timeline of steps behind one another, with compute, collectives
and held parameters. It has no marks that the accounting would not find in a recording.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from overlapwatch.timeline.model import STEP, Lane, Origin, Timeline
from overlapwatch.vocabulary import RECORD, Name, NameKind, RecordKind
from overlapwatch.whatif.fsdp2_engines import Course
from overlapwatch.whatif.fsdp2_lanes import STOPPED

_BEGIN_NS = 1_000_000_000
"""Where the first step begins: 0 would mean "not known"."""


def simulated(
    courses: Sequence[Course], sizes: Mapping[str, int], held: Mapping[str, int]
) -> Timeline:
    """Return the steps one after another.

    Args:
        courses: one a step; each begins at 0.
        sizes: bytes of each collective, by the name of its job.
        held: bytes of each module's unsharded parameters.
    """
    modules = {text: place for place, text in enumerate(_modules(courses, sizes), 1)}
    steps, compute, rows = [], [], []
    base = _BEGIN_NS
    for number, course in enumerate(courses, 1):
        steps.append((number, 0, base, base + course.end_ns))
        for work in course.work:
            if work.computing:
                compute.append((base + work.start_ns, base + work.end_ns, 0, work.phase))
            elif work.name.startswith(STOPPED):
                span = (base + work.start_ns, base + work.end_ns)
                kind = int(work.name.removeprefix(STOPPED))
                rows.append(_record(number, kind, work.phase, 0, 0, *span))
        for job, sent in course.sent.items():
            text, _, module = job.split(" ", 2)
            span = (base + sent.launch_ns, base + sent.finish_ns)
            owner, size = modules[module], sizes.get(job, 0)
            rows.append(_record(number, int(text), sent.phase, owner, size, *span))
        for one in course.held:
            row = np.zeros((), RECORD)
            row["kind"], row["step"], row["owner"] = RecordKind.HELD, number, modules[one.name]
            row["bytes"] = held.get(one.name, 0)
            row["start"], row["finish"] = base + one.start_ns, base + one.end_ns
            rows.append(row)
        base += course.end_ns
    records = np.array(rows, RECORD)
    spans = np.array(compute, np.int64).reshape(-1, 4)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    holds = records[records["kind"] == RecordKind.HELD]
    return Timeline(
        origin=Origin("simulated", ""),
        compute=Lane(
            spans[:, 0].copy(),
            spans[:, 1].copy(),
            spans[:, 2].astype(np.uint32),
            spans[:, 3].astype(np.uint8),
        ),
        communication=records[records["kind"] == RecordKind.COLLECTIVE],
        held=holds[np.argsort(holds["start"], kind="stable")],
        steps=np.array(steps, STEP),
        names={place: Name(place, NameKind.MODULE, text) for text, place in modules.items()},
    )


def _modules(courses: Iterable[Course], sizes: Mapping[str, int]) -> list[str]:
    found = dict.fromkeys(job.split(" ", 2)[2] for job in sizes)
    for course in courses:
        found |= dict.fromkeys(job.split(" ", 2)[2] for job in course.sent)
        found |= dict.fromkeys(one.name for one in course.held)
    return list(found)


def _record(
    step: int, kind: int, phase: int, owner: int, size: int, start: int, finish: int
) -> np.ndarray:
    row = np.zeros((), RECORD)
    row["kind"], row["collective"], row["phase"] = RecordKind.COLLECTIVE, kind, phase
    row["step"], row["owner"], row["bytes"] = step, owner, size
    row["ready"] = row["launch"] = row["start"] = start
    row["finish"] = finish
    return row

import numpy as np
import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.window import Window, capture_window, steps_window, trim_window
from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.model import Origin
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import RecordFlag, RecordKind, StepFlag
from tests.support.scenarios import MS, at, collective, profile, record, records, step_rows


def marked(*rows, **options):
    return from_records(records(rows), origin=Origin("log", "rank0.owlog"), **options)


def step(number, start, finish):
    return record(kind=RecordKind.STEP, step=number, start=start, finish=finish)


def edges(window):
    return window.start_ns, window.end_ns


def test_the_capture_of_a_profile_is_its_kernels_not_its_steps():
    tl = profile([(2, 4)], [(3, 7)], copies=[(1, 2)], steps=step_rows([(1, 0, 9)]))
    window = capture_window(tl)
    assert edges(window) == (at(1), at(7))
    assert window.length_ns == 6 * MS


def test_a_recording_begins_and_ends_with_its_steps():
    tl = marked(step(1, 100, 200), record(kind=RecordKind.PHASE, phase=2, start=120, finish=180))
    assert edges(capture_window(tl)) == (100, 200)


def test_the_capture_takes_the_same_span_of_a_collective_as_the_lanes_do():
    estimated = collective(5, 6, ready=1, flags=RecordFlag.START_ESTIMATED)
    assert edges(capture_window(profile([(2, 3)], [estimated]))) == (at(1), at(6))
    running = record(kind=RecordKind.COLLECTIVE, launch=at(0))
    assert edges(capture_window(profile([(2, 3)], [running]))) == (at(2), at(3))


def test_the_launch_that_hangs_a_job_is_in_the_window_of_its_step_and_of_the_capture():
    hung = record(kind=RecordKind.COLLECTIVE, step=2, launch=250)
    tl = marked(step(1, 100, 200), record(kind=RecordKind.STEP, step=2, start=200), hung)
    assert partition(tl, steps_window(tl, 2, 2)).unfinished == 1
    assert partition(tl, capture_window(tl)).unfinished == 1
    assert partition(tl, steps_window(tl, 1, 1)).unfinished == 0
    lost = marked(step(1, 100, 200), hung)  # the record of its step was overwritten
    assert partition(lost, capture_window(lost)).unfinished == 1


def test_an_empty_timeline_has_an_empty_window():
    assert capture_window(profile()).length_ns == 0


def test_a_range_of_steps():
    tl = profile([(0, 30)], steps=step_rows([(4, 0, 10), (5, 10, 20), (6, 20, 30)]))
    window = steps_window(tl, 5, 6)
    assert (edges(window), window.rule) == ((at(10), at(30)), "steps 5 to 6")
    assert steps_window(tl, 5, 5).rule == "step 5"
    assert steps_window(tl, 6, 9).rule == "steps 6 to 9, 1 of 4 recorded"
    with pytest.raises(ConfigurationError, match=r"steps 7 to 8 not found: .* holds steps 4 to 6"):
        steps_window(tl, 7, 8)
    with pytest.raises(ConfigurationError, match="the timeline has no steps"):
        steps_window(profile(), 1, 1)


def test_time_that_nobody_recorded_is_no_idle_time():
    """Steps 3 and 4 were not kept, step 2 was a shadow step; the gap between 5 and 6 was recorded."""
    phase = RecordKind.PHASE
    tl = marked(
        step(1, 100, 110),
        step(2, 110, 120),
        step(5, 150, 160),
        step(6, 163, 170),
        record(kind=phase, phase=2, step=1, start=100, finish=110),
        record(kind=phase, phase=2, step=5, start=150, finish=155),
        # Reaches from step 1 far into the unrecorded steps: only what lies in step 1 counts.
        record(kind=RecordKind.COLLECTIVE, step=1, launch=105, start=105, finish=140),
        step_flags={2: StepFlag.SHADOW},
    )
    window = capture_window(tl)
    assert edges(window) == (100, 170)
    assert window.length_ns == 10 + 20
    assert window.to_dict()["not_recorded_ns"] == 40
    found = partition(tl, window)
    assert (found.overlap_ns, found.compute_only_ns) == (5, 10)
    assert (found.communication_only_ns, found.idle_ns) == (0, 15)
    assert all(check.ok for check in found.checks())
    # The rule holds for a range of steps too; each span must lie in one recorded stretch.
    contained = steps_window(tl, 1, 6, boundary="contained")
    assert partition(tl, contained).communication_ns == 0
    assert partition(tl, contained).compute_ns == 15


def test_a_trimmed_window():
    assert edges(trim_window(3, 9)) == (3, 9)
    with pytest.raises(ConfigurationError, match="must end after it starts"):
        trim_window(9, 9)


@pytest.mark.parametrize(
    ("boundary", "taken"),
    [("clip", [(3, 5, 0), (4, 6, 1), (6, 8, 2), (3, 8, 3)]), ("contained", [(4, 6, 1)])],
)
def test_boundary_rules(boundary, taken):
    start, end = np.array([1, 4, 6, 0, 9]), np.array([5, 6, 9, 10, 12])
    found = Window(3, 8, "test", boundary).take(start, end)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == taken

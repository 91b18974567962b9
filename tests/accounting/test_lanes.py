import pytest

from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.window import Window
from overlapwatch.vocabulary import CollectiveKind, RecordFlag, RecordKind
from tests.support.scenarios import profile, record

WINDOW = Window(100, 200, "test")


def lanes(**fields):
    row = record(kind=RecordKind.COLLECTIVE, **fields)
    return lanes_of(profile(communication=[row]), WINDOW)


@pytest.mark.parametrize(
    ("fields", "span"),
    [
        ({"launch": 110, "start": 120, "finish": 150}, (120, 150)),  # residence on the device
        ({"launch": 110, "finish": 150}, (110, 150)),  # host side: nobody sees the start
        (
            {"launch": 110, "start": 120, "finish": 150, "flags": RecordFlag.START_ESTIMATED},
            (110, 150),
        ),
        ({"start": 120, "finish": 150}, (120, 150)),
        ({"start": 120, "finish": 150, "flags": RecordFlag.START_ESTIMATED}, (120, 150)),
        ({"launch": 90, "start": 95, "finish": 210}, (100, 200)),
        # Queued before the window; a finish that was only estimated is still one.
        (
            {"launch": 90, "start": 120, "finish": 150, "flags": RecordFlag.FINISH_ESTIMATED},
            (120, 150),
        ),
    ],
)
def test_which_span_stands_for_a_record(fields, span):
    found = lanes(**fields)
    assert (found.start.tolist(), found.end.tolist()) == ([span[0]], [span[1]])
    assert len(found.unfinished) == len(found.unobservable) == 0


@pytest.mark.parametrize(
    ("fields", "unfinished", "unobservable"),
    [
        ({"launch": 110}, 1, 0),
        ({"launch": 110, "start": 120}, 1, 0),
        ({"launch": 110, "flags": RecordFlag.FINISH_UNOBSERVABLE}, 0, 1),
        ({"finish": 150}, 0, 1),  # it ran, from when on nobody knows
        ({"launch": 110, "start": 160, "finish": 150}, 0, 1),  # damage
        ({"launch": 90}, 0, 0),  # counts in the window it was launched in
        ({"launch": 200}, 0, 0),
    ],
)
def test_a_record_without_both_ends_is_counted_and_never_a_span(fields, unfinished, unobservable):
    found = lanes(**fields)
    assert found.collectives == len(found.start) == len(found.communication) == 0
    assert (len(found.unfinished), len(found.unobservable)) == (unfinished, unobservable)


def test_a_collective_of_no_length_was_there():
    found = lanes(launch=110, start=120, finish=120)
    assert found.collectives == 1
    assert len(found.communication) == 0


def test_kinds_and_phases_of_a_newer_version_are_unknown():
    found = lanes(launch=110, finish=150, collective=99, phase=77)
    assert found.kind.tolist() == [CollectiveKind.UNKNOWN]
    assert found.phase.tolist() == [0]

import pytest

from overlapwatch.accounting.phases import phases
from overlapwatch.accounting.window import Window, capture_window
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag, RecordKind
from tests.support.scenarios import MS, at, collective, lane, lanes, profile, record

FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER
STEP = lanes(lane([(0, 4)], FORWARD), lane([(4, 9)], BACKWARD), lane([(9, 10)], OPTIMIZER))


def split(tl, boundary="clip"):
    found = phases(tl, Window(at(0), at(20), "test", boundary))
    assert [check.name for check in found.checks() if not check.ok] == []
    return found


def cells(found):
    return {
        cell.phase: (cell.count, cell.union_ns / MS, cell.overlap_ns / MS, cell.exposed_ns / MS)
        for cell in found.cells
    }


def test_recorded_phase_decides_although_the_tail_runs_later():
    sends = [collective(7, 12, phase=BACKWARD), collective(1, 3, phase=FORWARD)]
    found = split(profile([(0, 10)], sends, phases=STEP, phase_rule="recorded marks"))
    assert cells(found) == {FORWARD: (1, 2, 2, 0), BACKWARD: (1, 5, 3, 2)}
    assert found.rule == "recorded marks, phase of the launch"


def test_without_recorded_phases_time_decides_and_cuts():
    found = split(profile([(0, 10)], [(3, 6), (8, 12)], phases=STEP, phase_rule="NVTX ranges"))
    assert cells(found) == {
        FORWARD: (1, 1, 1, 0),  # 3-4; counted here, where it begins
        BACKWARD: (1, 3, 3, 0),  # 4-6 and 8-9; the second begins here
        OPTIMIZER: (0, 1, 1, 0),  # 9-10
        OTHER: (0, 2, 0, 2),  # 10-12
    }
    assert found.rule == "NVTX ranges, by time"


def test_concurrent_collectives_that_are_cut_count_once_each():
    found = split(profile([], [(3, 6), (3.5, 7)], phases=STEP))
    assert cells(found) == {FORWARD: (2, 1, 0, 1), BACKWARD: (0, 3, 0, 3)}


def test_a_moment_of_several_phases_counts_once():
    """A forward recomputed inside backward is backward's."""
    inner = lanes(lane([(0, 6)], FORWARD), lane([(2, 4)], BACKWARD), lane([(3, 5)], OPTIMIZER))
    found = split(profile([], [(0, 6)], phases=inner))
    assert cells(found) == {
        FORWARD: (1, 3, 0, 3),
        BACKWARD: (0, 2, 0, 2),
        OPTIMIZER: (0, 1, 0, 1),
    }
    assert found.remainder.union_ns == 0


def test_kinds_that_run_at_once_leave_a_remainder():
    gather = collective(5, 8, kind=CollectiveKind.ALL_GATHER, phase=BACKWARD)
    tl = profile([(0, 7)], [gather, collective(4, 6, phase=BACKWARD)], phases=STEP)
    found = split(tl)
    assert [cell.title for cell in found.cells] == [
        "AllReduce in backward",
        "AllGather in backward",
    ]
    assert found.remainder.overlap_ns == MS
    assert found.to_dict()["cells"][0]["phase"] == "backward"


@pytest.mark.parametrize("communication", [[], [(1, 2)]])
def test_no_phases(communication):
    tl = profile([(0, 2)], communication)
    found = phases(tl, capture_window(tl))
    assert found.rule == "no phases known"
    assert [cell.phase for cell in found.cells] == [OTHER] * len(communication)
    assert all(check.ok for check in found.checks())


def test_what_has_no_span_is_counted_beside_the_cells():
    unseen = [
        record(
            kind=RecordKind.COLLECTIVE,
            collective=kind,
            phase=phase,
            flags=RecordFlag.FINISH_UNOBSERVABLE,
            launch=at(3),
        )
        for phase, kind in (
            (Phase.BACKWARD, CollectiveKind.REDUCE_SCATTER),
            (Phase.FORWARD, CollectiveKind.SEND_RECV),
            (Phase.FORWARD, CollectiveKind.SEND_RECV),
        )
    ]
    seen = collective(2, 4, phase=Phase.BACKWARD)
    tl = profile([(0, 9)], [seen, *unseen])
    told = phases(tl, capture_window(tl))
    assert told.unseen == (
        (Phase.FORWARD, CollectiveKind.SEND_RECV, 2),
        (Phase.BACKWARD, CollectiveKind.REDUCE_SCATTER, 1),
    )
    assert [(cell.kind, cell.count) for cell in told.cells] == [(CollectiveKind.ALL_REDUCE, 1)]
    assert told.to_dict()["unseen"][0] == {"phase": "forward", "kind": "SendRecv", "count": 2}

from dataclasses import replace

from overlapwatch.accounting.kinds import kinds
from overlapwatch.accounting.split import Amounts
from overlapwatch.accounting.window import Window, capture_window
from overlapwatch.timeline.model import Origin
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import CollectiveKind, RecordKind
from tests.support.scenarios import MS, at, collective, profile, record, records

REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


def test_rows_and_the_remainder_of_kinds_that_run_at_once():
    tl = profile([(0, 4)], [collective(2, 6, size=70), collective(3, 5, kind=GATHER, size=30)])
    found = kinds(tl, capture_window(tl))
    assert [cell.to_dict() for cell in found.cells] == [
        {
            "kind": "AllReduce",
            "count": 1,
            "bytes": 70,
            "summed_ns": 4 * MS,
            "union_ns": 4 * MS,
            "overlap_ns": 2 * MS,
            "exposed_ns": 2 * MS,
        },
        {
            "kind": "AllGather",
            "count": 1,
            "bytes": 30,
            "summed_ns": 2 * MS,
            "union_ns": 2 * MS,
            "overlap_ns": 1 * MS,
            "exposed_ns": 1 * MS,
        },
    ]
    assert found.whole == Amounts(4 * MS, 2 * MS, 2 * MS)
    assert found.remainder == Amounts(2 * MS, 1 * MS, 1 * MS)
    assert all(check.ok for check in found.checks())


def test_within_a_kind_a_union_beside_the_sum():
    tl = profile([], [(0, 4), (2, 6)])
    (cell,) = kinds(tl, capture_window(tl)).cells
    assert (cell.count, cell.summed_ns, cell.union_ns) == (2, 8 * MS, 6 * MS)


def test_sizes_nobody_told_are_unknown():
    tl = profile([], [collective(0, 1, size=0)])
    assert kinds(tl, capture_window(tl)).cells[0].bytes is None


def test_what_is_not_finished_is_in_no_row():
    tl = profile([], [record(kind=RecordKind.COLLECTIVE, launch=at(1)), (2, 3)])
    (cell,) = kinds(tl, Window(at(0), at(9), "test")).cells
    assert (cell.count, cell.summed_ns) == (1, MS)


def test_a_collective_cut_by_time_that_was_not_recorded_counts_once():
    rows = [
        record(kind=RecordKind.STEP, step=1, start=10, finish=20),
        record(kind=RecordKind.STEP, step=4, start=50, finish=60),
        record(
            kind=RecordKind.COLLECTIVE, collective=REDUCE, step=1, launch=15, finish=55, bytes=8
        ),
    ]
    tl = from_records(records(rows), origin=Origin("log", "rank0.owlog"))
    found = kinds(tl, capture_window(tl))
    (cell,) = found.cells
    assert (cell.count, cell.bytes, cell.union_ns) == (1, 8, 10)
    assert all(check.ok for check in found.checks())


def test_no_communication_no_rows():
    tl = profile([(0, 1)])
    found = kinds(tl, capture_window(tl))
    assert found.cells == ()
    assert all(check.ok for check in found.checks())


def test_a_check_fails_when_a_row_is_lost():
    tl = profile([(0, 4)], [(2, 6), collective(3, 5, kind=GATHER)])
    found = kinds(tl, capture_window(tl))
    short = replace(found, cells=found.cells[:1])
    assert [check.ok for check in short.checks()] == [True, False, False, False, False]

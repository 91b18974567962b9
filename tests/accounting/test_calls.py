from dataclasses import replace

import numpy as np

from overlapwatch.accounting.calls import calls_of, calls_of_records, payloads_of
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.window import capture_window, trim_window
from overlapwatch.vocabulary import PAYLOAD, CollectiveKind
from tests.support.profiles import call, payloads
from tests.support.scenarios import at, collective, profile, records

NONE = np.empty(0, PAYLOAD)
GATHER = CollectiveKind.ALL_GATHER


def told(rows, launched=()):
    found = calls_of(rows, records(launched))
    assert [check for check in found.checks() if not check.ok] == []
    return found


def test_the_table_of_the_module():
    (one,) = told(payloads(call(0, 4, group=1), call(1, 4, group=2), call(2, 8, group=1))).kinds
    assert (one.calls, one.communicators, one.p50_bytes, one.total_bytes) == (3, 2, 4, 16)
    assert one.sizes == ((8, 1), (4, 2))


def test_exact_sizes_with_how_often_they_occur():
    """27 gathers of 256 MiB and one of an odd size, beside a 4-byte AllReduce that is not 0.00 MiB."""
    mib = 1 << 20
    rows = payloads(
        *(call(i, 256 * mib, kind=GATHER) for i in range(27)),
        call(27, 240_451_584, kind=GATHER),
        *(call(28 + i, 4) for i in range(2)),
    )
    reduce, gather = told(rows).kinds
    assert (reduce.kind, reduce.sizes, reduce.total_bytes) == (
        CollectiveKind.ALL_REDUCE,
        ((4, 2),),
        8,
    )
    assert gather.sizes == ((256 * mib, 27), (240_451_584, 1))
    assert (gather.p50_bytes, gather.p99_bytes) == (256 * mib, 256 * mib)
    assert gather.total_bytes == 27 * 256 * mib + 240_451_584


def test_a_call_without_a_size_is_no_call_of_0_bytes():
    (one,) = told(payloads(call(0, -1), call(1, 0), call(2, 8))).kinds
    assert (one.calls, one.unsized, one.total_bytes, one.sizes) == (3, 1, 8, ((8, 1), (0, 1)))
    (none,) = told(payloads(call(0, -1))).kinds
    assert (none.total_bytes, none.p50_bytes, none.sizes) == (None, None, ())
    assert none.to_dict()["total_bytes"] is None


def test_without_calls_records_tell():
    found = told(NONE, [collective(0, 1, size=8, group=3), collective(1, 2, size=0)])
    (one,) = found.kinds
    assert (found.told, one.calls, one.unsized, one.sizes) == ("records", 2, 1, ((8, 1),))
    assert told(NONE).told == "none"


def test_a_kind_of_a_newer_version_is_unknown():
    (one,) = told(payloads(call(0, 4, kind=77), call(0, 4, kind=0))).kinds
    assert (one.kind, one.calls) == (CollectiveKind.UNKNOWN, 2)


def test_which_calls_belong_to_a_window():
    """One with a kernel belongs where that runs: the host is far ahead."""
    tl = profile([], [collective(0, 10), collective(10, 20)])
    tl = replace(
        tl, payloads=payloads(call(1, 4, kernel=0), call(2, 5, kernel=1), call(3, 6), call(15, 7))
    )

    def sizes(low, high):
        lanes = lanes_of(tl, trim_window(at(low), at(high)))
        return payloads_of(tl, lanes, whole=False)["bytes"].tolist()

    assert sizes(0, 10) == [4, 6]
    assert sizes(10, 20) == [5, 7]
    assert sizes(0, 20) == [4, 5, 6, 7]
    lanes = lanes_of(tl, capture_window(tl))
    early = replace(tl, payloads=payloads(call(-5, 9)))
    assert len(payloads_of(early, lanes, whole=True)) == 1
    assert len(payloads_of(early, lanes, whole=False)) == 0


def test_calls_that_only_kernels_tell():
    silent = collective(5, 6, size=0)
    silent["launch"] = 0
    tl = profile([], [collective(0, 1, size=8, group=2), collective(2, 3, size=0), silent])
    rows = calls_of_records(tl, lanes_of(tl, capture_window(tl)))
    assert rows[["group", "bytes", "kernel"]].tolist() == [(2, 8, 0), (0, -1, 1)]
    none = profile([], [collective(0, 1, size=0)])
    assert len(calls_of_records(none, lanes_of(none, capture_window(none)))) == 0

"""Rates where kernels, calls and sizes agree; the three counts, and none, where they do not."""

from dataclasses import replace
from fractions import Fraction

import pytest

from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.rates import bus_factor, moved_bytes, rates
from overlapwatch.accounting.window import capture_window
from overlapwatch.vocabulary import CollectiveKind as Kind
from overlapwatch.vocabulary import Name, NameKind
from tests.support.profiles import call, payloads
from tests.support.scenarios import MS, collective, profile

GROUPS = {
    1: Name(1, NameKind.GROUP, "dp", members=(0, 1, 2, 3)),
    2: Name(2, NameKind.GROUP, "tp", elements=2),
    3: Name(3, NameKind.GROUP, "pp"),
}


def told(sends, calls, steps=None, world=None, **options):
    tl = profile([], sends)
    lanes = lanes_of(tl, capture_window(tl))
    return rates(payloads(*calls), lanes, GROUPS, steps, world, **options)


def only(*arguments, **options):
    (one,) = told(*arguments, **options)
    return one


@pytest.mark.parametrize(
    ("kind", "moved", "factor"),
    [
        (Kind.ALL_REDUCE, 1000, Fraction(6, 4)),
        (Kind.REDUCE_SCATTER, 4000, Fraction(3, 4)),
        (Kind.ALL_GATHER, 4000, Fraction(3, 4)),
        (Kind.ALL_TO_ALL, 4000, Fraction(3, 4)),
        (Kind.GATHER, 4000, Fraction(3, 4)),
        (Kind.SCATTER, 4000, Fraction(3, 4)),
        (Kind.BROADCAST, 1000, 1),
        (Kind.REDUCE, 1000, 1),
        (Kind.SEND_RECV, 1000, 1),
        (Kind.UNKNOWN, 1000, None),
        (Kind.BARRIER, 1000, None),
    ],
)
def test_sizes_and_factors_of_nccl_tests(kind, moved, factor):
    assert moved_bytes(kind, 1000, 4) == moved
    assert bus_factor(kind, 4) == factor


def test_an_all_reduce():
    """2 × 4 MB in 2 × 2 ms: 2 GB/s, and over the bus 6/4 of it."""
    sends = [collective(0, 2, group=1), collective(5, 7, group=1)]
    one = only(sends, [call(0, 4_000_000, group=1), call(1, 4_000_000, group=1)], steps=2)
    assert (one.kernels, one.calls, one.sized, one.steps, one.ranks) == (2, 2, 2, 2, 4)
    assert (one.bytes, one.time_ns, one.because) == (8_000_000, 4 * MS, "")
    assert (one.algbw_gb_s, one.busbw_gb_s) == (2.0, 3.0)
    assert one.closes
    assert one.to_dict()["label"] == "wait-inclusive lower bound"


def test_gb_are_decimal_and_an_all_gather_counts_all_parts():
    """Each rank gives 256 MiB; 8 ranks' parts in 10 ms. Counted as one part, it would be 8 times too low."""
    groups = {1: Name(1, NameKind.GROUP, "dp", members=tuple(range(8)))}
    tl = profile([], [collective(0, 10, group=1, kind=Kind.ALL_GATHER)])
    rows = payloads(call(0, 256 << 20, kind=Kind.ALL_GATHER, group=1))
    (one,) = rates(rows, lanes_of(tl, capture_window(tl)), groups, None)
    assert one.bytes == 8 * (256 << 20)
    assert one.algbw_gb_s == pytest.approx(214.748, abs=0.001)
    assert one.busbw_gb_s == pytest.approx(214.748 * 7 / 8, abs=0.001)


def test_bytes_that_were_moved_are_taken_as_they_are():
    sends = [collective(0, 1, group=1, kind=Kind.ALL_GATHER)]
    calls = [call(0, 8_000_000, group=1, kind=Kind.ALL_GATHER)]
    assert only(sends, calls, moved=True).bytes == 8_000_000
    assert only(sends, calls).bytes == 32_000_000


@pytest.mark.parametrize(
    ("sends", "calls", "steps", "because"),
    [
        (2, [8, 8, 8], None, "kernels, calls and sizes do not agree"),
        (3, [8, 8], None, "kernels, calls and sizes do not agree"),
        (2, [8, -1], None, "kernels, calls and sizes do not agree"),
        (0, [8, 8], None, "no kernel of it was recorded"),
        (2, [], None, "no call of it was recorded"),
        (2, [-1, -1], None, "the sizes of its calls are not known"),
        (3, [8, 8, 8], 2, "3 in 2 steps is not a whole number in each"),
    ],
)
def test_where_the_counts_do_not_close_there_is_no_rate(sends, calls, steps, because):
    spans = [collective(i, i + 1, group=1) for i in range(sends)]
    one = only(spans, [call(i, size, group=1) for i, size in enumerate(calls)], steps)
    assert (one.kernels, one.calls, one.sized) == (
        sends, len(calls), sum(size >= 0 for size in calls),
    )  # fmt: skip
    assert (one.because, one.bytes, one.algbw_gb_s, one.busbw_gb_s) == (because, None, None, None)
    assert not one.closes
    assert one.to_dict()["label"] is None


def test_all_ranks_calls_meet_no_subset_of_the_devices():
    """Eight ranks' calls in one file, seven devices recorded: 8 calls for each kernel give no rate."""
    spans = [collective(i, i + 1, group=1) for i in range(5)]
    one = only(spans, [call(i, 8, group=1) for i in range(40)], steps=5)
    assert (one.kernels, one.calls, one.algbw_gb_s) == (5, 40, None)


def test_the_number_of_ranks_must_be_known():
    sends, calls = [collective(0, 1, group=3)], [call(0, 8, group=3)]
    assert only(sends, calls).because == "the number of ranks is not known"
    ungrouped = only([collective(0, 1)], [call(0, 8)])
    assert (ungrouped.because, ungrouped.closes) == ("the number of ranks is not known", True)
    larger = only([collective(0, 1, group=1)], [call(0, 8, group=1)], world=2)
    assert larger.because == "the number of ranks is not known"


def test_each_communicator_by_itself():
    sends = [collective(0, 1, group=1), collective(1, 3, group=2), collective(3, 5, group=2)]
    calls = [call(0, 4_000_000, group=1), call(1, 4_000_000, group=2), call(2, 4_000_000, group=2)]
    first, second = told(sends, calls)
    assert (first.group, first.ranks, first.algbw_gb_s) == ("dp", 4, 4.0)
    assert (second.group, second.ranks, second.algbw_gb_s, second.busbw_gb_s) == ("tp", 2, 2.0, 2.0)


def test_a_kernel_has_the_communicator_of_its_call():
    sends = [collective(0, 1), collective(1, 3)]
    calls = [call(0, 4_000_000, group=1, kernel=0), call(1, 4_000_000, group=2, kernel=1)]
    first, second = told(sends, calls)
    assert [(one.group, one.algbw_gb_s) for one in (first, second)] == [("dp", 4.0), ("tp", 2.0)]


def test_a_kernel_is_what_its_calls_were():
    """An AllToAll runs as SendRecv kernels; of a group of different calls, the kernel's name stands."""
    sends = [collective(0, 1, kind=Kind.SEND_RECV), collective(1, 2, kind=Kind.SEND_RECV)]
    calls = [
        call(0, 4_000_000, kind=Kind.ALL_TO_ALL, group=1, kernel=0),
        call(1, 8, kind=Kind.ALL_TO_ALL, group=1, kernel=1),
        call(1, 8, kind=Kind.BROADCAST, group=1, kernel=1),
    ]
    found = {one.kind: (one.kernels, one.calls) for one in told(sends, calls)}
    assert found == {Kind.ALL_TO_ALL: (1, 2), Kind.BROADCAST: (0, 1), Kind.SEND_RECV: (1, 0)}


def test_kernels_without_a_communicator_are_told_by_kind_alone():
    sends = [collective(0, 1), collective(1, 2)]
    same = only(sends, [call(0, 4_000_000, group=1), call(1, 4_000_000, group=1)])
    assert (same.group, same.ranks, same.algbw_gb_s) == ("", 4, 4.0)
    mixed = only(sends, [call(0, 8, group=1), call(1, 8, group=2)])
    assert (mixed.kernels, mixed.calls, mixed.because) == (2, 2, "the number of ranks is not known")


def test_time_is_of_whole_kernels():
    """A kernel that the window cuts is one with its own length, for its call moved all of its bytes."""
    tl = profile([(0, 10)], [collective(8, 12, group=1)])
    window = replace(capture_window(tl), end_ns=tl.compute.end[0])
    (one,) = rates(payloads(call(0, 8, group=1)), lanes_of(tl, window), GROUPS, None)
    assert one.time_ns == 4 * MS


def test_kinds_without_a_rate():
    one = only(
        [collective(0, 1, group=1, kind=Kind.BARRIER)], [call(0, 4, group=1, kind=Kind.BARRIER)]
    )
    assert (one.because, one.closes) == ("this kind has no rate", True)
    assert told([], []) == ()

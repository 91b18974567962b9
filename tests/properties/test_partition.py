"""Partition, kinds, phases and exposed segments against a bitmap of 1 ns: one set of integers per lane."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.exposed import exposed
from overlapwatch.accounting.kinds import kinds
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.phases import phases
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import union
from overlapwatch.timeline.model import Lane, Origin, Timeline
from overlapwatch.vocabulary import CollectiveKind, Phase, RecordFlag, RecordKind
from tests.support.scenarios import record, records

SPAN = st.tuples(st.integers(1, 40), st.integers(0, 12), st.sampled_from(Phase))
LANE = st.lists(SPAN, max_size=6)


@st.composite
def collectives(draw):
    launch = draw(st.integers(1, 30))
    start = draw(st.one_of(st.just(0), st.integers(launch, launch + 6)))
    begin = start or launch
    return {
        "kind": RecordKind.COLLECTIVE,
        "collective": draw(st.sampled_from([CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER])),
        "phase": draw(st.sampled_from(Phase)),
        "flags": draw(
            st.sampled_from([0, RecordFlag.START_ESTIMATED, RecordFlag.FINISH_UNOBSERVABLE])
        ),
        "launch": launch,
        "start": start,
        "finish": draw(st.one_of(st.just(0), st.integers(begin, begin + 12))),
        "bytes": 1,
    }


@st.composite
def windows(draw):
    start = draw(st.integers(1, 25))
    length = draw(st.integers(0, 25))
    holes = draw(st.lists(st.tuples(st.integers(1, 45), st.integers(0, 6)), max_size=2))
    low = np.array([low for low, _ in holes], np.int64)
    size = np.array([size for _, size in holes], np.int64)
    boundary = draw(st.sampled_from(["clip", "contained"]))
    return Window(start, start + length, "drawn", boundary, union(low, low + size))


def lane(spans):
    start = np.array([start for start, _, _ in spans], np.int64)
    length = np.array([length for _, length, _ in spans], np.int64)
    phase = np.array([phase for _, _, phase in spans], np.uint8)
    return Lane(start, start + length, np.zeros(len(spans), np.uint32), phase)


def timeline(compute, copies, moments, sends):
    return Timeline(
        origin=Origin("drawn", "drawn"),
        compute=lane(compute),
        copies=lane(copies),
        phases=lane(moments),
        communication=records(record(**send) for send in sends),
    )


def holes(window):
    gaps = window.not_recorded
    return {
        moment
        for low, high in zip(gaps.start.tolist(), gaps.end.tolist(), strict=True)
        for moment in range(low, high)
    }


def bitmap(window):
    return set(range(window.start_ns, window.end_ns)) - holes(window)


def taken(start, end, window):
    """Return the moments of one span that the window takes."""
    moments, inside = set(range(start, end)), bitmap(window)
    if window.boundary == "contained" and not moments <= inside:
        return set()
    return moments & inside


def cover(spans, window):
    return set().union(*(taken(start, start + size, window) for start, size, _ in spans))


def sent(send, window):
    if not send["finish"]:
        return set()
    begin = send["start"]
    if not begin or send["flags"] == RecordFlag.START_ESTIMATED:
        begin = send["launch"]
    return taken(begin, send["finish"], window)


def runs(moments):
    """Return the lengths of the maximal runs of consecutive integers."""
    lengths, previous = [], None
    for moment in sorted(moments):
        if previous is not None and moment == previous + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
        previous = moment
    return lengths


def failed(result):
    return [check for check in result.checks() if not check.ok]


@settings(deadline=None)
@given(LANE, LANE, st.lists(collectives(), max_size=6), windows())
def test_partition_and_segments(compute, copies, sends, window):
    tl = timeline(compute, copies, [], sends)
    c, k = cover(compute, window), cover(copies, window)
    m = set().union(*(sent(send, window) for send in sends))
    w = bitmap(window)
    found = partition(tl, window)
    assert found.window_ns == len(w)
    assert found.compute_ns == len(c)
    assert found.communication_ns == len(m)
    assert found.compute_only_ns == len(c - m)
    assert found.communication_only_ns == len(m - c)
    assert found.overlap_ns == len(m & c)
    assert found.idle_ns == len(w - c - m)
    assert found.copies_only_ns == len(k - c - m)
    assert found.exposed_beyond_copies_ns == len(m - c - k)
    open_ones = [
        send
        for send in sends
        if not send["finish"] and window.start_ns <= send["launch"] < window.end_ns
    ]
    hidden = [send for send in open_ones if send["flags"] == RecordFlag.FINISH_UNOBSERVABLE]
    assert found.unobservable == len(hidden)
    assert found.unfinished == len(open_ones) - len(hidden)
    assert failed(found) == []

    segments = exposed(tl, window, edges_ns=(2, 4, 6))
    lengths = sorted(runs(m - c))
    assert segments.count == len(lengths)
    assert segments.total_ns == len(m - c)
    assert segments.longest_ns == (lengths[-1] if lengths else None)
    assert segments.median_ns == (int(np.median(lengths)) if lengths else None)
    limits = ((0, 2), (2, 4), (4, 6), (6, 1000))
    counts = [sum(low <= length < high for length in lengths) for low, high in limits]
    assert [band.count for band in segments.bands] == counts
    assert failed(segments) == []


@settings(deadline=None)
@given(LANE, st.lists(collectives(), max_size=6), windows())
def test_kinds(compute, sends, window):
    tl = timeline(compute, [], [], sends)
    found = kinds(tl, window)
    c = cover(compute, window)
    by_kind = {}
    for send in sends:
        by_kind.setdefault(send["collective"], []).append(sent(send, window))
    for cell in found.cells:
        mine = by_kind[cell.kind]
        every = set().union(*mine)
        assert cell.summed_ns == sum(len(one) for one in mine)
        assert cell.union_ns == len(every)
        assert cell.overlap_ns == len(every & c)
        assert cell.exposed_ns == len(every - c)
        assert cell.bytes == (cell.count or None)
    assert sum(cell.union_ns for cell in found.cells) == sum(
        len(set().union(*mine)) for mine in by_kind.values()
    )
    assert failed(found) == []


def phase_at(moment, moments):
    present = {phase for start, size, phase in moments if start <= moment < start + size}
    for phase in (Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD):
        if phase in present:
            return phase
    return Phase.OTHER


@settings(deadline=None)
@given(LANE, LANE, st.lists(collectives(), max_size=5), windows(), st.booleans())
def test_phases(compute, moments, sends, window, recorded):
    if not recorded:
        sends = [{**send, "phase": Phase.OTHER} for send in sends]
    tl = timeline(compute, [], moments, sends)
    found = phases(tl, window)
    c = cover(compute, window)
    by_time = not any(send["phase"] for send in sends)
    cells = {}
    for send in sends:
        for moment in sent(send, window):
            phase = phase_at(moment, moments) if by_time else send["phase"]
            cells.setdefault((phase, send["collective"]), set()).add(moment)
    assert {(cell.phase, cell.kind): cell.union_ns for cell in found.cells if cell.union_ns} == {
        key: len(busy) for key, busy in cells.items()
    }
    for cell in found.cells:
        busy = cells.get((cell.phase, cell.kind), set())
        assert (cell.overlap_ns, cell.exposed_ns) == (len(busy & c), len(busy - c))
    assert sum(cell.count for cell in found.cells) == lanes_of(tl, window).collectives
    assert failed(found) == []

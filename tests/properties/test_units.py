"""Units against plain re-tellings of their definitions, on arbitrary records."""

from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.units.order import out_of_order
from overlapwatch.accounting.units.queueing import behind, queueing
from overlapwatch.accounting.units.residency import residency
from overlapwatch.accounting.units.uses import match, uses
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.model import Origin, Timeline
from overlapwatch.vocabulary import (
    CollectiveKind,
    Name,
    NameKind,
    RecordFlag,
    RecordKind,
)
from tests.support.scenarios import record, records, step_rows

NAMES = {owner: Name(owner, NameKind.MODULE, f"module {owner}") for owner in range(1, 5)}
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
MOMENT = st.integers(1, 40)
SHORT = st.integers(0, 12)
OWNER = st.integers(1, 3)


def timeline(collectives=(), uses=(), held=()):
    steps = step_rows([(1, 0, 0), (2, 0, 0)])
    steps["start"], steps["end"] = (1, 25), (25, 100)
    return replace(
        Timeline(Origin("properties", "properties")),
        communication=records(collectives),
        uses=records(uses),
        held=np.sort(records(held), order="start"),
        steps=steps,
        names=NAMES,
    )


def gather(owner, launch, delay, length, flags=0, cause=0, step=1):
    finish = launch + delay + length
    return record(
        kind=RecordKind.COLLECTIVE, collective=GATHER, owner=owner, launch=launch, start=launch + delay, finish=finish,
        flags=flags, cause=cause, step=step, bytes=owner, group=1,
    )  # fmt: skip


def use(owner, start, length, step=1):
    return record(
        kind=RecordKind.WAIT, collective=GATHER, owner=owner, start=start, finish=start + length, step=step
    )  # fmt: skip


GATHERS = st.lists(
    st.builds(gather, OWNER, MOMENT, SHORT, SHORT, st.sampled_from([0, 8, 64]), st.integers(0, 3)),
    max_size=12,
)
USES = st.lists(st.builds(use, OWNER, MOMENT, SHORT), max_size=12)


@settings(deadline=None)
@given(GATHERS, USES)
def test_matching_by_owner_and_order(gathers, used):
    tl = timeline(gathers, used)
    rows, never_used = match(tl)
    assert rows["start"].tolist() == sorted(rows["start"].tolist())
    sent = tl.communication
    begins = np.where(
        sent["flags"] & int(RecordFlag.START_ESTIMATED) == 0, sent["start"], sent["launch"]
    )
    taken = set()
    for owner in (1, 2, 3):
        usable = 0
        for row in rows[rows["owner"] == owner]:
            before, usable = usable, max(usable, int(row["finish"]))
            there = [
                (int(begins[place]), place)
                for place in range(len(sent))
                if sent["owner"][place] == owner and before < begins[place] <= usable
            ]
            want = max(there)[0] if there else None
            got = int(row["gather"])
            assert (None if got < 0 else int(begins[got])) == want
            if got >= 0:
                assert got not in taken  # one all-gather serves one use
                taken.add(got)
    of_used = np.isin(sent["owner"], rows["owner"]).sum()
    assert never_used == of_used - len(taken)


@settings(deadline=None)
@given(GATHERS, USES)
def test_stalls_waits_and_the_rest_add_up(gathers, used):
    told = uses(timeline(gathers, used))
    assert all(check.ok for check in told.checks())
    stall = beyond = 0
    for row in told.matched[told.matched["known"]]:
        for moment in range(int(row["start"]), int(row["finish"])):  # ns by ns
            if moment < row["arrived"]:
                stall += 1
            else:
                beyond += 1
    assert told.stall_ns == stall
    assert sum(row.beyond_ns for row in told.rows) == beyond


@settings(deadline=None)
@given(GATHERS, USES)
def test_a_prefetch_is_out_of_order_when_an_earlier_use_was_still_without_its_gather(gathers, used):
    tl = timeline(gathers, used)
    rows, _ = match(tl)
    sent = tl.communication
    consumed = [(int(row["gather"]), int(row["start"])) for row in rows if row["gather"] >= 0]
    starts = dict(consumed)
    want = set()
    for place in range(len(sent)):
        if not (sent["flags"][place] & RecordFlag.PREFETCHED or sent["cause"][place]):
            continue
        launch = int(sent["launch"][place])
        # Equal launches: neither came before the other, unless it is told by the order of the two.
        later = [
            start for other, start in consumed if other != place and sent["launch"][other] > launch
        ]
        if place in starts:
            if later and min(later) < starts[place]:
                want.add(place)
        elif later:
            want.add(place)
    same = [int(one) for one in sent["launch"]]
    found = {int(pair["gather"]) for pair in out_of_order(tl, rows)}
    ties = {place for place in range(len(sent)) if same.count(same[place]) > 1}
    assert found - ties == want - ties


@st.composite
def queue_records(draw):
    """Collectives of one group on the host, in the order of their launches."""
    rows = []
    for sequence in range(draw(st.integers(0, 8))):
        launch, delay, length = draw(MOMENT), draw(SHORT), draw(SHORT)
        kind = draw(st.sampled_from([GATHER, SCATTER]))
        known = draw(st.booleans())
        rows.append(
            record(
                kind=RecordKind.COLLECTIVE, collective=kind, owner=draw(OWNER), group=1, sequence=sequence + 1,
                launch=launch, start=launch + delay if known else 0, finish=launch + delay + length,
            )
        )  # fmt: skip
    return rows


@settings(deadline=None)
@given(queue_records())
def test_queues_ns_by_ns(rows):
    sent = records(rows)
    pairs = {(int(one["waiting"]), int(one["ahead"])): one for one in behind(sent)}
    for waiting in range(len(sent)):
        for ahead in range(len(sent)):
            one, other = sent[waiting], sent[ahead]
            before = (other["launch"], other["sequence"]) < (one["launch"], one["sequence"])
            begin = other["start"] or other["launch"]
            moments = [
                moment
                for moment in range(int(one["launch"]), int(one["start"]))
                if before and begin <= moment < other["finish"]
            ]
            found = pairs.get((waiting, ahead))
            length = 0 if found is None else int(found["high"] - found["low"])
            assert length == len(moments)
    told = queueing(timeline(rows))
    assert all(check.ok for check in told.checks())
    assert told.without_queue == int((sent["start"] == 0).sum()) if len(sent) else True


def hold(owner, start, length):
    step = 1 if start < 25 else 2
    return record(
        kind=RecordKind.HELD, owner=owner, bytes=10**owner, start=start, finish=start + length, step=step
    )  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.builds(hold, OWNER, MOMENT, st.integers(0, 30)), max_size=10), MOMENT, SHORT)
@example(held=[hold(1, 26, 1), hold(2, 1, 25)], low=15, length=12)  # held when the next step begins
def test_memory_ns_by_ns(held, low, length):
    tl = timeline(held=held)
    high = low + length
    told = residency(tl, Window(low, high, "some time"), tl.steps)
    assert all(check.ok for check in told.checks())
    level = {}
    for moment in range(low, high):
        there = {int(one["owner"]) for one in tl.held if one["start"] <= moment < one["finish"]}
        level[moment] = sum(10**owner for owner in there)
    assert told.byte_ns == sum(level.values())
    peak = max(level.values(), default=0)
    assert (told.peak_bytes or 0) == peak
    if not peak:
        return
    first = min(moment for moment, size in level.items() if size == peak)
    assert sum(size for _, size in told.peak_modules) == peak
    step = next(one for one in tl.steps if one["start"] <= first < one["end"])
    assert (told.peak_step, told.peak_ns) == (int(step["step"]), first - int(step["start"]))
    # One more: whatever is gathered next in the same step and window, on top of what is held.
    now = {}
    for moment in level:
        there = {int(one["owner"]) for one in tl.held if one["start"] <= moment < one["finish"]}
        step = next(one for one in tl.steps if one["start"] <= moment < one["end"])
        coming = [
            (int(one["start"]), place)
            for place, one in enumerate(tl.held)
            if moment < one["start"] < min(int(step["end"]), high) and one["finish"] > one["start"]
        ]
        owner = int(tl.held["owner"][min(coming)[1]]) if coming else 0
        now[moment] = 10**owner if owner and owner not in there else 0
    begun = min(moment for moment, size in level.items() if size)
    assert told.with_next_bytes == max(size + now[m] for m, size in level.items() if m >= begun)
    assert told.at_peak_next_bytes == now[first]
    assert told.with_next_bytes <= told.all_bytes

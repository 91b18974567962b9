"""Simulated jobs with known lateness, clocks and losses, against what the tables of their ranks tell."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.ranks.across import across_ranks
from overlapwatch.accounting.ranks.lateness import Verdict
from overlapwatch.vocabulary import NOT_KNOWN
from tests.support.simulated_ranks import Clock, SimulatedJob

QUICK = settings(max_examples=15, deadline=None)
DRIFT = 100e-6  # two crystals differ by less

jobs = st.builds(
    SimulatedJob,
    ranks=st.integers(2, 6),
    steps=st.integers(6, 12),
    buckets=st.integers(1, 4),
    jitter=st.sampled_from([0.1, 0.5, 2.0]),
    transfer=st.sampled_from([0.3, 1.0, 6.0]),
    blocking=st.booleans(),
    host=st.booleans(),
    seed=st.integers(0, 1000),
)


def one_clock_each(draw, ranks, hosts):
    return {
        rank: Clock(
            f"node-{rank}" if hosts else "",
            draw(st.integers(-20_000_000_000, 20_000_000_000)),
            draw(st.floats(-DRIFT, DRIFT)),
        )
        for rank in range(1, ranks)
    }


def assert_matched(truth, told):
    """Every collective of the result is made of rows of one and the same collective of the job."""
    job = truth.job
    for place in range(len(told.matches)):
        rows = range(int(told.matches.first[place]), int(told.matches.first[place + 1]))
        real = set()
        for row in rows:
            table = told.tables[told.matches.table[row]]
            # What a table's row was: its launch on its own clock is unique.
            shown = int(table.records["launch"][told.matches.row[row]])
            real.add(truth.sequence_at(table.rank, shown))
        assert len(real) == 1, (place, real, job)


@QUICK
@given(job=jobs)
def test_waits_and_late_ranks_on_one_clock_are_exact(job):
    truth = job.run()
    told = across_ranks(truth.tables())
    assert all(check.ok for check in told.checks())
    assert len(told.matches) == len(truth.entry)
    assert sum(told.matches.alone) == 0
    for place, (sequence, entry) in enumerate(truth.entry.items()):
        one = told.waiting.collectives[place]
        end = truth.end[sequence]
        assert one["transfer"] == end - max(entry)
        assert one["skew"] == max(entry) - min(entry)
        rows = slice(told.matches.first[place], told.matches.first[place + 1])
        assert told.waiting.wait[rows].tolist() == [max(entry) - mine for mine in entry]
        if one["late"] >= 0:
            assert entry[one["late"]] == max(entry)
    known = told.tails.spread
    assert known is not None
    for (rank, step), end in truth.compute_end.items():
        row = told.tables[rank].steps
        tail = int(row["tail"][row["step"] == step][0])
        last = max(truth.end[one] for one, of in truth.step_of.items() if of == step)
        assert tail == last - end


@QUICK
@given(data=st.data(), job=jobs, numbered=st.booleans())
def test_lost_records_and_unknown_clocks_never_shift_a_match(data, job, numbered):
    count = job.steps * job.buckets
    lost = data.draw(
        st.sets(st.tuples(st.integers(0, job.ranks - 1), st.integers(1, count)), max_size=6)
    )
    job = SimulatedJob(
        **{
            **vars(job),
            "missing": lost,
            "numbered": numbered,
            "clocks": one_clock_each(data.draw, job.ranks, data.draw(st.booleans())),
            "end_jitter_us": data.draw(st.sampled_from([0, 5, 30])),
        }
    )
    truth = job.run()
    told = across_ranks(truth.tables())
    assert all(check.ok for check in told.checks())
    assert_matched(truth, told)
    if numbered:
        alone = [
            sum(1 for rank, one in lost if one == sequence) >= job.ranks - 1
            for sequence in truth.entry
        ]
        assert len(told.matches) == len(truth.entry) - sum(alone)


@QUICK
@given(data=st.data(), job=jobs)
def test_offsets_and_drifts_are_found_or_nothing_is_told(data, job):
    clocks = one_clock_each(data.draw, job.ranks, hosts=True)
    jitter_us = data.draw(st.sampled_from([0, 10, 300]))
    job = SimulatedJob(**{**vars(job), "clocks": clocks, "end_jitter_us": jitter_us, "steps": 20})
    truth = job.run()
    told = across_ranks(truth.tables())
    slack = 3 * jitter_us * 1000 + 1000
    for one in told.alignment.clocks:
        assert one.fit is not None
        for table in one.tables:
            # A moment of the job, shown by this clock, comes back on the first clock's time.
            true = np.array(list(truth.end.values()), np.int64)
            reference = told.tables[told.alignment.clocks[0].tables[0]].rank
            mine, first = (
                job.clocks.get(rank, Clock()) for rank in (told.tables[table].rank, reference)
            )
            shown = np.array([mine.shows(int(moment)) for moment in true], np.int64)
            wanted = np.array([first.shows(int(moment)) for moment in true], np.int64)
            assert np.abs(one.fit.to_reference(shown) - wanted).max() <= slack
    # Where a late rank is told, it is the one, within what the clocks can tell.
    for place, entry in enumerate(truth.entry.values()):
        one = told.waiting.collectives[place]
        if one["late"] >= 0:
            assert max(entry) - entry[one["late"]] <= slack
            assert one["margin"] != NOT_KNOWN


@QUICK
@given(data=st.data(), job=jobs)
def test_a_rank_is_named_when_it_is_slow_and_nobody_else_ever(data, job):
    slow = data.draw(st.integers(-1, job.ranks - 1))
    where = data.draw(st.sampled_from(["slow_loading", "slow_forward"]))
    fields = {**vars(job), "steps": 16, "jitter": 0.3}
    if slow >= 0:
        fields[where] = lambda rank, _step: 8.0 if rank == slow else 0.0
    told = across_ranks(SimulatedJob(**fields).run().tables())
    named = [told.tables[one.tables[0]].rank for one in told.lateness.named]
    assert named == ([slow] if slow >= 0 else [])
    assert (told.lateness.verdict is Verdict.PERSISTENT) == (slow >= 0)

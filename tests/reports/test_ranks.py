"""What is printed of several ranks: goldens of simulated jobs, and what must be said in each case."""

import json
import re
from pathlib import Path

import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.accounting.ranks.across import across_ranks
from overlapwatch.reports import json as as_json
from overlapwatch.reports import ranks, text
from tests.reports import golden
from tests.support.simulated_ranks import Clock, SimulatedJob


def slow(ms, rank):
    return lambda mine, _step: ms if mine == rank else 0.0


STRAGGLER = SimulatedJob(jitter=0.4, slow_forward=slow(5, 2), absent={4}, ranks=5)
TWO_HOSTS = SimulatedJob(
    jitter=0.4,
    end_jitter_us=15,
    slow_loading=slow(6, 3),
    numbered=False,
    missing={(1, 7), (3, 30)},
    clocks={rank: Clock("node-b", 11_560_000_000, 2e-5) for rank in (2, 3)},
)


def told_of(job):
    return across_ranks(job.run().tables())


def plain(job, width=100):
    return ranks.plain(told_of(job), width)


def words(printed):
    return " ".join(printed.split())


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize(("name", "job"), [("straggler", STRAGGLER), ("two_hosts", TWO_HOSTS)])
def test_golden(name, job, width):
    printed = plain(job, width)
    assert max(map(len, printed.splitlines())) <= width
    golden.check(f"ranks_{name}_{width}.txt", printed)


def test_a_slow_rank_comes_first_with_its_cause():
    printed = words(plain(STRAGGLER))
    assert "rank 2 is late again and again: in 20 of 20 steps" in printed
    assert "Mostly late forward" in printed
    assert "judged on 4 of 5 ranks: no input of rank 4" in printed
    assert (
        printed.index("late again") < printed.index("Waiting and transfer") < printed.index("Tails")
    )


def test_clocks_are_told_with_their_residual():
    printed = plain(TWO_HOSTS)
    assert "11.6 s" in printed
    assert "residual p50" in printed
    assert "rank 3 is late again and again" in printed
    assert "60 collectives, all by their ends" in printed
    assert "2 of 60 collectives lack the record of a rank" in words(printed)


def test_nobody_late_is_said_so():
    assert "no rank is late: in 20 of 20 steps" in words(plain(SimulatedJob()))


def test_lateness_in_turn_is_said_so():
    job = SimulatedJob(jitter=0.2, slow_forward=lambda rank, step: 8.0 if step % 4 == rank else 0.0)
    assert "lateness goes round: in 20 of 20 steps" in words(plain(job))


def test_what_is_not_known_is_said_not_printed_as_zero():
    printed = words(plain(SimulatedJob(absent={1, 2, 3})))
    assert "one rank alone cannot tell" in printed
    assert not re.search(r"(?<![\d.,])0 ms", printed)
    assert "wait and transfer" in printed
    assert "Late ranks" not in printed or "not known" in printed


@pytest.fixture(scope="module")
def analysed():
    truth = STRAGGLER.run()
    analyses = [analyse(truth.recording(rank)) for rank in range(4)]
    return analyses, across_ranks([one.table for one in analyses])


def test_the_report_of_several_ranks_tells_of_them_before_it_turns_to_one(analysed):
    analyses, across = analysed
    printed = text.plain(analyses, across=across)
    assert printed.index("4 ranks ─") < printed.index("Across ranks ─") < printed.index("rank 0 ─")
    assert "rank 2 is late again and again" in words(printed)
    assert max(map(len, text.plain(analyses, 60, across=across).splitlines())) <= 60


def test_the_json_of_a_report_holds_them(analysed):
    analyses, across = analysed
    made = json.loads(as_json.to_text(analyses, (), across))
    assert made["across_ranks"]["lateness"]["persistent"] == ["rank 2"]
    assert any(one["timeline"] is None and one["ok"] for one in made["closure"])
    assert not any(one["what"] == "across_ranks" for one in made["not_known"])


def test_every_key_is_in_the_page_about_it():
    page = (Path(__file__).parents[2] / "docs" / "report-json.md").read_text(encoding="utf-8")
    made = told_of(TWO_HOSTS).to_dict()
    parts = [made, made["ranks"][0], made["alignment"]["clocks"][0], made["collectives"][0]]
    parts += [made["waits"][0], made["owners"][0], made["lateness"], made["lateness"]["ranks"][0]]
    parts += [made["lateness"]["steps"][0], made["overlap"][0], made["tails"], made["rates"][0]]
    parts += [made["tails"]["worst"][0], made["matched"], made["alignment"]]
    for part in parts:
        for key in part:
            assert f"`{key}`" in page, key


def test_the_names_of_buckets_cannot_break_the_lines():
    printed = plain(SimulatedJob(buckets=20, steps=6))
    assert "and 4 more with less waiting" in printed

"""Real FSDP2 jobs, and what the report says of them: two ranks on a slow link, and four ranks as 2 × 2.

On the link an all-gather takes one unit, which the job measures itself; blocks compute by sleeping. What is compared
are facts that hold whatever the machine does: what was issued by whom, in which order, how often, and that an
all-gather of one unit is not over after a fraction of it.
"""

from pathlib import Path

import pytest

from overlapwatch import open_trace
from overlapwatch.accounting.analyse import Analysis, analyse
from overlapwatch.accounting.units.modules import ModuleCell
from overlapwatch.reports.text import plain
from overlapwatch.vocabulary import CollectiveKind, Phase
from tests.support import jobs
from tests.support.slowlink import requires_slow_link, slow_link

JOB = Path(__file__).with_name("fsdp2_slow_link_job.py")
TRAIN = jobs.ROOT / "examples" / "fsdp2" / "train.py"
STEPS = 3
BLOCK_BYTES = 800_000
RATE_MBIT = 100
BLOCKS = [f"blocks.{place}" for place in range(4)]
FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
GATHER, SCATTER, REDUCE = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)
EVERY_STEP = {"OVERLAPWATCH_SHADOW_EVERY": "0", "OVERLAPWATCH_SINKS": ""}

pytestmark = pytest.mark.e2e


def on_slow_link(directory: Path, prefetch: str, compute_units: float) -> list[Analysis]:
    args = ["--log-dir", str(directory), "--steps", str(STEPS), "--block-bytes", str(BLOCK_BYTES)]
    args += ["--prefetch", prefetch, "--compute-units", str(compute_units)]
    with slow_link(2, RATE_MBIT) as link:
        link.run_ranks(JOB, args=args, env=EVERY_STEP).check()
    return analysed(directory, ranks=2)


def analysed(directory: Path, ranks: int) -> list[Analysis]:
    analyses = [analyse(recording) for recording in open_trace(directory)]
    assert [one.origin.rank for one in analyses] == list(range(ranks))
    for one in analyses:
        assert [check for check in one.checks if not check.ok] == []
        assert one.units is not None
    return analyses


def slack(analysis: Analysis) -> dict:
    assert analysis.units is not None
    return {(row.module, row.phase): row for row in analysis.units.uses.rows}


def gathers_of(analysis: Analysis, module: str) -> ModuleCell:
    assert analysis.units is not None
    (cell,) = (
        one
        for one in analysis.units.modules.cells
        if (one.module, one.phase, one.kind) == (module, FORWARD, GATHER)
    )
    return cell


@requires_slow_link
def test_a_wrong_prefetch_list_is_named_with_what_it_cost(tmp_path):
    """blocks.2 is on the link for a unit when blocks.0 has computed for half of one and blocks.1 is needed."""
    for analysis in on_slow_link(tmp_path, "wrong", compute_units=0.5):
        (wrong,) = analysis.units.order
        assert (wrong.module, wrong.by, wrong.needed) == ("blocks.2", "blocks.0", "blocks.1")
        assert (wrong.phase, wrong.count, wrong.steps, wrong.never_used) == (
            FORWARD,
            STEPS,
            STEPS,
            0,
        )
        assert wrong.stalls == STEPS
        assert 0 < wrong.behind_ns < wrong.stall_ns
        rows = slack(analysis)
        assert rows["blocks.1", FORWARD].on_demand == STEPS
        assert rows["blocks.2", FORWARD].prefetched == STEPS
        assert rows["blocks.1", FORWARD].stall_ns == wrong.stall_ns
        text = " ".join(plain([analysis]).split())
        assert (
            "blocks.2 was prefetched by blocks.0 in forward, but blocks.1 was needed before it"
            in text
        )
        # blocks.3 is in nobody's list: all of its all-gather is exposed, as a stall.
        late = rows["blocks.3", FORWARD]
        assert (late.on_demand, late.stalls) == (STEPS, STEPS)
        cell = gathers_of(analysis, "blocks.3")
        assert cell.overlap_ns == 0
        assert 0 < cell.exposed_ns <= late.stall_ns  # a stall begins before the launch
        assert late.stall_ns + late.beyond_ns == late.wait_ns


@requires_slow_link
def test_an_all_gather_in_time_is_hidden_and_stalls_nothing(tmp_path):
    """Compute of two units hides an all-gather of one, if it is issued before."""
    for analysis in on_slow_link(tmp_path, "next", compute_units=2):
        assert analysis.units.order == ()
        for module in BLOCKS[1:]:
            row, cell = slack(analysis)[module, FORWARD], gathers_of(analysis, module)
            assert row.prefetched == cell.prefetched == STEPS
            assert row.median_ns > 0
            assert cell.overlap_ns > cell.exposed_ns
        # Nothing can hide the two ends of a step: the root's own parameters.
        ends = analysis.units.edges
        assert (ends.first.module, ends.last.module, ends.first.steps) == ("Net", "Net", STEPS)
        # A block, the one ahead, and the root.
        sizes = [size for _, size in analysis.units.residency.peak_modules]
        assert sizes == [BLOCK_BYTES, BLOCK_BYTES, 32]
        assert analysis.units.residency.with_next_bytes == 3 * BLOCK_BYTES + 32


def test_four_ranks_as_two_by_two(tmp_path):
    args = ["--steps", "4", "--layers", "2", "--width", "64", "--replicas", "2"]
    jobs.run_ranks(TRAIN, 4, args=[*args, "--log-dir", str(tmp_path)], env=EVERY_STEP).check()
    for analysis in analysed(tmp_path, ranks=4):
        units = analysis.units
        steps = units.steps
        assert steps == 4
        counts = {(cell.module, cell.phase, cell.kind): cell.count for cell in units.modules.cells}
        for module in ("GPT", "blocks.0", "blocks.1"):
            assert counts[module, FORWARD, GATHER] == steps
            assert counts[module, BACKWARD, SCATTER] == steps
            assert counts[module, BACKWARD, REDUCE] == steps
        assert units.modules.others == 0
        # A shard group of two, and a group of two replicas.
        assert sorted(len(row.ranks) for row in analysis.messages.groups) == [2, 2]
        assert (analysis.rows["buckets"] == 3).all()
        assert all(
            tail.tail_ns is not None and tail.last_bucket == "GPT" for tail in analysis.tails
        )
        assert units.order == ()
        sizes = dict(units.residency.peak_modules)
        assert sizes["GPT"] > 0
        assert units.residency.open == 0
        assert "all-reduces" in plain([analysis])

"""A running job of four ranks names the late one in rank 0's line, from the logs that are written anyway."""

import re

import pytest

from overlapwatch.accounting.ranks.across import across_ranks
from overlapwatch.accounting.ranks.live_lateness import live_lateness
from overlapwatch.accounting.ranks.table import rank_table
from overlapwatch.accounting.selection import Selection, choose
from overlapwatch.sources import open_trace
from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from tests.support.training import SMALL_BUCKETS_MB, Net

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    overlapwatch.watch(model, log_dir=sys.argv[1], ranks_every=20, shadow_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 81):
        time.sleep(0.03)
        if dist.get_rank() == int(sys.argv[2]):
            time.sleep(0.06)
        model(torch.ones(2, 48)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_the_slowed_rank_is_named(tmp_path) -> None:
    lines = jobs.run_ranks(JOB, 4, args=[str(tmp_path / "run"), "2"]).check().ranks[0].stdout
    told = re.findall(r"worst: (rank \d, late in \d+ of \d+ steps) by", lines)
    assert told, lines
    assert told[-1].startswith("rank 2, ")
    late = re.findall(r"step \d+: (rank \d) last by", lines)
    assert late
    assert late.count("rank 2") > len(late) / 2
    # The report, which knows every collective, and the summaries alone name the same rank.
    recordings = open_trace(tmp_path / "run")
    tables = [rank_table(one, choose(one, Selection())) for one in recordings]
    assert [one.label for one in across_ranks(tables).lateness.named] == ["rank 2"]
    live = live_lateness({rank: one.summaries for rank, one in enumerate(recordings)})
    assert live.worst_rank == 2


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("no directory")
    job = jobs.run_ranks(JOB, 2, args=[str(nowhere), "9"]).check()
    assert "step  80" in job.ranks[0].stdout
    assert "rank" not in re.sub(r"overlapwatch.*", "", job.ranks[0].stdout)
    assert job.stderr.count("no log in") == 2  # one warning a rank, and training went on

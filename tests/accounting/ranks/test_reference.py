"""Public traces of several ranks: what is matched, and what is refused."""

import gzip
from pathlib import Path

import numpy as np

from overlapwatch.accounting.analyse import Rules, ruled
from overlapwatch.accounting.ranks.across import across_ranks
from overlapwatch.accounting.ranks.table import rank_table
from overlapwatch.accounting.selection import Selection, choose
from overlapwatch.sources import open_trace

DATA = Path(__file__).parents[2] / "data"


def told_of(*paths):
    tables = []
    for path in paths:
        for recording in open_trace(path):
            told, _ = ruled(recording, Rules())
            tables.append(rank_table(told, choose(told, Selection())))
    told = across_ranks(tables)
    assert not [check for check in told.checks() if not check.ok]
    return told


def test_two_gpus_of_an_nsight_export_are_matched_on_their_session_clock(tmp_path):
    path = tmp_path / "train.sqlite"
    path.write_bytes(
        gzip.decompress((DATA / "nsight" / "train_2gpu_sendrecv.sqlite.gz").read_bytes())
    )
    told = told_of(path)
    assert len(told.matches) == told.matches.by_ends == 33
    assert told.matches.alone == (0, 0)
    assert len(told.alignment.clocks) == 1
    one = told.waiting.collectives
    # An independent reckoning from the kernels' own columns: sends end within 30 us on both GPUs, so the skew is the
    # difference of the stays within that.
    first, second = (table.records for table in told.tables)
    stays = np.stack([np.sort(first["finish"]) - first["start"][np.argsort(first["finish"])],
                      np.sort(second["finish"]) - second["start"][np.argsort(second["finish"])]])  # fmt: skip
    assert one["transfer"].tolist() == stays.min(axis=0).tolist()
    assert np.abs(one["skew"] - np.abs(stays[0] - stays[1])).max() < 30_000
    # Neither GPU is always last: each is in some of them.
    assert {0, 1} <= set(one["late"].tolist())


def test_our_own_gloo_traces_are_matched_by_having_been_in_progress_together():
    told = told_of(*(DATA / "kineto" / f"gloo_ddp_rank{rank}of2.json.gz" for rank in (0, 1)))
    assert len(told.matches) == 4
    assert told.matches.alone == (0, 0)
    assert any("2 steps could be judged" in one.because for one in told.unknown)


def test_traces_whose_events_were_thinned_out_are_not_matched():
    told = told_of(*(DATA / "kineto" / f"sampled_rank{rank}of128.json.gz" for rank in (0, 1)))
    assert len(told.matches) == 0
    assert any("do not fall together" in one.because for one in told.unknown)
    assert any("2 of 128 ranks" in one for one in told.notes)


def test_the_same_trace_twice_is_one_rank():
    path = DATA / "kineto" / "a100_dlrm_rank3of8.json.gz"
    told = told_of(path, path)
    assert len(told.tables) == 1
    assert any("is there twice" in one for one in told.notes)

"""The generator of simulated runs: what it writes in closed form is what the accounting says of it."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.summarize import summarize
from overlapwatch.sources import open_trace
from overlapwatch.vocabulary import SUMMARY, StepFlag

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_run.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_run"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_a_simulated_run_reads_like_a_real_one(script, tmp_path) -> None:
    shape = script.Shape(ranks=10, steps=63, buckets=4, late=3, late_ms=12, late_share=0.8, seed=5)
    size = script.make_run(tmp_path / "run", shape, workers=1)
    assert size == sum(file.stat().st_size for file in (tmp_path / "run").iterdir())
    recordings = open_trace(tmp_path / "run")
    assert [one.timeline.origin.rank for one in recordings] == list(range(10))
    for one in recordings:
        assert one.state == "closed"
        assert one.notes == ()
        kept = one.timeline.steps["step"].tolist()
        assert kept == [*range(1, 51), 60]
        again = summarize(one.timeline)
        mine = one.summaries[np.isin(one.summaries["step"], kept)]
        for field in SUMMARY.names:
            assert mine[field].tolist() == again[field].tolist(), field
        assert len(one.summaries) == 63
        assert (mine["flags"] == StepFlag.EVENTS_KEPT).all()


def test_the_late_rank_is_last_and_all_end_together(script) -> None:
    shape = script.Shape(ranks=6, steps=40, buckets=3, late=2, late_ms=9, late_share=0.75, seed=1)
    plan = script.plan(shape)
    rows = [script.records_of(shape, plan, rank, 0) for rank in range(6)]
    launch = np.stack([one[:, 5:]["launch"] for one in rows])
    assert (launch.argmax(axis=0) == plan.last[:, None]).all()
    assert 0.6 < (plan.last == 2).mean() < 0.95
    for one in rows:
        assert (one[:, 5:]["finish"] == plan.finish).all()
        assert (one[:, 5:]["finish"] > one[:, 5:]["launch"]).all()

"""State dicts, distributed checkpoints and copies of an FSDP2 model are the same under a watch; shadow steps; the end."""

import json
from pathlib import Path

import pytest

from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("fsdp2_around_job.py")


def test_what_lies_around_a_training_is_not_touched(tmp_path: Path) -> None:
    result = jobs.run_ranks(JOB, 2, args=[str(tmp_path)]).check()
    assert result.stderr == ""
    for rank in result.ranks:
        told = json.loads(rank.stdout)
        plain, watched = told["plain"], told["watched"]
        assert watched == plain
        assert len(plain["keys"]) == 18
        assert plain["loaded"] == plain["saved"] != plain["later"]
        assert plain["copied"] == "AssertionError", "FSDP2's own refusal"
        assert plain["pickled"] != ""
        assert told["said"] == []
        shadow = told["shadow"]
        assert shadow["steps"] == 20
        assert shadow["shadow"] == [14, 19]
        assert shadow["in shadow"] == 0
        assert len(shadow["in others"]) == 1, "recording takes up again as it was"
        assert shadow["uses per step"] == [8], "four modules, forward and backward"

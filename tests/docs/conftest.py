"""The directory in which the pages' commands run, and one job that runs all their Python."""

import json
import shutil
from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from tests.support.jobs import run_ranks
from tests.support.nsight_case import Shape, write_megatron

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def desk(tmp_path_factory):
    """A directory with what the pages name: runs/a and others, profiles, traces, dumps."""
    place = tmp_path_factory.mktemp("desk")
    run_ranks(HERE / "desk_job.py", 2, args=[str(place)], timeout_s=120).check()
    write_megatron(place / "profile.sqlite")
    write_megatron(place / "before.sqlite", Shape(ranks=2, devices=(0, 1), steps=60))
    shutil.copy(place / "before.sqlite", place / "after.sqlite")
    return place


@pytest.fixture(scope="session")
def snippets(tmp_path_factory):
    """What became of each Python block: its place -> "ok", or the traceback."""
    place = tmp_path_factory.mktemp("snippets")
    chosen = [
        {
            "place": block.place,
            "text": block.text,
            "given": block.said[1] if block.said else "",
            "name": f"{block.page} line {block.line}",
        }
        for block in blocks()
        if block.language == "python" and not (block.said and block.said[0] != "given")
    ]
    (place / "blocks.json").write_text(json.dumps(chosen))
    result = run_ranks(HERE / "snippets_job.py", 1, args=[str(place)], timeout_s=120).check()
    return json.loads(result.stdout.splitlines()[-1])

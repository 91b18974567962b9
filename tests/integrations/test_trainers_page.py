"""The scripts of docs/trainers.md run as they are written there."""

import re

import pytest

from tests.integrations.logs import TRAINERS, needs
from tests.support import jobs

pytestmark = pytest.mark.e2e

PAGE = (jobs.ROOT / "docs" / "trainers.md").read_text()
SCRIPTS = dict(re.findall(r"^## (\w+)\n.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
NEEDS = {
    "Lightning": "pytorch_lightning",
    "Transformers": "transformers",
    "Accelerate": "accelerate",
}


def test_every_script_is_known():
    assert SCRIPTS.keys() == NEEDS.keys()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs(package)) for name, package in NEEDS.items()],
)
def test_a_script_runs_as_it_is_written(tmp_path, name):
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[name])
    job = jobs.run_ranks(
        script, 2, cwd=tmp_path, env={"TORCHELASTIC_RUN_ID": "page"}, preload=TRAINERS
    ).check()
    assert len(re.findall(r"^step +\d+ ", job.stdout, re.MULTILINE)) >= 20
    assert "does not watch" not in job.stdout + job.stderr
    assert len(list((tmp_path / "runs" / name.lower()).glob("rank*.owlog"))) == 2

"""What holds for every test: none leaves a hook of ours installed, and no process of a test outlives the run."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    """Fail a test after which something is still installed in torch, naming it."""
    yield
    hooks = sys.modules.get("overlapwatch.hooks")  # a test that never imported it installed nothing
    if hooks is not None:
        assert hooks.installed() == []


def pytest_sessionfinish() -> None:
    zygote = sys.modules.get("tests.support.zygote")
    if zygote is not None:
        zygote.shut_down()

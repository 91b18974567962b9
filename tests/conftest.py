"""What holds for every test: none leaves a hook of ours installed, and no process of a test outlives the run."""

import sys
from collections.abc import Iterator

import pytest

from tests.support import gloo


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    """Fail a test after which something is still installed in torch, naming it."""
    yield
    hooks = sys.modules.get("overlapwatch.hooks")  # a test that never imported it installed nothing
    if hooks is not None:
        assert hooks.installed() == []


@pytest.fixture(autouse=True)
def gloo_is_let_go() -> None:
    """Keep a test's own process group from hanging the whole run when it is destroyed."""
    if (distributed := sys.modules.get("torch.distributed")) is not None:
        gloo.let_gloo_go(distributed)


def pytest_sessionfinish() -> None:
    zygote = sys.modules.get("tests.support.zygote")
    if zygote is not None:
        zygote.shut_down()

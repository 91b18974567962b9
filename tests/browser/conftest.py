"""One Chromium for all tests of pages, and pages that have to say nothing wrong.

Playwright drives Debian's Chromium (`apt-get install chromium`); without either, these tests are skipped and say why.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from overlapwatch.reports.html.page import page
from overlapwatch.timeline.model import Recording
from tests.reports.html.pages import told

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NARROW = {"width": 400, "height": 800}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Playwright Browser."""
    if find_spec("playwright") is None:
        pytest.skip("no Playwright here: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    # Chromium's sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Open the page of recordings from a file, in a context of its own.

    After the test: nothing was said on the console, no error was thrown, and nothing but the file was asked for.
    """
    contexts, said, asked, wanted = [], [], [], set()

    def open_page(*recordings: Recording | Path, **context: Any) -> Any:
        path = tmp_path / f"page{len(contexts)}.html"
        if isinstance(recordings[0], Path):
            path = recordings[0]
        else:
            path.write_text(page(*told(recordings)), encoding="utf-8")
        contexts.append(
            browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        )
        made = contexts[-1].new_page()
        made.set_default_timeout(10_000)
        made.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        made.on("pageerror", lambda error: said.append(str(error)))
        made.on("request", lambda request: asked.append(request.url))
        wanted.add(path.as_uri())
        made.goto(path.as_uri())
        drawn(made)
        return made

    yield open_page
    for one in contexts:
        one.close()
    # Tests look at pixels again and again, which the page itself never does.
    assert [text for text in said if "willReadFrequently" not in text] == []
    assert set(asked) <= wanted


def drawn(page: Any) -> None:
    """Wait until what was asked to be drawn is drawn: two frames."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )

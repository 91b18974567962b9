#!/usr/bin/env python3
"""Make docs/images/page.png anew: a real run of examples/ddp on two processes, its page, and what Chromium shows of it.

    scripts/update_page_picture.py          needs the development tools and Chromium (scripts/test installs both)
    scripts/update_page_picture.py RUN      the page of a run that is there already

The picture is the top of the page with the card of a bucket beside the pointer.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "page.png"
SIZE = {"width": 1200, "height": 960}
STEPS = 30
MOST_BYTES = 300_000


def train(directory: Path) -> None:
    """Train the example for a moment, watched."""
    example = str(ROOT / "examples" / "ddp" / "train.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               example, "--log-dir", str(directory), "--steps", str(STEPS)]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def point_at_a_bucket(page: Page) -> None:
    """Move the pointer over the lanes of the last rank, from below, until the card of a bucket appears."""
    box = page.locator("canvas.lanes").bounding_box()
    assert box is not None
    for above in range(16, int(box["height"]), 9):
        for share in range(30, 60, 2):
            page.mouse.move(box["x"] + box["width"] * share / 100, box["y"] + box["height"] - above)
            card = page.locator(".card")
            if card.is_visible() and "launch" in card.inner_text():
                return


def photograph(html: Path) -> None:
    """Open the page and keep what is seen."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(html.as_uri())
        page.wait_for_timeout(300)
        point_at_a_bucket(page)
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=str(PICTURE))
        browser.close()


def main() -> int:
    """Make the picture; return 1 when it is too large for a README."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/demo")
        work = Path.cwd() if len(sys.argv) > 1 else Path(scratch)
        os.chdir(work)
        if len(sys.argv) < 2:
            train(run)
        html = Path(scratch) / "page.html"
        subprocess.run(
            [sys.executable, "-m", "overlapwatch", "report", str(run), "--html", str(html)],
            check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        photograph(html)
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Make the documentation site from docs/, the examples' pages and the list of changes. Needs `zensical`.

    scripts/build_docs.py [--out site]

The site can be read from the files; its search needs a server: python -m http.server -d site.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGE = Path("build", "docs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the directory to make")
    out = parser.parse_args().out.resolve()
    stage(ROOT / STAGE)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=False
    )
    if done.returncode:
        return done.returncode
    if out != ROOT / "site":
        shutil.copytree(ROOT / "site", out, dirs_exist_ok=True)
    print(f"open {out / 'index.html'}")
    return 0


def stage(place: Path) -> None:
    """Lay out what the site is made of; links that lead out of docs/ lead to where it is on the site."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "docs", place)
    shutil.copy(ROOT / "CHANGELOG.md", place / "changes.md")
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        target = place / "examples" / readme.parent.name
        shutil.copytree(readme.parent, target, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        (target / "README.md").rename(target / "index.md")
    for page in place.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"\]\(\.\./examples/(\w+)/README\.md", r"](examples/\1/index.md", text)
        text = re.sub(r"\]\(\.\./\.\./docs/", "](../../", text)
        text = re.sub(r"\]\(\.\./(ddp|fsdp2|megatron)\)", r"](../\1/index.md)", text)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

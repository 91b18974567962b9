"""The documentation site is made, holds every page, and no link in it leads nowhere."""

import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.blocks import ROOT


class Page(HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.loads = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loads.add(given["src"])
        if tag == "link" and given.get("rel") == "stylesheet":
            self.loads.add(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical")
    out = tmp_path_factory.mktemp("site")
    script = ROOT / "scripts" / "build_docs.py"
    subprocess.run([sys.executable, script, "--out", out], check=True, capture_output=True)
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}
    assert len(pages) > 20
    return out, pages


def test_every_page_is_in_the_menu():
    menu = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'"{page.name}"' in menu, f"{page.name} is in no menu of zensical.toml"


def test_every_entry_of_the_menu_is_a_page(site):
    out, _ = site
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    sections = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    for section in sections:
        for entries in section.values():
            for entry in entries:
                for target in entry.values():
                    assert (out / target).with_suffix(".html").exists(), target


def test_no_link_leads_nowhere(site):
    _, pages = site
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            known = pages.get(target)
            if not target.exists() or (
                parts.fragment and known is not None and unquote(parts.fragment) not in known.ids
            ):
                wrong.append(f"{path.name}: {link}")
    assert not wrong


def test_a_page_asks_nobody_else_for_anything(site):
    _, pages = site
    assert not [
        (path.name, source)
        for path, page in pages.items()
        for source in page.loads
        if urlsplit(source).netloc
    ]

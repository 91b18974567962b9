"""One file without a way out: what it holds, what it forbids, and that names stay text."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from overlapwatch.reports.html import page
from overlapwatch.reports.html.page import html, json_text
from tests.reports import recordings
from tests.reports.html.pages import data_of

HOSTILE = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!--", "]]>", "&lt;b&gt;",
           "\u2028\u2029", "' onload='x", "{{data}}$data")  # fmt: skip


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag in self.texts:
            self.texts[tag].append("")
            self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside][-1] += data


@pytest.fixture(scope="module")
def text() -> str:
    return html(data_of(recordings.hostile()))


def test_it_refers_to_nothing_outside(text):
    elements = Elements(text)
    for tag, attributes in elements.found:
        for name in ("src", "href", "action", "data", "srcset"):
            assert attributes.get(name) in (None, "data:,"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert "style" not in attributes
    (policy,) = (one["content"] for _, one in elements.found if one.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    for kind, texts in (
        ("script-src", elements.texts["script"][1:]),
        ("style-src", elements.texts["style"]),
    ):
        rule = next(part for part in policy.split(";") if part.strip().startswith(kind))
        hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in texts]
        assert rule.split()[1:] == [f"'sha256-{one}'" for one in hashes]


def test_what_is_around_the_data_is_small_and_names_its_licence(text):
    around = len(text) - len(json_text(data_of(recordings.hostile())))
    assert around < 250_000
    assert "The MIT License (MIT)" in text
    assert "Leon Sorokin" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_text(name):
    names = (*recordings.PARAMETERS[1:], name)
    data = data_of(
        recordings.Job(names=names, bucket_label=name).recording(
            about={"run": name, "NCCL_ALGO": name}
        )
    )
    data["title"] = name
    made = html(data)
    elements = Elements(made)
    assert [tag for tag, _ in elements.found] == [
        tag for tag, _ in Elements(html(data_of(recordings.worked()))).found
    ]
    assert json.loads(elements.texts["script"][0]) == json.loads(json.dumps(data))
    (inside,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL
    )
    assert not set("<>&\u2028\u2029") & set(inside)


def test_control_characters_are_shown_as_codes(text):
    assert "\x1b" not in text
    assert "\\\\x1b[31mred" in text


def test_what_json_has_no_word_for_is_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        html({"title": "x", "value": float("nan")})


def test_every_asset_is_on_the_page():
    """A script that is not joined is forgotten; nothing else lies there."""
    there = {one.name for one in (files("overlapwatch.reports.html") / "assets").iterdir()}
    assert there == {*page.SCRIPTS, *page.STYLES, page.CHARTS, page.CHARTS_LICENCE}
    assert len(set(page.SCRIPTS)) == len(page.SCRIPTS)


def test_scripts_make_no_markup_and_ask_for_nothing():
    for name in page.SCRIPTS:
        text = page.asset(name)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(",
                     "XMLHttpRequest", "WebSocket", "import(", "localStorage", "http://", "https://"):  # fmt: skip
            assert word not in text.replace("http://www.w3.org/2000/svg", ""), (name, word)
        assert text.startswith("// "), name
        assert len(text.splitlines()) < 400, name

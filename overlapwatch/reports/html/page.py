"""The text of the page: its data, scripts and styles in one HTML file.

In: the data of `payload`. Out: HTML that opens from `file://`. Nothing in it is fetched: the page's
own policy (Content-Security-Policy) forbids every request, and every script and style but those
that were joined here, told by their hashes. Data from the input are in one JSON element in which no
`<` is left, so that no name can end it.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.ranks.across import AcrossRanks
from overlapwatch.reports.html.drawn import Drawn
from overlapwatch.reports.html.payload import payload

STYLES = ("uPlot.min.css", "page.css", "whatif.css")
SCRIPTS = (
    "format.js",
    "element.js",
    "theme.js",
    "model.js",
    "painter.js",
    "card.js",
    "timeline.js",
    "steps.js",
    "graphics.js",
    "sections.js",
    "engines.js",
    "whatif_inputs.js",
    "whatif_picture.js",
    "whatif_results.js",
    "whatif_caps.js",
    "whatif_blocks.js",
    "whatif_words.js",
    "whatif.js",
    "page.js",
)
"""In this order, each as it is, in one function: no name of theirs is seen outside."""
CHARTS, CHARTS_LICENCE = "uPlot.iife.min.js", "uPlot.LICENSE"
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="overlapwatch">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<noscript><p>This report draws itself with JavaScript, which is switched off here.
<code>overlapwatch report INPUT</code> prints the same as text.</p></noscript>
<main id="page"></main>
<script type="application/json" id="data">$data</script>
<script>$charts</script>
<script>$script</script>
</body>
</html>
""")


def page(
    analyses: Sequence[Analysis], drawn: Sequence[Drawn], across: AcrossRanks | None = None
) -> str:
    """Return the page of a report; the arguments are those of `payload.payload`."""
    return html(payload(analyses, drawn, across))


def html(data: Mapping[str, Any]) -> str:
    """Return the page that shows `data`.

    Raises:
        ValueError: a value is not a number that JSON has (a fault of ours, never written out).

    """
    style = "\n".join(map(asset, STYLES))
    charts = f"/*\n{asset(CHARTS_LICENCE)}*/\n{asset(CHARTS)}"
    inside = "\n".join(map(asset, SCRIPTS))
    script = f'(() => {{\n"use strict";\n{inside}\n}})();'
    for text in (charts, script, style):
        if "</script" in text.lower() or "</style" in text.lower():
            raise ValueError("an asset of the page would end its own element")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_hash(charts)} {_hash(script)}; style-src {_hash(style)}"
    )
    return _PAGE.substitute(
        policy=policy,
        title=escape(f"overlapwatch: {data['title']}"),
        style=style,
        data=json_text(data),
        charts=charts,
        script=script,
    )


def json_text(data: Mapping[str, Any]) -> str:
    """Return JSON that can stand inside a script element whatever its strings hold."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return a file of the page."""
    return (files("overlapwatch.reports.html") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"

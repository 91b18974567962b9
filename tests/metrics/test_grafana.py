"""The dashboard: every metric in it exists, every panel has a place, and the file in docs is this one."""

import json
import os
import re
from pathlib import Path

from overlapwatch.metrics.catalogue import FAMILIES, Shape
from overlapwatch.metrics.grafana import dashboard, main

FILE = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"


def series() -> set[str]:
    """The names that a query may have."""
    return {
        family.name + ending
        for family in FAMILIES
        for ending in (("_bucket", "_sum", "_count") if family.shape is Shape.HISTOGRAM else ("",))
    }


def expressions() -> list[str]:
    made = dashboard()
    targets = [target["expr"] for panel in made["panels"] for target in panel["targets"]]
    return targets + [
        one["definition"] for one in made["templating"]["list"] if "definition" in one
    ]


def test_the_file_is_what_the_command_prints_and_writes(capsys, tmp_path):
    main([])
    printed = capsys.readouterr().out
    main([str(tmp_path / "a.json")])
    assert "import" in capsys.readouterr().out
    assert (tmp_path / "a.json").read_text() == printed
    if os.environ.get("UPDATE_DOCS"):
        FILE.write_text(printed)
    assert FILE.read_text() == printed
    assert json.loads(printed)["uid"] == "overlapwatch"


def test_every_metric_that_is_asked_for_exists():
    for expression in expressions():
        names = set(re.findall(r"overlapwatch_\w+", expression))
        assert names
        assert names <= series(), expression


def test_what_can_only_grow_is_asked_for_as_a_rate():
    growing = {name for name in series() if re.search(r"_(total|sum|count|bucket)$", name)}
    for expression in expressions():
        for name in growing:
            places = len(re.findall(rf"\b{name}\b", expression))
            assert len(re.findall(rf"(?:rate|increase)\({name}\{{", expression)) == places


def test_parentheses_and_variables_close():
    known = {one["name"] for one in dashboard()["templating"]["list"]} | {"__rate_interval"}
    for expression in expressions():
        assert expression.count("(") == expression.count(")")
        assert set(re.findall(r"\$(\w+)", expression)) <= known


def test_panels_lie_beside_each_other():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_what_a_person_looks_for_is_there():
    titles = " ".join(panel["title"].lower() for panel in dashboard()["panels"])
    for word in (
        "step time",
        "hidden",
        "exposed",
        "tail",
        "overlap ratio",
        "slowest",
        "unfinished",
    ):
        assert word in titles

"""A Grafana dashboard of the Prometheus metrics, as JSON to import.

    python -m overlapwatch.metrics.grafana overlapwatch.json

In: the catalogue. Out: a dashboard in Grafana's classic JSON model, which every Grafana since 10 imports; the data
source, the run and the ranks are chosen on it. Shares and means are rates of counters, so that every step counts, not
only those that a scrape happened to see.
"""

import json
import sys
from pathlib import Path
from typing import Any

from overlapwatch.metrics import catalogue
from overlapwatch.metrics.catalogue import OF_A_STEP, Family

SCHEMA_VERSION = 39
WIDTH = 24
CHOSEN = '{run_id=~"$run_id",rank=~"$rank"}'
OVER = "[$__rate_interval]"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]

_BY_NAME = {one.name: one for one in OF_A_STEP}


def _total(name: str) -> str:
    """Return the name of a value's counter."""
    family = _BY_NAME[name].total
    assert family is not None, name
    return family.name


def _histogram(name: str) -> str:
    family = _BY_NAME[name].histogram
    assert family is not None, name
    return family.name


def _rate(name: str) -> str:
    return f"rate({name}{CHOSEN}{OVER})"


def _summed(name: str) -> str:
    return f"sum({_rate(name)})"


def _now(family: Family) -> str:
    return f"{family.name}{CHOSEN}"


def _mean(name: str) -> str:
    """Return a histogram's mean, of each rank."""
    stem = _histogram(name)
    return f"{_rate(f'{stem}_sum')} / {_rate(f'{stem}_count')}"


def _quantile(name: str, quantile: float) -> str:
    return f"histogram_quantile({quantile}, sum by (le) ({_rate(_histogram(name) + '_bucket')}))"


STEPS = f"{_histogram('step_seconds')}_count"
PARTS = {
    "compute only": _total("compute_only_seconds"),
    "hidden": _total("hidden_communication_seconds"),
    "exposed": _total("exposed_communication_seconds"),
    "idle": _total("idle_seconds"),
}
_HIDDEN, _EXPOSED = PARTS["hidden"], PARTS["exposed"]
_BEHIND = f"max by (run_id) ({_mean('tail_seconds')}) - on (run_id) group_right () ({_mean('tail_seconds')})"

_COLOURS = {"compute only": "blue", "hidden": "green", "exposed": "orange", "idle": "#808080"}


def _panel(
    kind: str,
    title: str,
    size: tuple[int, int],
    unit: str,
    queries: dict[str, str],
    *,
    about: str = "",
    stacked: bool = False,
    most: float | None = None,
) -> Json:
    """Return one panel without its place. `queries`: legend to expression; `size`: width, height."""
    custom: Json = {"fillOpacity": 60 if stacked else 0, "showPoints": "never", "spanNulls": False}
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults: Json = {"unit": unit, "min": 0}
    if most is not None:
        defaults["max"] = most
    options: Json = {"tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "timeseries":
        defaults["custom"] = custom
        options["legend"] = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    else:
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options = {"reduceOptions": reduced, "orientation": "auto"}
        defaults["color"] = {"mode": "fixed", "fixedColor": "text"}
        if kind == "stat":
            options |= {"colorMode": "value", "graphMode": "area", "textMode": "value"}
        else:
            options |= {"displayMode": "basic", "orientation": "horizontal"}
            defaults["color"] = {"mode": "fixed", "fixedColor": "orange"}
    fixed = [
        {
            "matcher": {"id": "byName", "options": legend},
            "properties": [
                {"id": "color", "value": {"mode": "fixed", "fixedColor": _COLOURS[legend]}}
            ],
        }
        for legend in queries
        if legend in _COLOURS
    ]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "gridPos": {"w": size[0], "h": size[1]},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": kind == "bargauge",
                "range": kind != "bargauge",
            }
            for number, (legend, expression) in enumerate(queries.items())
        ],
        "fieldConfig": {"defaults": defaults, "overrides": fixed},
        "options": options,
    }


def panels() -> list[Json]:
    """Return the panels, placed."""
    hidden_share = f"{_summed(_HIDDEN)} / ({_summed(_HIDDEN)} + {_summed(_EXPOSED)})"
    whole = " + ".join(_summed(name) for name in PARTS.values())
    ranks = "rank {{rank}}"
    found = [
        _panel(
            "stat",
            "Hidden share of communication",
            (5, 4),
            "percentunit",
            {"hidden": hidden_share},
            about="Communication behind compute over all communication, of the chosen ranks.",
            most=1,
        ),
        _panel(
            "stat",
            "Exposed share of the step",
            (5, 4),
            "percentunit",
            {"exposed": f"{_summed(_EXPOSED)} / ({whole})"},
            most=1,
        ),
        _panel("stat", "Step", (4, 4), "none", {"step": f"max({_now(catalogue.STEP_NUMBER)})"}),
        _panel(
            "stat",
            "Since the latest step",
            (5, 4),
            "s",
            {"since": f"max(time() - {_now(catalogue.STEP_TIMESTAMP)})"},
            about="Of the rank whose latest step is the longest ago.",
        ),
        _panel(
            "stat",
            "Oldest unfinished collective",
            (5, 4),
            "s",
            {"age": f"max({_now(catalogue.OLDEST_IN_FLIGHT)})"},
            about="No value: nothing is in flight. An age that grows is a hang.",
        ),
        _panel(
            "timeseries",
            "Step time, mean of each rank",
            (12, 8),
            "s",
            {ranks: _mean("step_seconds"), "p99 of all": _quantile("step_seconds", 0.99)},
            about="Steps in statistics. The quantile is read from a histogram: an estimate.",
        ),
        _panel(
            "timeseries",
            "Where a step goes",
            (12, 8),
            "s",
            {legend: f"{_summed(name)} / {_summed(STEPS)}" for legend, name in PARTS.items()},
            about="Mean of the chosen ranks. The four parts add up to the step.",
            stacked=True,
        ),
        _panel(
            "timeseries",
            "Overlap ratio of each rank",
            (12, 8),
            "percentunit",
            {ranks: f"{_rate(_HIDDEN)} / ({_rate(_HIDDEN)} + {_rate(_EXPOSED)})"},
            about="Hidden communication over communication. Compare a job with itself, not with others.",
            most=1,
        ),
        _panel(
            "timeseries",
            "Critical tail, mean of each rank",
            (12, 8),
            "s",
            {ranks: _mean("tail_seconds"), "p99 of all": _quantile("tail_seconds", 0.99)},
            about="From the last compute to the end of the last gradient reduction. The rank that comes last "
            "has the shortest tail: the others wait for it.",
        ),
        _panel(
            "bargauge",
            "Slowest ranks",
            (12, 8),
            "s",
            {ranks: f"topk(8, {_BEHIND})"},
            about="By how much a rank entered the last reduction after the first one, on average: the longest tail of "
            "the run minus its own. It compares ranks that share that reduction.",
        ),
        _panel(
            "timeseries",
            "Behind the first rank",
            (12, 8),
            "s",
            {ranks: _BEHIND},
            about="The slowest ranks over time.",
        ),
        _panel(
            "timeseries",
            "Collectives in flight",
            (8, 7),
            "none",
            {ranks: _now(catalogue.IN_FLIGHT)},
            about="Launched and not finished, at the moment of the scrape.",
        ),
        _panel(
            "timeseries",
            "Age of the oldest in flight",
            (8, 7),
            "s",
            {ranks: _now(catalogue.OLDEST_IN_FLIGHT)},
        ),
        _panel(
            "timeseries",
            "Not in statistics, and lost",
            (8, 7),
            "none",
            {
                "steps: {{because}}": f"sum by (because) (increase({catalogue.STEPS_LEFT_OUT.name}{CHOSEN}{OVER}))",
                "records lost": f"sum(increase({catalogue.RECORDS_LOST.name}{CHOSEN}{OVER}))",
                "unfinished collectives": f"sum(increase({_total('unfinished_collectives')}{CHOSEN}{OVER}))",
            },
        ),
    ]
    return _placed(found)


def _placed(found: list[Json]) -> list[Json]:
    """Give panels their numbers and places, row by row."""
    x = y = height = 0
    for number, panel in enumerate(found, 1):
        place = panel["gridPos"]
        if x + place["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        panel["id"] = number
        place |= {"x": x, "y": y}
        x, height = x + place["w"], max(height, place["h"])
    return found


def _variable(name: str, within: str) -> Json:
    query = f"label_values({catalogue.STEP_NUMBER.name}{within}, {name})"
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,  # when the time range changes
        "sort": 3,  # as numbers
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> Json:
    """Return the dashboard."""
    source = {
        "name": "datasource",
        "label": "data source",
        "type": "datasource",
        "query": "prometheus",
    }
    return {
        "uid": "overlapwatch",
        "title": "overlapwatch",
        "description": "How much communication was hidden, on every rank.",
        "tags": ["overlapwatch", "distributed training"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [
                source,
                _variable("run_id", ""),
                _variable("rank", '{run_id=~"$run_id"}'),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": panels(),
    }


def main(arguments: list[str]) -> None:
    """Write it to the file that is named, or print it."""
    text = json.dumps(dashboard(), indent=2)
    if not arguments:
        print(text)  # noqa: T201 - a command
        return
    Path(arguments[0]).write_text(text + "\n", encoding="utf-8")
    print(f"{arguments[0]}: to import in Grafana under Dashboards, New, Import")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.reports.json import SCHEMA, InputFile, to_dict, to_text
from overlapwatch.timeline.model import Origin, Recording, Timeline
from overlapwatch.vocabulary import NOT_KNOWN
from tests.reports import golden, recordings

MS = 1_000_000
EVERYTHING = (
    "worked", "queued", "serial", "killed", "silent", "host_times", "hostile", "typical", "profiled", "fsdp2",
)  # fmt: skip


def report(name: str) -> dict:
    return to_dict([analyse(getattr(recordings, name)())])


def shape(value, path="", found=None) -> dict[str, set[str]]:
    """Every path in a JSON value with the types that occur there; items of a list share one path.

    The keys of `about` and `counters` are data, not part of the contract.
    """
    found = {} if found is None else found
    found.setdefault(path or ".", set()).add(type(value).__name__)
    if isinstance(value, dict) and not path.endswith((".about", ".counters")):
        for key, inner in value.items():
            shape(inner, f"{path}.{key}", found)
    elif isinstance(value, list):
        for inner in value:
            shape(inner, f"{path}[]", found)
    return found


def test_the_contract():
    """Keys are added, not renamed: a line that goes from this golden file breaks somebody's script."""
    found: dict[str, set[str]] = {}
    for name in EVERYTHING:
        shape(json.loads(to_text([analyse(getattr(recordings, name)())])), "", found)
    lines = [f"{path}: {' | '.join(sorted(types))}" for path, types in sorted(found.items())]
    golden.check("report_schema.txt", "\n".join(lines) + "\n")


def test_golden():
    golden.check("worked.json", to_text([analyse(recordings.worked())]))


def test_the_worked_example():
    (timeline,) = report("worked")["timelines"]
    parts = timeline["partition"]
    assert parts["window_ns"] == 56 * MS
    assert (parts["compute_only_ns"], parts["communication_only_ns"]) == (32 * MS, 8 * MS)
    assert (parts["overlap_ns"], parts["idle_ns"]) == (16 * MS, 0)
    assert parts["overlap_ratio"] == pytest.approx(2 / 3)
    assert timeline["tail"]["spread"]["p50_ns"] == MS
    assert timeline["exposed"]["count"] == 8
    assert timeline["rank"] == 0


def test_the_head_of_the_object():
    made = to_dict(
        [analyse(recordings.worked())], [InputFile("runs/a/rank0-5f3a91c2.owlog", "ab12", 4096)]
    )
    assert made["schema"] == SCHEMA == 1
    (source,) = made["inputs"]
    assert (source["path"], source["source"]) == ("runs/a/rank0-5f3a91c2.owlog", "owlog")
    assert (source["sha256_head"], source["size_bytes"]) == ("ab12", 4096)
    assert source["read"] == {"timelines": 1, "steps": 8, "collectives": 24}
    assert made["across_ranks"] is None
    assert any(one["what"] == "across_ranks" for one in made["not_known"])


def test_several_ranks_keep_apart():
    made = to_dict([analyse(recordings.typical(rank)) for rank in (0, 1)])
    assert [one["rank"] for one in made["timelines"]] == [0, 1]
    assert len(made["inputs"]) == 2
    assert {one["timeline"] for one in made["closure"]} == {0, 1}
    assert all(one["ok"] and one["left"] == one["right"] for one in made["closure"])


def test_skipped_records_are_in_the_input():
    (source,) = report("hostile")["inputs"]
    assert source["skipped"] == [
        {"what": "log bytes", "count": 412, "because": "damaged or cut short"}
    ]
    assert len(source["notes"]) == 1


@pytest.mark.parametrize("name", EVERYTHING)
def test_times_are_whole_numbers_and_unknown_is_null(name):
    def walk(value, key=""):
        if isinstance(value, dict):
            for inner_key, inner in value.items():
                walk(inner, inner_key)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, key)
        elif key.endswith("_ns"):
            assert value is None or type(value) is int, key
            assert value != NOT_KNOWN, key

    walk(report(name))


def test_what_is_not_known_is_null_and_said():
    recording = recordings.worked()
    sent = recording.timeline.communication.copy()
    sent["finish"] = 0
    made = to_dict(
        [
            analyse(
                replace(
                    recording,
                    timeline=replace(recording.timeline, communication=sent),
                    summaries=recording.summaries[:0],
                )
            )
        ]
    )
    parts = made["timelines"][0]["partition"]
    assert parts["communication_ns"] is None
    assert parts["overlap_ratio"] is None
    assert parts["unfinished"] == 24
    assert any("communication" in one["what"] and one["timeline"] == 0 for one in made["not_known"])


def test_in_flight():
    flying = report("killed")["timelines"][0]["in_flight"]
    assert [one["sequence"] for one in flying] == [25, 26]
    assert flying[1]["name"] == "bucket 1"
    assert report("killed")["timelines"][0]["state"] == "killed"


def test_an_input_without_anything():
    made = json.loads(to_text([analyse(Recording(Timeline(Origin("kineto", "empty.json"))))]))
    assert made["timelines"][0]["partition"]["window_ns"] == 0
    assert made["timelines"][0]["rank"] is None


def test_hostile_names_survive():
    made = json.loads(to_text([analyse(recordings.hostile())]))
    names = {row["first_parameter"] for row in made["timelines"][0]["buckets"]["rows"]}
    assert "[red]<script>alert(1)</script>[/red]" in names
    assert ":smile: \x1b[31mred\x1b[0m" in names


def test_what_json_has_no_word_for_is_refused():
    analysis = replace(analyse(recordings.worked()), counters={"x": float(np.inf)})
    with pytest.raises(ValueError, match="JSON compliant"):
        to_text([analysis])


def test_every_key_is_in_the_page_about_it():
    page = (Path(__file__).parents[2] / "docs" / "report-json.md").read_text(encoding="utf-8")
    made = report("profiled")
    for part in (made, made["timelines"][0], made["devices"], made["timelines"][0]["rates"][0]):
        for key in part:
            assert f"`{key}`" in page or f".{key}`" in page, key

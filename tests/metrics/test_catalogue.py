"""The list of metrics: names, units, what is taken from a row, and the page that shows it."""

import os
import re
from pathlib import Path

import pytest

from overlapwatch.metrics import catalogue
from overlapwatch.metrics.catalogue import FAMILIES, LEFT_OUT, OF_A_STEP, Shape, why_left_out
from overlapwatch.vocabulary import OUT_OF_STATISTICS, SUMMARY, StepFlag
from tests.metrics.rows import full, row

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
VALUES = {one.name: one for one in OF_A_STEP}


def taken(summary) -> dict[str, float | None]:
    fields = dict(zip(SUMMARY.names, summary.item(), strict=True))
    return {name: one.value(fields) for name, one in VALUES.items()}


def test_what_is_taken_from_a_row_in_base_units():
    assert taken(full(7)) == {
        "step_seconds": 0.1,
        "compute_only_seconds": 0.04,
        "hidden_communication_seconds": 0.03,
        "exposed_communication_seconds": 0.01,
        "idle_seconds": 0.02,
        "compute_seconds": 0.07,
        "communication_seconds": 0.04,
        "overlap_ratio": 0.75,
        "exposed_ratio": 0.1,
        "tail_seconds": 0.004,
        "wait_seconds": 0.01,
        "payload_bytes": 4096,
        "collectives": 3,
        "buckets": 2,
        "unfinished_collectives": 0,
        "unobservable_collectives": 0,
    }


def test_what_is_not_known_is_no_number():
    known = {name: value for name, value in taken(row()).items() if value is not None}
    assert known == {
        "step_seconds": 0.1,
        "collectives": 0,
        "buckets": 0,
        "unfinished_collectives": 0,
        "unobservable_collectives": 0,
    }
    silent = taken(row(communication_ns=0, overlap_ns=0, communication_only_ns=0))
    assert (silent["communication_seconds"], silent["exposed_ratio"]) == (0, 0)
    assert silent["overlap_ratio"] is None  # of nothing there is no share


def test_the_parts_add_up_to_the_step():
    values = taken(full(1))
    parts = ("compute_only", "hidden_communication", "exposed_communication", "idle")
    assert sum(values[f"{part}_seconds"] for part in parts) == values["step_seconds"]


@pytest.mark.parametrize("flag", list(StepFlag))
def test_a_step_is_left_out_as_from_all_statistics(flag):
    assert (why_left_out(int(flag)) is not None) == bool(flag & OUT_OF_STATISTICS)


def test_names_are_apart_and_follow_the_rules_of_both_worlds():
    names = [family.name for family in FAMILIES]
    dotted = [family.dotted for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert len(set(dotted)) == len(dotted)
    for family in FAMILIES:
        assert re.fullmatch(r"overlapwatch_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.shape is Shape.COUNTER)
        assert family.help.endswith(".")
        # The usual translation from OpenTelemetry: dots, then the unit, then `_total`.
        unit = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}.get(family.unit.code, "")
        total = "_total" if family.shape is Shape.COUNTER else ""
        assert family.dotted.replace(".", "_") + unit + total == family.name


def test_bounds_grow():
    for family in FAMILIES:
        assert list(family.bounds) == sorted(set(family.bounds))
    assert VALUES["step_seconds"].histogram.bounds[:4] == (0.001, 0.002, 0.005, 0.01)


def table(rows: list[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows)


def of_a_step() -> str:
    return table(
        [
            ("value of a step", "also kept as", "what it is"),
            ("---", "---", "---"),
            *(
                (
                    f"`{one.name}`",
                    ", ".join(
                        word
                        for word, family in (("histogram", one.histogram), ("counter", one.total))
                        if family
                    )
                    or "–",
                    one.help.rstrip("."),
                )
                for one in OF_A_STEP
            ),
        ]
    )


def of_the_watch() -> str:
    return table(
        [
            ("metric", "kind", "what it is"),
            ("---", "---", "---"),
            *(
                (f"`{one.name}`", one.shape.value, one.help.rstrip("."))
                for one in catalogue.OF_THE_WATCH
            ),
        ]
    )


@pytest.mark.parametrize("part", [of_a_step, of_the_watch])
def test_the_page_has_the_tables(part):
    begin, end = (f"<!-- {part.__name__}: {word} -->\n" for word in ("begin", "end"))
    page = PAGE.read_text()
    if os.environ.get("UPDATE_DOCS"):
        before, rest = page.split(begin)
        page = before + begin + part() + end + rest.split(end)[1]
        PAGE.write_text(page)
    assert page.split(begin)[1].split(end)[0] == part()


def test_the_page_counts_the_series_of_a_rank_right():
    series = sum(
        len(family.bounds) + 3 if family.bounds else len(LEFT_OUT) if family.label else 1
        for family in FAMILIES
    )
    assert f"{series} series a rank" in PAGE.read_text()

"""SUMMARY rows with known numbers, and what is read from a scrape."""

from typing import Any

import numpy as np

from overlapwatch.accounting.summarize import _BLANK


def row(step: int = 1, **fields: int) -> np.void:
    """Return a row in which nothing is known but its boundaries (100 ms) and what is given."""
    one = _BLANK.copy()
    one["step"], one["start_ns"], one["end_ns"] = step, 0, 100_000_000
    for name, value in fields.items():
        one[name] = value
    return one[0]


def full(step: int, *, hidden_ms: int = 30, exposed_ms: int = 10, tail_ms: int = 4) -> np.void:
    """Return a row in which all is known: a step of 100 ms, 20 ms of them idle."""
    ms = 1_000_000
    return row(
        step,
        compute_ns=70 * ms,
        communication_ns=(hidden_ms + exposed_ms) * ms,
        compute_only_ns=(70 - hidden_ms) * ms,
        communication_only_ns=exposed_ms * ms,
        overlap_ns=hidden_ms * ms,
        idle_ns=(30 - exposed_ms) * ms,
        tail_ns=tail_ms * ms,
        wait_ns=exposed_ms * ms,
        bytes=4096,
        collectives=3,
        buckets=2,
    )


def scraped(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of an exposition, read by prometheus_client's own parser: (name, labels) to value."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_rank(samples: dict[Any, float], rank: int) -> dict[str, float]:
    """Return one rank's samples by name, without those that have a label of their own (`le`, `because`)."""
    return {
        name: value
        for (name, labels), value in samples.items()
        if dict(labels)["rank"] == str(rank) and len(labels) == 2
    }

"""Timelines of kernels with names, as sources of profiles give them, from rows of letters."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from overlapwatch.timeline.model import Lane, Timeline
from overlapwatch.vocabulary import PAYLOAD, CollectiveKind, Name, NameKind
from tests.support.scenarios import at, profile

LETTERS = "fbx"
FLASH = {1: "flash_fwd_kernel", 2: "flash_bwd_kernel", 3: "gemm"}


def kernels(row: str, *, flash: bool = False, names: Mapping[int, str] | None = None) -> Timeline:
    """Return a timeline of compute kernels of 1 ms: one for each letter (`f`, `b`, `x`), a dot is idle.

    A row that ends in dots ends in a copy, so that the capture reaches to the last of them.
    """
    places = [place for place, letter in enumerate(row) if letter != "."]
    compute = Lane(
        np.array([at(place) for place in places], np.int64),
        np.array([at(place + 1) for place in places], np.int64),
        np.array([LETTERS.index(row[place]) + 1 for place in places], np.uint32),
        np.zeros(len(places), np.uint8),
    )
    texts = FLASH if flash else dict(names or {})
    copies = [(len(row) - 1, len(row))] if row.endswith(".") else []
    table = {number: Name(number, NameKind.OPERATION, text) for number, text in texts.items()}
    return replace(profile(copies=copies), compute=compute, names=table)


def call(
    start: float,
    size: int,
    *,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    group: int = 0,
    kernel: int = -1,
) -> tuple[int, int, int, int, int, int, int]:
    """Return one PAYLOAD row, made at `start` ms; a size of -1 is not known."""
    return (kind, group, -1, size, at(start), at(start) + 1000, kernel)


def payloads(*rows: tuple[int, int, int, int, int, int, int]) -> np.ndarray:
    """Return the rows as one PAYLOAD array."""
    return np.array(list(rows), PAYLOAD)

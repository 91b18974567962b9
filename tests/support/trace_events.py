"""A trace as a viewer reads it: the rules of the Trace Event format, each checked, and the way back to a Timeline.

Viewers bear much and drop quietly what they do not: what they bear differently is refused here.
"""

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import single, subtract, union
from overlapwatch.timeline.model import Lane, Origin, Timeline
from overlapwatch.vocabulary import RECORD, RecordKind

KEYS = {
    "M": {"ph", "pid", "tid", "name", "args"},
    "X": {"ph", "ts", "dur", "pid", "tid", "cat", "name"},
    "B": {"ph", "ts", "pid", "tid", "cat", "name"},
    "i": {"ph", "ts", "pid", "tid", "cat", "name", "s"},
    "C": {"ph", "ts", "pid", "tid", "name", "args"},
    "s": {"ph", "ts", "pid", "tid", "cat", "name", "id"},
    "f": {"ph", "ts", "pid", "tid", "cat", "name", "id", "bp"},
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "process_labels": ("labels", str),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


@dataclass
class Process:
    name: str
    spans: list[dict]  # X events; `start`, `end` in ns
    events: list[dict]

    def of(self, category: str) -> list[dict]:
        return [one for one in self.spans if one["cat"] == category]

    def lane(self, category: str) -> Lane:
        mine = self.of(category)
        none = np.zeros(len(mine), np.uint32)
        start, end = (np.array([one[side] for one in mine], np.int64) for side in ("start", "end"))
        return Lane(start, end, none, none.astype(np.uint8))

    def timeline(self) -> Timeline:
        """The lanes that the accounting sees; 1 is added to times, since a RECORD's 0 is not known."""
        talk = self.lane("communication")
        records = np.zeros(len(talk), RECORD)
        records["kind"] = RecordKind.COLLECTIVE
        records["launch"] = records["start"] = talk.start + 1
        records["finish"] = talk.end + 1
        compute = self.lane("compute")
        return Timeline(
            Origin("trace", self.name),
            compute=Lane(compute.start + 1, compute.end + 1, compute.name, compute.phase),
            communication=records,
        )

    def window(self) -> Window:
        lane = self.lane("accounted")
        recorded = union(lane.start + 1, lane.end + 1)
        low, high = (int(recorded.start[0]), int(recorded.end[-1])) if len(recorded) else (0, 0)
        boundary = self.of("accounted")[0]["args"]["boundary"] if len(recorded) else "clip"
        return Window(low, high, "read back", boundary, subtract(single(low, high), recorded))


def read_trace(source: Path | bytes) -> tuple[dict, list[Process]]:
    """The facts of a trace and its processes, in the order in which they are shown; every rule is checked."""
    data = source if isinstance(source, bytes) else source.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    assert data.startswith(b'{"')  # by which a viewer knows JSON from its other formats
    text = data.decode("utf-8")
    assert not any(ord(char) < 32 or ord(char) == 127 for char in text if char != "\n")
    whole = json.loads(text, parse_float=Exact, parse_constant=_refuse)
    assert "displayTimeUnit" not in whole
    assert all(isinstance(value, str) for value in whole["otherData"].values())
    events = whole["traceEvents"]
    for event in events:
        _check_form(event)
    by_pid: dict[int, list[dict]] = defaultdict(list)
    for event in events:
        by_pid[event["pid"]].append(event)
    homes = {event["tid"]: event["pid"] for event in events}
    assert all(homes[event["tid"]] == event["pid"] for event in events)
    processes = [_process(pid, by_pid[pid]) for pid in sorted(by_pid)]
    _check_arrows(events)
    return whole, processes


class Exact(Decimal):
    """A decimal as it is written, which a viewer's float of µs must give back to the ns, rounded or cut."""

    @property
    def ns(self) -> int:
        """What rounds to it: at most some tenths of a ns are added or taken away."""
        ns = round(self * 1000)
        assert abs(self * 1000 - ns) <= Decimal("0.4")
        return ns

    @property
    def us(self) -> float:
        """What most viewers read."""
        return float(str(self))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _check_form(event: dict) -> None:
    phase = event["ph"]
    assert next(iter(event)) == "ph"
    keys = set(event)
    assert keys - {"args"} <= KEYS[phase] | {"args"}
    assert KEYS[phase] <= keys, event
    assert isinstance(event["name"], str)
    assert all(isinstance(event[one], int) and event[one] > 0 for one in ("pid", "tid"))
    if phase == "M":
        key, kind = METADATA[event["name"]]
        assert isinstance(event["args"][key], kind)
        return
    assert list(event)[1] == "ts"
    event["start"] = event["ts"].ns
    assert int(event["ts"].us * 1000) == event["start"]  # by a viewer that cuts
    if phase == "X":
        assert event["dur"] >= 0
        event["end"] = event["start"] + event["dur"].ns
        event["end_us"] = event["ts"].us + event["dur"].us
        assert int(event["dur"].us * 1000) in {event["dur"].ns, event["dur"].ns - 1}
    if phase == "C":
        assert all(isinstance(value, (int, Decimal)) for value in event["args"].values())


def _process(pid: int, events: list[dict]) -> Process:
    named = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    titles = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert len(titles) == 1
    rows: dict[int, list[dict]] = defaultdict(list)
    for event in events:
        if event["ph"] in "XBi":
            assert event["tid"] in named, event
            rows[event["tid"]].append(event)
    spans = [event for event in events if event["ph"] == "X"]
    for row in rows.values():
        _check_row(row)
    return Process(titles[0], spans, events)


def _check_row(events: list[dict]) -> None:
    """Spans of a row lie in one another or apart; nothing follows, on its row, what never ends."""
    open_since = min((one["start"] for one in events if one["ph"] == "B"), default=None)
    assert open_since is None or not any(one["ph"] == "X" for one in events)
    stack: list[int] = []
    floats: list[float] = []
    order = sorted((one for one in events if one["ph"] == "X"), key=lambda one: one["start"])
    for one in order:  # of equal starts, as they stand in the file
        while stack and stack[-1] <= one["start"]:
            stack.pop()
            # By a viewer that adds floats, too, it is over where this one begins ...
            assert floats.pop() <= one["ts"].us, one
        assert not stack or stack[-1] >= one["end"], one
        # ... and does not outlive what it lies in (of spans in spans in spans the first three).
        assert not stack or len(stack) > 2 or not one["dur"] or floats[-1] >= one["end_us"], one
        stack.append(one["end"])
        floats.append(one["end_us"])


def _check_arrows(events: list[dict]) -> None:
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            spans[one["tid"]].append((one["start"], one["end"]))
    sides = {
        phase: {one["id"]: one for one in events if one["ph"] == phase} for phase in ("s", "f")
    }
    assert sides["s"].keys() == sides["f"].keys()
    assert sum(one["ph"] in {"s", "f"} for one in events) == 2 * len(sides["s"])
    for number, begin in sides["s"].items():
        end = sides["f"][number]
        assert begin["start"] <= end["start"]
        assert any(low <= begin["start"] < high for low, high in spans[begin["tid"]])
        assert any(low == end["start"] for low, _ in spans[end["tid"]])
        assert end["bp"] == "e"

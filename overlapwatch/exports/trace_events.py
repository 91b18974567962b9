"""The Trace Event format (JSON), which ui.perfetto.dev and chrome://tracing open: written event by event.

In: the texts of events. Out: one JSON object, `{"otherData": {...}, "traceEvents": [...], ...}`. At most
`HELD` characters wait to be written. Readers differ in what they bear; these habits suit all of them:

* every event begins with `ph` and its time, so that a reader may stop there;
* names are UTF-8 with control characters escaped;
* no `displayTimeUnit`: some releases of a viewer take it for the unit of `ts`;
* numbers of processes and rows occur once in a file, and ascend in the order to be shown.
"""

import json
from collections.abc import Iterable, Mapping
from typing import IO, Any

import msgspec

HELD = 1 << 20
_ENCODE = msgspec.json.Encoder().encode
COUNTED = "XBiCsf"
"""The phases that are counted: spans, spans without an end, instants, counters, the ends of arrows."""


def as_json(value: Any) -> str:
    """Return a name or facts as JSON text; what stands in a name is never more than a name."""
    try:
        text = _ENCODE(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which a damaged name may hold
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


class TraceFile:
    """A trace that is being written.

    Args:
        file: takes the bytes.
        about: facts about the trace.

    Attributes:
        counts: events by their phase: X spans, B spans without an end, i instants, C counters, s and f arrows.

    """

    def __init__(self, file: IO[bytes], about: Mapping[str, str]) -> None:
        self._file = file
        self._held: list[str] = []
        self._size = 0
        self._between = "\n"
        self.counts = dict.fromkeys(COUNTED, 0)
        self._write(f'{{"otherData":{as_json(about)},"traceEvents":[')

    def add(self, phase: str, events: Iterable[str]) -> None:
        """Add events of one phase, each the text of what follows `{"ph":"X",`, without its brace."""
        count = 0
        for event in events:
            self._write(f'{self._between}{{"ph":"{phase}",{event}}}')
            self._between = ",\n"
            count += 1
        if phase in self.counts:
            self.counts[phase] += count

    def close(self, beside: Mapping[str, Any]) -> None:
        """Write the end, with what was learned about the trace meanwhile as its entry `overlapwatch`."""
        self._write(f'\n],"overlapwatch":{as_json(beside)}}}\n')
        self._flush()

    def _write(self, text: str) -> None:
        self._held.append(text)
        self._size += len(text)
        if self._size >= HELD:
            self._flush()

    def _flush(self) -> None:
        # Half a surrogate pair has no bytes.
        self._file.write("".join(self._held).encode("utf-8", "replace"))
        self._held, self._size = [], 0

"""The ring that a log names: opened where this host has it, or why it is out of reach.

In: the header of a log. Out: a `RingReader`, or an `OutOfReach` with the reason. A ring that belongs to another run
or rank, under a name that was used again, is never taken for the log's.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from overlapwatch.errors import InputError
from overlapwatch.log.frames import Header
from overlapwatch.ring import RingReader


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """Why a ring cannot be read.

    Args:
        because: a sentence.
        expected: nothing is amiss when the job has closed its log: it deletes its ring then.

    """

    because: str
    expected: bool


def open_ring(header: Header | None) -> RingReader | OutOfReach:  # noqa: PLR0911 - each return is one reason
    """Return a reader of the ring that the log with this header names."""
    if header is None:
        because = "the ring was not read: the log's header, which names it, is damaged"
        return OutOfReach(because, expected=False)
    if not header.ring:
        return OutOfReach("the ring was private memory: nothing outlived the log", expected=True)
    if header.host != socket.gethostname():
        return OutOfReach(f"the ring was not read: it is on host {header.host}", expected=True)
    path = Path(header.ring)
    if not path.exists():
        return OutOfReach(f"the ring {path} is gone: the last steps are not known", expected=True)
    try:
        reader = RingReader(path)
    except InputError as error:
        return OutOfReach(f"the ring was not read: {error}", expected=False)
    if reader.about.get("run_id") != header.run_id or reader.about.get("rank") != header.rank:
        because = f"the ring {path} was not read: it belongs to another run or rank"
        return OutOfReach(because, expected=False)
    return reader

"""A bounded buffer of records in shared memory: hooks write, the drain and other processes read.

In: records, one `Struct.pack_into` each, from any thread. Out: structured arrays in slot order,
with the count of what was overwritten before it was read. The buffer is a file that outlives a
killed process; `RingReader` opens it from outside, while the job runs, hangs or is dead.

What it does not know: which records belong together, and what they mean.
"""

from overlapwatch.ring.layout import MAX_CAPACITY, SLOT_BYTES
from overlapwatch.ring.reading import Batch, RingReader
from overlapwatch.ring.writing import Ring, Stamp, WriteRecord, default_directories, now_pair

__all__ = [
    "MAX_CAPACITY",
    "SLOT_BYTES",
    "Batch",
    "Ring",
    "RingReader",
    "Stamp",
    "WriteRecord",
    "default_directories",
    "now_pair",
]

"""How a ring lies in memory: a header, then slots of 80 bytes.

    header   FIXED_HEADER | JSON description | zeros up to a multiple of 4096 bytes
    slot     ticket (u64) | RECORD (64 bytes) | ticket (u64)

The ticket is the slot's running number + 1; slot number n lives in cell n modulo the capacity.
There is no shared head: the largest ticket is the head. All numbers are little-endian.
"""

import struct

from overlapwatch.vocabulary import RECORD

MAGIC = b"OWRING\x00\x01"
"""Six letters, a zero, and the version of this layout."""

FIXED_HEADER = struct.Struct("<8sIIQI")
"""Magic, header bytes, slot bytes, capacity, length of the JSON that follows."""

PAGE_BYTES = 4096
MAX_HEADER_BYTES = 1 << 16
MAX_CAPACITY = 1 << 24

SLOT_STRUCT = struct.Struct("<QBBBBIIHHIIqqqqqQ")
SLOT_BYTES = SLOT_STRUCT.size
WORDS_PER_SLOT = SLOT_BYTES // 8
assert SLOT_BYTES == 8 + RECORD.itemsize + 8 == 80

FIELD_WORD = {"ready": 5, "launch": 6, "start": 7, "finish": 8}
"""Where the four times lie in a slot, in 8-byte words."""

FLAGS_BYTE = 11
"""Where the flags lie in a slot."""

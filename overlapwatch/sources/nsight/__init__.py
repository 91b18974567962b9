"""Nsight Systems: a report or an export of it -> Recordings, one for each process and device.

In: an `.sqlite` export, the directory of a `parquetdir` or `arrowdir` export, a `.nsys-rep`, or a
directory of these, one a rank. Out: Recordings. Schemas from 2021 on are read by what is there:
tables and columns are looked up. Files are opened read-only and left as they are. What an export
cannot tell is in `unknown`, what was read and cannot be used in `skipped`.
"""

from overlapwatch.sources.nsight.reading import is_nsight, open_nsight

__all__ = ["is_nsight", "open_nsight"]

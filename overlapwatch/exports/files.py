"""Files that are there whole or not at all, compressed when their name says so.

In: a path. Out: a binary file to write to. It is written beside its place and moved there at the end,
so that an export that fails leaves what was there before; what is no plain file (a pipe, /dev/null)
is written to directly.
"""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO

fast_gzip: ModuleType | None = None
with suppress(
    ImportError
):  # no wheel for this platform: the standard library does the same, slower
    fast_gzip = import_module("isal.igzip")

_FAST = 2
"""Of isal's levels 0 to 3."""


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to; at the end it is `path`, or after an error it is gone.

    A name that ends in `.gz` is compressed; the same content gives the same bytes.

    Raises:
        OSError: it cannot be written.

    """
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise IsADirectoryError(21, "it is a directory")
        with path.open("wb") as file, _compressed(file, path) as text:
            yield text
        return
    target = path.resolve()  # a link keeps pointing where it did
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, _compressed(file, path) as text:
            yield text
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _compressed(file: BinaryIO, path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".gz":
        yield file
    elif fast_gzip is not None:
        with fast_gzip.IGzipFile("", "wb", compresslevel=_FAST, fileobj=file, mtime=0) as text:
            yield text
    else:
        plain: Any = gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0)
        with plain as text:
            yield text

"""Tables -> files: CSV or Parquet, one a table in a directory, or one table of CSV in a stream.

In: batches of rows. Out: files, each written batch by batch and put in its place at the end. CSV is
that of RFC 4180 with plain line feeds: a header, commas, quotes where they are needed; what is not known is an
empty field, true and false are words. Parquet is compressed (zstd), in row groups, with the types of
the columns, and what a column holds in its metadata.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Protocol, TextIO

from overlapwatch.errors import ConfigurationError
from overlapwatch.exports.columns import Batch, Table, Type
from overlapwatch.exports.files import new_file

ROW_GROUP = 200_000
"""Rows of a row group of Parquet, of many columns some 20 MB."""


class Sink(Protocol):
    """Takes the rows of one table."""

    def write(self, batch: Batch) -> None:
        """Take some rows."""


MakeSink = Callable[[Table, IO[bytes]], AbstractContextManager[Sink]]


@contextmanager
def in_directory(
    directory: Path, tables: Iterable[Table], suffix: str, make: MakeSink
) -> Iterator[Mapping[str, Sink]]:
    """Give a sink for each table, whose file is `directory/NAME.suffix`.

    Raises:
        OSError: a file cannot be written.

    """
    directory.mkdir(exist_ok=True)
    with ExitStack() as files:
        sinks = {}
        for table in tables:
            file = files.enter_context(new_file(directory / f"{table.name}.{suffix}"))
            sinks[table.name] = files.enter_context(make(table, file))
        yield sinks


class CsvSink:
    """Writes rows as CSV."""

    def __init__(self, table: Table, stream: TextIO) -> None:
        self._rows = csv.writer(stream, lineterminator="\n")
        self._yes = [one.type is Type.BOOLEAN for one in table.columns]
        self._rows.writerow([one.name for one in table.columns])

    def write(self, batch: Batch) -> None:
        """Write some rows."""
        words = {True: "true", False: "false", None: None}
        columns = [
            [words[value] for value in values] if yes else values
            for yes, values in zip(self._yes, batch.values(), strict=True)
        ]
        self._rows.writerows(zip(*columns, strict=True))


@contextmanager
def csv_sink(table: Table, file: IO[bytes]) -> Iterator[Sink]:
    """Give a sink that writes CSV, in UTF-8."""
    # Half a surrogate pair, which a damaged name may hold, has no bytes.
    text = TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
    yield CsvSink(table, text)
    text.flush()
    text.detach()


@contextmanager
def parquet_sink(table: Table, file: IO[bytes]) -> Iterator[Sink]:
    """Give a sink that writes Parquet.

    Raises:
        ConfigurationError: pyarrow is not installed.

    """
    pyarrow, parquet = arrow()
    types = {
        Type.INTEGER: pyarrow.int64(),
        Type.REAL: pyarrow.float64(),
        Type.TEXT: pyarrow.string(),
        Type.BOOLEAN: pyarrow.bool_(),
    }
    schema = pyarrow.schema(
        [
            pyarrow.field(one.name, types[one.type], metadata={"about": one.about})
            for one in table.columns
        ],
        metadata={"table": table.name, "about": table.about},
    )
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        sink = _ParquetSink(pyarrow, schema, writer)
        yield sink
        sink.flush()


class _ParquetSink:
    """Gathers batches into row groups."""

    def __init__(self, pyarrow: Any, schema: Any, writer: Any) -> None:
        self._pyarrow, self._schema, self._writer = pyarrow, schema, writer
        self._held: list[Any] = []
        self._rows = 0

    def write(self, batch: Batch) -> None:
        """Write some rows."""
        arrays = [
            self._pyarrow.array(_clean(values, field.type == self._pyarrow.string()), field.type)
            for values, field in zip(batch.values(), self._schema, strict=True)
        ]
        made = self._pyarrow.record_batch(arrays, schema=self._schema)
        self._held.append(made)
        self._rows += made.num_rows
        if self._rows >= ROW_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write what is held as a row group."""
        if self._rows:
            self._writer.write_table(
                self._pyarrow.Table.from_batches(self._held, schema=self._schema)
            )
        self._held, self._rows = [], 0


def _clean(values: Any, text: bool) -> Any:  # noqa: FBT001 - of one caller
    """Return the values of a column as Parquet can hold them: UTF-8."""
    if not text:
        return values
    return [
        value.encode("utf-8", "replace").decode()
        if value is not None and not value.isascii()
        else value
        for value in values
    ]


def arrow() -> tuple[Any, Any]:
    """Return pyarrow and its part for Parquet.

    Raises:
        ConfigurationError: it is not installed.

    """
    if find_spec("pyarrow") is None:
        raise ConfigurationError("--to parquet needs pyarrow: pip install 'overlapwatch[parquet]'")
    return import_module("pyarrow"), import_module("pyarrow.parquet")

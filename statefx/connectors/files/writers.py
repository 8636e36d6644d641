"""How rows become files: Parquet, JSON lines, CSV, as Spark writes and reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import SinkError, TopologyError
from statefx.operators.json_values import JsonRows, refuse_keys


class FileFormat(ABC):
    """Writes one file; made with the file open for writing."""

    suffix: ClassVar[str]

    reading: ClassVar[Mapping[str, str]] = {}
    """Options with which Spark reads such files as they were written."""

    @classmethod
    def refuse(cls, schema: pa.Schema) -> None:
        """Raise TopologyError for a field that a file of this format can't hold."""

    @abstractmethod
    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        """Begin a file; rows of at most `held_bytes_max` bytes may wait in memory."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    @abstractmethod
    def close(self) -> None:
        """Write the rows that wait in memory. The caller closes the file."""


class Parquet(FileFormat):
    """Apache Parquet, compressed by snappy, as Spark's is."""

    suffix = ".snappy.parquet"

    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        import pyarrow.parquet  # noqa: PLC0415 - 35 ms at every start of a worker, most of which write no Parquet

        # Microseconds: Spark reads nanoseconds only with a switch. Pages have checksums, as Spark's have: a reader
        # then notices damage whenever it happened. They cost 4 % of the time that writing takes.
        self._writer = pyarrow.parquet.ParquetWriter(
            file, schema, compression="snappy", coerce_timestamps="us", store_schema=False, write_page_checksum=True
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes, self._bytes_max = 0, held_bytes_max

    def write(self, batch: pa.RecordBatch) -> None:
        # Every call of the writer makes a row group. One for each batch of 10,000 rows took a fifth more time, and the
        # files were a sixth larger.
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._bytes_max:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._bytes = [], 0

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()


_CSV_NULL = "\0null"
"""The text that Spark reads as null, besides an empty field: without such a text it would read ``""`` as null."""


class Csv(FileFormat):
    """Comma-separated values with a line of names. Null is an empty field, and a text is in quotes."""

    suffix = ".csv"
    # A text may have quotes, which are doubled, and line ends. Spark expects neither unless it is told.
    reading: ClassVar[Mapping[str, str]] = {
        "header": "true",
        "escape": '"',
        "multiLine": "true",
        "nullValue": _CSV_NULL,
        "nanValue": "nan",
        "positiveInf": "inf",
        "negativeInf": "-inf",
    }

    @classmethod
    def refuse(cls, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise TopologyError(
                    f"field {field.name!r} is {field.type}, which CSV can't hold: write Parquet or JSON, or take the "
                    "field apart in a bolt",
                    field=field.name,
                )

    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        import pyarrow.csv  # noqa: PLC0415 - as above

        self._writer = pyarrow.csv.CSVWriter(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns == 1 and batch.column(0).null_count:
            raise SinkError(
                f"a row of a CSV file has one field, {batch.schema.names[0]!r}, and it is null: that is an empty line, "
                "which readers pass over. Write Parquet or JSON, give the rows another field, or leave such rows out"
            )
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_string(field.type) and pc.any(pc.equal(column, _CSV_NULL)).as_py():
                raise SinkError(f"field {field.name!r} is {_CSV_NULL!r}, which Spark would read as null: write Parquet")
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class JsonLines(FileFormat):
    """One JSON object a line (`statefx.operators.json_values`)."""

    suffix = ".json"

    @classmethod
    def refuse(cls, schema: pa.Schema) -> None:
        refuse_keys(schema, "FileSink")

    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        self._file = file
        self._rows = JsonRows(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(b"".join(row + b"\n" for row in self._rows.encode(batch)))

    def close(self) -> None:
        pass


FORMATS: Mapping[str, type[FileFormat]] = {"parquet": Parquet, "json": JsonLines, "csv": Csv}

"""The formats of files: what parts a file has, and how the rows of a part are read."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from statefx.errors import InputError
from statefx.spouts.ranges import Range, read_range


class _Parquet:
    """The parts of a Parquet file: its row groups."""

    def __init__(self, path: str) -> None:
        metadata = pq.read_metadata(path)
        self.schema = metadata.schema.to_arrow_schema().remove_metadata()
        self.sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]


class _Arrow:
    """The parts of an Arrow file: its record batches."""

    def __init__(self, path: str) -> None:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            self.schema = reader.schema.remove_metadata()
            self.sizes = [reader.get_batch(number).nbytes for number in range(reader.num_record_batches)]


UNITS: Mapping[str, Callable[[str], _Parquet | _Arrow]] = {"parquet": _Parquet, "arrow": _Arrow}
"""The formats whose files have parts of their own."""


def read(form: str, schema: pa.Schema, header: bool, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of a file.

    Parameters
    ----------
    form : str
        One of `READERS`.
    schema : pyarrow.Schema
        The fields that are read, by their names, and the types that they get.
    header : bool
        Whether a CSV file begins with the names of its columns.
    part : Range
    """
    for table in READERS[form](schema, header, part):
        columns = [table.column(field.name).cast(field.type) for field in schema]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _read_parquet(schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    with pq.ParquetFile(part.path) as file:
        for batch in file.iter_batches(row_groups=list(range(part.start, part.stop)), columns=schema.names):
            yield pa.Table.from_batches([batch])


def _read_arrow(_schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    with pa.memory_map(part.path) as source:
        reader = pa.ipc.open_file(source)
        for number in range(part.start, part.stop):
            yield pa.Table.from_batches([reader.get_batch(number)])


def _read_json(schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    if data := read_range(part).strip(b"\n"):
        whole = pyarrow.json.ReadOptions(block_size=len(data))  # a line longer than a block is an error
        yield pyarrow.json.read_json(pa.BufferReader(data), whole, options)


def _read_csv(schema: pa.Schema, header: bool, part: Range) -> Iterator[pa.Table]:
    data = read_range(part)
    # Every range looks at the header: the columns of a file may stand in another order than the fields.
    names = _header(part.path) if header else schema.names
    skipped = 1 if header and part.start == 0 else 0
    places = [str(place) for place in _places(part.path, names, schema.names)] if header else schema.names
    if skipped and not re.search(rb"[\r\n][^\r\n]", data):
        return
    # Nothing between two commas is null; "" and words like NA are texts.
    convert = pyarrow.csv.ConvertOptions(
        column_types={place: field.type for place, field in zip(places, schema, strict=True)},
        include_columns=places,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    # One block: pyarrow loses its place where a block ends in a quoted line feed. A column is named by its place, since
    # those that are not read may have the same name.
    columns = [str(place) for place in range(len(names))] if header else names
    whole = pyarrow.csv.ReadOptions(column_names=columns, skip_rows=skipped, block_size=len(data))
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    yield pyarrow.csv.read_csv(pa.BufferReader(data), whole, parse, convert).rename_columns(schema.names)


def _header(path: str) -> list[str]:
    """Return the names in the first line of a CSV file."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return [name.strip() for name in next(csv.reader(file), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} does not begin with a line of names: {error}", path=path) from error


def _places(path: str, names: list[str], fields: list[str]) -> list[int]:
    """Return where in a header each field is; the case of letters counts only where it tells two names apart."""
    found = []
    for field in fields:
        same = [place for place, name in enumerate(names) if name == field]
        same = same or [place for place, name in enumerate(names) if name.casefold() == field.casefold()]
        if len(same) != 1:
            how = "no field" if not same else "more than one field"
            raise InputError(
                f"{path} has {how} {field!r}; its header has {', '.join(map(repr, names))}. Give schema= names of the "
                "header, or set header=False if the first line has values",
                path=path,
            )
        found += same
    return found


def _read_text(_schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    lines = read_range(part).removesuffix(b"\n").split(b"\n")
    values = pa.array([line.removesuffix(b"\r") for line in lines], pa.binary()).cast(pa.string())
    yield pa.table({"value": values})


READERS: Mapping[str, Callable[[pa.Schema, bool, Range], Iterator[pa.Table]]] = {
    "parquet": _read_parquet,
    "arrow": _read_arrow,
    "json": _read_json,
    "csv": _read_csv,
    "text": _read_text,
}

"""The formats of files: what parts a file has, and how the rows of a part are read."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as kinds

from statefx.errors import InputError
from statefx.operators.fitting import MISFITS, fitted_column
from statefx.operators.json_values import InvalidJsonError, JsonRows

_LOOK_BACK_BYTES = 64 << 10


class ShorterError(OSError):
    """A file has become shorter while it was read."""


class Range(NamedTuple):
    """A part of a file that a task reads."""

    path: str
    start: int
    stop: int


def behind_last_line(path: str, start: int, stop: int) -> int:
    """Return the offset behind the last line feed before `stop`; `start` if there is none."""
    with open(path, "rb") as file:
        while stop > start:
            begin = max(start, stop - _LOOK_BACK_BYTES)
            file.seek(begin)
            found = file.read(stop - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            stop = begin
    return start


def behind_last_row(path: str, start: int, stop: int) -> int:
    """Return the offset behind the last line feed before `stop` that is not in quotes; `start` if there is none."""
    data = read_range(Range(path, start, stop))
    end, quotes = len(data), data.count(b'"')
    while (found := data.rfind(b"\n", 0, end)) >= 0:
        quotes -= data.count(b'"', found, end)
        if quotes % 2 == 0:
            return start + found + 1
        end = found
    return start


def read_range(part: Range) -> bytes:
    """Return the bytes of a range; ShorterError if the file has become shorter."""
    with open(part.path, "rb") as file:
        file.seek(part.start)
        found = file.read(part.stop - part.start)
    if len(found) != part.stop - part.start:
        raise ShorterError(f"it has {part.start + len(found):,} bytes, and {part.stop:,} are to be read")
    return found


def _text_of(part: Range) -> tuple[bytes, int]:
    """Return a range of a file of text without a byte order mark at the file's beginning, and where it begins then."""
    data = read_range(part)
    marked = part.start == 0 and data.startswith(_BYTE_ORDER_MARK)
    return (data[len(_BYTE_ORDER_MARK) :], len(_BYTE_ORDER_MARK)) if marked else (data, part.start)


class _Parquet:
    """The parts of a Parquet file: its row groups."""

    def __init__(self, path: str) -> None:
        metadata = pq.read_metadata(path)
        self.schema = metadata.schema.to_arrow_schema()
        for number, name in enumerate(self.schema.names):
            if _is_int96(metadata.schema, name):  # a moment, although it has no zone: so Spark writes and reads it
                self.schema = self.schema.set(number, self.schema.field(number).with_type(pa.timestamp("us", "UTC")))
        self.sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]


def _is_int96(schema: pq.ParquetSchema, name: str) -> bool:
    return any(
        column.path == name and column.physical_type == "INT96" for column in map(schema.column, range(len(schema)))
    )


class _Arrow:
    """The parts of an Arrow file: its record batches."""

    def __init__(self, path: str) -> None:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            self.schema = reader.schema
            self.sizes = [reader.get_batch(number).nbytes for number in range(reader.num_record_batches)]


UNITS: Mapping[str, Callable[[str], _Parquet | _Arrow]] = {"parquet": _Parquet, "arrow": _Arrow}
"""The formats whose files have parts of their own."""


def parts_of(form: str, path: str) -> _Parquet | _Arrow:
    """Return the parts of a file; InputError if it has another format, OSError if it is gone or can't be read now."""
    try:
        return UNITS[form](path)
    except (pa.ArrowException, OSError) as error:
        if is_fault(error):
            raise
        stream = "; a stream (pyarrow.ipc.new_stream) has no parts: write it with pyarrow.ipc.new_file"
        raise InputError(
            f"{path} is no {form} file: {error}. A file must be complete when it appears in the folder: write it "
            f"elsewhere, and rename it. Repair it, or take it out of the folder{stream if form == 'arrow' else ''}",
            path=path,
        ) from error


def is_fault(error: Exception) -> bool:
    """Return whether the system failed. pyarrow raises OSError for wrong bytes as well, but without a number."""
    return isinstance(error, OSError) and error.errno is not None


def unreadable(form: str, path: str, where: str, error: Exception) -> InputError:
    return InputError(f"{path} is no {form} file of these fields{where}: {error}", path=path)


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read(form: str, schema: pa.Schema, header: bool, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of a file: the fields of the schema, by their names and with their types."""
    for table in READERS[form](schema, header, part):
        columns = [_cast(part.path, table.column(field.name), field) for field in schema]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _cast(path: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """Return a column as the field declares it; InputError if a value is another one in that type."""
    kind = field.type
    if column.type == kind:
        return column
    if kinds.is_floating(column.type) and kinds.is_float64(kind):
        return column.cast(kind)  # exact, also of NaN, which is not equal to itself
    try:
        if kinds.is_nested(kind) or kinds.is_float32(kind) or not _is_plain(column.type):
            return fitted_column(column, kind)
        # Looser than what may be emitted: pandas writes integers with nulls as doubles, and some types (the time of a
        # day) can only be read as text.
        found = column.cast(kind)
    except MISFITS as error:
        raise _other_values(path, column, field, f" ({error})") from error
    drops_zone = kinds.is_timestamp(column.type) and kinds.is_timestamp(kind) and column.type.tz and not kind.tz
    if drops_zone or (_is_plain(kind) and not found.cast(column.type).equals(column)):
        raise _other_values(path, column, field)  # a local time is another moment in each zone
    return found


def _is_plain(kind: pa.DataType) -> bool:
    return bool(kinds.is_primitive(kind) or kinds.is_decimal(kind))


def _other_values(path: str, column: pa.ChunkedArray, field: pa.Field, why: str = "") -> InputError:
    return InputError(
        f"{path}: field {field.name!r} is {column.type}, and has values that {field.type} does not have{why}: declare "
        "it in schema= as the file has it, and convert it in a bolt",
        path=path,
    )


def _read_parquet(schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    # Moments of INT96 reach further than nanoseconds in 64 bits, in which they would be other ones.
    with pq.ParquetFile(part.path, coerce_int96_timestamp_unit="us") as file:
        _refuse_without(part.path, schema.names, file.schema_arrow.names)
        for batch in file.iter_batches(row_groups=list(range(part.start, part.stop)), columns=schema.names):
            yield pa.Table.from_batches([batch])


def _read_arrow(schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    with pa.memory_map(part.path) as source:
        reader = pa.ipc.open_file(source)
        _refuse_without(part.path, schema.names, reader.schema.names)
        for number in range(part.start, part.stop):
            yield pa.Table.from_batches([reader.get_batch(number)])


def _refuse_without(path: str, fields: list[str], names: list[str]) -> None:
    for field in fields:
        if (number := names.count(field)) != 1:
            raise InputError(
                f"{path} has {'no' if number == 0 else 'more than one'} field {field!r}; it has "
                f"{', '.join(map(repr, names))}. Name in schema= only fields that all files have, or take the file out "
                "of the folder",
                path=path,
            )


def _read_json(schema: pa.Schema, _header: bool, part: Range) -> Iterator[pa.Table]:
    rows = JsonRows(schema)
    data, place = _text_of(part)
    lines = data.split(b"\n")
    for first in range(0, len(lines), _LINES):
        batch = lines[first : first + _LINES]
        numbers = [number for number, line in enumerate(batch) if line.strip()]
        objects = [batch[number] for number in numbers]
        try:
            yield pa.Table.from_batches([rows.decode(objects)])
        except InvalidJsonError as error:
            place += sum(len(line) + 1 for line in batch[: numbers[error.number]])
            raise unreadable("json", part.path, f", in the line at byte {place:,}", error) from None
        place += sum(len(line) + 1 for line in batch)


_LINES = 10_000
"""Lines of JSON that become one batch: as many rows as Spark gives to Python at once."""


def _read_csv(schema: pa.Schema, header: bool, part: Range) -> Iterator[pa.Table]:
    data, begin = _text_of(part)
    # Every range looks at the header: the columns of a file may stand in another order than the fields.
    names, size = _header(part.path) if header else (schema.names, 0)
    data = data[max(0, size - begin) :]
    if not re.search(rb"[^\r\n]", data):
        return
    if data.startswith(_BYTE_ORDER_MARK):  # a value begins so: pyarrow takes the mark away from whatever it is given
        data = _BYTE_ORDER_MARK + data
    places = [str(place) for place in _places(part.path, names, schema.names)] if header else schema.names
    # One block: pyarrow loses its place where a block ends in a quoted line feed. A column is named by its place, since
    # those that are not read may have the same name.
    columns = [str(place) for place in range(len(names))] if header else names
    whole = pyarrow.csv.ReadOptions(column_names=columns, block_size=len(data))
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)

    def table_of(types: Mapping[str, pa.DataType]) -> pa.Table:
        # Nothing between two commas is null; "" and words like NA are texts.
        convert = pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return pyarrow.csv.read_csv(pa.BufferReader(data), whole, parse, convert)

    types = {place: field.type for place, field in zip(places, schema, strict=True)}
    table = table_of(types)
    odd = _may_be_odd(data, table)
    if odd:
        _refuse_odd(table_of(dict.fromkeys(odd, pa.string())), table, dict(zip(places, schema.names, strict=True)))
    yield table.rename_columns(schema.names)


def _may_be_odd(data: bytes, table: pa.Table) -> list[str]:
    """Return the columns whose texts have to be looked at: pyarrow reads 0x1F as 31, and 1e400 as infinity."""
    hexadecimal = re.search(rb"0[xX]", data) is not None
    return [
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if (kinds.is_integer(column.type) and hexadecimal)
        or (kinds.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py())
    ]


def _refuse_odd(texts: pa.Table, table: pa.Table, fields: Mapping[str, str]) -> None:
    """Refuse texts that are no number of their field's type; ArrowInvalid, as for others that pyarrow refuses."""
    for place in texts.column_names:
        text, column = texts.column(place), table.column(place)
        if kinds.is_integer(column.type):
            wrong = pc.match_substring_regex(text, "[xX]")
        else:
            wrong = pc.and_(pc.is_inf(column), pc.invert(pc.match_substring_regex(text, "(?i)inf")))
        found = text.filter(wrong.combine_chunks())
        if len(found):
            raise pa.ArrowInvalid(f"field {fields[place]!r} is {column.type}, which {found[0].as_py()!r:.100} is not")


def _header(path: str) -> tuple[list[str], int]:
    """Return the names in the first row of a CSV file, behind empty lines, and how many bytes there are to its end."""
    size = 0

    def lines(file: TextIO) -> Iterator[str]:
        nonlocal size
        for line in file:
            begin, size = size, size + len(line.encode())
            yield line if begin else line.removeprefix("\ufeff")

    try:
        with open(path, newline="", encoding="utf-8") as file:
            names: list[str] = next(filter(None, csv.reader(lines(file))), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise unreadable("csv", path, ", at its beginning", error) from error
    return names, size


def _places(path: str, names: list[str], fields: list[str]) -> list[int]:
    """Return the place of each field in a header; case and outer blanks count only where they tell names apart."""

    def plain(name: str) -> str:
        return name.strip().casefold()

    found = []
    for field in fields:
        same = [place for place, name in enumerate(names) if name == field]
        same = same or [
            place for place, name in enumerate(names) if name.strip().casefold() == field.strip().casefold()
        ]
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
    data, _ = _text_of(part)
    if not data:
        return
    lines = data.removesuffix(b"\n").split(b"\n")
    values = pa.array([line.removesuffix(b"\r") for line in lines], pa.binary()).cast(pa.string())
    yield pa.table({"value": values})


READERS: Mapping[str, Callable[[pa.Schema, bool, Range], Iterator[pa.Table]]] = {
    "parquet": _read_parquet,
    "arrow": _read_arrow,
    "json": _read_json,
    "csv": _read_csv,
    "text": _read_text,
}

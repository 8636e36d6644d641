"""Rows as callers have them, turned into Arrow: dicts, tuples, tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import SchemaError
from statefx.operators.fitting import MISFITS, fitted_array, own_names, shown
from statefx.operators.schema import to_ddl

_ORDERED = (tuple, list)


def to_batches(sink: str, schema: pa.Schema, rows: Any) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of a sink's schema.

    Parameters
    ----------
    sink : str
        For messages.
    schema : pa.Schema
    rows : iterable of Mapping, tuple or list, or pyarrow.Table, or pyarrow.RecordBatch

    Raises
    ------
    SchemaError
        A row or a table does not fit; names the row and the field.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        yield from _of_table(sink, schema, rows)
        return
    listed = _listed(sink, rows)
    names = schema.names
    values = [_values(sink, schema, names, place, row) for place, row in enumerate(listed)]
    if values:
        yield to_batch(sink, schema, list(zip(*values, strict=True)))


def to_batch(sink: str, schema: pa.Schema, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return columns of Python values as a batch; SchemaError names the first value that does not fit."""
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        try:
            arrays.append(fitted_array(values, field.type))
        except MISFITS as error:
            raise _first_misfit(sink, values, field, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _first_misfit(sink: str, values: Sequence[Any], field: pa.Field, error: BaseException) -> SchemaError:
    for place, value in enumerate(values):
        try:
            fitted_array([value], field.type)
        except MISFITS as found:
            what = f"row {place}: {shown(value)} ({type(value).__name__}) does not fit `{to_ddl([field])}`: {found}"
            return _refused(sink, what, field=field.name, row=place)
    return _refused(sink, f"the values of {field.name!r} do not fit `{to_ddl([field])}`: {error}", field=field.name)


def _listed(sink: str, rows: Any) -> list[Any]:
    if isinstance(rows, Mapping | str | bytes) or (isinstance(rows, tuple) and own_names(rows)):
        raise _refused(sink, f"rows are a list of dicts or tuples, not {shown(rows)}: of one row write [row]")
    if hasattr(rows, "columns"):  # pandas' and Polars': iteration is over the names of columns
        raise _refused(sink, f"a {type(rows).__name__} is sent as pyarrow.Table: pyarrow.Table.from_pandas(frame), or "
                             "frame.to_arrow()")  # fmt: skip
    if not isinstance(rows, Iterable):
        raise _refused(sink, f"rows are a list of dicts or tuples, not {shown(rows)}")
    return list(rows)


def _values(sink: str, schema: pa.Schema, names: list[str], place: int, row: Any) -> Sequence[Any]:
    """Return the values of one row in the order of the schema."""
    if isinstance(row, Mapping):
        if unknown := [name for name in row if name not in names]:
            near = difflib.get_close_matches(str(unknown[0]), names, n=1)
            there = f"the nearest is {near[0]!r}" if near else f"the fields are {', '.join(names)}"
            what = f"row {place}: there is no field {unknown[0]!r}; {there}"
            raise _refused(sink, what, field=unknown[0], row=place)
        if missing := [name for name in names if name not in row]:
            raise _refused(
                sink,
                f"row {place} lacks {', '.join(map(repr, missing))}: name every field, with None where it has no value",
                field=missing[0],
                row=place,
            )
        return [row[name] for name in names]
    if not isinstance(row, _ORDERED):
        raise _refused(
            sink, f"row {place} is {shown(row)} ({type(row).__name__}): a row is a dict or a tuple", row=place
        )
    own = own_names(row)
    if own is not None and list(own) != names:
        if set(own) == set(names):
            values = dict(zip(own, row, strict=True))
            return [values[name] for name in names]
        raise _refused(sink, f"row {place} has the fields {', '.join(own)}, not {', '.join(names)}", row=place)
    if len(row) != len(names):
        raise _refused(sink, f"row {place} has {len(row)} values; the fields are {', '.join(names)}", row=place)
    return row


def _of_table(sink: str, schema: pa.Schema, table: Any) -> Iterator[pa.RecordBatch]:
    names = table.schema.names
    if sorted(names) != sorted(schema.names):
        raise _refused(sink, f"the table has the fields {', '.join(names)}, not {', '.join(schema.names)}")
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            what = f"column {field.name!r} is {column.type}, and does not fit `{to_ddl([field])}`: {error}"
            raise _refused(sink, what, field=field.name) from error
    if isinstance(table, pa.RecordBatch):
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    else:
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _refused(sink: str, what: str, **data: Any) -> SchemaError:
    return SchemaError(f"send({sink!r}, ...): {what}", component=sink, **data)

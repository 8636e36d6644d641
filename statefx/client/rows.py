"""Rows as callers have them, turned into Arrow: dicts, tuples, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import SchemaError
from statefx.operators.fitting import MISFITS, fitted_array, fitted_column, own_names, shown
from statefx.operators.schema import to_ddl


def to_batches(sink: str, schema: pa.Schema, rows: Any) -> list[pa.RecordBatch]:
    """Return rows as batches of a sink's schema; SchemaError names the first row and field that do not fit."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return _of_table(sink, schema, rows)
    if hasattr(rows, "columns"):  # pandas' and Polars': iteration is over the names of columns
        raise _refused(sink, f"a {type(rows).__name__} is sent as pyarrow.Table, such as Table.from_pandas(frame)")
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable) or own_names(rows):
        raise _refused(sink, f"rows are a list of dicts or tuples, not {shown(rows)}: of one row write [row]")
    values = [_values(sink, schema.names, place, row) for place, row in enumerate(rows)]
    if not values:
        return []
    columns = zip(zip(*values, strict=True), schema, strict=True)
    return [pa.RecordBatch.from_arrays([_array(sink, column, field) for column, field in columns], schema=schema)]


def _array(sink: str, values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return fitted_array(values, field.type)
    except MISFITS:
        for place, value in enumerate(values):
            try:
                fitted_array([value], field.type)
            except MISFITS as error:
                what = f"row {place}: {shown(value)} ({type(value).__name__}) does not fit `{to_ddl([field])}`: {error}"
                raise _refused(sink, what, field=field.name, row=place) from error
        raise


def _values(sink: str, names: list[str], place: int, row: Any) -> Sequence[Any]:
    """Return the values of one row in the order of the schema."""
    if not isinstance(row, Mapping | tuple | list):
        what = f"row {place} is {shown(row)} ({type(row).__name__}): a row is a dict or a tuple"
        raise _refused(sink, what, row=place)
    own = list(row) if isinstance(row, Mapping) else own_names(row)
    if own is None:
        if len(row) != len(names):
            raise _refused(sink, f"row {place} has {len(row)} values; the fields are {', '.join(names)}", row=place)
        return row  # type: ignore[return-value]  # no Mapping, which has names of its own
    if len(own) != len(names) or set(own) != set(names):
        what = f"row {place} has the fields {', '.join(map(str, own))}, not {', '.join(names)}: name every field, with "
        raise _refused(sink, f"{what}None where it has no value", row=place)
    values = row if isinstance(row, Mapping) else dict(zip(own, row, strict=True))
    return [values[name] for name in names]


def _of_table(sink: str, schema: pa.Schema, table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    if sorted(table.schema.names) != sorted(schema.names):
        names = ", ".join(table.schema.names)
        raise _refused(sink, f"the table has the fields {names}, not {', '.join(schema.names)}")
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(fitted_column(column, field.type))
        except MISFITS as error:
            what = f"column {field.name!r} is {column.type}, and does not fit `{to_ddl([field])}`: {error}"
            raise _refused(sink, what, field=field.name) from error
    return pa.Table.from_arrays(columns, schema=schema).to_batches()  # type: ignore[no-any-return]  # pyarrow has no types


def _refused(sink: str, what: str, **data: Any) -> SchemaError:
    return SchemaError(f"send({sink!r}, ...): {what}", component=sink, **data)

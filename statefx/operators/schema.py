"""Schemas of streams: from what users write to Arrow, and back to Spark's DDL."""

from __future__ import annotations

import datetime
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.collector import DEFAULT_STREAM
from statefx.operators.ddl import parse_ddl, parse_type
from statefx.operators.tuples import in_source


def parse_schema(fields: Any) -> pa.Schema:
    """Return the Arrow schema of Spark DDL text, of a pyspark StructType, or of a class with annotated fields.

    Of a class, ``str``, ``int``, ``float``, ``bool``, ``bytes``, ``date`` and ``datetime`` are string, long, double,
    boolean, binary, date and timestamp; ``list[X]`` and ``dict[K, V]`` array and map; another such class a struct. Any
    other type of Spark's is named: ``Annotated[Decimal, "decimal(10,2)"]``. Every field may be null, so ``X | None`` is
    the same as ``X``.

    Parameters
    ----------
    fields : str, StructType, or a NamedTuple or dataclass
        ``"word string, count long"``, ``"struct<word:string,count:bigint>"``, the object, or the class.

    Raises
    ------
    TopologyError
        The text is malformed (the message marks the place), or a type has no counterpart in Arrow (``column``).

    Examples
    --------
    >>> parse_schema("word string, count long").names
    ['word', 'count']
    """
    if isinstance(fields, str):
        return _told_apart(parse_ddl(fields))
    if is_row_class(fields):
        return _told_apart(pa.schema(_annotated(fields, fields.__name__)))
    if isinstance(fields, type) or not hasattr(fields, "fields"):
        raise TopologyError(
            "a schema is Spark DDL such as 'word string, count long', a StructType, or a NamedTuple or dataclass with "
            f"annotated fields; not {fields!r}"
        )
    names = [field.name for field in fields.fields]
    if len(set(names)) != len(names):
        raise TopologyError(f"field names must differ: {', '.join(names)}. Rename one with an alias.")
    return _told_apart(pa.schema([_field(field, field.name) for field in fields.fields]))


def is_row_class(given: object) -> bool:
    """Return whether `given` is a class that declares fields: a NamedTuple or a dataclass."""
    named = isinstance(given, type) and issubclass(given, tuple) and hasattr(given, "_fields")
    return named or (isinstance(given, type) and is_dataclass(given))


def _annotated(kind: type[Any], where: str) -> list[pa.Field]:
    """Return the fields of a NamedTuple or dataclass, in their order; `where` names it in errors."""
    names = [field.name for field in fields_of(kind)] if is_dataclass(kind) else list(kind._fields)
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise TopologyError(
            f"{where}: {error}. Annotations are looked up in the module of {kind.__name__}: define or import it there"
        ) from None
    if not names or not hints.keys() >= set(names):
        lacking = f"{names[0]} has no type" if names else "it has no fields"
        raise TopologyError(f"{where}: {lacking}; annotate each field: class {kind.__name__}(NamedTuple): word: str")
    return [pa.field(name, _annotated_type(hints[name], f"{where}.{name}")) for name in names]


def _annotated_type(hint: Any, where: str) -> pa.DataType:
    origin, given = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ddl = next((each for each in given[1:] if isinstance(each, str)), None)
        return _annotated_type(given[0], where) if ddl is None else parse_type(ddl)
    if origin in (Union, types.UnionType):
        others = [each for each in given if each is not type(None)]
        if len(others) == 1:
            return _annotated_type(others[0], where)
    if hint in _ANNOTATIONS:
        return _ANNOTATIONS[hint]
    if origin is list:
        return pa.list_(pa.field("element", _annotated_type(given[0], where)))
    if origin is dict:
        return pa.map_(_annotated_type(given[0], where), _annotated_type(given[1], where))
    if is_row_class(hint):
        return pa.struct(_annotated(hint, where))
    shown = hint.__name__ if isinstance(hint, type) and not given else str(hint)
    remedy = f'name Spark\'s type: Annotated[{shown}, "{"decimal(10,2)" if hint is Decimal else "string"}"]'
    raise TopologyError(f"{where} is annotated with {shown}, for which Spark has several types or none: {remedy}")


_ANNOTATIONS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us", tz="UTC"),
}


def _told_apart(schema: pa.Schema) -> pa.Schema:
    """Return the schema; TopologyError for two names of one form in Python's source, where they are one attribute."""
    forms: dict[str, str] = {}
    for name in schema.names:
        other = forms.setdefault(in_source(name), name)
        if other != name:
            raise TopologyError(
                f"the fields {other!a} and {name!a} are one name for Python, which reads names in the form NFKC: "
                "rename one of them, in a DataFrame with withColumnRenamed",
                field=name,
            )
    return schema


def parse_streams(output_fields: Any) -> dict[str, pa.Schema]:
    """Return the schema of every stream that a bolt's ``outputFields`` declares; empty if it emits nothing."""
    if output_fields is None:
        return {}
    if callable(output_fields) and not isinstance(output_fields, type):
        raise TopologyError("outputFields is a method; make it a class attribute or a property")
    if not isinstance(output_fields, Mapping):
        return {DEFAULT_STREAM: parse_schema(output_fields)}
    return {stream: _stream(stream, fields) for stream, fields in output_fields.items()}


def to_ddl(schema: pa.Schema | Iterable[pa.Field]) -> str:
    """Return Spark DDL for an Arrow schema; what `parse_schema` makes of it equals `schema`.

    Raises
    ------
    TopologyError
        A type has no counterpart in Spark.
    """
    return ", ".join(f"{_named(field, ' ')}" for field in schema)


def to_ddl_type(kind: pa.DataType) -> str:
    """Return the DDL of one type, such as ``array<bigint>``."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{to_ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{to_ddl_type(kind.key_type)},{to_ddl_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_named(field, ': ') for field in kind)}>"
    if kind not in _WRITTEN:
        raise TopologyError(f"the Arrow type {kind} has no counterpart in Spark")
    return _WRITTEN[kind]


_WRITTEN = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def _named(field: pa.Field, mark: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_]\w*", field.name)
    name = field.name if plain else f"`{field.name.replace('`', '``')}`"
    return f"{name}{mark}{to_ddl_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def _stream(stream: Any, fields: Any) -> pa.Schema:
    if not isinstance(stream, str) or not stream:
        raise TopologyError(f"the name of a stream is a text, not {stream!r}")
    if stream.startswith("__"):
        raise TopologyError(f"stream {stream!r}: names that begin with '__' are statefx's own; take another")
    try:
        return parse_schema(fields)
    except TopologyError as error:
        raise TopologyError(f"stream {stream!r}: {error.message}", **error.data) from None


def _field(field: Any, column: str) -> pa.Field:
    return pa.field(field.name, _type(field.dataType, column), field.nullable)


def _type(kind: Any, column: str) -> pa.DataType:
    """Convert a pyspark type by the attributes it has, so that pyspark need not be imported."""
    if hasattr(kind, "fields"):
        return pa.struct([_field(field, f"{column}.{field.name}") for field in kind.fields])
    if hasattr(kind, "elementType"):
        return pa.list_(pa.field("element", _type(kind.elementType, column), kind.containsNull))
    if hasattr(kind, "keyType"):
        value = pa.field("value", _type(kind.valueType, column), kind.valueContainsNull)
        return pa.map_(_type(kind.keyType, column), value)
    try:
        return parse_type(kind.simpleString())
    except TopologyError:
        raise TopologyError(
            f"column {column!r} has the type {kind.simpleString()}, which can't travel to a bolt. "
            f"Cast the column to a plain type, or drop it.",
            column=column,
        ) from None

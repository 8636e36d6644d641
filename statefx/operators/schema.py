"""Schemas of streams: from what users write to Arrow, and back to Spark's DDL.

Spark's schema language is read here, as in ``word string, count long NOT NULL, tags array<string>``.
Keys and values of state are columns too: those that a bolt declares (``stateSchema``) are parsed here as well.
"""

from __future__ import annotations

import datetime
import re
import types
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from statefx.errors import ConfigError, TopologyError
from statefx.operators.context import DEFAULT_STREAM

# ---- Spark's schema language

NESTING_MAX = 100
DECIMAL_PRECISION_MAX = 38

_TOKEN = re.compile(
    r"""\s*(?: (?P<name>\w+) | (?P<quoted>`(?:[^`]|``)+`)
            | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*") | (?P<mark>[<>(),:]) )""",
    re.VERBOSE,
)

ATOMIC: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
DECIMALS = ("decimal", "dec", "numeric")
TEXTS = ("varchar", "char", "character")
NESTED = ("array", "map", "struct")
NAMES = (*ATOMIC, *DECIMALS, *TEXTS, *NESTED)


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema that a Spark DDL text or a ``struct<...>`` describes.

    TopologyError has the text and a mark under the place that is wrong, which is also in ``position``.
    """
    return _Reader(text).schema()


def parse_type(text: str) -> pa.DataType:
    """Return the type that Spark writes as `text`, such as ``decimal(10,2)``."""
    return _Reader(text).only_type()


class _Reader:
    """A recursive-descent parser; each method reads one thing and leaves the place behind it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.depth = 0
        self.advance()

    def advance(self) -> None:
        """Look at the next token: its `kind`, its `word`, where it begins and ends."""
        found = _TOKEN.match(self.text, self.place)
        self.kind, self.word = "end", ""
        self.start = len(self.text) if found is None else found.start(found.lastgroup or 0)
        if found is not None and found.lastgroup is not None:
            self.kind, self.word = found.lastgroup, found[found.lastgroup]
            self.place = found.end()
        elif rest := self.text[self.place :].strip():
            self.start = self.text.index(rest, self.place)
            raise self.error(f"{rest[0]!r} has no meaning here; a name with other than letters, digits and _ goes "
                             "between backquotes")  # fmt: skip

    def error(self, problem: str, place: int | None = None) -> TopologyError:
        at = self.start if place is None else place
        line = self.text.replace("\n", " ").replace("\t", " ")
        return TopologyError(f"{problem}\n    {line}\n    {' ' * at}^", position=at, text=self.text)

    def found(self) -> str:
        return "the end" if self.kind == "end" else repr(self.word)

    def take(self, mark: str, after: str) -> None:
        if self.kind != "mark" or self.word != mark:
            raise self.error(f"expected {mark!r} {after}, found {self.found()}")
        self.advance()

    def skips(self, word: str) -> bool:
        """Step over `word`, a mark or a keyword, if it comes next."""
        if self.kind not in ("mark", "name") or self.word.lower() != word:
            return False
        self.advance()
        return True

    def schema(self) -> pa.Schema:
        if self.kind == "end":
            raise self.error('the schema is empty; write "name type, ...", or None if nothing is emitted')
        whole = re.fullmatch(r"\s*struct\s*<.*>\s*", self.text, re.IGNORECASE | re.DOTALL)
        fields = list(self.only_type()) if whole else self.fields("")
        self.end()
        return pa.schema(fields)

    def only_type(self) -> pa.DataType:
        kind = self.type("")
        self.end()
        return kind

    def end(self) -> None:
        if self.kind != "end":
            raise self.error(f"expected ',' or the end, found {self.found()}")

    def fields(self, closing: str) -> list[pa.Field]:
        """Read fields up to the mark `closing`, or the end."""
        fields: dict[str, pa.Field] = {}
        while True:
            place = self.start
            field = self.field()
            if field.name in fields:
                raise self.error(f"the field {field.name!r} is there twice", place)
            fields[field.name] = field
            if not self.skips(","):
                break
        if closing:
            self.take(closing, "or ',' after a field")
        return list(fields.values())

    def field(self) -> pa.Field:
        if self.kind not in ("name", "quoted"):
            raise self.error(f"expected a field's name, found {self.found()}")
        name = self.word if self.kind == "name" else self.word[1:-1].replace("``", "`")
        self.advance()
        self.skips(":")
        kind = self.type(f" after the name {name!r}")
        nullable = True
        if self.skips("not"):
            if not self.skips("null"):
                raise self.error(f"expected NULL after NOT, found {self.found()}")
            nullable = False
        if self.skips("comment"):
            if self.kind != "text":
                raise self.error(f"expected a quoted text after COMMENT, found {self.found()}")
            self.advance()
        return pa.field(name, kind, nullable)

    def type(self, where: str) -> pa.DataType:
        name, place = self.word.lower(), self.start
        if self.kind != "name":
            raise self.error(f"expected a type{where}, found {self.found()}")
        if name not in NAMES:
            raise self.error(f"{self.word!r} is not a type that statefx knows, which are {', '.join(NAMES)}")
        self.advance()
        if name in DECIMALS:
            return self.decimal(place)
        if name in TEXTS:
            self.take("(", f"and a length after {name!r}")
            self.number("a length")
            self.take(")", "after the length")
            return pa.string()
        return self.nested(name) if name in NESTED else ATOMIC[name]

    def nested(self, name: str) -> pa.DataType:
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise self.error(f"types are nested more than {NESTING_MAX} deep")
        self.take("<", f"after {name!r}")
        if name == "array":
            kind = pa.list_(pa.field("element", self.type(" of the elements")))
            self.take(">", "after the elements' type")
        elif name == "map":
            key = self.type(" of the keys")
            self.take(",", "after the keys' type")
            kind = pa.map_(key, self.type(" of the values"))
            self.take(">", "after the values' type")
        else:
            kind = pa.struct(self.fields(">"))
        self.depth -= 1
        return kind

    def decimal(self, place: int) -> pa.DataType:
        precision, scale = 10, 0
        if self.skips("("):
            precision = self.number("a precision")
            if self.skips(","):
                scale = self.number("a scale")
            self.take(")", "after precision and scale")
        if not (1 <= precision <= DECIMAL_PRECISION_MAX and scale <= precision):
            raise self.error(
                f"decimal({precision},{scale}): the precision is 1 to {DECIMAL_PRECISION_MAX}, the scale 0 to the "
                "precision", place)  # fmt: skip
        return pa.decimal128(precision, scale)

    def number(self, what: str) -> int:
        if self.kind != "name" or not (self.word.isascii() and self.word.isdigit()):
            raise self.error(f"expected {what}, found {self.found()}")
        value = int(self.word)
        self.advance()
        return value


# ---- from what users write to Arrow, and back


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


def in_source(name: str) -> str:
    """Return what Python makes of a name that stands in source, as an attribute or as a keyword."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


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
    plain = re.fullmatch(r"[A-Za-z_]\w*", field.name, re.ASCII)  # Spark takes others in quotes alone
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


PARTS = ("key", "value")
OWN = (pa.field("task", pa.int32()), pa.field("space", pa.string()))
"""Columns behind those of key and value."""

CHANGES = ("op", "before", "after")
"""Columns of a comparison, beside the key's."""

MAPS = "maps"


@dataclass(frozen=True)
class Form:
    """Which columns a key and a value become; None: one column of JSON text."""

    key: pa.Schema | None = None
    value: pa.Schema | None = None

    @classmethod
    def parse(cls, schema: Any, declared: Mapping[str, str] | None = None) -> Form:
        """Read ``{"key": "word string", "value": "count long"}``, or one of both; ConfigError if it is wrong.

        None: what the bolt has `declared`.
        """
        if schema is None:
            schema = declared or {}
        if not isinstance(schema, Mapping) or not schema.keys() <= set(PARTS):
            raise ConfigError(
                f"schema={schema!r}: give the types of key and value as Spark DDL, such as "
                '{"key": "word string", "value": "count long"}; what has no type is shown as JSON'
            )
        try:
            form = cls(**{part: parse_schema(fields) for part, fields in schema.items()})
        except TopologyError as error:
            raise ConfigError(f"schema={schema!r}: {error.message}") from error
        for names in (form.row.names, form.change.names):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"schema={schema!r}: two columns would be called {twice}; give other names")
        return form

    def fields(self, part: str) -> list[pa.Field]:
        """Return the columns of the key or of the value."""
        schema = getattr(self, part)
        return [pa.field(part, pa.string())] if schema is None else [field.with_nullable(True) for field in schema]

    @property
    def row(self) -> pa.Schema:
        """The columns of state."""
        return pa.schema([*self.fields("key"), *self.fields("value"), *OWN])

    @property
    def change(self) -> pa.Schema:
        """The columns of a comparison: a value of several fields is one column there, a struct."""
        fields = self.fields("value")
        kind = fields[0].type if len(fields) == 1 else pa.struct(fields)
        values = [pa.field(name, kind) for name in CHANGES[1:]]
        return pa.schema([pa.field(CHANGES[0], pa.string()), *self.fields("key"), *values, *OWN])


def declared_schemas(declared: Any) -> dict[str, dict[str, str]]:
    """Return what a ``stateSchema`` says: of the bolt's own keys, by "", and of its maps, by their names.

    Raises ConfigError if it is none, or a reader could not show it.
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping) or not isinstance(declared.get(MAPS, {}), Mapping):
        raise ConfigError(
            f'stateSchema={declared!r}: write {{"key": "word string", "value": "count long"}}, and types of maps as '
            '"maps": {"recent": {"key": ..., "value": ...}}'
        )
    maps = declared.get(MAPS, {})
    own = {part: each for part, each in declared.items() if part != MAPS}
    found: dict[str, dict[str, str]] = {}
    for name in maps:
        if not isinstance(name, str) or not name or "\0" in name:
            raise ConfigError(f"stateSchema: {name!r} is no name of a map")
    for name, each in {"": own, **maps}.items():
        if not isinstance(each, Mapping) or not all(isinstance(fields, str) for fields in each.values()):
            raise ConfigError(f"stateSchema: the types of key and value are texts of DDL, got {each!r}")
        Form.parse(each)
        if each or name:  # a map without types is known by its name, though nothing is kept in it
            found[name] = dict(each)
    return found

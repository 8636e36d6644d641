"""Reads Spark's schema language: ``word string, count long NOT NULL, tags array<string>``."""

from __future__ import annotations

import re

import pyarrow as pa

from statefx.errors import TopologyError

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

    Raises
    ------
    TopologyError
        With the text and a mark under the place that is wrong, which is also in ``position``.
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

"""What users write as schema, and the Arrow schema it becomes."""

from collections import namedtuple
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, NamedTuple, Optional

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.errors import TopologyError
from statefx.operators.schema import parse_schema, parse_streams, to_ddl


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("bigint", pa.int64()),
        ("Long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("dec(38, 18)", pa.decimal128(38, 18)),
        ("numeric(3,3)", pa.decimal128(3, 3)),
        ("string", pa.string()),
        ("varchar(10)", pa.string()),
        ("char(3)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("array<array<int>>", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32()))))),
        ("map<string, array<long>>", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int64())))),
        ("struct<a: int, `b c`: string not null>",
         pa.struct([pa.field("a", pa.int32()), pa.field("b c", pa.string(), nullable=False)])),
    ],
)  # fmt: skip
def test_types(ddl, kind):
    assert parse_schema(f"a {ddl}").equals(pa.schema([pa.field("a", kind)]))


@pytest.mark.parametrize(
    ("ddl", "same"),
    [
        ("word string, count long", "word string, count bigint"),
        ("  word  STRING ,\n count LONG ", "word string, count bigint"),
        ("word: string, count: long", "word string, count bigint"),
        ("struct<word:string,count:bigint>", "word string, count bigint"),
        ("STRUCT<word:string,count:bigint>", "word string, count bigint"),
        ("a int COMMENT 'it''s, a <comment>', b int comment \"b\"", None),
        ("a int not null comment 'never', b int", "a int NOT NULL, b int"),
        ("`a b` int, `c``d` int, 2nd int, größe int", "`a b` int, `c``d` int, `2nd` int, `größe` int"),
        ("struct int, array array<int>, comment string", "struct int, array array<int>, comment string"),
    ],
)
def test_ways_of_writing(ddl, same):
    if same is None:
        ddl, same = ddl.replace("''", ""), "a int, b int"
    assert to_ddl(parse_schema(ddl)) == same


@pytest.mark.parametrize(
    ("ddl", "message", "position"),
    [
        ("", "the schema is empty", 0),
        ("word", "expected a type after the name 'word', found the end", 4),
        ("word string, count", "expected a type after the name 'count', found the end", 18),
        ("word strin", "'strin' is not a type that statefx knows, which are boolean, .*, string, ", 5),
        ("word interval", "'interval' is not a type", 5),
        ("word string,", "expected a field's name, found the end", 12),
        ("word string count long", "expected ',' or the end, found 'count'", 12),
        ("word string, , count long", "expected a field's name, found ','", 13),
        ("a-b int", "'-' has no meaning here; .* between backquotes", 1),
        ("a int, a long", "the field 'a' is there twice", 7),
        ("a array<int", "expected '>' after the elements' type, found the end", 11),
        ("a array", "expected '<' after 'array', found the end", 7),
        ("a map<int>", "expected ',' after the keys' type, found '>'", 9),
        ("a struct<b int", "expected '>' or ',' after a field, found the end", 14),
        ("a struct<>", "expected a field's name, found '>'", 9),
        ("a decimal(39,0)", "the precision is 1 to 38, the scale 0 to the precision", 2),
        ("a decimal(0,0)", "the precision is 1 to 38", 2),
        ("a decimal(2,3)", "the scale 0 to the precision", 2),
        ("a decimal(x)", "expected a precision, found 'x'", 10),
        ("a char", "expected '\\(' and a length after 'char', found the end", 6),
        ("a int not", "expected NULL after NOT, found the end", 9),
        ("a int comment b", "expected a quoted text after COMMENT, found 'b'", 14),
        ("a string collate UNICODE", "expected ',' or the end, found 'collate'", 9),
        ("a `int`", "expected a type after the name 'a'", 2),
        ("a int, b 'x'", "expected a type after the name 'b'", 9),
    ],
)
def test_a_malformed_text_shows_the_place(ddl, message, position):
    with pytest.raises(TopologyError, match=message) as caught:
        parse_schema(ddl)
    assert caught.value.position == position
    *_, line, mark = str(caught.value).split("\n")
    assert (line[4:], mark) == (ddl, f"    {' ' * position}^")


def test_nesting_has_a_limit():
    assert parse_schema(f"a {'array<' * 90}int{'>' * 90}")
    assert len(parse_schema(", ".join(f"a{n} array<int>" for n in range(200)))) == 200
    with pytest.raises(TopologyError, match="nested more than 100 deep"):
        parse_schema(f"a {'array<' * 5000}int{'>' * 5000}")


ATOMIC = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
     pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(38, 38)]
)  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1)


def structs(kinds):
    fields = st.builds(pa.field, NAMES, kinds, st.booleans())
    return st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name).map(pa.struct)


TYPES = st.recursive(
    ATOMIC,
    lambda kinds: st.one_of(
        structs(kinds),
        kinds.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.builds(pa.map_, ATOMIC, kinds),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(structs(TYPES))
def test_what_is_written_is_read_back(kind):
    schema = pa.schema(list(kind))
    assert parse_schema(to_ddl(schema)).equals(schema)


def test_an_arrow_type_that_spark_lacks_can_not_be_written():
    with pytest.raises(TopologyError, match="time64"):
        to_ddl(pa.schema([("a", pa.time64("us"))]))


def atom(text):
    return SimpleNamespace(simpleString=lambda: text)


def column(name, kind, nullable=True):
    return SimpleNamespace(name=name, dataType=kind, nullable=nullable)


def test_objects_shaped_like_pysparks_types_are_read_by_their_attributes():
    inner = SimpleNamespace(fields=[column("x:y", atom("int"), nullable=False)])
    schema = parse_schema(
        SimpleNamespace(
            fields=[
                column("a b", SimpleNamespace(elementType=inner, containsNull=False)),
                column("m", SimpleNamespace(keyType=atom("string"), valueType=atom("bigint"), valueContainsNull=True)),
            ]
        )
    )
    element = pa.field("element", pa.struct([pa.field("x:y", pa.int32(), nullable=False)]), nullable=False)
    assert schema.equals(pa.schema([("a b", pa.list_(element)), ("m", pa.map_(pa.string(), pa.int64()))]))


def test_columns_of_one_name_are_refused():
    with pytest.raises(TopologyError, match="field names must differ: a, a"):
        parse_schema(SimpleNamespace(fields=[column("a", atom("int")), column("a", atom("int"))]))


def test_a_column_of_unknown_type_is_named():
    inner = SimpleNamespace(fields=[column("wait", atom("interval day to second"))])
    with pytest.raises(
        TopologyError, match=r"column 'outer\.wait' has the type interval day to second.*Cast"
    ) as caught:
        parse_schema(SimpleNamespace(fields=[column("outer", inner)]))
    assert caught.value.column == "outer.wait"


class Place(NamedTuple):
    city: str
    seats: Annotated[int, "smallint"] | None


@dataclass
class Visit:
    at: datetime
    day: date
    place: Place
    tags: list[str | None]
    counts: dict[str, int]
    price: Annotated[Decimal, "decimal(10,2)"]
    data: Optional[bytes]  # noqa: UP045 - both ways of writing it
    share: float = 0.0
    paid: bool = False


def test_a_class_declares_the_fields_that_its_annotations_name():
    assert to_ddl(parse_schema(Visit)) == (
        "at timestamp, day date, place struct<city: string, seats: smallint>, tags array<string>, "
        "counts map<string,bigint>, price decimal(10,2), data binary, share double, paid boolean"
    )
    assert parse_streams({"default": Place, "visits": Visit})["default"] == parse_schema("city string, seats smallint")
    assert parse_streams(Place)["default"].names == ["city", "seats"]


class Undecided(NamedTuple):
    price: Decimal


class Unknown(NamedTuple):
    price: "Money"  # noqa: F821


class Several(NamedTuple):
    what: list[int | str]


class Bare(NamedTuple):
    what: list


@dataclass
class Empty:
    pass


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Undecided, r"Undecided\.price is annotated with Decimal.*Annotated\[Decimal, \"decimal\(10,2\)\"\]"),
        (Unknown, "Unknown: name 'Money' is not defined.*import it there"),
        (Several, r"Several\.what is annotated with int \| str"),
        (Bare, r"Bare\.what is annotated with list"),
        (Empty, "Empty: it has no fields"),
        (namedtuple("Plain", "word"), "Plain: word has no type; annotate"),
        (int, "a schema is Spark DDL"),
    ],
)
def test_a_class_that_declares_no_fields_is_refused(wrong, message):
    with pytest.raises(TopologyError, match=message):
        parse_schema(wrong)


@pytest.mark.parametrize("wrong", [5, ["word"], ("word", "string"), object()])
def test_anything_else_is_refused(wrong):
    with pytest.raises(TopologyError, match=r"a schema is Spark DDL .*, a StructType"):
        parse_schema(wrong)


def test_streams_of_a_bolt():
    assert parse_streams(None) == {}
    assert parse_streams("a int") == {"default": parse_schema("a int")}
    both = parse_streams({"default": "a int", "late": "b string"})
    assert list(both) == ["default", "late"]
    with pytest.raises(TopologyError, match="stream 'late': 'strin' is not a type"):
        parse_streams({"late": "b strin"})
    with pytest.raises(TopologyError, match="name of a stream is a text"):
        parse_streams({1: "b string"})
    with pytest.raises(TopologyError, match="make it a class attribute or a property"):
        parse_streams(lambda: "b string")

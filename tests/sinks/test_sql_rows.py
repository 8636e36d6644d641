"""What SqlSink writes: values of all types, keys that come twice, names that SQL has too, rows that are refused."""

import itertools
import json
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from statefx.errors import SinkError
from tests.sinks.database import WORDS, HandDriven, words

TYPES = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "half": pa.float32(),
    "double": pa.float64(),
    "price": pa.decimal128(20, 4),
    "text": pa.string(),
    "bytes": pa.binary(),
    "day": pa.date32(),
    "local": pa.timestamp("us"),
    "moment": pa.timestamp("us", "UTC"),
    "list": pa.list_(pa.decimal128(5, 2)),
    "map": pa.map_(pa.string(), pa.int64()),
    "struct": pa.struct([("at", pa.timestamp("us", "UTC")), ("raw", pa.binary())]),
}
ROW = {
    "flag": True,
    "tiny": -128,
    "short": 2**15 - 1,
    "int": -(2**31),
    "long": 2**63 - 1,
    "half": 0.5,
    "double": 1e300,
    "price": Decimal("-1234567890123456.7891"),
    "text": "ü\n\t\\N 'q' \"d\" %s {} , \U0001f600",
    "bytes": bytes(range(256)),
    "day": date(1969, 12, 31),
    "local": datetime(2020, 1, 1, 1, 2, 3, 4),
    "moment": datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=UTC),
    "list": [Decimal("1.50"), None],
    "map": [("a", 1)],
    "struct": {"at": datetime(2020, 1, 1, tzinfo=UTC), "raw": b"\x00\xff"},
}
SCHEMA = pa.schema(list(TYPES.items()))


@pytest.fixture
def driven(database):
    """Make sinks on the database; they are closed at the end."""
    made = []

    def make(*arguments, **options):
        made.append(HandDriven(database, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def column(values):
    return {name: [value] for name, value in values.items()}


@pytest.mark.parametrize("key", [(), "long"], ids=["append", "upsert"])
def test_values_of_every_type_come_as_they_are(database, driven, key):
    sink = driven("kinds", SCHEMA, key=key)
    nulls = dict.fromkeys(TYPES) | {"long": 1}
    sink.commit([column(ROW), column(nulls)])
    (found,) = database.run("select * from kinds where long > 1")
    found = dict(zip(TYPES, found, strict=True))
    for name in ("list", "map", "struct"):
        if not database.postgres:
            found[name] = json.loads(found[name])
    expected = ROW | {
        "list": ["1.50", None],
        "map": {"a": 1},
        "struct": {"at": "2020-01-01T00:00:00Z", "raw": "AP8="},
    }
    if not database.postgres:
        expected |= {
            "price": "-1234567890123456.7891",
            "day": "1969-12-31",
            "local": "2020-01-01 01:02:03.000004",
            "moment": "2020-01-01 01:02:03.000004",
        }
    assert found == expected
    (empty,) = database.run("select * from kinds where long = 1")
    assert [value for value in empty if value is not None] == [1]
    assert database.run("select flag from kinds where flag") == [(1,)]


def test_columns_have_the_types_that_the_page_names(database, driven):
    driven("kinds", SCHEMA).commit()
    if database.postgres:
        query = "select column_name, data_type from information_schema.columns where table_name = 'kinds'"
        found = dict(database.run(query))
    else:
        found = {row[1]: row[2] for row in database.run("pragma table_info(kinds)")}
    assert found == (
        {
            "flag": "boolean", "tiny": "smallint", "short": "smallint", "int": "integer", "long": "bigint",
            "half": "double precision", "double": "double precision", "price": "numeric", "text": "text",
            "bytes": "bytea", "day": "date", "local": "timestamp without time zone", "list": "json", "map": "json",
            "moment": "timestamp with time zone", "struct": "json",
        }
        if database.postgres
        else {
            "flag": "BOOLEAN", "tiny": "SMALLINT", "short": "SMALLINT", "int": "BIGINT", "long": "BIGINT",
            "half": "DOUBLE", "double": "DOUBLE", "price": "TEXT", "text": "TEXT", "bytes": "BLOB", "day": "DATE",
            "local": "DATETIME", "moment": "DATETIME", "list": "JSON", "map": "JSON", "struct": "JSON",
        }
    )  # fmt: skip


def test_a_table_of_ones_own_may_be_wider_and_has_its_defaults(database, driven):
    more = "jsonb, at timestamptz default now()" if database.postgres else "text, at text default 'now'"
    database.run(f"create table words (id integer default 7, n numeric(30), word varchar(10), list {more})")
    sink = driven(schema=WORDS.append(pa.field("list", pa.list_(pa.int64()))))
    sink.check()
    sink.commit([{"word": ["a"], "n": [1], "list": [[1, 2]]}])
    ((id, n, word, found, at),) = database.run("select * from words")
    assert (id, n, word) == (7, 1, "a")
    assert (found if database.postgres else json.loads(found)) == [1, 2]
    assert at is not None


def test_columns_that_fill_themselves_may_forbid_nulls(database, driven):
    key = "bigint generated always as identity" if database.postgres else "integer"
    long = "long bigint not null generated always as (length(word)) stored"
    database.run(f"create table words (id {key} primary key not null, word text, n bigint, {long})")
    sink = driven()
    sink.check()
    sink.commit([words("a", "bc")])
    assert database.run("select * from words order by id") == [(1, "a", 0, 1), (2, "bc", 1, 2)]


def test_of_rows_with_one_key_the_last_counts_in_the_order_of_tasks_batches_and_rows(database, driven):
    sink = driven(key="word")
    sink.commit(
        [words("a", "b", "a", n=[1, 2, 3]), words("c", "b", n=[4, 5])],
        [words("c", n=[6])],
    )
    assert sorted(database.run("select word, n from words")) == [("a", 3), ("b", 5), ("c", 6)]
    sink.commit([words("b", "d", "b", n=[7, 8, 9])])
    assert sorted(database.run("select word, n from words")) == [("a", 3), ("b", 9), ("c", 6), ("d", 8)]


@pytest.mark.parametrize("dead", [None, "rejected"])
@pytest.mark.parametrize("long", ["", "x" * 100_000])
def test_a_key_may_come_again_after_any_number_of_rows(database, driven, dead, long):
    sink, halved = driven(key="n", deadLetter=dead), []

    def savepoint(connection, name):
        halved.append(name)

    event.listen(Engine, "savepoint", savepoint)
    try:
        for apart in (1, 2, 29, 30, 31):
            times = [[f"{time}{long}"] * apart for time in range(4)]
            sink.commit(*[[words(*one, *other, n=[*range(apart)] * 2)] for one, other in (times[:2], times[2:])])
            assert database.run("select count(*), min(substr(word, 1, 1)) from words") == [(apart, "3")]
    finally:
        event.remove(Engine, "savepoint", savepoint)
    assert halved == [], "no statement was given a key twice, and refused"


def test_keys_that_are_one_to_the_database_alone_are_replaced_in_order(postgres_database):
    postgres_database.run(
        "create table words (word text primary key, n bigint);"
        "create function lowers() returns trigger language plpgsql as "
        "$$ begin new.word = lower(new.word); return new; end $$;"
        "create trigger lowers before insert on words for each row execute function lowers()"
    )
    with closing(HandDriven(postgres_database, key="word")) as sink:
        sink.commit([words("a", "b", "A", "c")], [words("B", n=[9])])
    assert sorted(postgres_database.run("select * from words")) == [("a", 2), ("b", 9), ("c", 3)]


def test_a_key_of_several_fields_and_rows_that_are_all_key(database, driven):
    sink = driven(key=("word", "n"))
    sink.commit([words("a", "a", "b", n=[1, 1, 1]), words("a", "a", n=[1, 2])])
    assert sorted(database.run("select word, n from words")) == [("a", 1), ("a", 2), ("b", 1)]


def test_columns_that_rows_do_not_have_keep_their_values(database, driven):
    database.run("create table words (word text primary key, n bigint, seen integer default 0)")
    sink = driven(key="word")
    sink.commit([words("a")])
    database.run("update words set seen = 5")
    sink.commit([words("a", n=[9])])
    assert database.run("select word, n, seen from words") == [("a", 9, 5)]


def test_nulls_in_a_key_equal_nothing_and_no_row_is_lost(database, driven):
    database.run("create table words (word text unique, n bigint)")
    sink = driven(key="word", deadLetter="rejected")
    sink.commit([words(None, None, "a", "a")])
    assert sorted(database.run("select n from words")) == [(0,), (1,), (3,)]


def test_a_null_in_a_key_is_refused_before_the_decision(database, driven):
    sink = driven(key="n").start()
    with pytest.raises(SinkError, match=r"'n' names the rows, and is null in \{'word': 'b', 'n': None\}: leave out"):
        sink.prepare([words("a", "b", n=[1, None])])
    with pytest.raises(SinkError, match=r"is null in .{,1010}\.\.\.: leave out"):
        sink.prepare([words("x" * 10_000, n=[None])])


def test_a_null_in_a_key_is_a_dead_letter_where_the_table_refuses_it(database, driven):
    driven(key="n", deadLetter="rejected").commit([words("a", "b", n=[1, None])])
    assert database.run("select * from words") == [("a", 1)]
    assert [json.loads(found) for (found,) in database.run("select content from rejected")] == [{"word": "b"}]


NAMES = ["select", "order", "user", 'a"b', "per%cent", "%s", "a:b", "a b", "Größe", "a.b", "(x)", "end", "Upper", "x'y"]


@pytest.mark.parametrize("key", [(), ("order", "a:b", "per%cent")], ids=["append", "upsert"])
@pytest.mark.parametrize("table", ["select", "Größe %s:b"])
def test_names_may_be_words_of_sql_or_none_at_all(database, driven, table, key):
    sink = driven(table, pa.schema([(name, pa.int64()) for name in NAMES]), key=key, deadLetter="from")
    for _ in range(2):
        sink.commit([{name: [number] for number, name in enumerate(NAMES)}])
        sink.check(takeover=True)
    quoted = table.lower() if not database.postgres else table
    assert database.run(f'select * from "{quoted}"') == [tuple(range(len(NAMES)))] * (1 if key else 2)
    with closing(HandDriven(database, table)) as other, pytest.raises(SinkError, match="has no column 'word'"):
        other.check(takeover=True)


def test_a_transaction_without_rows_and_tasks_without_rows(database, driven):
    sink = driven()
    sink.commit()
    sink.commit([], [words()], [words("a")])
    assert database.run("select txid from statefx_markers") == [(2,)]
    assert database.run("select word from words") == [("a",)]


@pytest.mark.slow
@pytest.mark.parametrize("key", [(), "n"], ids=["append", "upsert"])
def test_values_of_ten_megabytes(database, driven, key):
    sink = driven(schema=WORDS.append(pa.field("raw", pa.binary())), key=key)
    sink.commit([words("ü" * 5_000_000) | {"raw": [bytes(10_000_000)]}])
    assert database.run("select length(word), length(raw) from words") == [(5_000_000, 10_000_000)]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()], ids=str)
@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("at", kind)])])
def test_years_that_python_has_not_are_refused_before_the_decision(database, driven, kind, wrap):
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    far = 3_000_000 if kind == pa.date32() else 253_402_300_800_000_000
    sink = driven(schema=pa.schema([("word", pa.string()), ("n", wrap(kind))]))
    for value in (0, far):
        found = pa.array([value], whole).cast(kind)
        if pa.types.is_list(wrap(kind)):
            found = pa.ListArray.from_arrays([0, 1], found)
        elif pa.types.is_struct(wrap(kind)):
            found = pa.StructArray.from_arrays([found], ["at"])
        if value:
            with pytest.raises(SinkError, match="field 'n' has a time outside of the years 1 to 9999"):
                sink.prepare([{"word": ["a"], "n": found}])
        else:
            sink.prepare([{"word": ["a"], "n": found}])


@pytest.mark.parametrize("key", [(), "n"], ids=["append", "upsert"])
def test_a_nan_that_sqlite_would_make_a_null_is_refused_before_the_decision_or_put_aside(sqlite_database, key):
    doubles = pa.schema([("word", pa.string()), ("n", pa.float64())])
    rows = words("a", "b", "c", n=[1.5, float("nan"), float("inf")])
    with pytest.raises(SinkError, match="field 'n' has a NaN, which SQLite would make a null"):
        HandDriven(sqlite_database, schema=doubles, key=key).prepare([rows])
    with closing(HandDriven(sqlite_database, schema=doubles, key=key, deadLetter="rejected")) as sink:
        sink.commit([rows], [] if key else [words("d", n=[None])])
    assert sqlite_database.run("select word, n from words")[:2] == [("a", 1.5), ("c", float("inf"))]
    ((reason, content),) = sqlite_database.run("select reason, content from rejected")
    assert reason == "SQLite makes a null of a NaN"
    assert json.loads(content) == {"word": "b", "n": "NaN"}


def test_sqlite_keeps_zero_without_its_sign(sqlite_database):
    doubles = pa.schema([("word", pa.string()), ("n", pa.float64())])
    with closing(HandDriven(sqlite_database, schema=doubles)) as sink:
        sink.commit([words("a", n=[-0.0])])
    assert str(sqlite_database.run("select n from words")[0][0]) == "0.0", "the page says so"


@pytest.mark.parametrize("dead", [None, "rejected"])
def test_a_map_with_a_key_twice_is_refused_before_the_decision(database, driven, dead):
    maps = pa.list_(pa.map_(pa.string(), pa.int64()))
    sink = driven(schema=pa.schema([("n", maps)]), deadLetter=dead)
    sink.prepare([{"n": [[[("a", 1), ("b", 1)]]]}])
    with pytest.raises(SinkError, match="field 'n' has a map with a key that comes twice"):
        sink.prepare([{"n": [[[("a", 1)], [("a", 1), ("a", 2)]]]}])


@pytest.mark.parametrize("column", ["json", "jsonb"])
def test_numbers_that_json_has_not_are_texts_inside_of_it(database, driven, column):
    database.run(f"create table words (list {column}, struct {column}, map {column})")
    doubles = pa.list_(pa.float64()), pa.struct([("n", pa.float32())]), pa.map_(pa.string(), pa.float64())
    sink = driven(schema=pa.schema(list(zip(("list", "struct", "map"), doubles, strict=True))))
    nan, inf = float("nan"), float("inf")
    sink.commit([{"list": [[1.5, nan, -inf]], "struct": [{"n": nan}], "map": [[("a", inf)]]}])
    (found,) = database.run("select * from words")
    assert [each if database.postgres else json.loads(each) for each in found] == [
        [1.5, "NaN", "-Infinity"],
        {"n": "NaN"},
        {"a": "Infinity"},
    ]


NUL_IN = {
    "text": (pa.string(), "a\0b"),
    "large": (pa.large_string(), "a\0b"),
    "list": (pa.list_(pa.string()), ["x", "a\0b"]),
    "struct": (pa.struct([("n", pa.int64()), ("text", pa.string())]), {"text": "a\0b"}),
    "key": (pa.map_(pa.string(), pa.int64()), [("a\0b", 1)]),
    "item": (pa.map_(pa.int64(), pa.list_(pa.string())), [(1, ["a\0b"])]),
}


@pytest.mark.parametrize("kind", NUL_IN)
def test_a_nul_that_postgresql_can_not_hold_is_refused_before_the_decision(postgres_database, kind):
    kind, value = NUL_IN[kind]
    batch = pa.RecordBatch.from_pydict({"v": [value, None, value]}, pa.schema([("v", kind)]))
    with closing(HandDriven(postgres_database, schema=batch.schema)) as sink:
        writer = sink.writer()
        writer.write(batch.slice(1, 1))
        with pytest.raises(SinkError, match="field 'v' has a text with a NUL character"):
            writer.write(batch.slice(1, 2))


@pytest.mark.parametrize("key", [(), "word"], ids=["append", "upsert"])
def test_others_see_all_rows_of_a_transaction_or_none(database, driven, key):
    seen = []

    def before(connection, cursor, statement, *_):
        if statement.startswith("UPDATE"):  # of the marker, after all rows
            seen.append(sorted(database.run("select word from words")))

    sink = driven(key=key)
    sink.commit([words("a")])
    event.listen(Engine, "before_cursor_execute", before)
    try:
        sink.commit([words("b", "c")], [words("d")])
    finally:
        event.remove(Engine, "before_cursor_execute", before)
    assert seen == [[("a",)]]
    assert database.run("select count(*) from words") == [(4,)]


# ---- rows that the database refuses


def refusing(database):
    database.run("create table words (word text not null, n bigint constraint small check (n < 100))")


@pytest.mark.parametrize("bad", [[0], [2499], [7, 8, 1000, 1001, 2000], []])
def test_dead_letters_are_the_rows_that_are_refused_and_no_others(database, driven, bad):
    refusing(database)
    sink = driven(deadLetter="rejected")
    numbers = [100 + at if at in bad else at % 100 for at in range(2500)]
    sink.commit(
        [words(*map(str, range(1000)), n=numbers[:1000])], [words(*map(str, range(1000, 2500)), n=numbers[1000:])]
    )
    sink.again()
    assert database.run("select count(*) from words") == [(2500 - len(bad),)]
    found = database.run("select target, txid, reason, content from rejected")
    assert sorted(json.loads(content)["n"] for *_, content in found) == [100 + at for at in bad]
    assert all((target, txid) == ("words", 1) and "small" in reason for target, txid, reason, _ in found)


@pytest.mark.parametrize("name", ["words", "statefx_markers"])
def test_dead_letters_may_not_be_a_table_of_the_sink_itself(database, driven, name):
    names = [name, f"public.{name}"] if database.postgres else [name, f"main.{name}", name.upper()]
    for each in names:
        with pytest.raises(SinkError, match="is a table that the sink needs itself"):
            driven(deadLetter=each).check()


def test_a_table_of_another_shape_is_refused_for_dead_letters(database, driven):
    database.run("create table others (target text, reason text)")
    with pytest.raises(
        SinkError, match=r"'(public\.)?others' is there and has no column 'txid' \(it has target, reason\)"
    ):
        driven(deadLetter="others").check()


def test_dead_letters_are_told_in_the_log(database, driven, caplog):
    refusing(database)
    driven(deadLetter="rejected").commit([words("a", "b", "c", n=[100, 1, 101])])
    assert "#words: rows of transaction 1 were refused, and are in rejected: 2" in caplog.text


def test_dead_letters_are_taken_back_with_their_transaction(database, driven):
    refusing(database)
    sink = driven(deadLetter="rejected").start()
    database.run("alter table rejected rename to aside")
    with pytest.raises(SinkError, match="rejected"):
        sink.commit([words("a", "b", n=[1, 100])])
    assert database.run("select * from words") == []
    database.run("alter table aside rename to rejected")
    sink.again()
    assert database.run("select word from words") == [("a",)]
    assert database.run("select count(*) from rejected") == [(1,)]


def test_rows_of_an_upsert_are_replaced_by_those_that_are_not_refused(database, driven):
    database.run("create table words (word text primary key, n bigint check (n < 100))")
    sink = driven(key="word", deadLetter="rejected")
    sink.commit([words("a", "b", n=[1, 2]), words("a", "b", n=[100, 3])])
    assert sorted(database.run("select * from words")) == [("a", 1), ("b", 3)]


@pytest.mark.parametrize("numbers", [[5, -1], [-1, 5], [5, -1, 6, -2], [-1]], ids=str)
def test_what_is_refused_of_a_key_does_not_depend_on_where_batches_end(database, driven, numbers):
    found = []
    for table, rows in [("one", [numbers]), ("each", [[n] for n in numbers]), ("two", [numbers[:-1], numbers[-1:]])]:
        database.run(f"create table {table} (word text primary key, n bigint check (n >= 0))")
        sink = driven(table, key="word", deadLetter="rejected")
        sink.commit([words(*"a" * len(part), n=part) for part in rows])
        aside = [json.loads(content)["n"] for (content,) in database.run("select content from rejected")]
        database.run("delete from rejected")
        found.append((database.run(f"select n from {table}"), sorted(aside)))
    kept = [n for n in numbers if n > 0]
    assert found == [([(kept[-1],)] if kept else [], sorted(n for n in numbers if n < 0))] * 3


@pytest.mark.parametrize("validate", [False, True])
def test_a_row_that_is_replaced_in_its_transaction_is_not_written_wherever_batches_end(database, driven, validate):
    database.run("create table words (word text primary key, n bigint check (n >= 0))")
    sink = driven(key="word", validate=validate)
    for rows in ([[-1, 5]], [[-1], [5]], [[4, -1], [-2, 5]]):
        sink.commit([words(*"a" * len(part), n=part) for part in rows])
        assert database.run("select * from words") == [("a", 5)]
    with pytest.raises(SinkError, match=r"words_n_check|CHECK constraint failed"):
        sink.commit([words("a", n=[5]), words("a", n=[-1])])


KEYS = {"flag": pa.bool_(), "price": pa.decimal128(9, 2), "raw": pa.binary(), "day": pa.date32(), "half": pa.float64()}


def test_of_rows_with_one_key_the_last_counts_whatever_the_key_s_type(database, driven):
    sink = driven(schema=pa.schema([*KEYS.items(), ("n", pa.int64())]), key=tuple(KEYS))
    rows = {name: [ROW.get(name)] * 3 for name in KEYS} | {"raw": [b"a", b"b", b"a"], "price": [Decimal("1.50")] * 3}
    sink.commit([rows | {"n": [1, 2, 3]}], [rows | {"n": [4, 5, 6], "raw": [b"c", b"a", b"c"]}])
    assert sorted(database.run("select raw, n from words")) == [(b"a", 5), (b"b", 2), (b"c", 6)]


@pytest.mark.slow
def test_long_values_of_a_refused_row_are_shortened_where_it_is_told(database, driven):
    database.run("create table words (word text check (length(word) < 10), n bigint)")
    sink = driven()
    with pytest.raises(SinkError, match=r"'n': 0}: change the table") as told:
        sink.commit([words("x" * 10_000_000)])
    assert len(told.value.message) < 3000
    assert len(told.value.row["word"]) == 10_000_000


@pytest.mark.parametrize("key", [(), "n"], ids=["append", "upsert"])
def test_values_that_a_column_can_not_hold_are_refused_rows(postgres_database, key):
    postgres_database.run("create table words (word varchar(5), n smallint primary key)")
    with closing(HandDriven(postgres_database, key=key, deadLetter="rejected")) as sink:
        sink.commit([words("a", "too long", "b", "a\0b", "c", n=[1, 2, 3, 4, 2**40])])
    assert sorted(postgres_database.run("select * from words")) == [("a", 1), ("b", 3)]
    reasons = " ".join(reason for (reason,) in postgres_database.run("select reason from rejected"))
    for part in ("too long for type", "NUL", "out of range"):
        assert part in reasons


def test_a_value_too_long_for_an_index_is_a_refused_row(postgres_database):
    import random

    long = random.Random(0).randbytes(10_000).hex()
    with closing(HandDriven(postgres_database, key="word", deadLetter="rejected")) as sink:
        sink.commit([words("a", long, "b")])
    assert sorted(postgres_database.run("select word from words")) == [("a",), ("b",)]
    assert "index row" in postgres_database.run("select reason from rejected")[0][0]


def test_a_trigger_may_refuse_rows(database, driven):
    database.run("create table words (word text, n bigint)")
    if database.postgres:
        database.run(
            "create function refuse() returns trigger language plpgsql as "
            "$$ begin raise exception 'no %', new.word; end $$;"
            "create trigger refuses before insert on words for each row when (new.n > 9) execute function refuse()"
        )
    else:
        database.run(
            "create trigger refuses before insert on words when new.n > 9 begin select raise(abort, 'no b'); end"
        )
    driven(deadLetter="rejected").commit([words("a", "b", "c", n=[1, 10, 2])])
    assert sorted(database.run("select word from words")) == [("a",), ("c",)]
    assert "no b" in database.run("select reason from rejected")[0][0]


FAILS = {
    "assert": "assert false",
    "case": "case new.n when 0 then null; end case",
    "language": "raise exception using errcode = 'external_routine_exception'",
    "own code": "raise exception using errcode = 'APP01'",
    "privilege": "raise exception using errcode = 'insufficient_privilege'",
    "strict": "select w.n into strict new.n from words w where w.n = new.n",
    "subquery": "new.n = (select n from generate_series(1, 2) n)",
}


@pytest.mark.parametrize("why", FAILS)
def test_a_row_is_refused_however_its_trigger_fails(postgres_database, why):
    postgres_database.run(
        "create table words (word text, n bigint); create function refuse() returns trigger language plpgsql as "
        f"$$ begin {FAILS[why]}; return new; end $$;"
        "create trigger refuses before insert on words for each row when (new.n > 9) execute function refuse()"
    )
    with closing(HandDriven(postgres_database, deadLetter="rejected")) as sink:
        sink.commit([words("a", "b", "c", n=[1, 10, 2])])
    assert sorted(postgres_database.run("select word from words")) == [("a",), ("c",)]
    assert len(postgres_database.run("select reason from rejected")) == 1


@pytest.mark.parametrize("dead", [None, "rejected"])
def test_a_constraint_that_is_put_off_to_commit_names_its_row(postgres_database, dead):
    postgres_database.run("create table words (word text, n bigint, unique (n) deferrable initially deferred)")
    with closing(HandDriven(postgres_database, deadLetter=dead)) as sink:
        if dead is None:
            with pytest.raises(SinkError, match=r"words_n_key.*\{'word': 'b', 'n': 1\}"):
                sink.commit([words("a", "b", "c", n=[1, 1, 2])])
            assert postgres_database.run("select * from words") == []
        else:
            sink.commit([words("a", "b", "c", n=[1, 1, 2])])
            assert sorted(postgres_database.run("select word from words")) == [("a",), ("c",)]


@pytest.mark.parametrize("key", [(), "word"], ids=["append", "upsert"])
def test_a_constraint_that_is_put_off_to_commit_is_checked_by_validate(postgres_database, key):
    postgres_database.run(
        "create table words (word text primary key, n bigint, unique (n) deferrable initially deferred)"
    )
    with closing(HandDriven(postgres_database, key=key, validate=True).start()) as sink:
        with pytest.raises(SinkError, match=r"words_n_key.*\{'word': 'b', 'n': 1\}"):
            sink.prepare([words("a", "b", n=[1, 1])])
        sink.commit([words("a", "b", n=[1, 2])])


@pytest.mark.parametrize("rows", list(itertools.permutations([(1, None, "a"), (2, 1, "b"), (3, None, "too long")])))
def test_a_refused_row_takes_none_with_it_that_refers_to_a_later_one(postgres_database, rows):
    postgres_database.run(
        "create table words (n bigint primary key, parent bigint references words deferrable initially deferred, "
        "word text check (length(word) < 5))"
    )
    schema = pa.schema([("n", pa.int64()), ("parent", pa.int64()), ("word", pa.string())])
    with closing(HandDriven(postgres_database, schema=schema, deadLetter="rejected")) as sink:
        sink.commit([dict(zip(schema.names, zip(*rows, strict=True), strict=True))])
    assert sorted(postgres_database.run("select word from words")) == [("a",), ("b",)]
    assert len(postgres_database.run("select * from rejected")) == 1


@pytest.mark.parametrize("key", [(), "word"], ids=["append", "upsert"])
def test_validate_names_the_row_and_leaves_nothing_behind(database, driven, key):
    database.run("create table words (word text primary key, n bigint constraint small check (n < 100))")
    sink = driven(key=key, validate=True).start()
    with pytest.raises(SinkError, match=r"refuses a row: .*small.*; the row is \{'word': 'b', 'n': 100\}"):
        sink.prepare([words("a", "b", "c", n=[1, 100, 2])])
    assert database.run("select * from words") == []
    sink.prepare([words("a", "b", "c", n=[1, 99, 2])])
    assert database.run("select * from words") == []

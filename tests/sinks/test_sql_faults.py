"""What can go wrong with a database: it dies, changes, refuses, keeps others out; and drivers that sleep."""

import json
import logging
import os
import re
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import closing, suppress

import pyarrow as pa
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors.sql import SqlSink
from statefx.errors import ConfigError, SinkError, SinkOwnedError, TopologyError
from statefx.operators.sinks import CheckpointPosition, Owner
from statefx.protocol.identity import TransactionAttempt
from statefx.testing import TopologyTester, rows
from tests.conftest import ROOT
from tests.sinks.database import START, HandDriven, words

pytestmark = pytest.mark.slow  # real servers that are killed, real processes that are stopped

SECOND = Owner("app", "origin", 2)


class Pass(BasicBolt):
    outputFields = "word string, n long"

    def execute(self, tup, collector):
        collector.emit((tup.word, tup.n))


def topology(*sinks):
    builder = TopologyBuilder("words")
    builder.setStream("lines", rows("word string, n long"))
    builder.setBolt("pass", Pass()).shuffleGrouping("lines")
    for number, sink in enumerate(sinks):
        builder.setSink(f"out{number or ''}", sink).shuffleGrouping("pass")
    return builder.createTopology()


@pytest.fixture
def running(database, tmp_path):
    """A topology that has committed one row to a table of the database."""
    with TopologyTester(topology(SqlSink(database.url, "words")), tmp_path / "ck") as tester:
        tester.send({"lines": [("a", 1)]})
        yield tester


def told(tester, mend, moment="pause"):
    """Return the list into which the reasons go that the status gives until `mend` has mended it."""
    reasons = []

    def paused():
        reasons.append(tester.status["stuck"]["reason"])
        mend()

    tester.when(moment, paused)
    return reasons


# ---- what is mended, and goes on by itself


def test_a_server_that_is_killed_between_prepare_and_commit(postgres_database, tmp_path):
    server = postgres_database.server
    with TopologyTester(topology(SqlSink(postgres_database.url, "words")), tmp_path / "ck") as tester:
        tester.send({"lines": [("a", 1)]})
        tester.when("before COMMITTING(2, 0)", server.kill)
        reasons = told(tester, server.start)
        tester.send({"lines": [("b", 2)]})
        tester.send({"lines": [("c", 3)]})
    (reason,) = reasons
    assert reason.startswith(f"out: postgresql://127.0.0.1:{server.port}/{postgres_database.name}#words: ")
    assert sorted(postgres_database.run("select * from words")) == [("a", 1), ("b", 2), ("c", 3)]


class Proxy:
    """Stands between a sink and the server, which it kills at a COMMIT of rows, before or after it is done."""

    def __init__(self, server):
        self.server, self.loses, self.lost = server, None, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.server.port)) as upstream:
            wrote = False
            while True:
                for source in select.select([client, upstream], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is upstream:
                        client.sendall(data)
                        continue
                    wrote |= b"COPY public.words" in data or b"INSERT INTO public.words" in data
                    if not (wrote and self.loses and b"COMMIT" in data):
                        upstream.sendall(data)
                        continue
                    if self.loses == "the answer":
                        upstream.sendall(data)
                        assert b"COMMIT" in upstream.recv(1 << 16)
                    self.lost.append(self.loses)
                    self.loses = None
                    self.server.kill()
                    return

    def close(self):
        self._listener.close()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("loses", "key"),
    [
        ("the answer", ""),
        ("the order", "word"),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in (("the order", ""), ("the answer", "word"))),
    ],
)
def test_a_server_that_is_killed_in_the_middle_of_commit(postgres_database, tmp_path, loses, key):
    server = postgres_database.server
    with closing(Proxy(server)) as proxy:
        sink = SqlSink(server.url(postgres_database.name, port=proxy.port), "words", key=key or ())
        with TopologyTester(topology(sink), tmp_path / "ck") as tester:
            tester.send({"lines": [("a", 1)]})
            proxy.loses = loses
            reasons = told(tester, server.start)
            tester.send({"lines": [("b", 2)]})
            tester.send({"lines": [("c", 3)]})
    assert proxy.lost == [loses]
    assert len(reasons) == 1
    assert sorted(postgres_database.run("select * from words")) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_row_that_the_database_refuses_is_in_the_status_until_the_table_takes_it(database, running):
    database.run("delete from words")
    if database.postgres:
        database.run("alter table words add constraint small check (n < 5)")
    else:
        database.run("drop table words")
        database.run("create table words (word text, n bigint constraint small check (n < 5))")

    def mend():
        assert database.run("select * from words") == []
        if database.postgres:
            database.run("alter table words drop constraint small")
        else:
            database.run("drop table words")
            database.run("create table words (word text, n bigint)")

    reasons = told(running, mend)
    running.send({"lines": [("b", 2), ("c", 7), ("d", 3)]})
    (reason,) = reasons
    assert re.search(r"out: .*#words refuses a row of transaction 2: .*small.*'word': 'c', 'n': 7", reason)
    assert "stuck" not in running.status
    assert sorted(database.run("select n from words")) == [(2,), (3,), (7,)]


CHANGES = {
    "a column that is gone": ("alter table words rename column n to m", "alter table words rename column m to n", "n"),
    "a table that is gone": ("alter table words rename to others", "alter table others rename to words", "words"),
    "another type": (
        "alter table words alter column n type date using null",
        "alter table words alter column n type bigint using null",
        "date",
    ),
    "a column that must not be null": (
        "alter table words add more text not null default 'x'; alter table words alter more drop default",
        "alter table words drop column more",
        "more",
    ),
    "no permission": ("revoke insert on words from {user}", "grant insert on words to {user}", "permission denied"),
    "no marker to move": (
        "revoke update on statefx_markers from {user}",
        "grant update on statefx_markers to {user}",
        "permission denied for table statefx_markers",
    ),
    "no permission to connect": (
        "alter role {user} nologin; select pg_terminate_backend(pid) from pg_stat_activity where usename = '{user}'",
        "alter role {user} login",
        "not permitted to log in",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_target_that_is_changed_between_transactions_stops_the_sink_until_it_is_mended(
    postgres_database, writer, tmp_path, change
):
    spoil, mend, said = (each.format(user=writer) for each in CHANGES[change])
    sink = SqlSink(postgres_database.server.url(postgres_database.name, user=writer), "words")
    with TopologyTester(topology(sink), tmp_path / "ck") as tester:
        tester.send({"lines": [("a", 1)]})
        postgres_database.run(spoil)
        reasons = []

        def paused():
            reasons.append(tester.status["stuck"]["reason"])
            if len(reasons) == 2:
                postgres_database.run(mend)
            else:
                tester.when("pause", paused)

        tester.when("pause", paused)
        tester.send({"lines": [("b", 2)]})
        tester.send({"lines": [("c", 3)]})
    assert said in reasons[-1]
    assert all("#words" in reason for reason in reasons)
    assert sorted(postgres_database.run("select word from words")) == [("a",), ("b",), ("c",)]


@pytest.fixture
def writer(postgres_database):
    """A user who may do what the page says, and no more."""
    user = f"writer_{postgres_database.name}"
    postgres_database.run(
        f"create role {user} login; create table words (word text primary key, n bigint);"
        "create table statefx_markers (target varchar(255) primary key, application varchar(255) not null,"
        " origin varchar(64) not null, generation bigint not null, txid bigint not null);"
        f"grant select, insert, update on words, statefx_markers to {user}"
    )
    yield user
    postgres_database.run(f"drop owned by {user}; drop role {user}")


NO_COPY = {
    "a policy": "alter table words enable row level security; create policy p on words for insert with check (n < 9);"
    "create view stored as select * from words",
    "a view": "alter table words rename to stored; create view words as select * from stored;"
    "grant insert on words to {user}",
    "a rule": "create table stored (like words);"
    "create rule r as on insert to words do instead insert into stored values (new.word, new.n)",
}


@pytest.mark.parametrize("change", NO_COPY)
def test_a_table_without_copy_gets_its_rows_by_insert(postgres_database, writer, change):
    url = postgres_database.server.url(postgres_database.name, user=writer)
    with closing(HandDriven(postgres_database, url=url)) as sink:
        sink.commit([words("a")])
        postgres_database.run(NO_COPY[change].format(user=writer))
        sink.commit([words("b", "c")])
    assert {("b",), ("c",)} <= set(postgres_database.run("select word from stored"))


def test_a_row_that_a_policy_refuses_is_a_dead_letter(postgres_database, writer):
    columns = "target text, txid bigint, reason text, content text"
    postgres_database.run(NO_COPY["a policy"])
    postgres_database.run(f"create table rejected ({columns}); grant insert on rejected to {writer}")
    url = postgres_database.server.url(postgres_database.name, user=writer)
    with closing(HandDriven(postgres_database, url=url, deadLetter="rejected")) as sink:
        sink.commit([words("a", "b", "c", n=[1, 10, 2])])
    assert sorted(postgres_database.run("select word from words")) == [("a",), ("c",)]
    assert "policy" in postgres_database.run("select reason from rejected")[0][0]


def test_a_lock_of_somebody_else_s_is_told_and_waited_for(postgres_database, tmp_path):
    url = postgres_database.url + "?options=-clock_timeout%3D50ms"
    with (
        postgres_database.server.connect(postgres_database.name) as other,
        TopologyTester(topology(SqlSink(url, "words")), tmp_path / "ck") as tester,
    ):
        tester.send({"lines": [("a", 1)]})
        other.execute("begin; lock table words")
        reasons = told(tester, lambda: other.execute("commit"))
        tester.send({"lines": [("b", 2)]})
    assert "lock timeout" in reasons[0]
    assert postgres_database.run("select count(*) from words") == [(2,)]


def test_a_server_gives_up_a_host_that_is_lost_in_a_transaction_within_a_minute(postgres_database):
    shown = []

    def publishes(connection, cursor, statement, *_):
        if "statefx_markers" in statement and statement.startswith(("INSERT", "UPDATE")):
            settings = (f"show tcp_keepalives_{name}" for name in ("idle", "interval", "count"))
            shown.append([int(connection.exec_driver_sql(setting).scalar()) for setting in settings])

    event.listen(Engine, "before_cursor_execute", publishes)
    try:
        with closing(HandDriven(postgres_database)) as sink:
            sink.commit([words("a")])
            sink.commit([words("b")])
    finally:
        event.remove(Engine, "before_cursor_execute", publishes)
    assert len(shown) == 3, "the fence, and two transactions"
    for idle, interval, count in shown:
        assert idle + interval * count <= 60


def test_a_disk_that_is_full_stops_the_sink_until_there_is_room(sqlite_database, tmp_path):
    pages = [100]

    def limited(connection, _):
        connection.execute(f"pragma max_page_count = {pages[0]}")

    event.listen(Engine, "connect", limited)
    try:
        with TopologyTester(topology(SqlSink(sqlite_database.url, "words")), tmp_path / "ck") as tester:
            tester.send({"lines": [("a", 1)]})
            reasons = told(tester, lambda: pages.append(pages.pop() * 100))
            tester.send({"lines": [("b", 2), ("x" * 1_000_000, 3)]})
    finally:
        event.remove(Engine, "connect", limited)
    assert "database or disk is full" in reasons[0]
    assert sqlite_database.run("select n from words") == [(1,), (2,), (3,)]


class Pooler:
    """Gives its clients, who talk in turn, one connection to the server, as PgBouncer does between transactions."""

    def __init__(self, database):
        self._server = socket.create_connection(("127.0.0.1", database.server.port))
        named = f"user\0statefx\0database\0{database.name}\0\0".encode()
        self._server.sendall(struct.pack("!ii", len(named) + 8, 3 << 16) + named)
        self._greeting = b""
        while not self._greeting.endswith(b"Z\0\0\0\x05I"):
            self._greeting += self._server.recv(1 << 16)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"{database.server.url(database.name, port=port)}?sslmode=disable&gssencmode=disable"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with selectors.DefaultSelector() as selector:
            for each in (self._server, self._listener):
                selector.register(each, selectors.EVENT_READ)
            talks = None
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        client, _ = self._listener.accept()
                        client.recv(1 << 16)
                        client.sendall(self._greeting)
                        selector.register(client, selectors.EVENT_READ)
                    elif key.fileobj is self._server:
                        if not (told := self._server.recv(1 << 16)):
                            return
                        talks.sendall(told)
                    elif (asked := key.fileobj.recv(1 << 16)) in (b"", b"X\0\0\0\x04"):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                    else:
                        talks = key.fileobj
                        self._server.sendall(asked)

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self._listener.close()


@pytest.mark.parametrize("key", [(), "word"], ids=["append", "upsert"])
def test_sinks_behind_a_pooler_that_gives_both_one_session_write_to_their_own_tables(postgres_database, key):
    with closing(Pooler(postgres_database)) as pooler:
        made = [HandDriven(postgres_database, table, url=pooler.url, key=key) for table in ("one", "two")]
        for number in range(10):  # a driver may prepare what it was often given
            for sink in made:
                sink.commit([words(f"{sink.sink.table} {number}", "last")])
        for sink in made:
            sink.close()
    for table in ("one", "two"):
        found = {word for (word,) in postgres_database.run(f"select word from {table}")}
        assert found == {"last", *(f"{table} {number}" for number in range(10))}


def test_serializable_transactions_are_repeated_where_they_collide(postgres_database):
    url = postgres_database.url + "?options=-cdefault_transaction_isolation%3Dserializable"
    with closing(HandDriven(postgres_database, url=url, key="word")) as sink:
        sink.commit([words("a", "b", "a")])
        sink.commit([words("a", "c")])
    assert sorted(postgres_database.run("select * from words")) == [("a", 0), ("b", 1), ("c", 1)]


# ---- what is refused at submit

# Where nobody listens libpq says "refused", or "server closed the connection": psycopg asks it to go on before the
# system's answer is there, and on a busy machine it writes into a connection that never was.
UNREACHED = r"postgresql://127.0.0.1:\d+/d\d+#words\d?: connection failed: .*(refused|closed the connection)"


def refused_at_submit(sink, place, said):
    with pytest.raises(SinkError, match=said) as error:
        TopologyTester(topology(sink), place / "ck")
    assert not (place / "ck" / "transactions").exists() or not list((place / "ck" / "transactions").iterdir())
    return error.value


def test_a_database_that_can_not_be_reached_is_refused_at_submit(postgres_database, tmp_path):
    port = postgres_database.server.port
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = postgres_database.url.replace(str(port), str(nobody.getsockname()[1]))
    refused_at_submit(SqlSink(url, "words"), tmp_path, UNREACHED)
    refused_at_submit(SqlSink(postgres_database.url + "x", "words"), tmp_path, "does not exist")
    refused_at_submit(SqlSink(f"sqlite:///{tmp_path}/nowhere/db", "words"), tmp_path, "database file: make its folder")


PERMISSIONS = {
    "insert on words": "permission denied for table words",
    "update on words": "permission denied for table words",
    "select on statefx_markers": "permission denied for table statefx_markers",
    "insert on statefx_markers": "permission denied for table statefx_markers",
    "update on statefx_markers": "permission denied for table statefx_markers",
}


@pytest.mark.parametrize("missing", PERMISSIONS)
def test_a_permission_that_is_missing_is_told_at_submit(postgres_database, writer, tmp_path, missing):
    sink = SqlSink(postgres_database.server.url(postgres_database.name, user=writer), "words", key="word")
    postgres_database.run(f"revoke {missing} from {writer}")
    refused_at_submit(sink, tmp_path, PERMISSIONS[missing])
    postgres_database.run(f"grant {missing} to {writer}")
    TopologyTester(topology(sink), tmp_path / "ck").close()


def test_a_schema_where_no_table_can_be_made_is_told_at_submit(postgres_database, writer, tmp_path):
    url = postgres_database.server.url(postgres_database.name, user=writer)
    refused_at_submit(
        SqlSink(url, "nowhere.words"), tmp_path, "there is no schema 'nowhere', where table 'statefx_markers"
    )
    refused_at_submit(SqlSink(url, "others"), tmp_path, "may not make tables in schema 'public', where table 'others'")
    url += "?options=-csearch_path%3Dnowhere"
    refused_at_submit(SqlSink(url, "words"), tmp_path, "search_path has no schema that exists")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("n date", "column 'n' is date, which does not hold every value of the field n bigint as it is"),
        ("n real", r"Make the column BIGINT \(ALTER TABLE public.words ALTER COLUMN n TYPE BIGINT\)"),
        ("n bigint generated always as (5) stored", "n"),
    ],
)
def test_a_column_of_a_type_that_does_not_fit_is_told_at_submit(postgres_database, tmp_path, column, said):
    postgres_database.run(f"create table words (word text, {column})")
    refused_at_submit(SqlSink(postgres_database.url, "words"), tmp_path, said)


@pytest.mark.parametrize("name", ["words", "per%cent", 'a"b', "Upper", "a b"])
def test_the_statement_that_a_refusal_gives_can_be_run_as_it_is(postgres_database, tmp_path, name):
    table = '"{}"'.format(name.replace('"', '""'))
    postgres_database.run(f"create table {table} (word text, n real)")
    sink = SqlSink(postgres_database.url, name, key="word")
    for statement in (r"CREATE UNIQUE INDEX .*\)", "ALTER TABLE .* TYPE BIGINT"):
        error = refused_at_submit(sink, tmp_path, statement)
        postgres_database.run(re.search(statement, str(error))[0])
    TopologyTester(topology(sink), tmp_path / "ck").close()


def test_a_column_of_arrays_is_refused_at_submit(postgres_database):
    postgres_database.run("create table words (word text, n bigint[])")
    schema = pa.schema([("word", pa.string()), ("n", pa.list_(pa.int64()))])
    with closing(HandDriven(postgres_database, schema=schema)) as sink, pytest.raises(SinkError, match="JSON"):
        sink.check()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sqlite://", "t"), "in memory"),
        (("sqlite:///:memory:", "t"), "CollectSink"),
        (("sqlite:///file:x?mode=memory&uri=true", "t"), "in memory"),
        (("postgresql+nothing://h/d", "t"), "nothing"),
        (("nothing://h/d", "t"), "does not know this kind of database .*nothing"),
        (("mysql://h/d", "t"), "the driver of mysql is not installed"),
        (("mssql+pyodbc://h/d", "t"), "not to mssql, where rows might come twice: write a StagedSink"),
        (("oracle://h/d", "t"), "not to oracle"),
        (("postgresql+psycopg2://h/d", "t"), r"pip install 'statefx\[postgres\]'"),
        (("sqlite:///x", ""), "name of a table"),
    ],
)
def test_what_can_not_be_a_sink_is_refused_when_it_is_made(arguments, said):
    with pytest.raises(ConfigError, match=said):
        SqlSink(*arguments)


LONG = "a" * 62 + "\u00e4"


@pytest.mark.parametrize(
    "arguments",
    [{"table": LONG}, {"table": f"{LONG}.t"}, {"deadLetter": LONG}, {"txid": LONG}],
    ids=["table", "schema", "deadLetter", "txid"],
)
def test_name_that_postgresql_cuts_is_refused(arguments):
    with pytest.raises(ConfigError, match=f"'{LONG}' has 64 bytes, of which postgresql keeps 63: choose a shorter"):
        SqlSink(**{"url": "postgresql+psycopg://h/d", "table": "t", **arguments})
    SqlSink(**{"url": "sqlite:///x", "table": "t", **arguments})


def test_field_whose_column_would_be_another_is_refused():
    def check(url, *names):
        SqlSink(url, "t").check_schema(pa.schema([(name, pa.int64()) for name in names]))

    with pytest.raises(TopologyError, match=f"'{LONG}' has 64 bytes"):
        check("postgresql+psycopg://h/d", "a", LONG)
    with pytest.raises(TopologyError, match="'a' and 'A' are one column of SQLite"):
        check("sqlite:///x", "a", "b", "A")
    check("postgresql+psycopg://h/d", "a", "A", "a" * 63)
    check("sqlite:///x", "\u00e4", "\u00c4", LONG)


def test_rows_are_tried_or_put_aside_and_not_both():
    with pytest.raises(ConfigError, match="not both"):
        SqlSink("sqlite:///x", "t", deadLetter="d", validate=True)


def test_a_type_without_a_column_is_refused_when_the_topology_is_made():
    with pytest.raises(TopologyError, match=r"'took' is duration.*no column type"):
        SqlSink("sqlite:///x", "t").check_schema(pa.schema([("took", pa.duration("us"))]))


# ---- one table, several names


def test_two_names_of_one_table_are_one_target(database, tmp_path):
    space = "public" if database.postgres else "main"
    sinks = [SqlSink(database.url, "words"), SqlSink(database.url, f"{space}.words")]
    with pytest.raises(SinkOwnedError, match="another sink of this topology"):
        TopologyTester(topology(*sinks), tmp_path / "ck")


def test_letters_in_sqlite_s_names_are_alike_small_or_not(tmp_path):
    url = f"sqlite:///{tmp_path}/db"
    with pytest.raises(SinkOwnedError, match="another sink of this topology"):
        TopologyTester(topology(SqlSink(url, "words"), SqlSink(url, "WORDS")), tmp_path / "ck")


@pytest.mark.parametrize(("table", "other"), [("ÄPFEL", "äpfel"), ("\u212a", "k")])
def test_other_letters_in_sqlite_s_names_are_not_alike_small_or_not(sqlite_database, table, other):
    for name in (table, other):
        sqlite_database.run(f'create table "{name}" (word text, n integer)')
    with closing(HandDriven(sqlite_database, table)) as sink:
        sink.check()
        sink.commit([words("a")])
    assert [sqlite_database.run(f'select word from "{name}"') for name in (table, other)] == [[("a",)], []]
    with pytest.raises(SinkError, match="has no column 'target'"):
        HandDriven(sqlite_database, table, deadLetter=other).check(takeover=True)


def test_tables_of_one_name_in_several_schemas_have_a_marker_each(postgres_database, tmp_path):
    postgres_database.run("create schema other")
    sinks = [SqlSink(postgres_database.url, name) for name in ("words", "other.words")]
    with TopologyTester(topology(*sinks), tmp_path / "ck") as tester:
        tester.send({"lines": [("a", 1)]})
    for space in ("public", "other"):
        assert postgres_database.run(f"select word from {space}.words") == [("a",)]
        assert postgres_database.run(f"select target, txid from {space}.statefx_markers") == [("words", 1)]


@pytest.mark.parametrize("table", ["words", "per%cent"])
def test_the_marker_is_where_the_table_is_whatever_the_search_path(postgres_database, tmp_path, table):
    postgres_database.run(f'create schema first; create table "{table}" (word text, n bigint)')
    for path in ("first,public", "public"):
        sink = SqlSink(f"{postgres_database.url}?options=-csearch_path%3D{path}", table)
        with TopologyTester(topology(sink), tmp_path / "ck") as tester:
            tester.send({"lines": [("a", 1)]})
    assert postgres_database.run("select txid from public.statefx_markers") == [(2,)]
    assert postgres_database.run("select to_regclass('first.statefx_markers')") == [(None,)]


def test_another_topology_is_refused_the_table_before_anything_is_changed(database, running, tmp_path):
    builder = TopologyBuilder("another")
    builder.setStream("lines", rows("word string, n long"))
    builder.setSink("out", SqlSink(database.url, "words")).shuffleGrouping("lines")
    before = database.run("select * from statefx_markers")
    with pytest.raises(SinkOwnedError, match="belongs to application 'words'"):
        TopologyTester(builder.createTopology(), tmp_path / "another")
    assert database.run("select * from statefx_markers") == before
    running.send({"lines": [("b", 2)]})


def test_a_dead_letter_table_may_be_asked_for_later(database, running, tmp_path):
    with TopologyTester(topology(SqlSink(database.url, "words", deadLetter="rejected")), tmp_path / "ck") as tester:
        assert database.run("select * from rejected") == []
        tester.send({"lines": [("b", 2)]})
    with TopologyTester(
        topology(SqlSink(database.url, "words", deadLetter="aside")), tmp_path / "ck", adopt="takeover"
    ) as tester:
        assert database.run("select * from aside") == []


# ---- secrets


def test_a_password_is_nowhere(postgres_database, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    server = postgres_database.server
    secret = "s3cr3t-5511"
    urls = [
        server.url(postgres_database.name).replace("statefx@", f"statefx:{secret}@"),
        server.url(postgres_database.name) + f"?password={secret}&sslpassword={secret}",
    ]
    texts = []
    for number, url in enumerate(urls):
        sink = SqlSink(url, f"words{number}")
        texts += [sink.target, repr(sink), str(topology(sink).describe()), topology(sink).mermaid()]
        with TopologyTester(topology(sink), tmp_path / f"ck{number}") as tester:
            tester.send({"lines": [("a", 1)]})
            tester.when("before COMMITTING(2, 0)", server.kill)
            texts += (reasons := told(tester, server.start))
            tester.send({"lines": [("b", 2)]})
            texts += [str(tester.status), *reasons]
        server.kill()
        texts.append(str(refused_at_submit(sink, tmp_path / f"none{number}", UNREACHED)))
        server.start()
    for wrong in (f"postgresql+psycopg://u:{secret}@h:port/d", f"u:{secret}@h", f"postgresql+no://u:{secret}@h/d"):
        with pytest.raises(ConfigError) as error:
            SqlSink(wrong, "words")
        texts.append(f"{error.value} {error.value.__context__ if not error.value.__suppress_context__ else ''}")
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [data for data in files if secret.encode() in data]
    assert secret not in caplog.text
    assert not [text for text in texts if secret in text]


def test_user_password_and_options_may_change_between_starts(postgres_database, tmp_path):
    server = postgres_database.server
    postgres_database.run(f"create role other_{postgres_database.name} superuser login")
    urls = [
        server.url(postgres_database.name),
        server.url(postgres_database.name, user=f"other_{postgres_database.name}"),
        server.url(postgres_database.name) + "?connect_timeout=3&password=x",
    ]
    for txid, url in enumerate(urls, 1):
        with TopologyTester(topology(SqlSink(url, "words")), tmp_path / "ck") as tester:
            tester.send({"lines": [("a", txid)]})
            assert tester.txid == txid


# ---- drivers that sleep


class Zombie:
    """A process of `tests.sinks.sql_zombie`, which has stopped where it was told to."""

    def __init__(self, url, place, at):
        given = json.dumps({"url": url, "place": str(place), "at": at})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sinks.sql_zombie", given], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended without having come there"
        self.prepared = {
            int(task): each for task, each in json.loads((place / "prepared.json").read_text("ascii")).items()
        }

    def go_on(self):
        """SIGCONT; return what became of its transactions."""
        self.process.send_signal(signal.SIGCONT)
        said, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return said.splitlines()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("at", [*(pytest.param(at, marks=pytest.mark.soak) for at in ("CREATE", "UPDATE")), "COMMIT"])
def test_a_driver_that_sleeps_in_a_transaction_of_postgresql_is_replaced_and_publishes_nothing(postgres_database, at):
    zombie = Zombie(postgres_database.url, postgres_database.place, at)
    with closing(HandDriven(postgres_database)) as sink:
        committer = sink.committer(SECOND)
        committer.check(CheckpointPosition(0, 1), takeover=False)
        committer.fence(CheckpointPosition(0, 1), takeover=False)
        committer.commit(TransactionAttempt(1, 0), zombie.prepared)
        assert postgres_database.run("select word from words") == [("a",)]
        said = zombie.go_on()
        assert said == (["fence fenced"] if at == "CREATE" else []) + ["1 done", "2 fenced"]
        committer.commit(TransactionAttempt(2, 0), sink.prepare([words("c")], txid=2))
        committer.close()
    assert postgres_database.run("select word from words order by 1") == [("a",), ("c",)]


@pytest.mark.soak
def test_a_driver_that_sleeps_does_not_keep_another_application_from_taking_over(postgres_database):
    zombie = Zombie(postgres_database.url, postgres_database.place, "COMMIT")
    with closing(HandDriven(postgres_database)) as sink:
        committer = sink.committer(Owner("other", "another", 1))
        committer.check(START, takeover=True)
        committer.fence(START, takeover=True)
        committer.commit(TransactionAttempt(1, 0), sink.prepare([words("c")], txid=1))
        committer.close()
    zombie.go_on()
    assert postgres_database.run("select word from words") == [("c",)]


@pytest.mark.daily(1)
@pytest.mark.parametrize("end", ["goes on", "is killed"])
def test_a_driver_that_sleeps_in_a_transaction_of_sqlite_is_told_of_at_the_start(sqlite_database, end):
    zombie = Zombie(sqlite_database.url, sqlite_database.place, "COMMIT")
    with closing(HandDriven(sqlite_database, url=sqlite_database.url + "?timeout=0.05")) as sink:
        committer = sink.committer(SECOND)
        with pytest.raises(SinkError, match=r"database is locked: .* end that process"):
            committer.check(CheckpointPosition(0, 1), takeover=False)
        if end == "goes on":
            assert zombie.go_on() == ["1 done", "2 done"]
        else:
            zombie.kill()
        committer = sink.committer(SECOND)
        committer.fence(CheckpointPosition(0, 2), takeover=False)
        committer.commit(TransactionAttempt(1, 0), zombie.prepared)
        committer.close()
    assert sqlite_database.run("select word from words") == [("a",), ("b",)][: 2 if end == "goes on" else 1]

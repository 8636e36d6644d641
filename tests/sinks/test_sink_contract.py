"""The contract of sinks: for those that are ready-made, for one of a user's, and for broken ones that it must catch."""

import json
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import asdict
from unittest.mock import patch

import pandas
import pyarrow.parquet as pq
import pytest

from statefx import TopologyBuilder, TransactionalClient
from statefx.connectors import StagedSink, Target
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.sql import SqlSink
from statefx.connectors.staged import StagedCommitter, Stager
from statefx.errors import SinkError
from statefx.operators.sinks import Marker
from statefx.testing import Limits, TopologyTester, rows
from statefx.testing.sink_contract import SinkContract
from tests.sinks.durable_steps import database_steps, fast
from tests.testing.lives import seeds

READERS = {
    "parquet": lambda file: pq.ParquetFile(file).read()["word"].to_pylist(),
    "csv": lambda file: pandas.read_csv(file)["word"].tolist(),
}


__all__ = ["fast"]

pytestmark = pytest.mark.usefixtures("fast")


class Files(SinkContract):
    format = "parquet"

    def make(self, place):
        return FileSink(place / "out", self.format)

    def read(self, sink):
        try:
            return [word for file in committedFiles(sink.path) for word in READERS[self.format](file)]
        except Exception as error:
            if "holds no committed files" in str(error):
                return []
            raise


class TestParquetFiles(Files):
    pass


class TestCsvFiles(Files):
    format = "csv"


class Tables(SinkContract):
    @contextmanager
    def steps(self, step, unlocked=False):
        with super().steps(step), database_steps(step, unlocked=unlocked):
            yield


class TestSqlite(Tables):
    def make(self, place):
        return SqlSink(f"sqlite:///{place}/db", "words")

    def read(self, sink):
        return read_table(sink.url.removeprefix("sqlite:///"))

    def pauses(self, step):
        return self.steps(step, unlocked=True)


class TestSqliteWithTxid(TestSqlite):
    """Rows can be taken back."""

    def make(self, place):
        return SqlSink(f"sqlite:///{place}/db", "words", txid="txid", deadLetter="aside")


@pytest.mark.slow
class TestPostgres(Tables):
    """One database; each place is a schema of it, which is what the connections see. SQLite has each step tried."""

    stride = 4

    @pytest.fixture(autouse=True)
    def server(self, postgres):
        self.postgres, self.database, self.schemas = postgres, postgres.database(), {}
        self.first = 1 + next(seeds(0)) % self.stride

    def make(self, place):
        schema = self.schemas.get(place)
        if schema is None:
            schema = self.schemas[place] = f"s{len(self.schemas)}"
            self.postgres.run(self.database, f"create schema {schema}")
        return SqlSink(f"{self.postgres.url(self.database)}?options=-csearch_path%3D{schema}", "words", txid="txid")

    def read(self, sink):
        schema = sink.url.rpartition("%3D")[2]
        if self.postgres.run(self.database, f"select to_regclass('{schema}.words')") == [(None,)]:
            return []
        return [word for (word,) in self.postgres.run(self.database, f"select word from {schema}.words")]


def read_table(path):
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("select 1 from sqlite_master where name = 'words'").fetchall():
            return []
        return [word for (word,) in connection.execute("select word from words")]


class Ledger(Target):
    """A user's own, by the two methods that it needs."""

    @staticmethod
    def step(statement):
        """Replaced by the tests."""

    def __init__(self, path):
        self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.database.execute("pragma synchronous = off")
        self.run("create table if not exists words (word, n)")
        self.run("create table if not exists marker (body)")

    def run(self, statement, *values):
        Ledger.step(statement)
        return self.database.execute(statement, values).fetchall()

    def marker(self):
        found = self.run("select body from marker")
        return Marker(**json.loads(found[0][0])) if found else None

    def publish(self, marker, previous, rows):
        self.run("begin immediate")
        try:
            self.compare(previous, marker)
            self.write(rows)
            self.move(marker)
        except BaseException:
            self.database.rollback()
            raise
        self.run("commit")

    def compare(self, previous, marker):
        if self.marker() != previous:
            raise SinkError("another driver was here")

    def write(self, rows):
        for row in rows.rows():
            self.run("insert into words values (?, ?)", *row.values())

    def move(self, marker):
        self.run("delete from marker")
        self.run("insert into marker values (?)", json.dumps(asdict(marker)))

    def close(self):
        self.database.close()


class LedgerSink(StagedSink):
    """Made of parts, of which others may be broken."""

    def __init__(self, path, opened=Ledger, committing=StagedCommitter, staging=Stager):
        self.path, self.opened, self.committing, self.staging = path, opened, committing, staging

    @property
    def target(self):
        return self.path

    def writer(self, context):
        return self.staging(context)

    def committer(self, context):
        return self.committing(self.path, context, lambda: self.connect(context.schema))

    def connect(self, schema):
        return self.opened(self.path)


class TestLedger(SinkContract):
    parts = {}

    def make(self, place):
        return LedgerSink(str(place / "ledger"), **self.parts)

    def read(self, sink):
        return read_table(sink.path)

    @contextmanager
    def steps(self, step, begins=False):
        def before(statement):
            if not begins or statement.startswith("begin"):
                step()

        with super().steps(step), patch.object(Ledger, "step", before):
            yield

    def pauses(self, step):
        return self.steps(step, begins=True)


# ---- Connections that can't be closed.


class Lost(Ledger):
    """Its connection is lost at the first publish."""

    lost = []

    def write(self, rows):
        if len(rows) and not Lost.lost:
            Lost.lost.append(self)
            self.database.close()
        super().write(rows)

    def close(self):
        if self in Lost.lost:
            raise OSError("it is lost")
        super().close()


def test_a_target_that_can_not_be_closed_is_opened_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Lost, "lost", [])
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string, n long"))
    builder.setSink("out", LedgerSink(str(tmp_path / "ledger"), Lost)).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", limits=Limits(pauses=3)) as one:
        one.send({"words": [("a", 1)]})
    assert read_table(tmp_path / "ledger") == ["a"]
    assert len(Lost.lost) == 1
    assert f"sink to {tmp_path}/ledger: close() raised; ignored" in caplog.messages


class Unclosable(Ledger):
    def close(self):
        super().close()
        raise OSError("it is lost")


class UnclosableCommitter(StagedCommitter):
    def close(self):
        super().close()
        raise OSError("it is lost")


class Closed(Ledger):
    closed = 0

    def close(self):
        super().close()
        Closed.closed += 1


@pytest.mark.parametrize("parts", [{"opened": Unclosable}, {"committing": UnclosableCommitter}], ids=" ".join)
def test_what_can_not_be_closed_keeps_nothing_else_from_its_end(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(Closed, "closed", 0)
    sinks = {"out": LedgerSink(str(tmp_path / "out"), **parts), "second": LedgerSink(str(tmp_path / "second"), Closed)}
    schemas = dict.fromkeys(sinks, "word string, n long")
    with TransactionalClient(tmp_path / "ck", id="x", sinks=sinks, schemas=schemas) as client:
        with client.transaction() as transaction:
            transaction.send("out", [("a", 1)])
        checked = Closed.closed
    assert (checked, Closed.closed) == (1, 2)
    assert read_table(tmp_path / "out") == ["a"]

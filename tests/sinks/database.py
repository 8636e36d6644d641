"""A database for tests of SqlSink, and one sink of it that is driven by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pyarrow as pa

from statefx.connectors.sql import SqlSink
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage

FIRST = Owner("app", "origin", 1)
START = CheckpointPosition(0, 0)
WORDS = pa.schema([("word", pa.string()), ("n", pa.int64())])


class SqliteDatabase:
    """A file."""

    postgres = False

    def __init__(self, place):
        self.place = place
        self.url = f"sqlite:///{place}/db"

    def run(self, statement):
        """Run a statement of a user's, and return what it finds."""
        with closing(sqlite3.connect(self.place / "db")) as connection, connection:
            return connection.execute(statement).fetchall()


class PostgresDatabase:
    """A database of the tests' server."""

    postgres = True

    def __init__(self, server, place):
        self.server, self.place = server, place
        self.name = server.database()
        self.url = server.url(self.name)

    def run(self, statement):
        """Run statements of a user's, and return what the last one finds."""
        return self.server.run(self.name, statement)


class HandDriven:
    """One sink, and what tasks and drivers do with it."""

    def __init__(self, database, table="words", schema=WORDS, url=None, **options):
        self.sink = SqlSink(url or database.url, table, **options)
        self.schema = schema
        self.storage = FolderStorage(database.place / "ck")
        self._txid = 0
        self._committer: Any = None

    def committer(self, owner=FIRST):
        return self.sink.committer(CommitterContext("out", owner, self.schema, self.storage))

    def check(self, takeover=False):
        with closing(self.committer()) as found:
            found.check(START, takeover=takeover)

    def writer(self, task=0, parallelism=1, txid=1):
        token = f"{txid}-{task}"
        context = WriterContext("out", task, parallelism, TransactionAttempt(txid, 0), token, self.schema, self.storage)
        return self.sink.writer(context)

    def prepare(self, *tasks, txid=1):
        """Return what tasks prepare, each given its batches, each of which is columns."""
        named = {}
        for task, batches in enumerate(tasks):
            writer = self.writer(task, len(tasks), txid)
            for columns in batches:
                writer.write(pa.RecordBatch.from_pydict(columns, schema=self.schema))
            committable = writer.prepare(txid)
            if committable is not None:
                named[task] = committable
        return named

    def start(self):
        """Fence, as a start does."""
        self._committer = self.committer()
        self._committer.fence(START, takeover=False)
        return self

    def commit(self, *tasks):
        """Prepare and commit a transaction."""
        if self._committer is None:
            self.start()
        self._txid += 1
        self._prepared = self.prepare(*tasks, txid=self._txid)
        self.again()

    def again(self):
        """Commit the same transaction, as after a failure."""
        self._committer.commit(TransactionAttempt(self._txid, 0), self._prepared)

    def close(self):
        if self._committer is not None:
            self._committer.close()


def words(*values, n=None):
    """Return the columns of one batch."""
    return {"word": values, "n": range(len(values)) if n is None else n}

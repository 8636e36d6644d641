"""A state provider of one's own, which keeps state in an SQLite file, and a topology that runs on it.

It passes the tests that every provider has to pass: ``tests/examples/test_custom_provider.py`` hands it to
``statefx.testing.provider_contract.StateProviderContract``.

Here it is named by where it is, ``custom_provider:SqliteStateProvider``. A distribution gives it a name::

    [project.entry-points."statefx.state_providers"]
    sqlite = "custom_provider:SqliteStateProvider"
"""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, session, submit
from statefx.errors import ConfigError, FencedError, StateClosedError, StateCorruptedError, StatePhaseError
from statefx.state import Prepared, StateLocation, StateProvider, StateStore

TABLES = """
CREATE TABLE IF NOT EXISTS fences (lineage PRIMARY KEY, generation);
CREATE TABLE IF NOT EXISTS heads (namespace PRIMARY KEY, txid, token);
CREATE TABLE IF NOT EXISTS entries (namespace, key, value, PRIMARY KEY (namespace, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (token PRIMARY KEY, namespace, txid, base);
CREATE TABLE IF NOT EXISTS prepared (token, key, value, PRIMARY KEY (token, key)) WITHOUT ROWID;
"""
READ = """
SELECT key, value FROM prepared WHERE token = :at AND value IS NOT NULL AND {0} UNION ALL
SELECT key, value FROM entries WHERE namespace = :namespace AND {0}
AND NOT EXISTS (SELECT 1 FROM prepared WHERE token = :at AND key = entries.key) ORDER BY key
"""  # what is decided and not yet committed lies over what is committed
COMMIT = """
INSERT OR REPLACE INTO entries SELECT :namespace, key, value FROM prepared WHERE token = :token AND value IS NOT NULL;
DELETE FROM entries WHERE namespace = :namespace
AND key IN (SELECT key FROM prepared WHERE token = :token AND value IS NULL);
INSERT OR REPLACE INTO heads VALUES (:namespace, :txid, :token);
DELETE FROM prepared WHERE token IN (SELECT token FROM tokens WHERE namespace = :namespace AND txid <= :txid);
DELETE FROM tokens WHERE namespace = :namespace AND txid <= :txid
"""  # nobody can name the other attempts of these transactions any more


class SqliteStateProvider(StateProvider):
    """Keeps the state of any number of checkpoints in the file ``path``, which every machine must see."""

    location = StateLocation.SERVER  # outside of the checkpoint, and with the newest version alone

    def __init__(self, options):
        super().__init__(options)
        if options.keys() != {"path"}:
            raise ConfigError(f"the sqlite provider takes one option, 'path', and was given {sorted(options)}")

    def newState(self, namespace, context):
        return SqliteStateStore(self.options["path"], namespace, context)

    def fence(self, lineage, generation, storage):
        with contextlib.closing(connected(self.options["path"])) as connection, immediately(connection):
            check_fence(connection, lineage, generation)
            connection.execute("INSERT OR REPLACE INTO fences VALUES (?, ?)", (lineage, generation))


def connected(path):
    connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    connection.executescript(TABLES)
    return connection


@contextlib.contextmanager
def immediately(connection, begin="BEGIN IMMEDIATE"):
    connection.execute(begin)
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def check_fence(connection, lineage, generation):
    (newest,) = connection.execute("SELECT max(generation) FROM fences WHERE lineage = ?", (lineage,)).fetchone()
    if newest is not None and newest > generation:
        raise FencedError(f"generation {newest} has taken over from {generation}", generation=generation, newest=newest)


class SqliteStateStore(StateStore):
    """The state of one task, at one version."""

    def __init__(self, path, namespace, context):
        self.namespace = f"{namespace.lineage}/{namespace.component}/{namespace.task}"
        self.path = path
        self.lineage, self.generation = namespace.lineage, context.generation
        self.version = (context.version.txid, context.version.token)
        self.read_only = context.read_only
        self.prepared = None
        self.connection = connected(path)
        try:
            if self.read_only or self.head()[0] != self.version[0] + 1:  # a commit may be repeated by a store before it
                self.check_head(opening=True)
        except StateCorruptedError:
            self.close()
            raise

    def get(self, keys):
        with immediately(self.db(), "BEGIN"):
            self.check_head()
            rows = [self.run(READ.format("key = :key"), key=key).fetchone() for key in keys]
        return [None if row is None else row[1] for row in rows]

    def scan(self, start, stop, reverse=False):
        start, size = start or b"", 32
        inside = "key >= :start AND (:stop IS NULL OR key < :stop)"
        statement = READ.format(inside) + "DESC" * reverse + " LIMIT :size"
        while True:  # page by page: as long as a statement is open, nobody can commit to the file
            page = self.run(statement, start=start, stop=stop, size=size).fetchall()
            self.check_head()  # heads only go forward: the rows are not of a later one
            for row in page:
                self.db()  # refuses to go on after close
                yield row
            if len(page) < size:
                return
            last, size = page[-1][0], min(2 * size, 1024)
            start, stop = (start, last) if reverse else (last + b"\0", stop)

    def prepare(self, txid, token, writes):
        if self.prepared != (txid, token):  # again is as once
            self.check(self.prepared is None and txid > self.version[0], f"prepare({txid})")
            with immediately(self.db()):
                self.check_head()
                self.run("INSERT INTO tokens VALUES (:token, :namespace, :txid, :at)", token=token, txid=txid)
                self.db().executemany("INSERT INTO prepared VALUES (?, ?, ?)", ((token, *write) for write in writes))
            self.prepared = txid, token
        return Prepared(token)

    def commit(self, txid, token):
        self.check(True, f"commit({txid})")
        with immediately(self.db()):
            check_fence(self.db(), self.lineage, self.generation)
            if self.head() != (txid, token):
                self.check(self.can_become(txid, token), f"commit({txid}, {token!r})")
                for statement in COMMIT.split(";"):
                    self.run(statement, txid=txid, token=token)
        self.version, self.prepared = (txid, token), None

    def rollback(self, txid, token):
        with immediately(self.db()):
            self.check(self.head() != (txid, token), f"rollback({txid}) of what is committed")
            self.run("DELETE FROM prepared WHERE token = :token", token=token)
            self.run("DELETE FROM tokens WHERE token = :token", token=token)
        self.prepared = None if self.prepared == (txid, token) else self.prepared

    def snapshot(self):
        self.db()  # there is nothing to do, but a closed store says so

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def db(self):
        if self.connection is None:
            raise StateClosedError(f"the state of {self.namespace} is closed")
        return self.connection

    def run(self, statement, **values):
        return self.db().execute(statement, {"namespace": self.namespace, "at": self.version[1], **values})

    def head(self):
        return self.run("SELECT txid, token FROM heads WHERE namespace = :namespace").fetchone() or (0, "")

    def can_become(self, txid, token):
        found = self.run("SELECT txid, namespace, base FROM tokens WHERE token = :token", token=token).fetchone()
        return found == (txid, self.namespace, self.head()[1])

    def check_head(self, opening=False):
        head = self.head()
        if self.read_only and not opening and head[0] > self.version[0]:
            self.version = head  # no older one is kept: a reader that stays open goes on
        if head != self.version and not self.can_become(*self.version):
            what = f"{self.namespace} is at transaction {head[0]}, not at {self.version[0]}"
            raise StateCorruptedError(f"{self.path}: {what}", path=self.path, missing=head[0] > self.version[0])

    def check(self, may, call):
        self.db()
        if self.read_only or not may:
            raise StatePhaseError(f"{call} is not for {self.namespace} at {self.version}")


class Count(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup.value, self.counts.get(tup.value, 0) + 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="statefx-provider-", ignore_cleanup_errors=True) as work:
        words = Path(work, "words")
        words.mkdir()
        spark = session("custom-provider", config={"spark.ui.enabled": "false"})
        spark.sparkContext.addPyFile(__file__)  # workers import the provider by the name of its module
        config = {
            "topology.state.provider": "custom_provider:SqliteStateProvider",
            "topology.state.provider.config": {"path": f"{work}/state.db"},
        }
        for number, text in enumerate(["to be or not to be", "to be"]):
            Path(words, str(number)).write_text("\n".join(text.split()))
            builder = TopologyBuilder("words")
            builder.setStream("words", spark.readStream.text(str(words)))
            builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("words", "value")
            topology = builder.createTopology()
            submit(topology, spark, f"{work}/checkpoint", config, trigger={"availableNow": True}).awaitTermination()
            with Checkpoint(f"{work}/checkpoint", config).state("count") as counts:
                print(f"after transaction {counts.txid}:", dict(counts.items()))
        spark.stop()

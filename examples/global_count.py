"""Storm's TransactionalGlobalCount: how many tuples there have been, in a database of the program's own, exactly.

The counting is done side by side, several transactions at once; the database is updated by one committer, in the order
of the transactions, and keeps with the number which transaction wrote it. So a transaction that is tried again changes
nothing a second time: here, the third one is failed after it has written.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from statefx import BatchBolt, Committer, TopologyBuilder, session, submit
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import FailedException

PARTITION_TAKE_PER_BATCH = 3
DATA = [
    [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    [("cat",), ("dog",), ("apple",), ("banana",)],
    [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
]


class BatchCount(BatchBolt):
    """Counts what its task has of one transaction."""

    outputFields = "count long"

    def __init__(self):
        self.count = 0

    def execute(self, tup, collector):
        self.count += 1

    def finishBatch(self, collector):
        collector.emit((self.count,))


class UpdateGlobalCount(BatchBolt, Committer):
    """Adds what all tasks have counted to the number in the database; runs in the order of transactions."""

    def __init__(self, path):
        self.path = path
        self.sum = 0

    def execute(self, tup, collector):
        self.sum += tup.count

    def finishBatch(self, collector):
        attempt = collector.attempt
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("begin immediate")  # a task of a former attempt may still be running
            count, txid = database.execute("select count, txid from global_count").fetchone()
            note = f"transaction {attempt.txid}, attempt {attempt.attempt}: "
            if txid == attempt.txid:  # a former attempt of this transaction has written: the number has it already
                note += f"found {count}"
            else:
                note += f"{count} + {self.sum} = {count + self.sum}"
                database.execute("update global_count set count = ?, txid = ?", (count + self.sum, attempt.txid))
            database.execute("insert into notes values (?)", (note,))
        if attempt.txid == 3 and attempt.attempt == 0:
            raise FailedException("the database has it, and the transaction is tried again all the same")


spark = session("global-count", config={"spark.log.level": "ERROR"})
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder, "counts.db"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table global_count (count integer, txid integer)")
        database.execute("insert into global_count values (0, 0)")
        database.execute("create table notes (note text)")

    builder = TopologyBuilder("global-count")
    spout = MemoryTransactionalSpout(DATA, "word string", PARTITION_TAKE_PER_BATCH)
    builder.setSpout("spout", spout, parallelism=3)
    builder.setBolt("partial-count", BatchCount(), parallelism=5).noneGrouping("spout")
    builder.setBolt("sum", UpdateGlobalCount(path)).globalGrouping("partial-count")
    query = submit(
        builder.createTopology(),
        spark,
        checkpointLocation=f"{folder}/checkpoint",
        config={"topology.max.spout.pending": 3},
        trigger={"availableNow": True},
    )
    query.awaitTermination()

    with closing(sqlite3.connect(path)) as database:
        for (note,) in database.execute("select note from notes"):
            print(note)
        print("global count:", *database.execute("select count from global_count").fetchone())
spark.stop()

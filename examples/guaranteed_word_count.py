"""Storm's guaranteed message processing: each message is told when all that came of it is processed and committed.

The messages lie in a table of SQLite. The spout hands them out with their numbers as ids; a message whose words are
counted and committed is acked, and is done. One that a bolt refuses fails, and is handed out again, three times at
most.
"""

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from statefx import BasicBolt, Spout, StatefulBolt, TopologyBuilder, openState, session, submit
from statefx.errors import FailedException

MESSAGES = ["to be or not to be", "that is the question", "?", "whether it is nobler", "to suffer"]
TRIES_MAX = 3
WAIT_SECS = 120


class Messages(Spout):
    """Hands out what is new or failed, in the order of numbers."""

    outputFields = "text string"

    def __init__(self, path):
        self.path = path

    def open(self, context):
        self.database = sqlite3.connect(self.path, isolation_level=None)
        # This object is new: what another one had handed out, and was not told of, is handed out again.
        self.database.execute("update messages set state = 'new' where state = 'out'")

    def nextTuple(self, collector):
        found = self.database.execute(
            "select id, text from messages where state = 'new' order by id limit 1"
        ).fetchone()
        if found is not None:
            self.database.execute("update messages set state = 'out', tries = tries + 1 where id = ?", found[:1])
            collector.emit(found[1:], id=found[0])

    def ack(self, id):
        self.database.execute("update messages set state = 'done' where id = ?", (id,))

    def fail(self, id):
        self.database.execute(
            "update messages set state = iif(tries < ?, 'new', 'given up') where id = ?", (TRIES_MAX, id)
        )

    def close(self):
        self.database.close()


class SplitSentence(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        if not any(letter.isalpha() for letter in tup.text):
            raise FailedException(f"no words in {tup.text!r}")
        for word in tup.text.split():
            collector.emit((word,))  # anchored to tup: if the word fails, the message fails


class WordCount(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts[tup.word] = self.counts.get(tup.word, 0) + 1


spark = session("guaranteed-word-count", config={"spark.log.level": "ERROR"})
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder, "messages.db"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table messages (id integer primary key, text text, state text, tries integer)")
        rows = [(text, "new", 0) for text in MESSAGES]
        database.executemany("insert into messages (text, state, tries) values (?, ?, ?)", rows)

    builder = TopologyBuilder("guaranteed-word-count")
    builder.setSpout("messages", Messages(path))
    builder.setBolt("split", SplitSentence(), parallelism=2).shuffleGrouping("messages")
    builder.setBolt("count", WordCount(), parallelism=2).fieldsGrouping("split", "word")
    query = submit(builder.createTopology(), spark, Path(folder, "checkpoint"))

    with closing(sqlite3.connect(path)) as database:
        ends = time.monotonic() + WAIT_SECS
        while database.execute("select count(*) from messages where state in ('new', 'out')").fetchone()[0]:
            if query.awaitTermination(0.1) or time.monotonic() > ends:
                raise SystemExit(f"not all messages were processed: {query.status}")
        query.stop()
        for text, state, tries in database.execute("select text, state, tries from messages order by id"):
            print(f"{text!r}: {state} after {tries} {'try' if tries == 1 else 'tries'}")
    with openState(Path(folder, "checkpoint"), "count") as counts:
        print(dict(sorted(counts.items())))
spark.stop()

"""The most frequent words, kept in a table; killed in the middle of a commit, and started again.

    python examples/top_k_to_postgres.py postgresql+psycopg://user:password@host/database
    python examples/top_k_to_postgres.py                          the same into SQLite, which needs no server

The first needs `pip install ".[postgres]"`, the second `pip install ".[sql]"`. It makes the tables
`top_words` and `statefx_markers`.
"""

import heapq
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import sqlalchemy

from statefx import BatchBolt, Stateful, TopologyBuilder, session, submit
from statefx.connectors.sql import SqlSink

K = 3
TEXTS = ["to be or not to be", "that is the question", "to sleep to dream", "be all my sins remembered to be"]


class Count(Stateful, BatchBolt):
    """Counts words, and tells how often those of a transaction have come."""

    outputFields = "word string, count long"

    def initState(self, state):
        self.counts = state
        self.new = Counter()

    def execute(self, tup, collector):
        self.new[tup.word] += 1

    def finishBatch(self, collector):
        for word, times in self.new.items():
            count = self.counts.get(word, 0) + times
            self.counts.put(word, count)
            collector.emit((word, count))


class Board(Stateful, BatchBolt):
    """Keeps the k highest counts. Counts only grow: who is not among them can only come in with a new count."""

    outputFields = "rank int, word string, count long"

    def __init__(self, driver):
        self.driver = driver

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state
        self.counts = dict(state.get("best", {}))

    def execute(self, tup, collector):
        self.counts[tup.word] = tup.count

    def finishBatch(self, collector):
        best = heapq.nlargest(K, self.counts, key=lambda word: (self.counts[word], word))
        self.state.put("best", {word: self.counts[word] for word in best})
        for rank, word in enumerate(best, 1):
            collector.emit((rank, word, self.counts[word]))

    def preCommit(self, txid):
        if self.context.generation == 1 and txid == 3:
            os.kill(self.driver, signal.SIGKILL)


def run(work, url):
    """Count the words of all files, one file to a transaction."""
    spark = session("top-k", config={"spark.ui.enabled": "false"})
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{work}/texts")
    builder = TopologyBuilder("top-k")
    builder.setStream("words", lines.selectExpr("explode(split(value, ' ')) AS word"))
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("words", "word")
    builder.setBolt("board", Board(os.getpid())).globalGrouping("count")
    builder.setSink("table", SqlSink(url, "top_words", key="rank")).globalGrouping("board")
    # The table may be there from a former run of this example, which had a checkpoint of its own.
    query = submit(
        builder.createTopology(), spark, f"{work}/checkpoint", trigger={"availableNow": True}, adopt="takeover"
    )
    print("interrupted before:", query.recoveries, flush=True)
    query.awaitTermination()


def look(url):
    """Return the table as any program sees it, and the last transaction that is in it."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        board = connection.exec_driver_sql("SELECT word, count FROM top_words ORDER BY rank").all()
        (txid,) = connection.exec_driver_sql("SELECT txid FROM statefx_markers WHERE target = 'top_words'").one()
    engine.dispose()
    return [tuple(row) for row in board], txid


if __name__ == "__main__":
    if len(sys.argv) == 3:
        raise SystemExit(run(*sys.argv[1:]))
    with tempfile.TemporaryDirectory(prefix="statefx-top-k-", ignore_cleanup_errors=True) as work:
        url = sys.argv[1] if len(sys.argv) == 2 else f"sqlite:///{work}/board.db"
        print("the table is in", sqlalchemy.engine.make_url(url).get_backend_name(), flush=True)
        Path(work, "texts").mkdir()
        for number, text in enumerate(TEXTS):
            path = Path(work, "texts", f"{number}.txt")
            path.write_text(text)
            os.utime(path, (number, number))  # Spark reads the oldest first
        for start in ("first", "second"):
            ended = subprocess.run([sys.executable, __file__, work, url], check=False)
            board, txid = look(url)
            print(f"{start} run: exit code {ended.returncode}; transaction {txid}: {board}", flush=True)
        counts = Counter(word for text in TEXTS for word in text.split())
        expected = sorted(((count, word) for word, count in counts.items()), reverse=True)[:K]
        print("exact" if board == [(word, count) for count, word in expected] else f"NOT exact: {expected}")

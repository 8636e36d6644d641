"""The top words of the last ten minutes, minute by minute: windows behind windows; killed once, and recounted.

    python examples/top_words.py

A windowed bolt counts each word in windows of ten minutes, of which one begins with each minute. What it emits has the
last time of its window. So the bolt behind it has all counts of a window in one window of its own, ranks them, and
emits the ranks in the same transaction.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq

from statefx import BasicBolt, TopologyBuilder, WindowedBolt, session, submit
from statefx.connectors import MemoryTransactionalSpout
from statefx.connectors.files import FileSink, committedFiles

K, LENGTH, SLIDE = 3, timedelta(minutes=10), timedelta(minutes=1)
LATENESS_SECS = 20
START, MINUTES, LINES_A_MINUTE = datetime(2026, 5, 1, 12, tzinfo=UTC), 40, 30
WORDS = ["be", "not", "or", "sleep", "dream", "the", "question", "to"]


def lines():
    """Return (at, text): what people talk about changes, and lines come up to 20 seconds out of order."""
    chance, found = random.Random(1), []
    for number in range(MINUTES * LINES_A_MINUTE):
        secs = number * 60 / LINES_A_MINUTE - chance.uniform(0, LATENESS_SECS)
        talk = WORDS[number * len(WORDS) // (MINUTES * LINES_A_MINUTE)]
        found.append((START + timedelta(seconds=secs), f"{talk} {chance.choice(WORDS)}"))
    return found


class Split(BasicBolt):
    """A line in, its words out; kills its driver once, in the middle of a transaction."""

    outputFields = "word string, at timestamp"

    def __init__(self, driver):
        self.driver = driver

    def open(self, context):
        self.context = context

    def execute(self, tup, collector):
        for word in tup.text.split():
            collector.emit((word, tup.at))
        if self.context.generation == 1 and self.context.txid == 12:
            os.kill(self.driver, signal.SIGKILL)


class Count(WindowedBolt):
    """Counts a word; a window is made of the counts of its minutes."""

    outputFields = "word string, count long, at timestamp"

    def initWindow(self):
        return 0

    def addToWindow(self, count, tup):
        return count + 1

    def mergeWindows(self, a, b):
        return a + b

    def emitWindow(self, window, count, collector):
        collector.emit((window.key, count, window.maxTimestamp))


class Rank(WindowedBolt):
    """The counts of one window in, the ranks out."""

    outputFields = "until timestamp, rank int, word string, count long"

    def execute(self, window, collector):
        best = sorted(window, key=lambda tup: (-tup.count, tup.word))[:K]
        for rank, tup in enumerate(best, 1):
            collector.emit((window.end, rank, tup.word, tup.count))


def topology(work):
    builder = TopologyBuilder("top-words")
    spout = MemoryTransactionalSpout([lines()], "at timestamp, text string", takePerBatch=LINES_A_MINUTE)
    builder.setSpout("lines", spout, timestamp="at", lateness=f"{LATENESS_SECS} seconds")
    builder.setBolt("split", Split(os.getpid()), parallelism=2).shuffleGrouping("lines")
    count = Count().withWindow(LENGTH, SLIDE).withTimestampField("at")
    builder.setBolt("count", count, parallelism=2).fieldsGrouping("split", "word")
    rank = Rank().withTumblingWindow(SLIDE).withTimestampField("at")
    builder.setBolt("rank", rank).globalGrouping("count")
    builder.setSink("top", FileSink(f"{work}/top")).globalGrouping("rank")
    return builder.createTopology()


def run(work):
    """Run on Spark what is left, or until the kill."""
    spark = session("top-words", config={"spark.ui.enabled": "false"})
    query = submit(topology(work), spark, f"{work}/checkpoint", trigger={"availableNow": True})
    print("interrupted before:", query.recoveries, flush=True)
    query.awaitTermination()


def ranked(work):
    """Return the ranks as any program sees them: by the end of their window."""
    found = {}
    for file in committedFiles(f"{work}/top"):
        for row in pq.read_table(file).to_pylist():
            found.setdefault(row["until"], []).append((row["rank"], row["word"], row["count"]))
    return {end: sorted(ranks) for end, ranks in found.items()}


def recount():
    """Return the same from a list of all words, window by window."""
    words = [(at, word) for at, text in lines() for word in text.split()]
    first, ended = min(words)[0], max(words)[0] - timedelta(seconds=LATENESS_SECS)
    found, end = {}, START
    while end <= ended:
        counts = Counter(word for at, word in words if end - LENGTH <= at < end)
        best = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:K]
        if end > first:
            found[end] = [(rank, word, count) for rank, (word, count) in enumerate(best, 1)]
        end += SLIDE
    return found


if __name__ == "__main__":
    if len(sys.argv) == 2:
        raise SystemExit(run(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="statefx-top-words-", ignore_cleanup_errors=True) as work:
        for start in ("first", "second"):
            ended = subprocess.run([sys.executable, __file__, work], check=False)
            print(f"{start} run: exit code {ended.returncode}", flush=True)
        found = ranked(work)
    for end in sorted(found)[9::10]:
        print(f"until {end:%H:%M}:", ", ".join(f"{word} {count}" for _, word, count in found[end]))
    print(f"exact: {len(found)} windows" if found == recount() else "NOT exact")

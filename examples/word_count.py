"""Counts the words of a folder of source files, and goes on where it was, whatever ended it.

    python examples/word_count.py                         count Python's standard library, killed twice on the way
    python examples/word_count.py FOLDER CHECKPOINT       count the files of a folder of your own

The words of a file are its identifiers. Some files make one transaction; `demo_kill.py` does the killing.
"""

import argparse
import heapq
import json
import os
import re
import time
from operator import itemgetter
from pathlib import Path

from demo_kill import demo

from statefx import BasicBolt, BatchBolt, Checkpoint, Stateful, StatefulBolt, TopologyBuilder, session, submit
from statefx.connectors.files import FilePartitionedSpout

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Split(BasicBolt):
    """A line in, its words out."""

    outputFields = "word string"

    def execute(self, tup, collector):
        for word in WORD.findall(tup.value):
            collector.emit((word,))


class Count(Stateful, BatchBolt):
    """Counts each word; tells after each transaction how many words it had, and how many were new."""

    outputFields = "words long, new long"

    def initState(self, state):
        self.counts = state
        self.words = self.new = 0

    def execute(self, tup, collector):
        count = self.counts.get(tup.word, 0)
        self.counts.put(tup.word, count + 1)
        self.words += 1
        self.new += count == 0

    def finishBatch(self, collector):
        collector.emit((self.words, self.new))


class Totals(StatefulBolt):
    """Adds up what the counters tell, and reports on each transaction once nothing can take it back."""

    def __init__(self, folder, linger):
        self.folder = folder
        self.linger = linger

    def initState(self, state):
        self.totals = state

    def execute(self, tup, collector):
        self.totals.put("words", self.totals.get("words", 0) + tup.words)
        self.totals.put("keys", self.totals.get("keys", 0) + tup.new)

    def preCommit(self, txid):
        """Write the report; after a crash this comes again, and then writes the same file with the same content."""
        report = {"txid": txid, "words": self.totals.get("words", 0), "keys": self.totals.get("keys", 0)}
        path = Path(self.folder, f"{txid:06}.json")
        draft = path.with_suffix(f".{os.getpid()}.draft")
        draft.write_text(json.dumps(report))
        draft.replace(path)
        time.sleep(self.linger)  # noqa: TID251 - no test, and nothing to wait for


def topology(corpus, reports, files, linger=0.0):
    """Build the topology; `files` of the corpus are one transaction, which stays COMMITTING for `linger` seconds."""
    builder = TopologyBuilder("word-count")
    builder.setSpout("lines", FilePartitionedSpout(corpus, "text", maxFiles=files), parallelism=2)
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    builder.setBolt("totals", Totals(str(reports), linger)).globalGrouping("count")
    return builder.createTopology()


def count(corpus, checkpoint, provider, files, linger):
    """Count what has not been counted yet, and show the words that are met most."""
    reports = Path(checkpoint, "..", "reports").resolve()
    reports.mkdir(parents=True, exist_ok=True)
    spark = session("word-count", config={"spark.ui.enabled": "false"})
    query = submit(
        topology(corpus, reports, files, linger),
        spark,
        checkpointLocation=checkpoint,
        config={"topology.state.provider": provider},
        trigger={"availableNow": True},
        progress=False,  # `follow` tells of it
    )
    for recovery in query.recoveries:
        print(f"  transaction {recovery['txid']} had been interrupted: rolled {recovery['rolled']}", flush=True)
    follow(query, reports)
    with Checkpoint(checkpoint).state("count") as counts:
        top = heapq.nlargest(10, counts.items(), key=itemgetter(1))
    print("  most frequent:", ", ".join(f"{word} {times:,}" for word, times in top), flush=True)
    spark.stop()


def follow(query, reports):
    """Print a line for each transaction until the query ends."""
    shown = 0
    ended = False
    while not ended:
        ended = query.awaitTermination(0.2)
        for done in query.recentProgress:
            if done["txid"] > shown and done["numInputRows"]:
                shown = done["txid"]
                words, millis = done["rows"]["count"], sum(done["durationMs"].values())
                keys = json.loads((reports / f"{shown:06}.json").read_text())["keys"]
                print(
                    f"  transaction {shown:3}: {words:9,} words, {words / millis * 1000:9,.0f} words/s, {keys:7,} keys",
                    flush=True,
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", metavar="FOLDER", help="the folder to count")
    parser.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT", help="where state and progress are kept")
    parser.add_argument("--provider", default="rocksdb", help="where state is kept: rocksdb (default) or memory")
    parser.add_argument("--files", type=int, help="demo: use that many of the standard library's files (default: all)")
    parser.add_argument("--batch", type=int, default=150, help="files in one transaction (default: %(default)s)")
    parser.add_argument("--linger", type=float, default=0.0, help="demo: seconds added to each commit")
    options = parser.parse_args()
    if options.corpus is None:
        return demo(options.provider, options.files, options.batch)
    if options.checkpoint is None:
        parser.error("a folder of your own needs a CHECKPOINT folder too")
    return count(options.corpus, options.checkpoint, options.provider, options.batch, options.linger)


if __name__ == "__main__":
    raise SystemExit(main())

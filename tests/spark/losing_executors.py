"""Topologies on two executors, of which one is killed: ``python -m tests.spark.losing_executors WORK NAME ...``.

Prints JSON: what became of each of the topologies that are named.

The executor that runs a certain task is killed, once, when the tasks before it have written what others still read.
"""

import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

import pyarrow as pa

from statefx import StatefulBolt, TopologyBuilder, rescale
from statefx.errors import StatefxError
from statefx.plan.hashing import row_hasher
from tests.conftest import ROOT
from tests.spark.bolts import Once, Pass, recount, word_count
from tests.spark.counting import session, tell
from tests.spark.running import executor, feed, lines_of, reasons, run, state
from tests.spark.spouting import Places, config, expected, outcome, spouts

FILES = {name: [f"{name} b c {number % 7}" for number in range(200)] for name in "abc"}


class Kills(StatefulBolt):
    """Counts how often each key comes, and kills its executor once, in its task 1, in a certain transaction."""

    outputFields = "word string, count long"

    def __init__(self, once, txid):
        self.once = once
        self.txid = txid

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        count = self.counts.get(tup[0], 0) + 1
        self.counts.put(tup[0], count)
        collector.emit((str(tup[0]), count))
        if self.context.txid == self.txid and self.context.task == 1 and self.once:
            os.kill(executor(), signal.SIGKILL)


def between_bolts(spark, work):
    """The bolt at the second level dies; the first level's output of its executor is lost with it."""
    feed(work / "in", **FILES)
    run(
        word_count(lines_of(spark, work / "in"), count=Kills(Once(work), 2)),
        spark,
        work / "ck",
        {"topology.state.provider": "rocksdb"},
        trigger={"availableNow": True},
    )
    assert state(work / "ck", "count") == recount(line for lines in FILES.values() for line in lines)


def random_input(spark, work):
    """The DataFrame gives other keys each time it is computed: what is computed again would go other ways."""
    rows = 20_000
    frame = spark.range(0, rows, 1, 4).selectExpr("id", "java_method('java.util.UUID', 'randomUUID') as key")
    builder = TopologyBuilder("random")
    builder.setStream("rows", frame)
    builder.setBolt("count", Kills(Once(work), 1), parallelism=2).fieldsGrouping("rows", "key")
    run(builder.createTopology(), spark, work / "ck")
    assert state(work / "ck", "count") == dict.fromkeys(range(rows), 1)


def shuffled_input(spark, work):
    """The DataFrame has a shuffle of its own, whose files a second attempt would find half lost."""
    feed(work / "in", **FILES)
    builder = TopologyBuilder("shuffled")
    builder.setStream("lines", lines_of(spark, work / "in").repartition("value"))
    builder.setBolt("pass", Pass("value string"), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Kills(Once(work), 2), parallelism=2).fieldsGrouping("pass", "value")
    run(builder.createTopology(), spark, work / "ck", trigger={"availableNow": True})
    assert state(work / "ck", "count") == Counter(line for lines in FILES.values() for line in lines)


def spout_is_lost(spark, work):
    """One dies while a bolt with state executes; what spouts have emitted on it is lost; four are in flight."""
    spouts_in_flight(spark, work, ("execute",), rows=12)


def spouts_are_lost(spark, work):
    """One dies while a spout emits, one while a bolt with state executes, one in its hook; four are in flight."""
    spouts_in_flight(spark, work, ("emit", "execute", "commit"), rows=40)


def spouts_in_flight(spark, work, phases, rows):
    for number, phase in enumerate(phases):
        Places(work).kill(phase, 2 + 3 * number, "executor")
    run(spouts(work, rows), spark, work / "ck", config(), trigger={"availableNow": True})
    assert outcome(work) == (expected(rows), expected(rows))
    assert all(Once(work, f"killed-{phase}").happened for phase in phases)
    assert Once(work)


def rescaled(spark, work):
    """An executor dies while it gives keys to other tasks; Spark has another do it again."""
    feed(work / "in", **FILES)
    given = {"topology.state.provider": "rocksdb"}
    run(word_count(lines_of(spark, work / "in")), spark, work / "ck", given, trigger={"availableNow": True})
    before, once = state(work / "ck", "count"), Once(work)

    def killing(key):
        if once:
            os.kill(executor(), signal.SIGKILL)
        return key

    done = rescale(work / "ck", {"count": 4}, groupingKey={"count": killing}, spark=spark)
    assert done.keys == len(before) == 10, (done, before)
    assert state(work / "ck", "count") == before
    assert [len(state(work / "ck", "count", task)) for task in range(4)] == spread(before, 4)


def spread(words, tasks):
    """How many words each task has."""
    hashed = row_hasher(pa.schema([("word", pa.string())]), ["word"])
    found = Counter(hashed((word,)) % tasks for word in words)
    return [found[task] for task in range(tasks)]


def executors(spark):
    return spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()


PLAYS = {
    # name: its function, and whether Spark compares checksums of what it computes again
    "between bolts": (between_bolts, "true"),
    "random input": (random_input, "false"),
    "shuffled input": (shuffled_input, "true"),
    "spouts": (spout_is_lost, "true"),
    "spouts, in each phase": (spouts_are_lost, "true"),
    "rescaled": (rescaled, "true"),
}


def main(work, *names):
    spark = session(
        "local-cluster[2,4,1024]",
        **{
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    for name in names:
        play, checksums = PLAYS[name]
        folder = Path(work, name.replace(" ", "-"))
        folder.mkdir()
        for key in ("enabled", "enableFullRetryOnMismatch"):
            spark.conf.set(f"spark.sql.shuffle.orderIndependentChecksum.{key}", checksums)
        try:
            play(spark, folder)
            told = {"killed": Once(folder).happened, "reasons": reasons(folder / "ck")}
        except (StatefxError, AssertionError):
            told = {"error": traceback.format_exc(limit=-3)[-3000:]}
        tell(**{name: told})
    spark.stop()  # else the cluster goes on to replace executors while it ends


if __name__ == "__main__":
    main(*sys.argv[1:])

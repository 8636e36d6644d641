"""Topologies on two executors, of which one is killed: ``python -m tests.spark.losing_executors WORK NAME ...``.

Prints JSON: what became of each of the topologies that are named.

The executor that runs a certain task is killed, once, when the tasks before it have written what others still read.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from statefx import Checkpoint, TopologyBuilder
from statefx.errors import StatefxError, TransactionError
from statefx.plan.hashing import row_hasher
from statefx.spark.internals import task_slots
from tests.bolts import WithState
from tests.conftest import ROOT
from tests.spark.bolts import Once, recount, word_count
from tests.spark.counting import session, tell
from tests.spark.running import executor, feed, lines_of, reasons, run, state, wait_for
from tests.spark.spouting import Places, config, expected, outcome, spouts

FILES = {name: [f"{name} b c {number % 7}" for number in range(200)] for name in "abc"}
ROWS = 4_000
AS_THEY_COME = "java_method('java.util.UUID', 'randomUUID') as key"
"""A column that is another one each time it is computed: rows that Spark computes again go other ways in a shuffle."""


class Kills(WithState):
    """Counts how often each key comes, and kills its executor once, in its task 1, in a certain transaction.

    All rows that it is given are in files, also those of attempts that came to nothing.
    """

    outputFields = "word string, count long"

    def __init__(self, work, txid=None):
        self.work = work
        self.once = Once(work)
        self.txid = txid

    def open(self, context):
        self.context = context
        self.given = Path(self.work, f"given-{os.getpid()}-{context.task}")

    def execute(self, tup, collector):
        with self.given.open("a", encoding="utf-8") as file:
            file.write(f"{' '.join(map(str, tup))}\n")
        count = self.state.get(tup[0], 0) + 1
        self.state.put(tup[0], count)
        collector.emit((str(tup[0]), count))
        if self.context.txid == self.txid and self.context.task == 1 and self.once:
            os.kill(executor(), signal.SIGKILL)
            # Else this process, which outlives the executor for a moment, may ack, and the attempt is committed.
            threading.Event().wait(20)


class KillsWhileStaged:
    def __init__(self, work):
        self.work = work

    def __call__(self, batches):
        for batch in batches:
            if TaskContext.get().partitionId() == 1 and Once(self.work):
                wait_for(lambda: list(Path(self.work).glob("ended-*")), "a task that has ended", 20)
                time.sleep(0.5)  # noqa: TID251 - its result is on its way to the driver, and nobody here sees it come
                os.kill(executor(), signal.SIGKILL)
            yield batch
        Path(self.work, f"ended-{TaskContext.get().partitionId()}").touch()


def kill_one(spark, work):
    """Kill an executor while nothing of statefx runs."""
    assert Once(work)
    os.kill(spark.sparkContext.parallelize(range(8), 8).map(lambda _: executor()).min(), signal.SIGKILL)


def given(work):
    """The rows that bolts were given."""
    return [tuple(line.split(" ", 1)) for path in work.glob("given-*") for line in path.read_text().splitlines()]


def between_bolts(spark, work):
    """The bolt at the second level dies; the first level's output of its executor is lost with it."""
    feed(work / "in", **FILES)
    run(
        word_count(lines_of(spark, work / "in"), count=Kills(work, 2)),
        spark,
        work / "ck",
        {"topology.state.provider": "rocksdb"},
        trigger={"availableNow": True},
    )
    assert state(work / "ck", "count") == recount(line for lines in FILES.values() for line in lines)


def rows(spark, start=0):
    return spark.range(start, start + ROWS, 1, 4).selectExpr("id", AS_THEY_COME)


def counting(frame, work, txid=None):
    builder = TopologyBuilder("random")
    builder.setStream("rows", frame)
    builder.setBolt("count", Kills(work, txid), parallelism=2).fieldsGrouping("rows", frame.columns[-1])
    return builder.createTopology()


def count_rows(spark, frame, work, txid=None):
    """Run a batch; each row counts once, whatever its key."""
    run(counting(frame, work, txid), spark, work / "ck")
    assert state(work / "ck", "count") == dict.fromkeys(range(ROWS), 1)


def random_input(spark, work):
    """A bolt's executor dies: another attempt reads the very rows that were staged, with their keys."""
    count_rows(spark, rows(spark), work, 1)
    assert len(given(work)) > len(set(given(work))) == ROWS


def random_input_staged(spark, work):
    """An executor dies in the only stage of the job that stages."""
    count_rows(spark, rows(spark).mapInArrow(KillsWhileStaged(work), "id long, key string"), work)


def random_input_shuffled(spark, work):
    """One dies behind the shuffle; what it has lost of that is computed again, and goes other ways."""
    frame = rows(spark).repartition(4, "key").mapInArrow(KillsWhileStaged(work), "id long, key string")
    count_rows(spark, frame, work)


def cached_input(spark, work):
    """One dies that has a part of a cache."""
    frame = rows(spark).cache()
    frame.count()
    count_rows(spark, frame.mapInArrow(KillsWhileStaged(work), "id long, key string"), work)


def cached_shuffle(spark, work):
    """One dies that has a part of a cache, and of the shuffle which it comes out of, before that is staged."""
    frame = rows(spark).repartition(4, "key").cache()
    frame.count()
    kill_one(spark, work)
    count_cached(spark, frame, work, lambda frame: frame)


def cached_shuffle_staged(spark, work):
    """The same while it is staged."""
    frame = rows(spark).repartition(4, "key").cache()
    frame.count()
    count_cached(spark, frame, work, lambda frame: frame.mapInArrow(KillsWhileStaged(work), "id long, key string"))


def unmade_cached_shuffle_staged(spark, work):
    """The same, of a cache that is made while it is staged."""
    frame = rows(spark).repartition(4, "key").cache()
    count_cached(spark, frame, work, lambda frame: frame.mapInArrow(KillsWhileStaged(work), "id long, key string"))


def count_cached(spark, cached, work, then):
    """Run a batch; whatever Spark computes again may not fit the rest, and then the cache has to be made again."""
    try:
        count_rows(spark, then(cached), work)
    except TransactionError:
        cached.unpersist()
        count_rows(spark, then(rows(spark).repartition(4, "key").cache()), work)


def stream(spark, work, txid, then):
    """A stream with a shuffle of its own, whose keys are others each time."""
    feed(work / "in", **{name: range(number * 1000, number * 1000 + 1000) for number, name in enumerate("abc")})
    frame = lines_of(spark, work / "in").selectExpr("int(value) as id", AS_THEY_COME).repartition(4, "key")
    run(counting(then(frame), work, txid), spark, work / "ck", trigger={"availableNow": True})
    assert state(work / "ck", "count") == dict.fromkeys(range(3000), 1)


def shuffled_stream(spark, work):
    """A bolt's executor dies, and with it half of the shuffle's files."""
    stream(spark, work, 2, lambda frame: frame)
    assert len(given(work)) > len(set(given(work))) == 3000


def shuffled_stream_staged(spark, work):
    """One dies behind the shuffle."""
    stream(spark, work, None, lambda frame: frame.mapInArrow(KillsWhileStaged(work), "id int, key string"))


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
    settings = {"topology.state.provider": "rocksdb"}
    run(word_count(lines_of(spark, work / "in")), spark, work / "ck", settings, trigger={"availableNow": True})
    before, once = state(work / "ck", "count"), Once(work)

    def killing(key):
        if once:
            os.kill(executor(), signal.SIGKILL)
        return key

    done = Checkpoint(work / "ck").rescale({"count": 4}, groupingKey={"count": killing}, spark=spark)
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
    "random input, staged": (random_input_staged, "false"),
    "random input, shuffled": (random_input_shuffled, "false"),
    "cached input": (cached_input, "false"),
    "cached shuffle": (cached_shuffle, "false"),
    "cached shuffle, staged": (cached_shuffle_staged, "false"),
    "unmade cached shuffle, staged": (unmade_cached_shuffle_staged, "false"),
    "shuffled stream": (shuffled_stream, "false"),
    "shuffled stream, staged": (shuffled_stream_staged, "false"),
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
        # With one executor, one task would stage, and none would be killed when another one has ended.
        wait_for(lambda: task_slots(spark.sparkContext) == 8, "both executors")
        spark.catalog.clearCache()  # a cache of one play would be another one's too, as its plan is the same
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

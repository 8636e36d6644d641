"""Sessions that come and go in one JVM, some in a transaction: ``python -m tests.spark.stopping_sessions WORK``.

It prints JSON.
"""

import json
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

import statefx
from statefx import TopologyBuilder, submit
from statefx.connectors import CollectSink, ForeachTransactionSink, MemoryTransactionalSpout
from statefx.errors import ConfigError, StatefxError
from statefx.spark import internals
from tests.bolts import Count, Split
from tests.spark.bolts import Once, word_count
from tests.spark.counting import session, tell
from tests.spark.running import feed, kinds, lines_of, wait_for
from tests.spark.spouting import begun
from tests.spark.test_drivers import held


class Held(Split):
    def __init__(self, once, hold):
        self.once = once
        self.hold = hold

    def execute(self, tup, collector):
        if self.once:
            held(self.hold)
        super().execute(tup, collector)


def spouted(split):
    builder = TopologyBuilder("spouted")
    builder.setSpout("lines", MemoryTransactionalSpout([[("a b",)] * 20], "value string"))
    builder.setBolt("split", split).shuffleGrouping("lines")
    builder.setBolt("count", Count()).fieldsGrouping("split", "word")
    return builder.createTopology()


def play(name, place):
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    feed(place / "in", a=["a b"] * 20)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    lines = lines_of(spark, place / "in") if name == "stream" else spark.read.text(str(place / "in"))
    topology = spouted(Held(once, hold)) if name == "spouts" else word_count(lines, split=Held(once, hold))
    query = submit(topology, spark, place / "ck")
    wait_for(lambda: once.happened, "the transaction to be at work")
    spark.stop()
    wait_for(lambda: not query.isActive, "the query to end")
    tell(**{name: {"error": told(query), "log": kinds(place / "ck")}})
    hold.unlink()


def told(query):
    error = query.exception()
    return error and f"{type(error).__name__}: {error}"


def play_idle(place):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    feed(place / "in", a=["a b"])
    query = submit(word_count(lines_of(spark, place / "in")), spark, place / "ck")
    query.processAllAvailable()
    spark.stop()
    wait_for(lambda: not query.isActive, "the query that waits for input to end")
    tell(idle={"error": query.exception(), "log": kinds(place / "ck")})


def written(spark, place, sink):
    builder = TopologyBuilder("written")
    builder.setStream("lines", spark.createDataFrame([("a",)], "value string"))
    builder.setSink("out", sink).globalGrouping("lines")
    return submit(builder.createTopology(), spark, place / "ck")


def away(frame, txid):
    raise OSError("it is away")


def play_away(place):
    """The session is stopped while a commit is tried again and again."""
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    query = written(spark, place, ForeachTransactionSink(away))
    wait_for(lambda: "it is away" in str(query.status.get("stuck")), "the commit to fail")
    spark.stop()
    wait_for(lambda: not query.isActive, "the query whose sink is away to end")
    tell(away={"error": told(query), "log": kinds(place / "ck")})


def play_begun(place):
    """The session is stopped between the beginning of a commit's thread and the commit."""
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    own = internals.own_properties

    def stopping(context):
        if threading.current_thread().name == "statefx-out-1":
            spark.stop()
        return own(context)

    internals.own_properties, sink = stopping, CollectSink()
    query = written(spark, place, sink)
    wait_for(lambda: not query.isActive, "the query whose commit has begun to end")
    internals.own_properties = own
    tell(begun={"error": told(query), "rows": sink.rows, "log": kinds(place / "ck")})


QUIET = {"spark.ui.enabled": "false"}


def look(batches):
    """Tell of the worker that runs this; it takes two seconds, after half of which Spark would draw its bar."""
    import time

    for _ in batches:
        pass
    there = sorted({"pandas", "statefx.runtime.chain"} & set(sys.modules))
    import numpy as np
    import pyarrow as pa

    # threads of Arrow and of OpenBLAS, which no fork takes along
    sums = pa.table({"key": list(range(1000)) * 100}).group_by("key").aggregate([([], "count_all")])
    product = np.ones((300, 300)) @ np.ones((300, 300))
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
    import pyspark.worker

    compiled = os.path.exists(pyspark.worker.__cached__)
    found = [os.getpid(), parent, there, sums.num_rows, product[0, 0], compiled]
    time.sleep(1)  # noqa: TID251 - so that each task has a worker of its own
    yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})


def play_own():
    """What workers of statefx's session have loaded."""
    spark = statefx.session(config=QUIET)
    rows = spark.range(0, 4, 1, 4).mapInArrow(look, "found string").collect()
    tell(own=[json.loads(row.found) for row in rows])
    spark.stop()


def play_after_another(place):
    """A session that runs already can't be made one of statefx's; the remedy that is told works, as a whole."""
    place.mkdir()
    former = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    feed(place / "in", a=["a b"])
    kept = {
        "batch": word_count(former.createDataFrame([("a b",)], "value string")),
        "stream": word_count(lines_of(former, place / "in")),
    }
    refused = ""
    try:
        submit(*begun(statefx.session(config=QUIET), place, {"each": 1}))
    except ConfigError as error:
        refused = str(error)
    statefx.session().stop()
    spark = statefx.session(config=QUIET)
    query = submit(*begun(spark, place, {"each": 1}))
    query.awaitTermination()
    tell(after_another={"refused": refused, "kept": {name: said_of(kept[name], spark, place / name) for name in kept}})
    frame = spark.newSession().createDataFrame([("a b",)], "value string")
    submit(word_count(frame), spark, place / "new").awaitTermination()
    tell(new_session=kinds(place / "new"))
    spark.stop()


def said_of(topology, spark, location):
    """Return what a submit that is refused says, and whether it has begun a checkpoint."""
    try:
        submit(topology, spark, location).awaitTermination()
    except StatefxError as error:
        return f"{type(error).__name__}: {error}", location.exists()
    return "", location.exists()


def main(work):
    play_after_another(Path(work, "after another"))  # first: a session of statefx's leaves its settings to the next one
    play_own()
    own = {"idle": play_idle, "away": play_away, "begun": play_begun}
    for name in ("stream", "batch", "idle", "spouts", "away", "begun"):
        place = Path(work, name)
        place.mkdir()
        own[name](place) if name in own else play(name, place)


if __name__ == "__main__":
    main(sys.argv[1])

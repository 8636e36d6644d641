"""A session that is stopped in a transaction: ``python -m tests.spark.stopping_sessions WORK``; prints JSON."""

import os
import sys
from pathlib import Path

from statefx import TopologyBuilder, submit
from statefx.connectors import MemoryTransactionalSpout
from tests.spark.bolts import Count, Once, Split, word_count
from tests.spark.counting import session, tell
from tests.spark.running import feed, kinds, lines_of, wait_for
from tests.spark.spouting import PIPELINED
from tests.spark.test_faults import held


class Held(Split):
    """Waits, once, as long as a file exists."""

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
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd(), **PIPELINED})
    feed(place / "in", a=["a b"] * 20)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    lines = lines_of(spark, place / "in") if name == "stream" else spark.read.text(str(place / "in"))
    topology = spouted(Held(once, hold)) if name == "spouts" else word_count(lines, split=Held(once, hold))
    query = submit(topology, spark, place / "ck")
    engine = query.status["engine"]
    wait_for(lambda: once.happened, "the transaction to be at work")
    spark.stop()
    wait_for(lambda: not query.isActive, "the query to end")
    error = query.exception()
    ended = error and f"{type(error).__name__}: {error}"
    tell(**{name: {"error": ended, "log": kinds(place / "ck"), "engine": engine}})
    hold.unlink()


def play_idle(place):
    spark = session("local[2]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    feed(place / "in", a=["a b"])
    query = submit(word_count(lines_of(spark, place / "in")), spark, place / "ck")
    query.processAllAvailable()
    spark.stop()
    wait_for(lambda: not query.isActive, "the query that waits for input to end")
    tell(idle={"error": query.exception(), "log": kinds(place / "ck")})


def main(work):
    for name in ("stream", "batch", "idle", "spouts"):
        place = Path(work, name)
        place.mkdir()
        play_idle(place) if name == "idle" else play(name, place)


if __name__ == "__main__":
    main(sys.argv[1])

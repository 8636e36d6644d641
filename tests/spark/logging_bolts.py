"""A script whose bolts log, with DataFrames and with a spout: ``python -m tests.spark.logging_bolts FOLDER``."""

import logging
import sys

import statefx
from statefx import StatefulBolt, TopologyBuilder, submit
from statefx.connectors.memory import MemoryTransactionalSpout


class Logs(StatefulBolt):
    def __init__(self, engine):
        self.engine = engine

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        logging.getLogger("shop.bolts").info("%s counted %s", self.engine, tup.word)
        logging.getLogger("shop.quiet").info("%s is not to be heard", self.engine)
        self.state.put(tup.word, 1)


def main(folder):
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("shop.quiet").setLevel(logging.WARNING)
    spark = statefx.session("logging", config={"spark.log.level": "ERROR"})
    for engine in ("jobs", "pipelined"):
        builder = TopologyBuilder(engine)
        if engine == "jobs":
            builder.setStream("words", spark.createDataFrame([("a",)], "word string"))
        else:
            builder.setSpout("words", MemoryTransactionalSpout([[("a",)]], "word string"))
        builder.setBolt("logs", Logs(engine)).globalGrouping("words")
        trigger = None if engine == "jobs" else {"availableNow": True}
        query = submit(builder.createTopology(), spark, f"{folder}/{engine}", trigger=trigger)
        query.awaitTermination()
        assert query.status["engine"] == engine
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

"""A script whose bolts log: ``python -m tests.spark.logging_bolts FOLDER``."""

import logging
import sys

import statefx
from statefx import TopologyBuilder, submit
from tests.bolts import WithState


class Logs(WithState):
    def execute(self, tup, collector):
        logging.getLogger("shop.bolts").info("counted %s", tup.word)
        logging.getLogger("shop.quiet").info("is not to be heard")
        self.state.put(tup.word, 1)


def main(folder):
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("shop.quiet").setLevel(logging.WARNING)
    spark = statefx.session("logging", config={"spark.log.level": "ERROR"})
    builder = TopologyBuilder("logging")
    builder.setStream("words", spark.createDataFrame([("a",)], "word string"))
    builder.setBolt("logs", Logs()).globalGrouping("words")
    submit(builder.createTopology(), spark, folder).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

"""Scripts as a new user writes them, each with one mistake: what does it print? Run as ``python -m``."""

import sys
import threading

from pyspark.sql import SparkSession

from statefx import BasicBolt, TopologyBuilder, submit


class Divide(BasicBolt):
    def execute(self, tup, collector):
        self.divide(tup.n)

    def divide(self, n):
        return 1 / n


def main(mistake, place):
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    builder = TopologyBuilder("zero")
    builder.setStream(
        "numbers", numbers.selectExpr("value" + (" - value as n" if mistake != "not waiting" else " + 1 as n"))
    )
    builder.setBolt("divide", Divide(), parallelism=2).shuffleGrouping("numbers")
    query = submit(builder.createTopology(), spark, place)
    sys.stderr.write("submitted\n")
    sys.stderr.flush()
    if mistake == "failing":
        query.awaitTermination(120)
    elif mistake == "failing unheard":
        looks = threading.Event()
        while query.isActive:
            looks.wait(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])

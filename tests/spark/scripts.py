"""Scripts as a new user writes them, with mistakes: what do they print? Run as ``python -m``."""

import sys
import threading

from pyspark.sql import SparkSession

from statefx import BasicBolt, TopologyBuilder, submit


class Divide(BasicBolt):
    def execute(self, tup, collector):
        self.divide(tup.n)

    def divide(self, n):
        return 1 / n


def begin(spark, name, column, place):
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    builder = TopologyBuilder(name)
    builder.setStream("numbers", numbers.selectExpr(column))
    builder.setBolt("divide", Divide(), parallelism=2).shuffleGrouping("numbers")
    query = submit(builder.createTopology(), spark, f"{place}/{name}")
    sys.stderr.write(f"{name} submitted\n")
    sys.stderr.flush()
    return query


def main(mistake, place):
    spark = SparkSession.builder.master("local[8]").config("spark.ui.enabled", "false").getOrCreate()
    query = begin(spark, "zero", "value - value as n", place)
    if mistake == "waiting":
        query.awaitTermination(120)
    looks = threading.Event()
    while query.isActive:
        looks.wait(0.05)
    begin(spark, "sound", "value + 1 as n", place)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A script as a new user writes it: ``python -m tests.spark.terminal FOLDER``."""

import sys
import time

from pyspark.sql import SparkSession

from statefx import submit
from tests.bolts import Split
from tests.spark.bolts import word_count
from tests.spark.running import feed, lines_of


class Slow(Split):
    def execute(self, tup, collector):
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            pass
        super().execute(tup, collector)


def main(folder):
    spark = SparkSession.builder.master("local[8]").config("spark.ui.enabled", "false").getOrCreate()
    for name in ("first", "second"):
        feed(f"{folder}/{name}", a=["x y"], b=["x"])
        topology = word_count(lines_of(spark, f"{folder}/{name}"), name, split=Slow())
        query = submit(topology, spark, f"{folder}/ck-{name}")
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

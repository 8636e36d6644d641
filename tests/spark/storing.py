"""All that may be done to a checkpoint from Spark, done once: ``python -m tests.spark.storing SETTINGS`` (JSON).

A process of its own: workers have the environment that there was when its JVM began, credentials of a store among it.
"""

import json
import os
import sys

from statefx import Checkpoint, submit
from tests.bolts import Count
from tests.spark.bolts import word_count
from tests.spark.counting import ONCE, session, tell
from tests.spark.running import feed, lines_of, run


class Counted(Count):
    def groupingKey(self, key):  # there are only a few different ones
        return key


TEXTS = {name: [f"{name} b c {number % 7}" for number in range(10)] for name in "abc"}


def main(work, location, **settings):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    feed(f"{work}/in", a=TEXTS["a"], b=TEXTS["b"])
    lines, config = lines_of(spark, f"{work}/in"), {"topology.state.provider": "rocksdb"}

    def topology(parallelism=2):
        return word_count(lines, parallelism=parallelism, count=Counted())

    query = submit(topology(), spark, location, config)
    query.processAllAvailable()
    taken = query.savepoint("two")
    feed(f"{work}/in", c=TEXTS["c"])
    query.processAllAvailable()
    query.stop()
    tell(savepoint=taken.txid, counted=counts(spark, location))
    changed = Checkpoint(location).toDataFrame(spark, "count", diff=("two", 3)).collect()
    tell(changed=sorted((row["op"], json.loads(row["key"])) for row in changed))
    Checkpoint(location).restore("two")
    tell(restored=counts(spark, location))
    rows = spark.createDataFrame([('"z"', "7")], "key string, value string")
    Checkpoint(location).write("count", rows, groupingKey=lambda key: key)
    again = run(topology(3), spark, location, config, ONCE, rescale=True)
    tell(rescaled=counts(spark, location), committed=again.lastProgress["txid"], partitions=parts(spark, location))


def counts(spark, location):
    return {
        json.loads(row["key"]): json.loads(row["value"])
        for row in Checkpoint(location).toDataFrame(spark, "count").collect()
    }


def parts(spark, location):
    return Checkpoint(location).toDataFrame(spark, "count").rdd.getNumPartitions()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

"""Two topologies, the second reads what the first publishes: ``python -m tests.spark.chaining SETTINGS`` (JSON).

The first splits lines into words, the second counts them. They run in two processes, or both in one.
"""

import json
import os
import sys

from statefx import FileSink, TopologyBuilder, readCommitted, submit
from tests.spark.bolts import Count, Split
from tests.spark.counting import session
from tests.spark.drivers import ON, ONCE
from tests.spark.running import lines_of


def splitting(spark, work):
    builder = TopologyBuilder("words")
    builder.setStream("lines", lines_of(spark, f"{work}/in"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setSink("out", FileSink(f"{work}/out", maxFileBytes=1), parallelism=2).localOrShuffleGrouping("split")
    return builder.createTopology()


def counting(spark, work, reads):
    builder = TopologyBuilder("counts")
    builder.setStream("words", readCommitted(spark, reads, stream=True))
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("words", "word")
    builder.setSink("out", FileSink(f"{work}/out"), parallelism=2).localOrShuffleGrouping("count")
    return builder.createTopology()


def both(spark, work, second):
    """Run both to the end of what there is."""
    first = submit(splitting(spark, work), spark, f"{work}/ck", trigger=ONCE)
    counts = submit(counting(spark, second, f"{work}/out"), spark, f"{second}/ck", trigger=ON)
    first.awaitTermination()
    counts.processAllAvailable()
    counts.stop()


def main(work, provider, options, trigger):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    match options:
        case {"reads": reads}:
            submit(counting(spark, work, reads), spark, f"{work}/ck", trigger=trigger).awaitTermination()
        case {"feeds": second}:
            both(spark, work, second)
        case _:
            submit(splitting(spark, work), spark, f"{work}/ck", trigger=trigger).awaitTermination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

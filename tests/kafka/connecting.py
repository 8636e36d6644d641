"""Counts the records of a topic, read by Spark's own connector: a driver of its own, to be killed.

``python -m tests.kafka.connecting SETTINGS`` (JSON); it waits in phases as `tests.spark.counting` does.
"""

import json
import os
import sys

from statefx import TopologyBuilder
from tests.kafka.libraries import connector
from tests.spark.counting import Held, run, session


def main(work, provider, options, trigger):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd(), "spark.jars": connector()})
    lines = spark.readStream.format("kafka").options(**options).load().selectExpr("CAST(value AS STRING) AS word")
    builder = TopologyBuilder("connected")
    builder.setStream("lines", lines)
    builder.setBolt("count", Held(work, since=1), parallelism=2).fieldsGrouping("lines", "word")
    run(builder.createTopology(), spark, f"{work}/ck", {"topology.state.provider": provider}, trigger)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

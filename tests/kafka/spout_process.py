"""Counts the records of topics, four transactions in flight, whose tasks wait where a test says so: to be ended.

``python -m tests.kafka.spout_process SETTINGS`` (JSON).
"""

import json
import os
import signal
import sys

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink, KafkaSpout
from tests.spark.counting import run, session
from tests.spark.spouting import HeldCount, Places, config
from tests.spouts.kafka_topologies import QUICK


class Held(KafkaSpout):
    """Waits, or has its worker killed, between the records of a batch."""

    def __init__(self, work, *given, **options):
        super().__init__(*given, **options)
        self.places = Places(work)

    def open(self, context):
        self.context = context
        super().open(context)

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        for _ in super().emitPartitionBatch(attempt, collector, partition, metadata):
            self.places.pass_by("emit", self.context, attempt.txid)
            yield


def topology(work, options):
    reads = Held(
        work, options["servers"], options["topics"], "json", "number long", columns=("value",), maxRows=options["rows"],
        config=QUICK,
    )  # fmt: skip
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads, parallelism=2)
    builder.setBolt("count", HeldCount(work)).fieldsGrouping("records", "number")
    if "writes" in options:
        sink = KafkaSink(options["servers"], options["writes"], config=QUICK)
        builder.setSink("out", sink).shuffleGrouping("records")
    return builder.createTopology()


def main(work, provider, options, trigger):
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    run(topology(work, options), spark, f"{work}/ck", config(provider), trigger)


if __name__ == "__main__":
    # A shell has what it starts in the background ignore SIGINT, and so do all that is started from there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(**json.loads(sys.argv[1]))

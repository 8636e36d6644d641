"""Counts the records of topics, four transactions in flight, whose tasks wait where a test says so: to be killed.

``python -m tests.kafka.spout_process SETTINGS`` (JSON).
"""

import json
import os
import sys

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSpout
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


def main(work, provider, options, trigger):
    spark = session("local[2]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    reads = Held(
        work, options["servers"], options["topics"], "json", "number long", columns=("value",), maxRows=options["rows"],
        config=QUICK,
    )  # fmt: skip
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads, parallelism=2)
    builder.setBolt("count", HeldCount(work)).fieldsGrouping("records", "number")
    run(builder.createTopology(), spark, f"{work}/ck", config(provider), trigger)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

"""Topologies that count what a KafkaSpout emits."""

import json

from confluent_kafka import TopicPartition

from statefx import StatefulBolt, TopologyBuilder
from statefx.connectors.kafka import KafkaSpout

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "fetch.wait.max.ms": 20}


class Count(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        row = tuple(tup)
        self.counts[row] = self.counts.get(row, 0) + 1


class Meanwhile(Count):
    does = staticmethod(lambda tup: None)

    def execute(self, tup, collector):
        Meanwhile.does(tup)
        super().execute(tup, collector)


def spout(kafka, topics, value="string", schema=None, kind=KafkaSpout, **options):
    given = {"columns": ("value",), "config": QUICK, "patience": 20.0, **options}
    return kind(kafka.address, topics, value, schema, **given)


def topology(reads, bolt=None, parallelism=2):
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads, parallelism=parallelism)
    builder.setBolt("count", bolt or Count(), parallelism=2).fieldsGrouping("records", reads.rows.schema.names[0])
    return builder.createTopology()


def counted(tester):
    return {row[0]: count for row, count in tester.state("count").items()}


def once(*values):
    return dict.fromkeys(values, 1)


def lines(start, stop):
    return [f"line {number}" for number in range(start, stop)]


def as_json(*rows):
    return [json.dumps(row) for row in rows]


def trim(kafka, topic, before):
    place = TopicPartition(topic, 0, before)
    kafka.admin.delete_records([place])[place].result(30)

"""What KafkaSink writes into a topic of a real broker, KafkaSpout reads."""

import pytest

from statefx.connectors.kafka import KafkaSink, KafkaSpout
from tests.connectors.round_trips import RoundTrips, emitted
from tests.spouts.kafka_topologies import QUICK

pytestmark = pytest.mark.slow


class TestTopic(RoundTrips):
    examples = 5

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _broker(cls, kafka):
        cls.broker, cls.topics = kafka, {}

    def topic(self, place):
        if place not in self.topics:
            self.topics[place] = self.broker.topic()
        return self.topics[place]

    def sink(self, place, schema):
        return KafkaSink(self.broker.address, self.topic(place))

    def read(self, place, schema):
        self.broker.settle(self.topic(place))
        options = {"columns": ("value",), "config": QUICK, "patience": 20.0}
        spout = KafkaSpout(self.broker.address, self.topic(place), "json", schema, **options)
        return emitted(spout, schema, place)

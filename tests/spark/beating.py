"""Bolts whose timers set the next one: a topology that goes on though nothing is there to read."""

from datetime import timedelta

from statefx import StatefulBolt, TopologyBuilder, submit, transactions
from statefx.connectors import MemoryTransactionalSpout
from tests.spark.running import state, wait_for


class Beats(StatefulBolt):
    """Sets a timer again and again, a quarter of a second later, for each word that it was given."""

    outputFields = "word string, beat long"

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.beats = state

    def execute(self, tup, collector):
        self.set(tup.value)

    def onTimer(self, word, time, value, collector):
        self.beats.put(word, self.beats.get(word, 0) + 1)
        collector.emit((word, self.beats.get(word)))
        self.set(word)

    def set(self, word):
        self.timers.set(word, self.context.processingTime + timedelta(seconds=0.25), processing=True)


class Heard(StatefulBolt):
    """Keeps the last beat of each word, and refuses one that comes twice or too early."""

    def initState(self, state):
        self.last = state

    def execute(self, tup, collector):
        assert tup.beat == self.last.get(tup.word, 0) + 1
        self.last.put(tup.word, tup.beat)


def beat_twice(spark, place, config):
    """Start it two times, each until some beats are heard; return state, and how many transactions there were."""
    builder = TopologyBuilder("beating")
    builder.setSpout("words", MemoryTransactionalSpout([[("a",), ("b",)]], "value string"))
    builder.setBolt("beats", Beats(), 2).fieldsGrouping("words", "value")
    builder.setBolt("heard", Heard(), 2).fieldsGrouping("beats", "word")
    topology = builder.createTopology()
    for beats in (2, 4):
        query = submit(topology, spark, place, config)
        try:
            wait_for(lambda least=beats: _least(place) >= least, f"{beats} beats")
        finally:
            query.stop()
    return {
        "beats": state(place, "beats"),
        "heard": state(place, "heard"),
        "transactions": len(transactions(place)),
    }


def _least(place):
    heard = state(place, "heard")
    return min(heard.get(word, 0) for word in "ab")

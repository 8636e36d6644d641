"""Bolts that tests of several folders share; a test has a class of its own where the class is what it tests."""

from statefx import BasicBolt, StatefulBolt
from statefx.errors import FailedException


class WithState(StatefulBolt):
    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state


class Split(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        for word in tup.value.split():
            collector.emit((word,))


class Count(WithState):
    """Counts words, and emits each new count."""

    outputFields = "word string, count long"

    def execute(self, tup, collector):
        count = self.state.get(tup.word, 0) + 1
        self.state.put(tup.word, count)
        collector.emit((tup.word, count))


class Tally(WithState):
    """Counts in its state how often the values of some fields came; those of all fields if none is named."""

    def __init__(self, *fields):
        self.fields = fields

    def execute(self, tup, collector):
        values = tuple(tup[field] for field in self.fields) if self.fields else tuple(tup)
        key = values[0] if len(self.fields) == 1 else values
        self.state.put(key, self.state.get(key, 0) + 1)


class Pass(BasicBolt):
    """Emits each row as it came."""

    def __init__(self, fields):
        self.outputFields = fields

    def execute(self, tup, collector):
        collector.emit(tuple(tup))


class FailsOnce(Pass):
    """Fails the first attempt, of one transaction or of each; passes rows on in the others."""

    def __init__(self, fields, txid=None):
        super().__init__(fields)
        self.txid = txid

    def execute(self, tup, collector):
        if collector.attempt.attempt == 0 and self.txid in (None, collector.attempt.txid):
            raise FailedException("not at the first attempt")
        super().execute(tup, collector)


class Ignores(BasicBolt):
    """Reads a stream that has to be read by somebody."""

    def execute(self, tup, collector):
        pass

"""Checkpoints that pages show."""

from statefx import BasicBolt, StatefulBolt, TopologyBuilder, TransactionalSpout
from statefx.testing import TopologyTester, rows


class Balances(StatefulBolt):
    """Adds up by account; an amount of 0 is an error of its own."""

    outputFields = "account string, balance long"

    def initState(self, state):
        self.balances = state
        self.seen = state.map("seen")

    def execute(self, tup, collector):
        if not tup.cents:
            raise ValueError(f"nothing for {tup.account}")
        balance = self.balances.get(tup.account, 0) + tup.cents
        self.balances.put(tup.account, balance)
        self.seen.put(tup.account, tup.cents)
        collector.emit((tup.account, balance))


class Refused(BasicBolt):
    """Reads dead letters."""

    def execute(self, tup, collector):
        pass


def bank(name="bank", onError="quarantineKey"):
    builder = TopologyBuilder(name)
    builder.setStream("payments", rows("account string, cents long"))
    builder.setBolt("balances", Balances(), parallelism=2, onError=onError).fieldsGrouping("payments", "account")
    if onError != "fail":
        builder.setBolt("refused", Refused()).shuffleGrouping("balances", stream="deadLetter")
    return builder.createTopology()


def filled(place, transactions=3, bad=(), name="bank"):
    """Make a checkpoint of some transactions; of accounts in `bad` a row each is an error."""
    with TopologyTester(bank(name), place) as tester:
        for number in range(transactions):
            tester.send({"payments": [("ann", 100 + number), ("bob", 7), ("<script>alert(1)</script>", 1)]})
        if bad:
            tester.send({"payments": [(account, 0) for account in bad]})
    return place


class Payments(TransactionalSpout):
    """Some payments in each transaction, for ever; of transaction `bad` one is an error."""

    outputFields = "account string, cents long"

    def __init__(self, bad=0):
        self.bad = bad

    def initializeTransaction(self, txid, previous):
        return txid

    def emitBatch(self, attempt, metadata, collector):
        for number in range(20):
            collector.emit((f"account-{number}", metadata))
        if metadata == self.bad:
            collector.emit(("account-0", 0))


def flowing(bad=0, name="bank"):
    """A topology that runs until it is stopped."""
    builder = TopologyBuilder(name)
    builder.setSpout("payments", Payments(bad))
    builder.setBolt("balances", Balances(), parallelism=2, onError="skip").fieldsGrouping("payments", "account")
    builder.setBolt("told", Refused()).shuffleGrouping("balances")
    return builder.createTopology()

"""A bolt changes what it keeps; values that its former version has stored are brought up to date as they are read."""

import tempfile

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, session, submit


class InEuros(StatefulBolt):
    """What each customer has spent."""

    def initState(self, state):
        self.spent = state

    def execute(self, tup, collector):
        self.spent.put(tup.name, self.spent.get(tup.name, 0) + tup.cents / 100)


class InCents(StatefulBolt):
    """The same as whole numbers."""

    stateVersion = 2

    def initState(self, state):
        self.spent = state

    def migrateState(self, version, key, value):
        return round(value * 100)

    def execute(self, tup, collector):
        self.spent.put(tup.name, self.spent.get(tup.name, 0) + tup.cents)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="statefx-upgrade-") as work:
        spark = session("upgrade-state", config={"spark.ui.enabled": "false"})
        days = (InEuros(), [("ann", 1250), ("bob", 500)]), (InCents(), [("ann", 99)])
        for day, (bolt, payments) in enumerate(days):
            builder = TopologyBuilder("spent")
            builder.setStream("payments", spark.createDataFrame(payments, "name string, cents long"))
            builder.setBolt("spent", bolt, parallelism=2).fieldsGrouping("payments", "name")
            submit(builder.createTopology(), spark, f"{work}/checkpoint", batchId=day).awaitTermination()
            with Checkpoint(f"{work}/checkpoint").state("spent") as stored:
                print(f"{type(bolt).__name__} has stored {dict(stored.items())}")
        with Checkpoint(f"{work}/checkpoint").state("spent", migrate=bolt.migrateState) as spent:
            print(f"and reads {dict(spent.items())}")
        spark.stop()

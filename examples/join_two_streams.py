"""Orders and payments come as two streams, in any order; a sale is made when both sides of an order are there.

Each id comes once in each stream, and waits as long as it takes; with time limits: docs/cookbook/windows.md.
"""

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from statefx import StatefulBolt, TopologyBuilder, openState, submit


class Join(StatefulBolt):
    """Keeps what has come of an order until the rest is there."""

    outputFields = "id long, item string, cents long"

    def initState(self, state):
        self.waiting = state

    def execute(self, tup, collector):
        seen = self.waiting.get(tup.id, {})
        seen |= {"item": tup.item} if tup._source == "orders" else {"cents": tup.cents}
        if len(seen) == 2:
            collector.emit((tup.id, seen["item"], seen["cents"]))
            self.waiting.delete(tup.id)
        else:
            self.waiting.put(tup.id, seen)


class Sales(StatefulBolt):
    def initState(self, state):
        self.sales = state

    def execute(self, tup, collector):
        self.sales.put(tup.id, (tup.item, tup.cents))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="statefx-join-") as work:
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        builder = TopologyBuilder("sales")
        for name, schema in {"orders": "id long, item string", "payments": "id long, cents long"}.items():
            Path(work, name).mkdir()
            builder.setStream(name, spark.readStream.schema(schema).json(f"{work}/{name}"))
        builder.setBolt("join", Join(), parallelism=2).fieldsGrouping("orders", "id").fieldsGrouping("payments", "id")
        builder.setBolt("sales", Sales()).globalGrouping("join")
        query = submit(builder.createTopology(), spark, checkpointLocation=f"{work}/checkpoint")
        orders = [{"id": 1, "item": "book"}, {"id": 2, "item": "lamp"}, {"id": 3, "item": "vase"}]
        payments = [{"id": 2, "cents": 4900}, {"id": 1, "cents": 1250}]
        for name, rows in (("orders", orders), ("payments", payments)):  # each in a transaction of its own
            Path(work, name, "1.json").write_text("\n".join(map(json.dumps, rows)))
            query.processAllAvailable()
        query.stop()
        spark.stop()
        with openState(f"{work}/checkpoint", "sales") as sales, openState(f"{work}/checkpoint", "join") as waiting:
            print(f"sold: {dict(sales.items())}\nwaiting: {dict(waiting.items())}")

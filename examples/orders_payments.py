"""Orders and payments, up to an hour apart: an interval join, and what becomes of rows without a partner.

Orders that nobody has paid for within the hour are reminded of, and payments that come when their time is long over are
set aside. The driver is killed when it reminds for the first time, and started again; a plain recount says what there
is to come out.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

from statefx import BasicBolt, IntervalJoin, TopologyBuilder, session, submit
from statefx.connectors.files import FileSink, committedFiles

MORNING = datetime(2026, 5, 1, 8, tzinfo=UTC)
ORDERS, FILE_MINUTES, DELAY_MAX, LATE = 200, 30, 10, 180


class Remind(BasicBolt):
    """Writes to those who have not paid; the first time that it is about to do so, it kills its driver."""

    outputFields = "order string, text string"

    def __init__(self, driver):
        self.driver = driver

    def open(self, context):
        self.context = context

    def execute(self, order, collector):
        if self.context.generation == 1:
            os.kill(self.driver, signal.SIGKILL)
        collector.emit((order.order, f"you ordered a {order.item} at {order.at:%H:%M}, and have not paid"))


def run(work):
    """Run the topology until all is read."""
    spark = session("orders-payments", config={"spark.log.level": "OFF"})
    builder = TopologyBuilder("orders-payments")
    for name, fields in {"orders": "item string", "payments": "cents long"}.items():
        frame = spark.readStream.schema(f"order string, at timestamp, {fields}").option("maxFilesPerTrigger", 1)
        builder.setStream(name, frame.json(f"{work}/{name}"), timestamp="at", lateness=f"{DELAY_MAX} minutes")
    hour = IntervalJoin("orders", "payments", on="order", between=("0 seconds", "1 hour"), select="order, item, cents")
    builder.setBolt("paid", hour, parallelism=2).fieldsGrouping("orders", "order").fieldsGrouping("payments", "order")
    builder.setBolt("remind", Remind(os.getpid())).shuffleGrouping("paid", stream="unmatchedLeft")
    builder.setSink("sales", FileSink(f"{work}/sales")).shuffleGrouping("paid")
    builder.setSink("reminders", FileSink(f"{work}/reminders")).shuffleGrouping("remind")
    builder.setSink("strange", FileSink(f"{work}/strange")).shuffleGrouping("paid", stream="unmatchedRight")
    builder.setSink("late", FileSink(f"{work}/late")).shuffleGrouping("paid", stream="lateRight")
    submit(builder.createTopology(), spark, f"{work}/checkpoint", trigger={"availableNow": True}).awaitTermination()


def day():
    """Return the orders and payments of a morning: each a row, and how many minutes later it comes."""
    orders, payments = [], []
    for number in range(ORDERS):
        order, minute = f"order-{number}", random.randrange(300)
        orders.append(
            ({"order": order, "at": minute, "item": random.choice(["book", "lamp"])}, random.randint(0, DELAY_MAX))
        )
        if random.random() < 0.9:  # some pay too late; some pay in time, and it is heard of hours later
            minute += random.randrange(90)
            delay = LATE if minute < 200 and random.random() < 0.1 else random.randint(0, DELAY_MAX)
            payments.append(({"order": order, "at": minute, "cents": 100 * number}, delay))
    payments.append(({"order": "order-unknown", "at": 100, "cents": 1}, 0))
    return orders, payments


def write(folder, rows):
    """Write a file for each half an hour in which rows come; then two of the next day, so that time gets on."""
    files = {}
    for row, delay in rows:
        files.setdefault((row["at"] + delay) // FILE_MINUTES, []).append(row)
    files |= {number: [{"order": f"next-day-{folder.name}-{number}", "at": 24 * 60}] for number in (100, 101)}
    folder.mkdir()
    for number, part in files.items():
        lines = [json.dumps(row | {"at": (MORNING + timedelta(minutes=row["at"])).isoformat()}) for row in part]
        Path(folder, f"{number}.json").write_text("\n".join(lines))
        os.utime(Path(folder, f"{number}.json"), (number, number))  # Spark reads the oldest first


def recount(orders, payments):
    """Return sales, orders that are not paid, payments without an order, and those that come too late, by order."""
    late = {row["order"] for row, delay in payments if delay == LATE}
    made = {row["order"]: row for row, _ in orders}
    paid = {row["order"]: row for row, _ in payments if row["order"] not in late}
    sales = {
        (order, made[order]["item"], paid[order]["cents"])
        for order in made.keys() & paid.keys()
        if paid[order]["at"] - made[order]["at"] <= 60
    }
    sold = {order for order, *_ in sales}
    return sales, made.keys() - sold, paid.keys() - sold, late


def written(folder, *fields):
    """Return what a sink has, each row once."""
    rows = [
        tuple(row[field] for field in fields)
        for file in committedFiles(folder)
        for row in pq.read_table(file).to_pylist()
    ]
    assert len(rows) == len(set(rows)), "a row was written twice"
    return {row if len(fields) > 1 else row[0] for row in rows}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        raise SystemExit(run(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="statefx-payments-", ignore_cleanup_errors=True) as work:
        orders, payments = day()
        write(Path(work, "orders"), orders)
        write(Path(work, "payments"), payments)
        for start in ("first", "second"):
            ended = subprocess.run([sys.executable, __file__, work], check=False)
            print(f"{start} run: exit code {ended.returncode}", flush=True)
        sales, unpaid, strange, late = recount(orders, payments)
        print("sales are those of a recount:", written(f"{work}/sales", "order", "item", "cents") == sales)
        print("reminders are those of a recount:", written(f"{work}/reminders", "order") == unpaid)
        print("payments without an order are those of a recount:", written(f"{work}/strange", "order") == strange)
        print("late payments are those of a recount:", written(f"{work}/late", "order") == late)
        print("none of them is empty:", all((sales, unpaid, strange, late)))

"""An interval join: statefx beside Spark's join of two streams with watermarks, over the same files, in turns.

In each minute there are as many orders as payments, of orders of this minute and the nine before, evenly. A payment
belongs to an order for ten minutes. Both wait for rows that are a minute late, and keep state in RocksDB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import minutes
import numpy as np
import pyarrow as pa
from measuring import LIVING, RECOMMENDED, ROCKSDB, SLOTS, arguments, session, take_turns
from pyspark.sql import functions as sf

from statefx import IntervalJoin, TopologyBuilder

LATENESS, WITHIN = "1 minute", 10
ORDER, PAYMENT = "order long, at timestamp, item long", "order long, at timestamp, cents long"
DROPPED = 13
"""Minutes of each turn that are left out: until as many rows are dropped in each as there come."""

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=2)
args = parser.parse_args()
turns = min(args.turns, args.batches)
total = args.batches // turns + DROPPED
half = args.rows // 2
spark = session(RECOMMENDED | ROCKSDB | LIVING | {"spark.sql.session.timeZone": "UTC"}, SLOTS)
orders, payments = args.work / "orders", args.work / "payments"
expected = 0
made: list[np.ndarray] = []
for minute in range(total):
    random = np.random.default_rng([args.rows, minute])
    ids = np.arange(half) + minute * half
    at = minutes.at_of(minute, random, half)
    minutes.write(orders, minute, pa.table({"order": ids, "at": at, "item": ids % 7}))
    made.append(at.cast(pa.int64()).to_numpy())
    paid = random.integers(max(0, minute - WITHIN + 1) * half, (minute + 1) * half, half)
    at = minutes.at_of(minute, random, half)
    minutes.write(payments, minute, pa.table({"order": paid, "at": at, "cents": paid % 11}))
    after = at.cast(pa.int64()).to_numpy() - np.concatenate(made)[paid]
    expected += int(((after >= 0) & (after <= WITHIN * 60_000_000)).sum())


def counted(name: str, found: tuple[int, list[float]]) -> list[float]:
    """Return the milliseconds of each minute that counts; all pairs have come."""
    pairs, committed = found
    if pairs != expected:
        raise RuntimeError(f"{name}: {pairs} pairs of {expected}")
    return minutes.between(committed, total, DROPPED)


def native(name: str, turn: int) -> list[float]:
    """Run a turn of Spark's own."""
    left = minutes.frame(spark, orders, ORDER).withWatermark("at", LATENESS)
    right = (
        minutes.frame(spark, payments, PAYMENT)
        .withWatermark("at", LATENESS)
        .withColumnsRenamed({"order": "paid", "at": "paidAt"})
    )
    within = f"order = paid and paidAt between at and at + interval {WITHIN} minutes"
    pairs = left.join(right, sf.expr(within)).select("order", "at", "paidAt", "item", "cents")
    return counted(name, minutes.of_spark(pairs, args.work / f"spark-{turn}", total))


def ran(name: str, source: str, turn: int) -> list[float]:
    """Run a turn of a topology."""
    builder = TopologyBuilder("join")
    select = "order, orders.at, payments.at as paidAt, item, cents"
    join = IntervalJoin("orders", "payments", "order", ("0 seconds", f"{WITHIN} minutes"), select)
    paid = builder.setBolt("paid", join, minutes.TASKS)
    for id, folder, fields in (("orders", orders, ORDER), ("payments", payments, PAYMENT)):
        if source == "frames":
            builder.setStream(id, minutes.frame(spark, folder, fields), timestamp="at", lateness=LATENESS)
        else:
            spout = minutes.Minutes(folder, fields, total)
            builder.setSpout(id, spout, minutes.TASKS, timestamp="at", lateness=LATENESS)
        paid.fieldsGrouping(id, "order")
    builder.setBolt("rows", minutes.Rows(), minutes.TASKS).fieldsGrouping("paid", "order")
    return counted(name, minutes.of_statefx(builder.createTopology(), spark, args.work / f"{source}-{turn}"))


REFERENCE = "Spark's join of streams"
systems: dict[str, Callable[[int], list[float]]] = {REFERENCE: partial(native, REFERENCE)}
for what, kind in {"statefx, DataFrame": "frames", "statefx, spout": "spouts"}.items():
    systems[what] = partial(ran, what, kind)
take_turns(args, systems, turns, (REFERENCE,), dict.fromkeys(systems, args.rows), pairs=expected)
spark.stop()

"""From a topic that is full through state into another topic, at full speed: one new sum for each payment.

Each system is given the same topic and transactions of the same size, one after the other, with a topic of its own to
write to. What is measured is the same for all: a process of its own looks how far a committed reader could read, and
the rate is that from a fifth of all records to the last. Afterwards records and sums must be right.

Spark's connector with transformWithState writes at least once: its sink knows no transactions. It is left out where its
jars can't be had. Quix Streams, exactly once, runs as a process for each partition, and is left out where there is no
interpreter that has it: it wants an older confluent-kafka than ours, so it needs an environment of its own
(``python -m venv build/quix && build/quix/bin/pip install quixstreams``).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import kafka_load
from kafka_latency import topology
from measuring import LIVING, RECOMMENDED, ROCKSDB, SLOTS, arguments, processor_secs, session, tell
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from statefx import submit
from tests.kafka.broker import KafkaBroker
from tests.kafka.libraries import UnavailableError
from tests.kafka.libraries import connector as jars_of_connector

QUIX = Path(__file__).resolve().parents[3] / "build" / "quix" / "bin" / "python"
END_SECS = 60


class SparkTotals(StatefulProcessor):
    """Adds up the payments of each account."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", StructType([StructField("total", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.total.get()
        total = before[0] if before is not None else 0
        for row in rows:
            total += row.amount
            yield Row(account=key[0], payment=row.payment, total=total, due=row.due)
        self.total.update((total,))

    def close(self) -> None:
        pass


def statefx(spark: SparkSession, args: Any, broker: KafkaBroker, source: str, target: str) -> None:
    """Run a topology until it has read all."""
    made = topology(broker, source, target, maxRows=args.rows)
    config = {"topology.state.provider": "rocksdb"}
    query = submit(made, spark, args.work / "checkpoint", config=config, trigger={"availableNow": True})
    query.awaitTermination()


def connector(spark: SparkSession, args: Any, broker: KafkaBroker, source: str, target: str) -> None:
    """Run a query of Spark's own until it has read all."""
    servers = {"kafka.bootstrap.servers": broker.address}
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": args.rows}
    read = spark.readStream.format("kafka").options(**servers, **options).load()
    rows = read.select(F.from_json(F.col("value").cast("string"), kafka_load.FIELDS).alias("row")).select("row.*")
    totals = rows.groupBy("account").transformWithState(
        statefulProcessor=SparkTotals(),
        outputStructType="account string, payment long, total long, due long",
        outputMode="Update",
        timeMode="None",
    )
    written = totals.select(F.col("account").alias("key"), F.to_json(F.struct("*")).alias("value"))
    writer = written.writeStream.format("kafka").outputMode("update").options(**servers, topic=target)
    writer.option("checkpointLocation", str(args.work / "connector"))
    writer.trigger(availableNow=True).start().awaitTermination()


def quix(args: Any, broker: KafkaBroker, source: str, target: str, done: Callable[[], bool]) -> None:
    """Run a process of Quix Streams for each partition until all is written."""
    command = [QUIX, Path(__file__).parent / "kafka_quix.py", broker.address, source, target]
    share = str(args.rows // kafka_load.PARTITIONS)
    started = [
        subprocess.Popen([*command, args.work / f"quix-{number}", share]) for number in range(kafka_load.PARTITIONS)
    ]
    while not done() and all(each.poll() is None for each in started):
        time.sleep(kafka_load.LOOK_SECS)  # noqa: TID251 - the observer tells when all is there
    for each in started:
        each.terminate()
    for each in started:
        each.wait(END_SECS)


def measured(args: Any, broker: KafkaBroker, source: str, count: int, run: Callable[..., None]) -> dict[str, float]:
    """Run a system, and check what it has written."""
    target = broker.topic(partitions=kafka_load.PARTITIONS)
    stop, answers = kafka_load.PROCESSES.Event(), kafka_load.PROCESSES.Queue()
    observer = kafka_load.PROCESSES.Process(
        target=kafka_load.watch, args=(broker.client(), target, count, stop, answers), daemon=True
    )
    observer.start()
    before = processor_secs(without=(broker.pid,))
    if run is quix:
        run(args, broker, source, target, lambda: not answers.empty())
    else:
        run(args, broker, source, target)
    used = processor_secs(without=(broker.pid,)) - before
    stop.set()
    seen = answers.get(timeout=END_SECS)
    observer.join(END_SECS)
    records, total = kafka_load.counted(broker.client(), target)
    if (records, total) != (count, sum(number % 997 for number in range(count))):
        raise RuntimeError(f"{records} records of {count}, which sum up to {total}")
    return {"rows_per_second": kafka_load.rate(seen, count), "processor_secs": round(used, 1)}


def main() -> None:
    """Measure all of them, one after the other."""
    parser = arguments(__doc__)
    parser.add_argument("--systems", nargs="+", help="only those whose names hold one of these texts")
    args = parser.parse_args()
    count = args.rows * (args.warmup + args.batches)
    jars = ""
    try:
        jars = jars_of_connector()
    except UnavailableError as error:
        print(f"Spark's connector is left out: {error}", file=sys.stderr)
    with KafkaBroker() as broker:
        source = broker.topic(partitions=kafka_load.PARTITIONS)
        kafka_load.fill(broker.client(), source, count, args.keys)
        spark = session(RECOMMENDED | ROCKSDB | LIVING | ({"spark.jars": jars} if jars else {}), SLOTS)
        runs: dict[str, Callable[..., None]] = {}
        if jars:
            runs["Spark's connector, transformWithState"] = partial(connector, spark)
        if QUIX.exists():
            runs["Quix Streams"] = quix
        else:
            print(f"Quix Streams is left out: there is no {QUIX}", file=sys.stderr)
        runs["statefx"] = partial(statefx, spark)
        found = [
            {"name": name, "reference": not name.startswith("statefx"), **measured(args, broker, source, count, run)}
            for name, run in runs.items()
            if not args.systems or any(each in name for each in args.systems)
        ]
        spark.stop()
    tell(args, measure="throughput", systems=found, records=count)


if __name__ == "__main__":
    main()

"""From Kafka through state to Kafka, 10,000 records a second: how long until a committed reader has a record.

A producer in a process of its own writes at times that are fixed beforehand, and each record says when it was due: so
what waits because something is slow counts for as long as it waits. A consumer in another process, which reads
committed records alone, takes the time. The first ``--warmup`` seconds are left out, ``--batches`` seconds are
measured, and all records must have come.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import kafka_load
from in_workers import Totals
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, processor_secs, session, tell

from statefx import TopologyBuilder, submit
from statefx.connectors.kafka import KafkaSink, KafkaSpout
from tests.kafka.broker import KafkaBroker

LEAD_SECS = 1.0
FIRST_SECS = 120


def topology(broker: KafkaBroker, source: str, target: str, **options: Any) -> Any:
    """Return payments of a topic, summed up by account, with each new sum in another topic."""
    builder = TopologyBuilder("latency")
    spout = KafkaSpout(broker.address, source, "json", kafka_load.FIELDS, columns=["value"], group=None, **options)
    builder.setSpout("payments", spout, parallelism=kafka_load.PARTITIONS)
    builder.setBolt("totals", Totals(), parallelism=2).fieldsGrouping("payments", "account")
    sink = KafkaSink(broker.address, target, key="account")
    builder.setSink("out", sink, parallelism=2).localOrShuffleGrouping("totals")
    return builder.createTopology()


def main() -> None:
    """Measure it."""
    parser = arguments(__doc__)
    parser.add_argument("--interval-ms", type=int, help="topology.state.checkpoint.interval.ms")
    parser.add_argument("--rate", type=int, default=10_000, help="records a second")
    args = parser.parse_args()
    count = args.rate * (args.warmup + args.batches)
    with KafkaBroker() as broker:
        source, target = (broker.topic(partitions=kafka_load.PARTITIONS) for _ in range(2))
        answers = kafka_load.PROCESSES.Queue()
        consumer = kafka_load.PROCESSES.Process(
            target=kafka_load.latencies, args=(broker.client(), target, count + 1, answers), daemon=True
        )
        consumer.start()
        answers.get(timeout=FIRST_SECS)
        spark = session(RECOMMENDED | LIVING, SLOTS)
        config = {"topology.state.provider": "rocksdb"}
        if args.interval_ms is not None:
            config["topology.state.checkpoint.interval.ms"] = args.interval_ms
        query = submit(topology(broker, source, target), spark, args.work / "checkpoint", config=config)
        # A record alone first: workers start, and all is ready when the load begins.
        kafka_load.fill(broker.client(), source, 1, args.keys)
        limit = time.monotonic() + FIRST_SECS
        while not query.lastProgress:
            if query.awaitTermination(0.05) or time.monotonic() > limit:
                raise RuntimeError("no transaction was committed")
        first = query.lastProgress["txid"]
        start_us = time.time_ns() // 1000 + int(LEAD_SECS * 1e6)
        producer = kafka_load.PROCESSES.Process(
            target=kafka_load.offer, args=(broker.client(), source, args.rate, start_us, count, args.keys), daemon=True
        )
        before = processor_secs(without=(broker.pid,))
        producer.start()
        found = answers.get(timeout=FIRST_SECS + args.warmup + args.batches)
        used = processor_secs(without=(broker.pid, consumer.pid, producer.pid)) - before
        transactions = query.lastProgress["txid"] - first
        phases = [progress["durationMs"] for progress in query.recentProgress[-50:]]
        query.stop()
        spark.stop()
    if isinstance(found, str):
        raise RuntimeError(found)
    measured = sorted(us / 1000 for due, us in found if due >= start_us + args.warmup * 1_000_000)
    if len(measured) != args.rate * args.batches:
        raise RuntimeError(f"{len(measured)} records instead of {args.rate * args.batches}")
    tell(
        args,
        measure="latency",
        trigger_ms_median=measured[len(measured) // 2],
        trigger_ms_p99=measured[len(measured) * 99 // 100],
        trigger_ms_min=measured[0],
        trigger_ms_max=measured[-1],
        transactions=transactions,
        phases_ms={name: round(statistics.fmean(each.get(name, 0) for each in phases), 1) for name in phases[-1]},
        processor_cores=used / (args.warmup + args.batches),
    )


if __name__ == "__main__":
    main()

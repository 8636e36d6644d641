"""Rows of Kafka into Arrow batches in Python, by what a processor does in a second; a broker is started for it.

In turns: a bare consumer of confluent-kafka that makes Arrow batches of the same columns; what a task of KafkaSpout
does for them, without Spark; a topology with KafkaSpout and a bolt that counts rows; and Spark's own connector with a
mapInArrow that counts them. The last one is left out where its jars can't be had: none are published for this Spark,
and those of the release before run.

Counted is the processor time of this process and of all that it has started, without the broker's.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyspark
from confluent_kafka import Consumer, Producer, TopicPartition
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, processor_secs, session

from statefx import BatchBolt, TopologyBuilder, submit
from statefx.connectors.kafka import KafkaSpout
from statefx.connectors.kafka.reading import Readers, Span
from tests.kafka.broker import KafkaBroker
from tests.kafka.libraries import UnavailableError
from tests.kafka.libraries import connector as jars_of_connector

PARTITIONS = 2
BATCHES_MAX = 4
COLUMNS = ("key", "value", "offset", "timestamp")

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=3)
args = parser.parse_args()
total = args.rows * min(args.batches, BATCHES_MAX)


def filled(broker: KafkaBroker) -> str:
    """Make the topic."""
    topic = broker.topic(partitions=PARTITIONS)
    producer = Producer(broker.client(linger_ms=50, batch_size=1_000_000))
    value = b"%0100d"
    for number in range(total):
        while True:
            try:
                producer.produce(topic, value % number, b"%d" % number, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def bare(broker: KafkaBroker, topic: str) -> None:
    """A consumer as one would write it, which waits no longer than the spout's."""
    quick = {"fetch_queue_backoff_ms": 10, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = Consumer(broker.client(group_id="bare", **quick))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    rows = 0
    while rows < total:
        messages = [each for each in consumer.consume(10_000, 0.1) if each.error() is None]
        rows += len(
            pa.RecordBatch.from_arrays(
                [
                    pa.array([each.key() for each in messages], pa.binary()),
                    pa.array([each.value() for each in messages], pa.binary()),
                    pa.array([each.offset() for each in messages], pa.int64()),
                    pa.array([each.timestamp()[1] for each in messages], pa.timestamp("ms", "UTC")),
                ],
                names=list(COLUMNS),
            )
        )
    consumer.close()


def task(broker: KafkaBroker, topic: str) -> None:
    """What a task does."""
    spout = KafkaSpout(broker.address, topic, columns=COLUMNS)
    readers = Readers(spout.clients, "task", 30.0, lambda place, start, stop: None)
    rows = 0
    for partition in range(PARTITIONS):
        place = rows.TopicPartition(topic, partition)
        records = readers.read(Span(place, "", 0, total // PARTITIONS), spout.rows.wanted)
        rows += sum(len(batch) for batch, _ in spout.rows.batches(place, records))
    readers.close()
    if rows != total:
        raise RuntimeError(f"{rows} rows")


class Rows(BatchBolt):
    """Counts rows."""

    outputFields = "rows long"

    def open(self, context: Any) -> None:
        self.rows = 0

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        self.rows += len(batch)

    def finishBatch(self, collector: Any) -> None:
        collector.emit((self.rows,))
        self.rows = 0


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count rows."""
    yield pa.RecordBatch.from_pydict({"rows": [sum(map(len, batches))]})


def main() -> None:
    """Measure all of them in turns."""
    jars, missing = "", ""
    try:
        jars = jars_of_connector()
    except UnavailableError as error:
        missing = str(error)
    broker = KafkaBroker()
    topic = filled(broker)
    spark = session({**RECOMMENDED, **LIVING, **({"spark.jars": jars} if jars else {})}, SLOTS)
    ran = 0

    def topology(broker: KafkaBroker, topic: str) -> None:
        nonlocal ran
        ran += 1
        builder = TopologyBuilder("kafka")
        spout = KafkaSpout(broker.address, topic, columns=COLUMNS, maxRows=args.rows, group=None)
        builder.setSpout("records", spout, parallelism=PARTITIONS)
        builder.setBolt("rows", Rows(), parallelism=PARTITIONS).localOrShuffleGrouping("records")
        query = submit(builder.createTopology(), spark, args.work / f"{ran}", trigger={"availableNow": True})
        query.awaitTermination()

    def connector(broker: KafkaBroker, topic: str) -> None:
        nonlocal ran
        ran += 1
        options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
        read = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=args.rows).load()
        counted = read.select(*COLUMNS).mapInArrow(rows_of, "rows long")
        written = counted.writeStream.format("noop").option("checkpointLocation", str(args.work / f"{ran}"))
        written.trigger(availableNow=True).start().awaitTermination()

    systems: dict[str, tuple[Callable[[KafkaBroker, str], None], bool]] = {
        "bare consumer into Arrow": (bare, True),
        "KafkaSpout, a task alone": (task, False),
        "Spark's connector, mapInArrow": (connector, True),
        "statefx, KafkaSpout": (topology, False),
    }
    if missing:
        print(f"Spark's connector is left out: {missing}", file=sys.stderr)
        del systems["Spark's connector, mapInArrow"]
    found: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(args.turns + 1):
        for name, (system, _) in systems.items():
            before = processor_secs(without=(broker.pid,))
            system(broker, topic)
            if turn:  # the first one starts workers
                found[name].append(processor_secs(without=(broker.pid,)) - before)
    spark.stop()
    broker.close()
    rows = [
        {
            "name": name,
            "reference": systems[name][1],
            "rows_per_processor_second": total / statistics.median(secs),
            "processor_secs": [round(each, 2) for each in secs],
        }
        for name, secs in found.items()
    ]
    versions = {"python": platform.python_version(), "pyspark": pyspark.__version__}
    print(json.dumps({"measure": "processor", "systems": rows, "records": total, "versions": versions}), flush=True)


main()

"""What KafkaSink costs beside a producer of one's own: the same messages in one transaction of Kafka.

``producer`` is given lists of bytes and calls ``produce`` for each. ``KafkaSink`` is given Arrow batches, and does all
that a sink does: messages staged in the checkpoint and made durable, read back and verified, published with the marker.
The third system is its commit of a transaction without rows. All have a warm producer; a broker is started for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from confluent_kafka import Producer
from measuring import arguments, take_turns

from statefx.connectors.kafka import KafkaSink
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from tests.kafka.broker import KafkaBroker

TURNS = 4
BATCH_ROWS = 10_000  # Spark's default for batches of Arrow
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
WAIT_SECS = 60

args = arguments(__doc__).parse_args()
each = max(1, args.batches // TURNS)
keys = [f"key-{number % 1000:05}" for number in range(args.rows)]
values = [f"{number:0100}" for number in range(args.rows)]


def main() -> None:
    """Measure them in turns."""
    with KafkaBroker() as broker:
        bare = Producer(broker.client(transactional_id="bare", partitioner="murmur2_random"))
        bare.init_transactions(WAIT_SECS)
        pairs = [(value.encode(), key.encode()) for value, key in zip(values, keys, strict=True)]
        plain = broker.topic(partitions=3)
        sink = KafkaSink(broker.address, broker.topic(partitions=3), key="key", value="value")
        storage = FolderStorage(args.work / "checkpoint")
        committer = sink.committer(CommitterContext("out", Owner("bench", "origin", 1), SCHEMA, storage))
        committer.fence(CheckpointPosition(0, 0), takeover=False)
        rows = pa.record_batch({"key": keys, "value": values}, schema=SCHEMA)
        batches = [rows.slice(start, BATCH_ROWS) for start in range(0, args.rows, BATCH_ROWS)]
        txid = 0

        def by_hand() -> None:
            bare.begin_transaction()
            for number, (value, key) in enumerate(pairs):
                while True:
                    try:
                        bare.produce(plain, value, key)
                        break
                    except BufferError:
                        bare.poll(0.01)
                if not number % 1000:
                    bare.poll(0)
            bare.commit_transaction(WAIT_SECS)

        def by_sink(given: Sequence[pa.RecordBatch]) -> None:
            nonlocal txid
            txid += 1
            attempt = TransactionAttempt(txid, 0)
            writer = sink.writer(WriterContext("out", 0, 1, attempt, "token", SCHEMA, storage))
            for batch in given:
                writer.write(batch)
            named = writer.prepare(txid)
            writer.close()
            committer.commit(attempt, {} if named is None else {0: named})
            committer.sweep(txid)

        calls: dict[str, Callable[[], None]] = {
            "producer": by_hand,
            "statefx, KafkaSink": lambda: by_sink(batches),
            "statefx, KafkaSink, no rows": lambda: by_sink([]),
        }

        def measured(name: str) -> list[float]:
            times = []
            for _ in range(each):
                began = time.perf_counter()
                calls[name]()
                times.append((time.perf_counter() - began) * 1000)
            return times

        for call in calls.values():  # the first transactions make connections
            call()
        turns = {name: lambda turn, name=name: measured(name) for name in calls}
        take_turns(args, turns, TURNS, references=("producer",))
        committer.close()


main()

"""Quix Streams doing what `kafka_counts.py` measures; run by an interpreter that has it, as one of several processes.

    python kafka_quix.py SERVERS SOURCE TARGET STATE_FOLDER COMMIT_EVERY

Exactly once, state in RocksDB with a changelog topic; ends when it is terminated.
"""

import sys

from quixstreams import Application

servers, source, target, folder, every = sys.argv[1:]
app = Application(
    broker_address=servers,
    consumer_group="quix",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    state_dir=folder,
    commit_every=int(every),
    loglevel="WARNING",
)


def total(row, state):
    """Add a payment to its account's total."""
    summed = state.get(row["account"], 0) + row["amount"]
    state.set(row["account"], summed)
    return {"account": row["account"], "payment": row["payment"], "total": summed, "due": row["due"]}


payments = app.dataframe(app.topic(source, key_deserializer="bytes", value_deserializer="json"))
payments.apply(total, stateful=True).to_topic(app.topic(target, key_serializer="bytes", value_serializer="json"))
app.run()

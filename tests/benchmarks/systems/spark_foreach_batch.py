"""The least a micro-batch through Python can cost: a foreachBatch query whose job does nothing, N times.

Each of its N Python stages is a shuffle to two partitions and an identity mapInArrow, the shape of N levels of bolts
with parallelism 2. Nothing is kept, nothing is checked; the rows are collected and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from measuring import RECOMMENDED, arguments, finish, latency, session, words
from pyspark.sql import DataFrame


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


parser = arguments(__doc__)
parser.add_argument("--stages", type=int, required=True, help="Python stages of the job")
parser.add_argument("--session", choices=["default", "recommended"], required=True)
args = parser.parse_args()


def run(batch: DataFrame, batch_id: int) -> None:
    for _ in range(args.stages):
        batch = batch.repartition(2, "word").mapInArrow(identity, "word string")
    batch.collect()


spark = session(RECOMMENDED if args.session == "recommended" else {})
query = (
    words(spark, args)
    .writeStream.foreachBatch(run)
    .option("checkpointLocation", str(args.work / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
progress = finish(query, args)
latency(args, [p["durationMs"]["triggerExecution"] for p in progress], stages=args.stages, session=args.session)
spark.stop()

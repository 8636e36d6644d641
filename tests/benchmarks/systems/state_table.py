"""How long Spark takes to read all keys of a bolt as a table, and the same rows from Parquet.

The keys are written by a topology in transactions of `--rows` keys; then each system reads all of them in turns, typed
or as JSON text, into Spark's sink that does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, take_turns
from pyspark.sql import DataFrame

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, submit

TYPED = {"key": "word string", "value": "count long"}


class Keep(StatefulBolt):
    """Puts a number under each word."""

    def initState(self, state):
        self.counts = state

    def executeBatch(self, batch: pa.RecordBatch, collector):
        self.counts.putAll(dict(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)))


def main() -> None:
    """Fill the state, then read it in turns."""
    parser = arguments(__doc__)
    parser.add_argument("--provider", choices=["memory", "rocksdb"], required=True)
    args = parser.parse_args()
    spark = session(RECOMMENDED | LIVING, SLOTS)
    checkpoint, parquet = args.work / "checkpoint", str(args.work / "parquet")
    for number, start in enumerate(range(0, args.keys, args.rows), 1):
        builder = TopologyBuilder("keeping")
        ids = spark.range(start, min(start + args.rows, args.keys))
        builder.setStream("words", ids.selectExpr("concat('word-', id) word", "id * 7 count"))
        builder.setBolt("keep", Keep(), parallelism=2).fieldsGrouping("words", "word")
        config = {"topology.state.provider": args.provider}
        submit(builder.createTopology(), spark, checkpoint, config, batchId=number).awaitTermination()
    typed = Checkpoint(checkpoint).toDataFrame(spark, "keep", schema=TYPED)
    typed.write.parquet(parquet)
    if typed.count() != args.keys:
        raise RuntimeError(f"{typed.count()} of {args.keys} keys were read")

    def reading(frame: Callable[[], DataFrame]) -> Callable[[int], Sequence[float]]:
        def turn(number: int) -> Sequence[float]:
            started = time.perf_counter()
            frame().write.format("noop").mode("overwrite").save()
            return [(time.perf_counter() - started) * 1000]

        return turn

    systems = {
        "Parquet": reading(lambda: spark.read.parquet(parquet)),
        "toDataFrame, typed": reading(lambda: Checkpoint(checkpoint).toDataFrame(spark, "keep", schema=TYPED)),
        "toDataFrame, JSON": reading(lambda: Checkpoint(checkpoint).toDataFrame(spark, "keep")),
    }
    take_turns(args, systems, args.batches, ["Parquet"], dict.fromkeys(systems, args.keys), provider=args.provider)


if __name__ == "__main__":
    main()

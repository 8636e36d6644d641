"""Keyed count by Spark's own aggregate: groupBy().count() in the JVM, RocksDB store, changelog checkpointing."""

from measuring import RECOMMENDED, ROCKSDB, arguments, commit_times, finish, session, throughput, words

parser = arguments(__doc__)
parser.add_argument("--format", choices=["parquet", "csv", "json"], default="parquet")
args = parser.parse_args()
spark = session(RECOMMENDED | ROCKSDB)
checkpoint = args.work / "checkpoint"
counts = words(spark, args, args.format).groupBy("word").count()
query = (
    counts.writeStream.format("noop")
    .outputMode("update")
    .option("checkpointLocation", str(checkpoint))
    .trigger(availableNow=True)
    .start()
)
progress = finish(query, args)
committed = commit_times(checkpoint, args.warmup + args.batches)
throughput(args, committed, state_rows=progress[-1]["stateOperators"][0]["numRowsTotal"])
spark.stop()

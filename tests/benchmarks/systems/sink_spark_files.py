"""The same rows into Parquet files by Spark alone: computed in the JVM, written by its own streaming file sink."""

from measuring import RECOMMENDED, arguments, commit_times, finish, session, throughput, words

args = arguments(__doc__).parse_args()
spark = session(RECOMMENDED)
checkpoint = args.work / "checkpoint"
query = (
    words(spark, args)
    .selectExpr("word", "length(word) as length")
    .writeStream.format("parquet")
    .option("checkpointLocation", str(checkpoint))
    .trigger(availableNow=True)
    .start(str(args.work / "out"))
)
finish(query, args)
throughput(args, commit_times(checkpoint, args.warmup + args.batches))
spark.stop()

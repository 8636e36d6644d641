"""What reading a FileSink's rows costs: all of them, added up by Spark, with the reader and as plain Parquet.

Makes its own input: ``TRANSACTIONS`` transactions of two files with ``--rows`` rows in all. Each time it is read, the
DataFrame is made anew. The plain folder has the same files and nothing else.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pyarrow as pa
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, latency, session

from statefx.connectors.files import FileSink, committedFiles, readCommitted
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage

TRANSACTIONS = 25
TASKS = 2
SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])

parser = arguments(__doc__)
parser.add_argument("--how", choices=["committed", "manifest", "plain"], required=True)
args = parser.parse_args()
out, plain = args.work / "out", args.work / "plain"
sink, storage = FileSink(out), FolderStorage(args.work / "checkpoint")
committer = sink.committer(CommitterContext("out", Owner("bench", "origin", 1), SCHEMA, storage))
committer.fence(CheckpointPosition(0, 0), takeover=False)
random = np.random.default_rng(0)
words = pa.array([f"word-{number:07d}" for number in range(args.keys)])
for txid in range(1, TRANSACTIONS + 1):
    attempt, prepared = TransactionAttempt(txid, 0), {}
    for task in range(TASKS):
        writer = sink.writer(WriterContext("out", task, TASKS, attempt, f"t{txid}-{task}", SCHEMA, storage))
        left = args.rows // (TRANSACTIONS * TASKS)
        while left > 0:
            numbers = random.integers(0, args.keys, min(left, 10_000))
            left -= len(numbers)
            writer.write(pa.RecordBatch.from_arrays([words.take(pa.array(numbers)), pa.array(numbers)], schema=SCHEMA))
        prepared[task] = writer.prepare(txid)
    committer.commit(attempt, prepared)
plain.mkdir()
for file in committedFiles(out):
    os.link(file, plain / os.path.basename(file))

spark = session(RECOMMENDED | LIVING, SLOTS)
spans = []
for _ in range(args.warmup + args.batches):
    started = time.perf_counter()
    if args.how == "committed":
        frame = readCommitted(spark, out)
    else:
        frame = spark.read.schema("word string, n bigint").parquet(str(out if args.how == "manifest" else plain))
    rows = frame.selectExpr("count(word) as words", "sum(n) as total").collect()[0].words
    spans.append((time.perf_counter() - started) * 1000)
expected = args.rows // (TRANSACTIONS * TASKS) * TRANSACTIONS * TASKS
if rows != expected:
    raise RuntimeError(f"{rows} rows read, not {expected}")
latency(args, spans, files=TRANSACTIONS * TASKS)
spark.stop()

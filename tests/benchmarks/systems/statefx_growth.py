"""What a transaction costs when it touches few of many keys, and what the worker's memory comes to.

Makes its own input: batches that fill the state with ``--keys`` keys, then batches of ``--rows`` rows, each with a
different key drawn from all there are. Only the latter are measured.
"""

from __future__ import annotations

import itertools
import os
import resource
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, latency, session

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, submit

LOAD_ROWS = 500_000


class Count(StatefulBolt):
    """Counts, and leaves a note of the most memory that its process has used."""

    outputFields = None

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)

    def prePrepare(self, txid: int) -> None:
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        (self.notes / str(os.getpid())).write_text(f"{peak_mb:.0f}")


def write(folder: Path, batch: int, words: Any) -> None:
    path = folder / f"batch-{batch:05d}.parquet"
    pq.write_table(pa.table({"word": words}), path)
    os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


parser = arguments(__doc__)
parser.add_argument("--provider", choices=["memory", "rocksdb"], default="rocksdb")
args = parser.parse_args()

source, notes = args.work / "words", args.work / "notes"
source.mkdir()
notes.mkdir()
names = pa.array([f"word-{i:09d}" for i in range(args.keys)])
loads = [names.slice(start, LOAD_ROWS) for start in range(0, args.keys, LOAD_ROWS)]
for batch, words in enumerate(loads):
    write(source, batch, words)
for batch in range(args.warmup + args.batches):
    drawn = np.random.default_rng([args.keys, batch]).choice(args.keys, args.rows, replace=False)
    write(source, len(loads) + batch, names.take(pa.array(drawn)))

spark = session(RECOMMENDED | LIVING, SLOTS)
builder = TopologyBuilder("growth")
builder.setStream("words", spark.readStream.schema("word string").option("maxFilesPerTrigger", 1).parquet(str(source)))
builder.setBolt("count", Count(notes), parallelism=2).fieldsGrouping("words", "word")
checkpoint = args.work / "checkpoint"
query = submit(
    builder.createTopology(),
    spark,
    checkpoint,
    config={"topology.state.provider": args.provider},
    trigger={"availableNow": True},
)
query.awaitTermination()
committed = [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress]
gaps = [(b - a) * 1000 for a, b in itertools.pairwise(committed)][-(args.warmup + args.batches) :]
with Checkpoint(checkpoint).state("count") as counts:
    if len(counts) != args.keys:
        raise RuntimeError(f"{len(counts)} keys counted")
peaks = [int(note.read_text()) for note in notes.iterdir()]
latency(args, gaps, provider=args.provider, existing_keys=args.keys, worker_peak_mb=max(peaks),
        worker_peak_mb_median=statistics.median(peaks))  # fmt: skip
spark.stop()

"""What every measured system shares: its arguments, its Spark session, and the JSON it prints.

A system is a script of its own. It is called with the arguments of `arguments`, may write into ``--work``, and prints
one JSON object as its last line of standard output: that of `throughput`, `latency` or `take_turns`, with what it likes
to add. Whatever else it prints is ignored, unless it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statefx.spark.session import LOADED_WORKERS

RECOMMENDED = {
    # Over TCP, every Python stage waits about 40 ms for delayed ACKs. Must be there before the SparkContext is.
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark's default for its own logs (Hadoop's FileContext) takes several times as long for a file on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}

LIVING = {"spark.python.udf.pipelined.enabled": "true", **LOADED_WORKERS}
"""What `statefx.session` has in addition; besides slots: `SLOTS`."""

SLOTS = "local[16]"

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every system takes; a system may add its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True, help="folder with the batches, one file-set for each")
    parser.add_argument("--work", type=Path, required=True, help="empty folder for checkpoints and the like")
    parser.add_argument("--files", type=int, required=True, help="files a batch (maxFilesPerTrigger)")
    parser.add_argument("--rows", type=int, required=True, help="rows a batch")
    parser.add_argument("--keys", type=int, required=True, help="distinct keys in the input")
    parser.add_argument("--warmup", type=int, required=True, help="batches before the clock starts")
    parser.add_argument("--batches", type=int, required=True, help="batches that are measured")
    return parser


def session(settings: Mapping[str, str], master: str = "local[2]") -> SparkSession:
    """A Spark session with `settings`, by default with two cores."""
    builder = SparkSession.builder.master(master).appName("benchmark")
    builder = builder.config("spark.driver.memory", "3g").config("spark.log.level", "ERROR")
    # Progress is read once, at the end: keep that of all batches.
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "100000")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def words(spark: SparkSession, args: argparse.Namespace, form: str = "parquet") -> DataFrame:
    """The input as a stream of one column, ``word string``, one file-set a batch."""
    stream = spark.readStream.schema("word string").option("maxFilesPerTrigger", args.files)
    return stream.format(form).load(str(args.input))


def finish(query: StreamingQuery, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Wait for the end of a query over all of the input; return the progress of its batches, checked."""
    query.awaitTermination()
    progress = [json.loads(p.json) for p in query.recentProgress]
    progress = [p for p in progress if p["numInputRows"]]
    rows = [p["numInputRows"] for p in progress]
    if rows != [args.rows] * (args.warmup + args.batches):
        raise RuntimeError(f"expected {args.warmup + args.batches} batches of {args.rows} rows, got {rows}")
    return progress


def commit_times(checkpoint: Path, batches: int) -> list[float]:
    """When Spark committed each batch: modification times of its commit log's files, in seconds."""
    return [(checkpoint / "commits" / str(batch)).stat().st_mtime_ns / 1e9 for batch in range(batches)]


def throughput(args: argparse.Namespace, committed: Sequence[float], **more: Any) -> None:
    """Print the result of a system that was given all of the input at once.

    Parameters
    ----------
    args : argparse.Namespace
        What `arguments` parsed.
    committed : sequence of float
        For each batch, warm-up included, the wall-clock time in seconds at which it was durably committed, taken
        from the file that commits it (Spark: ``commits/<batch>``; statefx: the log's COMMITTED record).
    **more : Any
        Facts worth keeping, such as ``state_rows``.
    """
    if len(committed) != args.warmup + args.batches:
        raise RuntimeError(f"expected {args.warmup + args.batches} commits, got {len(committed)}")
    measured = committed[args.warmup - 1 :]
    seconds = measured[-1] - measured[0]
    rows = args.rows * args.batches
    gaps = [round((b - a) * 1000, 1) for a, b in itertools.pairwise(measured)]
    tell(
        args,
        measure="throughput",
        rows_per_second=rows / seconds,
        rows=rows,
        seconds=seconds,
        batch_ms_median=statistics.median(gaps),
        batch_ms=gaps,
        **more,
    )


def latency(args: argparse.Namespace, trigger_ms: Sequence[float], **more: Any) -> None:
    """Print the result of a system that is measured by how long a trigger takes.

    Parameters
    ----------
    args : argparse.Namespace
        What `arguments` parsed.
    trigger_ms : sequence of float
        ``durationMs.triggerExecution`` of each batch, warm-up included.
    **more : Any
        Facts worth keeping.
    """
    measured = list(trigger_ms[args.warmup :])
    if len(measured) != args.batches:
        raise RuntimeError(f"expected {args.batches} measured batches, got {len(measured)}")
    tell(args, measure="latency", trigger_ms_median=statistics.median(measured), trigger_ms=measured, **more)


def take_turns(
    args: argparse.Namespace,
    systems: Mapping[str, Callable[[int], Sequence[float]]],
    turns: int,
    references: Sequence[str],
    rows_of: Mapping[str, int] | None = None,
    **more: Any,
) -> None:
    """Measure several systems in turns, and print a row for each: a busy machine is as busy for one as for the others.

    Parameters
    ----------
    args : argparse.Namespace
        What `arguments` parsed.
    systems : Mapping[str, callable]
        Name -> what measures one turn, given its number from 0; it returns the milliseconds of each transaction.
    turns : int
        How many each of them has.
    references : sequence of str
        With whom the others are compared.
    rows_of : Mapping[str, int], optional
        Name -> rows a transaction, where systems have not the same; rows a second are told then.
    **more : Any
        Facts worth keeping.
    """
    found: dict[str, list[float]] = {name: [] for name in systems}
    processor: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(turns):
        for name, measured in systems.items():
            before = processor_secs()
            found[name] += measured(turn)
            processor[name].append(round(processor_secs() - before, 2))
    found_systems = [
        {
            "name": name,
            "reference": name in references,
            "trigger_ms_median": statistics.median(ms),
            "trigger_ms_min": min(ms),
            "trigger_ms_p99": sorted(ms)[len(ms) * 99 // 100],
            "trigger_ms": [round(each, 1) for each in ms],
            "processor_secs_a_turn": processor[name],
            **({"rows_per_second": rows_of[name] / statistics.median(ms) * 1000} if rows_of else {}),
        }
        for name, ms in found.items()
    ]
    tell(args, measure="latency", systems=found_systems, **more)


def mean_ms(progress: Sequence[Mapping[str, Any]], dropped: int) -> float:
    """Return the mean milliseconds of a query's transactions behind the first `dropped`, from commit to commit.

    With several in flight, commits come in bunches: the mean is theirs, the median is not.
    """
    if [p["txid"] for p in progress] != list(range(1, len(progress) + 1)):
        raise RuntimeError("transactions were not committed one after the other")
    first, last = (datetime.fromisoformat(progress[at]["timestamp"]).timestamp() for at in (dropped - 1, -1))
    return 1000 * (last - first) / (len(progress) - dropped)


def processor_secs(without: Collection[int] = ()) -> float:
    """Return the processor time that this process and all below it have used: the JVM and Spark's Python workers.

    What others do on the machine and the processes `without` have no part in it; the start of each turn's query has.
    """
    used = {}
    for pid in {os.getpid(), *processes_below(os.getpid())}.difference(without):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(used.values())


def processes_below(pid: int) -> dict[int, str]:
    """Return the processes that a process has started, and those that these have: the command line of each."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(stat.parent.name))
    found: dict[int, str] = {}
    todo = list(below.get(pid, []))
    while todo:
        process = todo.pop()
        with contextlib.suppress(OSError):
            found[process] = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
        todo += below.get(process, [])
    return found


def tell(args: argparse.Namespace, **result: Any) -> None:
    """Print a result with what was asked for: `bench.py` reads it."""
    asked = {name: getattr(args, name) for name in ("files", "rows", "keys", "warmup", "batches")}
    versions = {"python": platform.python_version(), "pyspark": pyspark.__version__}
    print(json.dumps({**result, "asked": asked, "versions": versions}), flush=True)

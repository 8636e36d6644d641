"""The benchmarks: `make bench`, or `make bench ARGS="--quick"` for a look in a few minutes.

Every case is one system run on one input. Each runs in a process of its own, one after the other, over the same
files; the systems are the scripts in ``systems/`` (their arguments and their JSON: ``systems/measuring.py``). Prints
a table for each group of cases, with ratios to the cases that the group is compared with, and writes all results to
``build/bench.json``.

Throughput is input rows over the wall-clock time between two commits as they stand on disk: that of the last warm-up
batch and that of the last batch. So it holds everything between two batches, and nothing of the start. The times are
the modification times of the files that commit (Spark: ``commits/<batch>``, which it writes last).

A system is added by a script and its lines in `cases`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inputs

ROOT = Path(__file__).resolve().parent.parent.parent
SYSTEMS = Path(__file__).resolve().parent / "systems"
FEW = 100
VALUES = {
    "throughput": ("rows_per_second", "rows/s"),
    "latency": ("trigger_ms_median", "ms, median"),
    "processor": ("rows_per_processor_second", "rows per second of a processor"),
    "growth": ("bytes_a_transaction", "bytes more with each transaction"),
}


@dataclass(frozen=True)
class Case:
    """One system on one input.

    Attributes
    ----------
    group : str
        Heading of the table it stands in; ratios are taken within a group.
    name : str
        Its row in the table.
    script : str
        File in ``systems/``.
    shape : inputs.Shape
        The input.
    warmup, batches : int
        Batches before and after the clock starts.
    options : tuple of str
        More arguments for the script.
    reference : bool
        The other cases of the group are compared with it.
    """

    group: str
    name: str
    script: str
    shape: inputs.Shape
    warmup: int
    batches: int
    options: tuple[str, ...] = ()
    reference: bool = False

    @property
    def shared_input(self) -> bool:
        """Whether it reads the files that the other systems read; else it makes its own."""
        own = ("emitting.py", "bad_rows.py", "calls.py", "statefx_growth.py", "provider_store.py", "redis_pipelined.py",
               "state_files.py", "state_scans.py", "state_table.py", "state_ttl.py", "sink_reading.py",
               "sink_commits.py",
               "sink_sql.py",
               "kafka_reading.py", "kafka_latency.py", "kafka_counts.py", "sink_kafka.py", "living_memory.py",
               "living_start.py", "spout_pipelining.py", "spout_partitions.py",
               "spout_steps.py", "acker.py", "timers.py", "event_timers.py", "interval_join.py", "sliding.py",
               "nexmark.py", "rescaling.py", "object_store.py")  # fmt: skip
        return self.script not in own


def cases(args: argparse.Namespace) -> list[Case]:
    """Every case, in the order in which they are run."""
    found: list[Case] = []
    for keys in args.keys:
        group, shape = f"Keyed count, {keys:,} keys, {args.rows:,} rows a batch", inputs.Shape(keys, args.rows)
        found += [
            # transformWithState is slow: it is given fewer batches, of the same input.
            Case(group, "transformWithState (Row)", "spark_transform_with_state.py", shape,
                 min(args.warmup, 3), min(args.batches, 10), reference=True),
            Case(group, "groupBy().count()", "spark_native_count.py", shape,
                 args.warmup, args.batches, reference=True),
            *(
                Case(group, f"statefx, {bolt}, {provider}", "statefx_count.py", shape,
                     args.warmup, args.batches, ("--bolt", bolt, "--provider", provider))
                for provider in ("rocksdb", "memory") for bolt in ("tuple", "batch", "combined")
            ),
        ]  # fmt: skip
    small = inputs.Shape(100, 100)
    for session in ("default", "recommended"):
        for stages in args.stages:
            if session == "default" and stages > 1:  # three levels of tasks: refused there
                continue
            group = f"A nearly empty batch, {stages} Python stage{'s' * (stages > 1)}, {session} session"
            options = ("--stages", str(stages), "--session", session)
            found.append(
                Case(group, "foreachBatch, does nothing", "spark_foreach_batch.py", small,
                     args.warmup, args.batches, options, reference=True)
            )  # fmt: skip
            found.append(
                Case(group, "statefx, rocksdb", "statefx_count.py", small,
                     args.warmup, args.batches, (*options, "--measure", "latency"))
            )  # fmt: skip
    few = args.rows // 25
    for provider in ("rocksdb", "memory"):
        group = f"{few:,} keys touched of many, statefx, {provider}"
        for existing in (few, 100 * few):
            found.append(
                Case(group, f"{existing:,} keys exist", "statefx_growth.py", inputs.Shape(existing, few),
                     args.warmup, args.batches, ("--provider", provider), reference=existing == few)
            )  # fmt: skip
    found += reading_cases(args)
    found += emitting_cases(args)
    found += spout_cases(args)
    found += window_cases(args)
    found += living_cases(args)
    found += kafka_cases(args)
    found.append(
        Case("Reading a topic of Kafka", "in turns", "kafka_reading.py", inputs.Shape(min(args.keys), args.rows),
             args.warmup, args.batches)
    )  # fmt: skip
    found.append(
        Case(f"{args.rows:,} messages a transaction into Kafka", "in turns", "sink_kafka.py",
             inputs.Shape(args.rows, args.rows), args.warmup, args.batches)
    )  # fmt: skip
    found += provider_cases(args)
    found += file_cases(args)
    found.append(
        Case("A small transaction, four tasks, its checkpoint in a folder or in S3", "in turns", "object_store.py",
             inputs.Shape(100, 100), args.warmup, args.batches)
    )  # fmt: skip
    found += sink_cases(args)
    found += sql_cases(args)
    return [case for case in found if not args.only or args.only in f"{case.group} {case.name} {case.script}"]


def reading_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of files that tasks read themselves; in each of them systems take turns."""
    return [
        Case(f"Keyed count over {form} by spouts, {keys:,} keys, {args.rows:,} rows a transaction", "in turns",
             "spout_counts.py", inputs.Shape(keys, args.rows, form), args.warmup, args.batches, ("--format", form))
        for form in ("parquet", "csv", "json") for keys in (args.keys if form == "parquet" else args.keys[:1])
    ]  # fmt: skip


def emitting_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of emitting alone, without Spark."""
    shape = inputs.Shape(args.rows // 50, args.rows // 5)
    group = f"Emitting alone, {shape.rows:,} rows in one task"
    return [
        Case(group, name, "emitting.py", shape, args.warmup, args.batches, ("--shape", name), reference=name == "long")
        for name in ("string", "string-long", "long", "strings", "array", "struct")
    ]


def spout_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of spouts; each of them measures several systems in turns."""
    few = inputs.Shape(100, 100)
    return [
        Case(f"A nearly empty transaction of a spout, {stages} level{'s' * (stages > 1)} of bolts", "in turns",
             "spout_small.py", few, args.warmup, args.batches, ("--stages", str(stages)))
        for stages in args.stages
    ] + [
        Case(f"Spout transactions in flight, {what}", "in turns", "spout_pipelining.py", few, args.warmup,
             args.batches, ("--shape", shape))
        for shape, what in (("waits", "a bolt waits for 200 ms, 8 cores"), ("works", "all compute, 2 cores"))
    ] + [
        Case("1,000 sentences of a spout, tracked or not", "in turns", "spout_acks.py",
             inputs.Shape(1000, args.rows), args.warmup, args.batches),
        Case("Messages that are held: the acker alone", "in turns", "acker.py", inputs.Shape(1, args.rows),
             args.warmup, args.batches),
        Case("Rows that may be undone, none of which is", "in turns", "bad_rows.py",
             inputs.Shape(min(args.keys), args.rows), args.warmup, args.batches),
        Case("Calls to a service, by one task", "in turns", "calls.py", inputs.Shape(1, args.rows), args.warmup,
             args.batches),
        Case("Timers of a task, of many", "in turns", "timers.py", inputs.Shape(1, 2 * args.rows), args.warmup,
             args.batches),
        Case("Timers of event time, a session for each user", "in turns", "event_timers.py",
             inputs.Shape(args.rows // 25, args.rows // 10), args.warmup, min(args.batches, 8)),
        Case("A join of two streams by key and time", "in turns", "interval_join.py",
             inputs.Shape(1, args.rows // 10), args.warmup, min(args.batches, 8)),
        Case("Partitions of a spout", "in turns", "spout_partitions.py", few, args.warmup, args.batches),
        Case("From one tuple at a time to pipelined batches", "in turns", "spout_steps.py",
             inputs.Shape(min(args.keys), args.rows), args.warmup, args.batches),
    ]  # fmt: skip


def window_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of windows; each of them makes its own input, and compares what it finds with a plain computation."""
    shape = inputs.Shape(max(args.keys), args.rows // 5)
    group = f"Sliding count, 10 minutes by 10 seconds, {shape.keys:,} keys, {shape.rows:,} rows a batch"
    few = min(args.warmup, 2), min(args.batches, 4)  # what Spark manages in a minute or two
    many = min(args.warmup, 10), min(args.batches, 60)
    return [
        *(
            Case(group, name, "sliding.py", shape, *few, ("--system", system), reference=system == "transformWithState")
            for system, name in (("transformWithState", "transformWithState (Row)"), ("native", "window().count()"),
                                 ("tuple", "statefx, tuple"), ("batch", "statefx, batch"))
        ),
        Case(group, f"statefx, batch, {sum(many)} batches", "sliding.py", shape, *many, ("--system", "batch")),
        *(
            Case("Nexmark, 10,000 events a second of event time", query, "nexmark.py",
                 inputs.Shape(1, args.rows // 5), min(args.warmup, 4), min(args.batches, 16), ("--query", query))
            for query in ("q5", "q7", "q8", "q11")
        ),
    ]  # fmt: skip


def living_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of how a pipelined topology begins, and of what it keeps while it lives."""
    keys = [args.rows // 500, 2 * args.rows]
    transactions = str(500 * args.batches)
    return [
        *(
            Case("From submit to the first commit, 8 tasks", f"{provider}, {there:,} keys", "living_start.py",
                 inputs.Shape(there, 8), args.warmup, args.batches, ("--provider", provider),
                 reference=provider == "rocksdb" and there == keys[0])
            for provider in ("rocksdb", "memory") for there in keys
        ),
        Case(f"What is kept of {transactions} nearly empty transactions", "in turns", "living_memory.py",
             inputs.Shape(min(args.keys), 2), args.warmup, args.batches, ("--transactions", transactions)),
    ]  # fmt: skip


def kafka_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of a topology from Kafka through state to Kafka."""
    paced = inputs.Shape(10_000, 10_000)
    few = inputs.Shape(10_000, args.rows // 10)
    group = f"Kafka to state to Kafka, {paced.rows:,} records a second, until a committed reader has them"
    return [
        *(
            Case(group, name, "kafka_latency.py", paced, args.warmup, args.batches, options)
            for name, options in (
                ("every 100 ms", ()),
                ("every 20 ms", ("--interval-ms", "20")),
            )
        ),
        Case(f"Kafka to state to Kafka at full speed, {few.rows:,} records a transaction", "in turns",
             "kafka_counts.py", few, args.warmup, args.batches),
    ]  # fmt: skip


def provider_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of providers alone, without Spark."""
    found: list[Case] = []
    many = inputs.Shape(args.rows // 5, args.rows // 5)
    for part, plain in (("reads", "HMGET"), ("commits", "HSET")):
        group = f"A provider alone, {many.rows:,} distinct keys a transaction, {part}"
        found.append(
            Case(group, f"Redis, pipelined {plain}", "redis_pipelined.py", many, args.warmup, args.batches,
                 ("--part", part), reference=True)
        )  # fmt: skip
        for provider in ("redis", "rocksdb", "memory"):
            options = ("--provider", provider, "--part", part)
            found.append(Case(group, f"statefx, {provider}", "provider_store.py", many, args.warmup, args.batches,
                              options))  # fmt: skip
    touched = args.rows // 20
    for provider in ("rocksdb", "memory"):
        group = f"A provider alone, {touched:,} keys read and committed of many, {provider}"
        found += [
            Case(group, f"{existing:,} keys exist", "provider_store.py", inputs.Shape(existing, touched),
                 args.warmup, args.batches, ("--provider", provider), reference=existing == 4 * touched)
            for existing in (4 * touched, 40 * touched, 400 * touched)
        ]  # fmt: skip
    some = inputs.Shape(args.rows // 5, args.rows // 125)
    for provider in ("redis", "rocksdb", "memory"):
        group = f"State alone, {some.rows:,} rows a transaction, {some.keys:,} keys exist, {provider}"
        found += [
            Case(group, name, "state_scans.py", some, args.warmup, args.batches,
                 ("--provider", provider, "--what", what), reference=what == "plain")
            for what, name in (("plain", "a get and a put"), ("scans", "a put and a scan of ten"),
                               ("first", "a put and the first of all"))
        ]  # fmt: skip
    puts = inputs.Shape(args.rows // 50, args.rows // 50)
    for provider in ("rocksdb", "memory"):
        for what in ("same", "new", "over"):
            group = f"A map with a ttl, {puts.rows:,} puts a transaction, keys that are {what}, {provider}"
            options = ("--provider", provider, "--what", what)
            found += [
                Case(group, name, "state_ttl.py", puts, args.warmup, args.batches, (*options, *more),
                     reference=not more)
                for name, more in (("without a ttl", ()), ("with a ttl", ("--ttl",)))
            ]  # fmt: skip
    for provider in ("rocksdb", "memory"):
        kept = inputs.Shape(20 * args.rows, args.rows)
        found.append(
            Case(f"All of {kept.keys:,} keys as a table, {provider}", "in turns", "state_table.py", kept, 0,
                 min(args.batches, 10), ("--provider", provider))
        )  # fmt: skip
    few = args.rows // 500
    for provider in ("redis", "rocksdb", "memory"):
        for worker in ("warm", "cold"):
            group = f"A provider alone, {few:,} keys committed of many, {provider}, {worker} worker"
            options = ("--provider", provider, "--worker", worker, "--part", "commits")
            found += [
                Case(group, f"{existing:,} keys exist", "provider_store.py", inputs.Shape(existing, few),
                     args.warmup, args.batches, options, reference=existing == 10 * few)
                for existing in (10 * few, 1000 * few)
            ]  # fmt: skip
    return found


def file_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of many state files, without Spark."""
    found: list[Case] = []
    few = inputs.Shape(20, 20)
    for provider in ("memory", "rocksdb"):
        group = f"Opening state in a warm worker, {provider}"
        found += [
            Case(group, f"{there:,} files", "state_files.py", few, args.warmup, args.batches,
                 ("--provider", provider, "--part", "open", "--there", str(there)), reference=there == 50)
            for there in (50, 1000)
        ]  # fmt: skip
    for tasks, there in ((1, 125), (1, 500), (1, 2000), (64, 31)):
        name = f"{tasks} task{'s' * (tasks > 1)}, {there:,} files each"
        found.append(
            Case("A sweep with nothing to delete", name, "state_files.py", few, min(args.warmup, 2),
                 min(args.batches, 10), ("--part", "sweep", "--there", str(there), "--tasks", str(tasks)),
                 reference=there == 125)
        )  # fmt: skip
    many = inputs.Shape(20 * args.rows, 1)
    found.append(Case(f"Other tasks for state of {many.keys:,} keys, RocksDB, keys a second", "in turns",
                      "rescaling.py", many, 0, 1))  # fmt: skip
    return found


def sink_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of sinks: rows into files, reading them, and what a transaction without rows costs."""
    shape = inputs.Shape(min(args.keys), args.rows)
    out = f"Parquet files, {args.rows:,} rows a transaction"
    back = f"Reading {args.rows:,} rows of 25 transactions"
    few = inputs.Shape(20, 20)
    return [
        Case(out, "a bolt that writes, no protocol", "sink_files.py", shape, args.warmup, args.batches,
             ("--by", "bolt"), reference=True),
        Case(out, "Spark's file sink", "sink_spark_files.py", shape, args.warmup, args.batches, reference=True),
        Case(out, "statefx, FileSink", "sink_files.py", shape, args.warmup, args.batches, ("--by", "sink")),
        Case(back, "the same files alone", "sink_reading.py", shape, args.warmup, args.batches,
             ("--how", "plain"), reference=True),
        Case(back, "spark.read with the manifest", "sink_reading.py", shape, args.warmup, args.batches,
             ("--how", "manifest")),
        Case(back, "readCommitted", "sink_reading.py", shape, args.warmup, args.batches, ("--how", "committed")),
        *(
            Case("A transaction without rows, without Spark", f"{sinks} sinks", "sink_commits.py", few, args.warmup,
                 args.batches, ("--sinks", str(sinks)), reference=not sinks)
            for sinks in (0, 3)
        ),
    ]  # fmt: skip


def sql_cases(args: argparse.Namespace) -> list[Case]:
    """The cases of a sink into a database, without Spark."""
    found: list[Case] = []
    some = inputs.Shape(args.rows // 5, args.rows // 5)
    for database in ("sqlite", "postgresql"):
        for upserts in (False, True):
            group = (
                f"{some.rows:,} rows a transaction into {database}, {'half of them replaced' if upserts else 'added'}"
            )
            how = "COPY" if database == "postgresql" and not upserts else "executemany"
            found += [
                Case(group, name, "sink_sql.py", some, args.warmup, args.batches,
                     ("--database", database, "--what", what, *["--upserts"] * upserts), reference=what == "plain")
                for what, name in (("plain", f"plain {how}"), ("statefx", "statefx, SqlSink"))
            ]  # fmt: skip
    return found


def run(case: Case, source: Path | None, scratch: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one case in its own process; the result, or what went wrong under ``error``."""
    log = args.output.parent / f"{Path(case.script).stem}.log"
    work = Path(tempfile.mkdtemp(dir=scratch))
    data = inputs.select(source, case.warmup + case.batches, work / "input") if source else work
    (work / "work").mkdir()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}{os.pathsep}{SYSTEMS}"}
    command = [sys.executable, str(SYSTEMS / case.script), "--input", str(data), "--work", str(work / "work")]
    for name, value in (("files", inputs.FILES), ("rows", case.shape.rows), ("keys", case.shape.keys),
                        ("warmup", case.warmup), ("batches", case.batches)):  # fmt: skip
        command += [f"--{name}", str(value)]
    try:
        done = subprocess.run(
            [*command, *case.options], cwd=work, env=environment, capture_output=True, text=True,
            timeout=args.timeout_secs, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            log.write_text(done.stdout + done.stderr, encoding="utf-8")
            raise ChildProcessError(f"exit code {done.returncode}, all of it in {log}\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (ChildProcessError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(work, ignore_errors=True)
    systems = result.pop("systems", [{}])  # those that took turns
    return [{"group": case.group, "name": case.name, "reference": case.reference, **result, **one} for one in systems]


def tables(results: list[dict[str, Any]]) -> str:
    """The results as text, a table a group; a ratio is the value over that of the reference."""
    lines: list[str] = []
    for group in dict.fromkeys(result["group"] for result in results):
        rows = [result for result in results if result["group"] == group]
        references = [row for row in rows if row["reference"] and "error" not in row]
        lines += ["", group]
        lines.append(f"  {'':<34}{'':>12}  " + "".join(f"{'x ' + row['name']:>28}" for row in references))
        for row in rows:
            if "error" in row:
                lines.append(f"  {row['name']:<34}{'failed':>12}")
                continue
            field, unit = VALUES[row["measure"]]
            places = 0 if row[field] >= FEW else 1
            ratios = "".join(f"{row[field] / reference[field]:>28.2f}" for reference in references)
            if field != "rows_per_second" and "rows_per_second" in row:
                unit += f", {row['rows_per_second']:,.0f} rows/s"
            if "trigger_ms_p99" in row:
                unit += f", p99 {row['trigger_ms_p99']:,.1f}"
            lines.append(f"  {row['name']:<34}{row[field]:>12,.{places}f}  {ratios}  {unit}")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory_gb, 1),
        "platform": platform.platform(),
        "java_home": os.environ.get("JAVA_HOME"),
        "load_average_at_start": os.getloadavg(),
    }


def parsed() -> argparse.Namespace:
    """The command line; ``--quick`` changes the defaults, not what was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and few batches: does it run?, no figures")
    parser.add_argument("--rows", type=int, help="rows a batch (500,000)")
    parser.add_argument("--keys", type=int, nargs="+", help="numbers of distinct keys (1,000 100,000)")
    parser.add_argument("--stages", type=int, nargs="+", help="Python stages of the nearly empty batch (1 2)")
    parser.add_argument("--warmup", type=int, help="batches before the clock starts (10)")
    parser.add_argument("--batches", type=int, help="batches that are measured (40)")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose group, name or script holds this text")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--timeout-secs", type=float, default=1800, help="for one case (1,800)")
    args = parser.parse_args()
    full = {"rows": 500_000, "keys": [1_000, 100_000], "stages": [1, 2], "warmup": 10, "batches": 40}
    quick = {"rows": 5_000, "keys": [1_000], "stages": [1], "warmup": 2, "batches": 3}
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.warmup < 1 or args.batches < 1:
        parser.error("--warmup and --batches are at least 1: the clock starts at the commit of the last warm-up batch")
    if args.warmup + args.batches > 100:
        parser.error("--warmup and --batches are at most 100 together: Spark deletes older commits, the clock")
    return args


def main() -> int:
    """Run all cases; 1 if one of them failed."""
    args = parsed()
    todo = cases(args)
    if not todo:
        print(f"no case holds {args.only!r}", file=sys.stderr)
        return 2
    facts, results = machine(), list[dict[str, Any]]()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="statefx-bench-") as scratch:
        sources = {
            shape: inputs.make(Path(scratch), shape, max(c.warmup + c.batches for c in todo if c.shape == shape))
            for shape in dict.fromkeys(case.shape for case in todo if case.shared_input)
        }
        for number, case in enumerate(todo, 1):
            started = time.monotonic()
            found = run(case, sources.get(case.shape), Path(scratch), args)
            results += found
            written = json.dumps({"machine": facts, "results": results}, indent=2)  # each time: all take two hours
            args.output.write_text(written + "\n", encoding="utf-8")
            took = time.monotonic() - started
            print(f"[{number}/{len(todo)}] {case.group}: {case.name} ({took:.0f} s)", file=sys.stderr, flush=True)
            if "error" in found[0]:
                print(found[0]["error"], file=sys.stderr, flush=True)
    print(tables(results))
    print(f"\nwritten to {args.output}")
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())

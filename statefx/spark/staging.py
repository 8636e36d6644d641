"""Stages the rows of DataFrames: one Spark job a batch, whose tasks write them where the topology's tasks read them.

It is natural to take a job's result for the rows of one computation of the DataFrame, since Spark counts each
partition's result once. This order of events breaks it: tasks 0 to 4 of a job behind a shuffle have returned their
parts when an executor dies, and with it its part of the shuffle. Spark computes that part again. If the shuffle
routes by chance (by ``rand()``, say), a row that task 3 has staged may now go to task 6, and another one to none: of
120,000 rows 17,733 were lost and as many doubled, without an error.

So `Stager` looks at what the job did (rule 15.1): if the DataFrame has shuffles and a stage ran twice, or an earlier
job's shuffle or cache was used in part, the batch is staged again under other names. Parts that no returned job names
are garbage.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.types import BinaryType, DataType, StructType

from statefx import logs
from statefx.coordinator.progress import Progress
from statefx.coordinator.retrying import JobFailedError, RenewInputError, StoppedError, backoff_secs, exhausted
from statefx.errors import StatefxError, TransactionError
from statefx.plan.levels import Plan
from statefx.protocol.staged import StagedPart
from statefx.protocol.watermark import Timing
from statefx.runtime.staging import FOLDER, PartWriter, inline_bytes
from statefx.spark import internals
from statefx.spark.executors import with_open_workers
from statefx.spark.failures import CONTEXT_STOPPED, job_error
from statefx.spark.job import Labels
from statefx.spark.session import is_local
from statefx.storage import Storage

logger = logging.getLogger("statefx")

_STREAM = "__stream"
_PARTS = StructType().add("part", BinaryType())
_PARTS_SCHEMA = pa.schema([("part", pa.binary())])

BATCH_PROPERTY = "statefx.batch"
"""Properties of a staging job's tasks: the driver's clock, up to how many bytes a part needs no file, and how the names
of the files begin."""

_PATIENCE_SECS = 0.5
"""How long a job may go on that nobody needs any more."""

SWEEP_BATCHES = 50
"""Batches with files until those are looked for that no job's result named: one listing, with an object store."""

SLOTS_SECS = 5.0
"""How long no task of a job may have begun until that is shown: it waits for slots, for as long as others hold them."""

_WAITS = (
    "staging waits for slots: no task of the job that reads the DataFrames has run for {secs:.0f} s. Other queries or "
    "jobs of this session hold all slots, or an executor is lost: end what is not needed, or give the session more "
    "executors, or cores (slots are threads there, not cores)"
)

_STATUS_POLLS = 500
_STATUS_POLL_SECS = 0.01
_STAGES_UNKNOWN = "Spark's status store does not tell whether a stage of the job was run again"


def unite(frames: Mapping[str, DataFrame], order: Sequence[str] = ()) -> DataFrame:
    """Put the rows of all DataFrames into one, each in columns of its own; only then can one query run them.

    A single frame keeps its columns; names become positions, so that any name is allowed. Columns stand in the order of
    `frames`; a streaming query has its sources in `order`, if one is given (rule 3.15).
    """
    if len(frames) == 1:
        frame = next(iter(frames.values()))
        return frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])
    types: list[tuple[int, DataType]] = [
        (number, field.dataType) for number, frame in enumerate(frames.values()) for field in frame.schema.fields
    ]
    # A union wants the same columns in the same order. So each frame has the columns of all, with nulls in those of the
    # others, and tasks cut theirs out (`StageRows`).
    padded: dict[str, DataFrame] = {}
    for number, (name, frame) in enumerate(frames.items()):
        renamed = frame.toDF(*[f"n{i}" for i in range(len(frame.columns))])
        own = iter(renamed.columns)
        columns = [
            (F.col(next(own)) if owner == number else F.lit(None).cast(kind)).alias(f"c{i}")
            for i, (owner, kind) in enumerate(types)
        ]
        padded[name] = renamed.select(*columns, F.lit(number).alias(_STREAM))
    return reduce(DataFrame.union, (padded[name] for name in order or padded))


@dataclass(frozen=True)
class StageRows:
    """The function of a staging job's tasks over the rows of the united frame, for mapInArrow."""

    storage: Storage
    streams: Mapping[str, pa.Schema]
    timings: Mapping[str, Timing]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        clock_ms, inline, stem = str(context.getLocalProperty(BATCH_PROPERTY)).split(" ")
        partition = context.partitionId()
        stem += f"-{partition}-{context.taskAttemptId()}"  # a task that Spark runs again has other files
        writers = {
            name: PartWriter(
                self.storage,
                f"{stem}-{at}",
                name,
                partition,
                schema,
                self.timings.get(name),
                int(clock_ms),
                int(inline),
            )
            for at, (name, schema) in enumerate(self.streams.items())
        }
        for batch in batches:
            for name, rows in self._split(batch):
                writers[name].write(rows)
        parts = [part.pack() for writer in writers.values() for part in writer.close()]
        yield pa.RecordBatch.from_arrays([pa.array(parts, pa.binary())], schema=_PARTS_SCHEMA)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        start = 0
        for number, (name, schema) in enumerate(self.streams.items()):
            rows = batch
            if len(self.streams) > 1:
                rows = rows.filter(pc.equal(batch.column(batch.num_columns - 1), number))
            if rows.num_rows:
                # The cast: Spark marks timestamps with the session's zone, and says of lists and structs what it knows
                # of their nulls; bolts get the types that the stream's schema says, whatever the session is set to.
                columns = [rows.column(start + i).cast(field.type) for i, field in enumerate(schema)]
                yield name, pa.RecordBatch.from_arrays(columns, schema=schema)
            start += len(schema)


class Stager:
    """Stages batches, one at a time.

    `columns` are the united frame's. Parts are written to `storage`, which all tasks see; `checkpoint` is where drivers
    on a cluster have written theirs. Names of files begin with `generation` (rule 15.4). `progress` shows a batch that
    can't be staged; `slots` returns how many of Spark's slots the topology leaves free. One batch may fail
    `attempts_max` times. `stopping` is set when the query is being stopped.
    """

    def __init__(
        self,
        plan: Plan,
        columns: Sequence[str],
        storage: Storage,
        checkpoint: Storage,
        generation: int,
        labels: Labels,
        progress: Progress,
        slots: Callable[[], int],
        attempts_max: int,
        retry_delay_secs: float,
        stopping: threading.Event,
    ) -> None:
        self._function = StageRows(storage, plan.streams, plan.timings)
        self._columns, self._storage, self._checkpoint = columns, storage, checkpoint
        self._prefix = f"{FOLDER}{generation}-"
        self._labels, self._progress = labels, progress
        self._slots = slots
        self._attempts_max, self._retry_delay_secs = attempts_max, retry_delay_secs
        self._stopping = stopping
        self._tag = ""
        self._live = set[str]()
        """How the names of files begin of batches whose parts are still read."""
        self._batches = 0
        self._workers = 0
        self._context: Any = None
        self._idle = threading.Event()
        self._idle.set()
        self._wrap()

    def _wrap(self) -> None:
        self._mapped = internals.mapping(self._function, _PARTS, self._columns, self._workers)

    @property
    def is_busy(self) -> bool:
        """Whether a job of its holds slots, or waits for some."""
        return not self._idle.is_set()

    @property
    def holds_slots(self) -> bool:
        """Whether a job of its holds slots, which it gives back at its end."""
        return self.is_busy and self._asks_jvm(internals.tasks_run)

    def _asks_jvm(self, question: Callable[[Any, str], bool]) -> bool:
        try:
            return question(self._context, self._tag)
        except (Py4JError, AttributeError):  # the session is being stopped: its context has no JVM any more
            return False

    def cancel(self) -> None:
        """End the running job; any thread may call it."""
        context = self._context
        # Most are over in no time, and workers that are cancelled print a trace.
        if not self._idle.wait(_PATIENCE_SECS) and not internals.stopped_here(context):
            with contextlib.suppress(Py4JError):
                context.cancelJobsWithTag(self._tag)

    def delete(self, parts: Iterable[StagedPart]) -> None:
        """Delete the files of parts that are read no more; any thread may call it."""
        names = [part.name for part in parts if part.name]
        self._live.difference_update(map(_stem, names))
        with contextlib.suppress(OSError):  # `_delete_unnamed` or the next start deletes what is left
            self._storage.delete(names)

    def _delete_unnamed(self) -> None:
        """Delete, after every `SWEEP_BATCHES`-th batch with files, those that no batch which is still read has.

        Spark may run a task twice, by speculation or since its worker died, and the job's result names the files of one
        attempt. The other may even write some after the job's end, so those of a batch go once that was committed.
        """
        self._batches += 1
        if self._batches % SWEEP_BATCHES == 0:
            with contextlib.suppress(OSError):
                found = [each.name for each in self._storage.list(self._prefix)]
                self._storage.delete(name for name in found if _stem(name) not in self._live)

    def sweep(self) -> None:
        """Delete the files of older drivers, also where they ran on a cluster (rule 15.4)."""
        own = _generation(self._prefix)
        for storage in {each.url: each for each in (self._storage, self._checkpoint)}.values():
            with contextlib.suppress(OSError):
                names = [each.name for each in storage.list(FOLDER)]
                storage.delete(name for name in names if _generation(name) < own)
                storage.discard_unfinished(FOLDER)

    def stage(self, frame: DataFrame, txid: int, wanted: Callable[[], bool]) -> list[StagedPart]:
        """Return the rows of `frame` in parts, which are there for `txid`.

        `wanted` returns whether a transaction will read them: otherwise a job that fails was cancelled.
        RenewInputError: the job failed, and Spark has kept a part of what it computed, so that another one could mix it
        with other rows. AttemptsExhaustedError: it failed too often. TransactionError: no other attempt would help,
        since a Python function of the user's raised, or Spark's planner refused it. StoppedError: the query is being
        stopped.
        """
        tries = 0
        while True:
            try:
                parts = self._job(frame, txid, wanted)
            except JobFailedError as failure:
                if not wanted():
                    raise StoppedError("the query was stopped") from failure
                tries += 1
                if self._keeps_shuffles(frame):
                    raise RenewInputError(failure.message, **failure.data) from failure
                if tries >= self._attempts_max:
                    raise exhausted(txid, tries, failure) from failure
                self._progress.away(txid, failure.message)
                secs = backoff_secs(tries, self._retry_delay_secs)
                logger.warning("the rows of transaction %d are staged again in %g s: %s", txid, secs, failure.message)
                if self._stopping.wait(secs):
                    raise StoppedError("the query was stopped") from failure
            else:
                self._progress.away(txid, "")
                return parts

    def _keeps_shuffles(self, frame: DataFrame) -> bool:
        try:
            return internals.keeps_shuffles(frame)
        except (PySparkException, Py4JError):
            return True

    def _job(self, frame: DataFrame, txid: int, wanted: Callable[[], bool]) -> list[StagedPart]:
        self._context = context = frame.sparkSession.sparkContext
        if self._stopping.is_set() or internals.stopped_here(context):
            self._check_stopped()
        self._idle.clear()
        self._tag = f"statefx-{uuid.uuid4().hex}"
        stem, parts = f"{self._prefix}{uuid.uuid4().hex}", None
        try:
            if not wanted():  # `cancel` may have come before there was a job
                raise StoppedError("the query was stopped")
            with internals.own_properties(context) as own:
                context.addJobTag(self._tag)
                self._labels.name_staging(own, txid)
                has_shuffles = internals.has_shuffles(frame)
                with self._showing_waits(txid):
                    kept = kept_before = self._kept(frame) if has_shuffles else set()
                    if has_shuffles and internals.make_caches(frame):
                        kept = self._kept(frame)  # what has been made now is whole, and may not run a second time
                    context.addJobTag(_rows_of(self._tag))
                    # Not into more partitions than there are slots left: a run that begins needs the others at once.
                    width = max(1, self._slots())
                    inline = inline_bytes(width * len(self._function.streams))
                    own.setProperty(BATCH_PROPERTY, f"{round(self._progress.now() * 1000)} {inline} {stem}")
                    mapped = self._mapped(frame.coalesce(width))
                    rows = with_open_workers(lambda: internals.collected(mapped, "part"))
                if has_shuffles and self._ran_again(kept_before, kept):
                    raise JobFailedError("a stage of the job had to be run again: rows of two runs may be mixed")
                parts = [StagedPart.unpack(row) for row in rows]
            if any(part.name for part in parts):
                self._live.add(stem)
                self._delete_unnamed()
        except (AnalysisException, StatefxError):
            raise
        except Exception as error:
            self._check_stopped()
            if not isinstance(error, (PySparkException, Py4JError)):
                raise
            if internals.cant_start_workers(error):
                self._workers += 1
                self._wrap()
            raise job_error(error, local=is_local(context)) from error
        finally:
            if parts is None:
                self._drop(stem)
            self._idle.set()
        return parts

    @contextlib.contextmanager
    def _showing_waits(self, txid: int) -> Iterator[None]:
        """While the block runs a job, show whether that waits for slots; Spark itself has no limit for it."""
        ended = threading.Event()

        def watch() -> None:
            began, waits = time.monotonic(), 0
            while not ended.wait(SLOTS_SECS):
                waits = waits + 1 if self._asks_jvm(internals.waits_for_slots) else 0
                reason = _WAITS.format(secs=time.monotonic() - began)
                if waits > 1:  # once, it may have been between two tasks
                    self._progress.away(txid, reason)
                if waits == 2:
                    logger.warning("transaction %d: %s", txid, reason)
                if not waits:
                    self._progress.away(txid, "")
            self._progress.away(txid, "")

        watching = threading.Thread(target=logs.carrying(watch), name="statefx-staging", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def _drop(self, stem: str) -> None:
        """Delete the files of a failed job; `_delete_unnamed` deletes what its tasks still write."""
        with contextlib.suppress(OSError):
            self._storage.delete([each.name for each in self._storage.list(stem)])

    def _kept(self, frame: DataFrame) -> set[int]:
        kept = internals.stages_kept(frame)
        if kept is None:
            raise JobFailedError(
                "a part of a cache, or of a shuffle, that the DataFrame stands on is lost: computed again, it may have "
                "other rows than the rest"
            )
        return kept

    def _ran_again(self, kept_before: Collection[int], kept: Collection[int]) -> bool:
        """Return whether any stage of the job ran more than once: it may have written rows of both (rule 15.1).

        Spark makes several jobs of it: those that made caches, before which the stages `kept_before` had run, and those
        that read the rows, before which `kept` had. One of these runs again when what it has left was lost since.
        """
        for _ in range(_STATUS_POLLS):
            reading = internals.ended_jobs(self._context, _rows_of(self._tag))
            jobs = internals.ended_jobs(self._context, self._tag)
            if jobs is not None and reading is not None:
                break
            self._stopping.wait(_STATUS_POLL_SECS)
        else:
            raise JobFailedError(_STAGES_UNKNOWN)
        stages = {stage for of in jobs.values() for stage in of}
        tries = {stage: internals.stage_tries(self._context, stage) for stage in stages}
        if any(each is not None and each > 1 for each in tries.values()):
            return True
        ran: dict[int, int] = {}
        if kept or kept_before or len(jobs) > 1:
            ran = {stage: internals.rdd_of_stage(self._context, stage) for stage, each in tries.items() if each}
        for job, of in jobs.items():
            done = kept if job in reading else kept_before
            if any(ran.get(stage) in done for stage in of):
                return True
        if _wrote_twice(jobs, ran):
            return True
        for job, of in jobs.items():
            self._check_known(job, [tries[stage] for stage in of])
        return False

    def _check_known(self, job: int, tries: Sequence[int | None]) -> None:
        """Raise unless the stages are known that a job has run, all but those that it skipped.

        A full store forgets stages, and those first that a job skipped, however new they are. So a stage that is not
        there was skipped, if as many are there as the job has completed.
        """
        if None in tries:
            completed = internals.stages_completed(self._context, job)
            if completed is None or sum(each == 1 for each in tries) < completed:
                raise JobFailedError(_STAGES_UNKNOWN)

    def _check_stopped(self) -> None:
        """Raise if the query or the SparkContext was stopped: only this tells, no failure's text."""
        if self._stopping.is_set():
            raise StoppedError("the query was stopped")
        try:
            stopped = internals.is_stopped(self._context)
        except Py4JError:  # the JVM is gone: let the caller raise
            return
        if stopped:
            raise TransactionError(CONTEXT_STOPPED)


def _rows_of(tag: str) -> str:
    """Return the second tag of those jobs of a batch that read its rows, once its caches are made."""
    return f"{tag}-rows"


def _wrote_twice(jobs: Mapping[int, Sequence[int]], ran: Mapping[int, int]) -> bool:
    """Return whether two stages that ran, each with its RDD, wrote the same shuffle.

    With adaptive execution each shuffle is a job of its own. If its files are lost before the next one begins, that has
    a new stage for it. The last stage of a job need not write a shuffle: ``take`` reads an RDD in several.
    """
    before_last = {stage for stages in jobs.values() for stage in stages if stage != max(stages)}
    times = Counter(ran.values())
    return any(times[rdd] > 1 for stage, rdd in ran.items() if stage in before_last)


def _stem(name: str) -> str:
    """Return how the names of all files of a batch begin."""
    return "-".join(name.split("-", 2)[:2])


def _generation(name: str) -> int:
    number = name.removeprefix(FOLDER).partition("-")[0]
    return int(number) if number.isdecimal() else 0

"""Where transactions come from: the micro-batches of a streaming query, one batch DataFrame, or spouts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import IllegalArgumentException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from statefx import logs
from statefx.coordinator.attempt import Batch
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.progress import SLOW_SECS
from statefx.coordinator.retrying import RenewInputError, StoppedError, backoff_secs
from statefx.coordinator.spouts import SpoutSource
from statefx.coordinator.staging import StagedBatch, StagedSource, staged, without_rows
from statefx.errors import (
    AttemptsExhaustedError,
    CheckpointMismatchError,
    FencedError,
    InputError,
    StatefxError,
    TransactionError,
)
from statefx.log.location import Folders
from statefx.log.takeover import check_newest
from statefx.plan.levels import Plan
from statefx.protocol.records import BatchInput, StreamInput
from statefx.spark.checkpoint import SparkCheckpoint
from statefx.spark.internals import deny_log_lines, has_ended_trigger, has_read_all, is_stopped, lets_go
from statefx.spark.job import PipelinedEngine
from statefx.spark.source_notes import DEFAULT, SETTING
from statefx.spark.staging import Stager

logger = logging.getLogger("statefx")


_POLL_SECS = 0.05
_CONTEXT_POLL_SECS = 1
_STOP_POLL_SECS = 0.01

_UNREAD = "what comes from now on, or a part of what is there, is not read"


class _QuietError(Exception):
    """Ends Spark's query as stopped; anything else with a long trace makes Spark's matching overflow its stack."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling statefx: java.lang.InterruptedException"
        )


class StreamFeed:
    """The micro-batches of one streaming query, over the united frame.

    Spark's query only stages: its callback returns when its batch waits for a transaction, which the coordinator's loop
    runs in this feed's own thread (rule 6.10).

    `trigger` are arguments for Spark's ``trigger``; `interval_ms` is its interval, if the user has not asked for one.
    """

    def __init__(
        self,
        frame: DataFrame,
        folders: Folders,
        checkpoint: SparkCheckpoint,
        trigger: Mapping[str, Any],
        name: str,
        plan: Plan,
        coordinator: Coordinator,
        engine: PipelinedEngine,
        stager: Stager,
        interval_ms: int | None = None,
    ) -> None:
        self._frame = frame
        self._context = frame.sparkSession.sparkContext
        self._folders = folders
        self._checkpoint = checkpoint
        self._trigger = {kind: value for kind, value in trigger.items() if kind != "closeTime"}
        self._close_time = "closeTime" in trigger
        self._name = name
        self._plan = plan
        every = trigger.get("processingTime")
        self._interval_secs = None if every is None else int(every.split()[0]) / 1000
        self._coordinator = coordinator
        self._engine = engine
        self._stager = stager
        self._interval_ms = interval_ms
        self._ahead = not lets_go(frame)
        self._starting = threading.Lock()
        self._query: StreamingQuery | None = None
        self._source: StagedSource | None = None
        self._draining = False
        self._ended = threading.Event()

    def run(self, started: Callable[[], None]) -> None:
        """Run Spark's query until it ends (see `Feed.run`).

        A driver that was replaced may have lost its folder: whatever Spark says of that, it is FencedError.
        """
        try:
            self._stager.sweep()
            self._run(started)
        except (FencedError, StoppedError):
            raise
        except Exception as error:
            self._check_newest(error)
            raise
        finally:
            self._checkpoint.remove()
            self._ended.set()

    def _run(self, started: Callable[[], None]) -> None:
        restarts = 0
        # Spark cancels a query's jobs twice when it is stopped, and warns where there are none.
        deny_log_lines(self._context, r"Failed to cancel job group [-0-9a-f]{36}\.")
        if self._interval_ms is not None:  # our default is the *least* time between two transactions
            falling = rf"falling behind\. The trigger interval is {self._interval_ms} milliseconds"
            deny_log_lines(self._context, falling)
        while True:
            before = self._offsets()
            again = self._read(started)
            if again is None:
                break
            # From 1 again when a batch was committed: what is limited is how often one stands in the way (rule 6.8).
            restarts = 1 if self._offsets() != before else restarts + 1
            if restarts > self._coordinator.shape.attempts_max:
                raise AttemptsExhaustedError(
                    f"Spark's query had to be started again {restarts} times, and the same batch failed each time "
                    f"(topology.transaction.attempts.max); last: {again.message}",
                    **{**again.data, "attempts": restarts},
                ) from again
            logger.warning("Spark's query is started again: %s", again.message)
            if not self._coordinator.pause(backoff_secs(restarts, self._coordinator.retry_delay_secs)):
                break
        self._checkpoint.note()
        if self._close_time and not self._draining:
            self._coordinator.close_time(self._no_batch)

    def _offsets(self) -> str:
        """Return how far what was read is committed; transactions without a batch have the offsets of the last one."""
        last = self._coordinator.log.state.last_input
        return last.offsets if isinstance(last, StreamInput) else ""

    def _read(self, started: Callable[[], None]) -> RenewInputError | None:
        """Run Spark's query once, and transactions over what it stages; return why it has to be started again."""
        # From the log, not from what Spark has noted here: of that, batches may have been staged that are lost now.
        self._checkpoint.remove()
        self._checkpoint.rebuild(int(self._frame.sparkSession.conf.get(SETTING) or DEFAULT))
        source = self._source = StagedSource(
            self._plan,
            self._coordinator.log,
            self._checkpoint.with_notes,
            self._checkpoint.note,
            self._engine.interrupt,
            self._stager.delete,
            self._coordinator.progress,
            self._coordinator.ticks,
            self._interval_secs,
            busy=lambda: self._stager.is_busy,
            ahead=self._ahead,
        )
        if "processingTime" in self._trigger:
            self._engine.open()  # else when the first batch is there: there may be none
        with self._starting:  # the first batch may come before it has returned
            query = self._query = self._start()
        if self._draining:  # `cancel` may have come before there was a query to stop
            source.stop()
        started()
        watching = threading.Thread(
            target=logs.carrying(self._watch), args=(query, source), name="statefx-input", daemon=True
        )
        watching.start()
        try:
            self._coordinator.run(source)
        except RenewInputError as again:
            source.end(again)
        finally:
            source.stop()
            self._stager.cancel()
            _stop(query)
            watching.join()
            source.close()
        if isinstance(source.error, RenewInputError):
            return source.error
        if source.error is not None and not self._draining:
            if isinstance(source.error, StreamingQueryException):
                raise self._input_error(source.error) from source.error
            raise source.error
        return None

    def _no_batch(self) -> Batch:
        """Return the next batch, as one that reads nothing."""
        state = self._coordinator.log.state
        assert isinstance(state.last_input, StreamInput)
        return staged(self._plan, replace(without_rows(state.last_input), batch_id=state.committed), [])

    def _watch(self, query: StreamingQuery, source: StagedSource) -> None:
        """End the source as Spark's query has ended."""
        try:
            while not query.awaitTermination(_CONTEXT_POLL_SECS):
                if is_stopped(self._context):  # Spark itself would look for input for ever
                    _stop(query)
                    raise StoppedError("the SparkContext was stopped")
            self._check_newest()  # another driver in this session ends Spark's query without an error
            if not source.is_over and not self._has_read_all(query):  # rule 6.12
                if is_stopped(self._context):
                    raise StoppedError("the SparkContext was stopped")
                so = "a part of the input is not read, so event time is not closed" if self._close_time else _UNREAD
                raise InputError(
                    "Spark's own query was stopped, and not by this topology's query: by spark.streams or by another "
                    f"query with the same id in this Spark application, as that of a copy of {self._folders.location} "
                    f"has: {so}. Nothing is lost: submit again, and end it with stop() of the query that submit "
                    "returns"
                )
            source.end()
        except Exception as error:  # noqa: BLE001 - raised by the feed's own thread
            source.end(error)

    def _has_read_all(self, query: StreamingQuery) -> bool:
        """Return whether Spark's query has ended because it has read what its trigger asks for."""
        if "processingTime" in self._trigger:  # for ever
            return False
        return has_ended_trigger(query) if "once" in self._trigger else has_read_all(query)

    def _input_error(self, failure: StreamingQueryException) -> InputError:
        """Return the error for the topology: Spark's words speak of its own query and files alone.

        Called when the loop has ended: what was handed over before the failure is committed until then.
        """
        reason = " ".join(str(failure).partition("=== Streaming Query ===")[0].split())
        committed = self._coordinator.log.state.committed
        return InputError(
            f"Spark's query ended outside any transaction, while it looked for input: {reason}. Transaction "
            f"{committed} is the last one committed, and nothing has been done of the next. The checkpoint in "
            f"{self._folders.location} belongs to the input that it was begun with: if path, topic or format of the "
            "input were changed, or files of the checkpoint were deleted, go back to what was there, or start with a "
            "new checkpointLocation (and empty state)",
            committed=committed,
            location=self._folders.location,
        )

    def drain(self) -> None:
        self._draining = True
        self._end_input()
        self._coordinator.stop()
        self._ended.wait()

    def cancel(self) -> None:
        self._draining = True
        if not self._ended.is_set():
            self._end_input()
            self._coordinator.stop(now=True)
            self._engine.stop()

    def _end_input(self) -> None:
        if self._source is not None:
            self._source.stop()
        self._stager.cancel()

    def process_all_available(self, ended: threading.Event) -> None:
        """Wait for all input that is there now (see `Feed.process_all_available`)."""
        while not ended.is_set():
            query, source = self._query, self._source
            assert query is not None
            assert source is not None
            with contextlib.suppress(StreamingQueryException):  # `run` knows what it means
                query.processAllAvailable()
                if query.isActive:
                    while not (source.is_read or source.is_over or ended.wait(_POLL_SECS)):
                        pass
                    if source.is_read:  # else it is read again, or has ended
                        return
            ended.wait(_POLL_SECS)  # it is started again, or has ended

    def _start(self) -> StreamingQuery:
        """Start Spark's query; one of a former driver in this session, which has the same name, is stopped.

        Spark ends it too, as it has the same id, but looks at the names first.
        """
        writer = (
            self._frame.writeStream.foreachBatch(logs.carrying(self._on_batch))
            .outputMode("update")
            .queryName(self._name)
        )
        writer = writer.option("checkpointLocation", f"file:{self._checkpoint.folder}").trigger(**self._trigger)
        self._coordinator.log.check()  # the former one may be a newer driver's
        self._stop_former()
        try:
            return writer.start()
        except IllegalArgumentException:
            self._check_newest()  # a newer driver came in between; or an older one, and is stopped as well
            self._stop_former()
            return writer.start()

    def _stop_former(self) -> None:
        for query in self._frame.sparkSession.streams.active:
            if query.name == self._name:
                query.stop()

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Stage one micro-batch; return when a transaction has begun to read it."""
        with self._starting:  # held until `_start` has returned: Spark may call before that
            query, source = self._query, self._source
        assert query is not None
        assert source is not None
        try:
            goes_on = self._take(frame, batch_id, query, source)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a callback would hang Spark's query
            source.end(error)
            goes_on = False
        if not goes_on:
            self._end_quietly(query)
            if query.isActive:  # by an error, since Spark would begin another batch
                raise _QuietError

    def _end_quietly(self, query: StreamingQuery) -> None:
        """Stop Spark's query from within its own callback.

        One that ends by an error prints sixty lines of Spark's own stack, above which the user's are lost; one that was
        stopped prints none. ``stop`` returns when the callback has, so it is called in a thread of its own.
        """
        stopping = threading.Thread(target=_stop, args=(query,), name="statefx-end", daemon=True)
        stopping.start()
        # However long that takes: where the callback returns first, the stack is printed, and its end may come last.
        with contextlib.suppress(Py4JError):
            while query.isActive and stopping.is_alive():
                time.sleep(_STOP_POLL_SECS)

    def _take(self, frame: DataFrame, batch_id: int, query: StreamingQuery, source: StagedSource) -> bool:
        """Stage a batch and hand it over; False if nobody wants it."""
        batch = self._checkpoint.batch(query.id, batch_id)
        if source.expects(batch):
            self._engine.open()  # it begins while the rows are staged
            with contextlib.suppress(StoppedError):
                parts = self._stager.stage(frame, source.txid, lambda: not source.is_over)
                return source.hand_over(StagedBatch(batch, parts))
            return False
        raise CheckpointMismatchError(
            f"Spark's batch {batch_id} of query {query.id} came where batch {source.upcoming} is the next one. Spark's "
            f"folder, {self._checkpoint.folder}, was changed while the query was at work: submit again",
            batch=batch_id,
        )

    def _check_newest(self, cause: Exception | None = None) -> None:
        """Raise FencedError if a newer generation has taken over."""
        try:
            check_newest(self._folders, self._coordinator.log.state.generation)
        except FencedError as fenced:
            raise fenced from cause
        except (StatefxError, OSError):
            if cause is None:
                raise


def _stop(query: StreamingQuery) -> None:
    with contextlib.suppress(Py4JError, PySparkException):  # its error is the one that is raised
        query.stop()


class BatchFeed:
    """One batch DataFrame: one transaction. The same `batch_id`, or a lower one, is never applied twice."""

    def __init__(
        self,
        frame: DataFrame,
        batch_id: int | None,
        plan: Plan,
        coordinator: Coordinator,
        engine: PipelinedEngine,
        stager: Stager,
        *,
        close_time: bool = False,
    ) -> None:
        self._frame = frame
        self._batch_id = batch_id
        self._plan = plan
        self._coordinator = coordinator
        self._engine = engine
        self._stager = stager
        self._close_time = close_time
        self._done = threading.Event()
        self._cancelled = False

    def run(self, started: Callable[[], None]) -> None:
        started()
        try:
            self._stager.sweep()
            state = self._coordinator.log.state
            # The log says which ids were applied, and says it together with their effect: no crash parts the two.
            if self._batch_id is not None and state.applied(self._batch_id):
                logger.info("batch %d was applied before: nothing to do", self._batch_id)
            else:
                self._engine.open()  # it begins while the rows are staged
                parts = self._stager.stage(self._frame, state.committed + 1, lambda: not self._cancelled)
                try:
                    self._coordinator.transact(staged(self._plan, BatchInput(self._batch_id), parts))
                finally:
                    self._stager.delete(parts)
            if self._close_time:
                self._coordinator.close_time(lambda: staged(self._plan, BatchInput(), []))
        except RenewInputError as error:
            raise TransactionError(
                f"the batch was not applied ({error.message}), and is not tried again over this DataFrame: submit it "
                "again. If it stands on an RDD or a cache with shuffles of its own, of which Spark may keep "
                "a part and compute the rest again, with other rows, make it again before that, or write it to files.",
                **error.data,
            ) from error
        finally:
            self._done.set()

    def drain(self) -> None:
        self._done.wait()

    def cancel(self) -> None:
        self._cancelled = True
        if not self._done.is_set():
            self._coordinator.stop(now=True)
            self._engine.stop()
            self._stager.cancel()

    def process_all_available(self, ended: threading.Event) -> None:
        while not ended.wait(_POLL_SECS):  # in pieces: see `Query._wait`
            pass


_POLL_SECS = 0.05
_WATCH_SECS = 1.0


class SpoutFeed:
    """Runs the transactions of a topology's spouts (see `Feed`)."""

    def __init__(self, source: SpoutSource, coordinator: Coordinator, engine: PipelinedEngine) -> None:
        self._source = source
        self._coordinator = coordinator
        self._engine = engine
        self._ended = threading.Event()

    def run(self, started: Callable[[], None]) -> None:
        """Run transactions until the trigger asks for no more (see `Feed.run`)."""
        threading.Thread(target=logs.carrying(self._watch), name="statefx-hooks", daemon=True).start()
        try:
            self._source.open()
            started()
            self._coordinator.run(self._source)
        finally:
            self._ended.set()
            self._source.close()

    def _watch(self) -> None:
        """Warn of each hook on the driver that takes long: the loop that calls it waits for it."""
        progress, warned = self._coordinator.progress, None
        while not self._ended.wait(_WATCH_SECS):
            asked = progress.asked(SLOW_SECS)
            if asked is not None and asked != warned:
                logger.warning("%s: nothing is committed while it runs", asked.reason(progress.clock()))
                warned = asked

    def drain(self) -> None:
        """Begin no further transaction, and wait for the lowest one in flight (see `Feed.drain`)."""
        self._coordinator.stop()
        self._ended.wait()

    def cancel(self) -> None:
        if not self._ended.is_set():
            self._coordinator.stop(now=True)
            self._engine.stop()

    def process_all_available(self, ended: threading.Event) -> None:
        """Wait until the spouts had nothing more to read, and all that they had is committed."""
        enough = self._source.idle_looks + 2  # the first of them may have begun before this call
        while not ended.is_set() and self._source.idle_looks < enough:
            ended.wait(_POLL_SECS)

"""Where transactions come from: the micro-batches of a streaming query, or one batch DataFrame."""

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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.engine import RenewInputError, StoppedError
from statefx.coordinator.generation import check_newest
from statefx.coordinator.location import Folders
from statefx.coordinator.retrying import backoff_secs
from statefx.errors import (
    AttemptsExhaustedError,
    CheckpointMismatchError,
    FencedError,
    InputError,
    StatefxError,
    TransactionError,
)
from statefx.protocol.records import BatchInput, SourceNotes, StreamInput
from statefx.spark.checkpoint import SparkCheckpoint
from statefx.spark.compaction import DEFAULT, SETTING
from statefx.spark.engine import SparkEngine
from statefx.spark.internals import clone, deny_log_lines, is_stopped, rebase

logger = logging.getLogger("statefx")

_ROLLBACK_SECS = 30.0
_POLL_SECS = 0.1
_CONTEXT_POLL_SECS = 1
_STOP_POLL_SECS = 0.01


class _QuietError(Exception):
    """Ends Spark's query as stopped; anything else with a long trace makes Spark's matching overflow its stack."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling statefx: java.lang.InterruptedException"
        )


class StreamFeed:
    """The micro-batches of one streaming query, over the united frame.

    `trigger` are arguments for Spark's ``trigger``; `interval_ms` is its interval, if the user has not asked for one.
    """

    def __init__(
        self,
        frame: DataFrame,
        folders: Folders,
        checkpoint: SparkCheckpoint,
        trigger: Mapping[str, Any],
        name: str,
        coordinator: Coordinator,
        engine: SparkEngine,
        interval_ms: int | None = None,
    ) -> None:
        self._frame = frame
        self._context = frame.sparkSession.sparkContext
        self._folders = folders
        self._checkpoint = checkpoint
        self._trigger = {kind: value for kind, value in trigger.items() if kind != "closeTime"}
        self._close_time = "closeTime" in trigger
        self._name = name
        self._coordinator = coordinator
        self._engine = engine
        self._interval_ms = interval_ms
        self._starting = threading.Lock()
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._draining = False
        self._idle = threading.Condition()
        self._busy = False

    def run(self, started: Callable[[], None]) -> None:
        """Run Spark's query until it ends (see `Feed.run`).

        A driver that was replaced may have lost its folder: whatever Spark says of that, it is FencedError.
        """
        try:
            self._checkpoint.rebuild(int(self._frame.sparkSession.conf.get(SETTING) or DEFAULT))
            self._run(started)
        except (FencedError, StoppedError):
            raise
        except Exception as error:
            self._check_newest(error)
            raise
        finally:
            self._checkpoint.remove()

    def _run(self, started: Callable[[], None]) -> None:
        restarts = 0
        # Spark cancels a query's jobs twice when it is stopped, and warns where there are none.
        deny_log_lines(self._context, r"Failed to cancel job group [-0-9a-f]{36}\.")
        if self._interval_ms is not None:  # our default is the *least* time between two transactions
            falling = rf"falling behind\. The trigger interval is {self._interval_ms} milliseconds"
            deny_log_lines(self._context, falling)
        while True:
            before = self._coordinator.log.state.committed
            with self._starting:  # the first batch may come before it has returned
                self._query = self._start()
            if self._draining:  # `cancel` may have come before there was a query to stop
                self._query.stop()
            started()
            again = self._ended(self._query)
            if again is None:
                break
            # From 1 again after each commit: what is limited is how often one transaction stands in the way (rule 6.8).
            restarts = 1 if self._coordinator.log.state.committed > before else restarts + 1
            if restarts > self._coordinator.shape.attempts_max:
                raise AttemptsExhaustedError(
                    f"Spark's query had to be started again {restarts} times, and transaction {before + 1} failed each "
                    f"time (topology.transaction.attempts.max); last: {again.message}",
                    **{**again.data, "attempts": restarts},
                ) from again
            logger.warning("Spark's query is started again: %s", again.message)
            if not self._coordinator.pause(backoff_secs(restarts, self._coordinator.retry_delay_secs)):
                break
            self._checkpoint.note()  # puts back where sources begin: Spark asks for it again before its first commit
        if self._error is not None:
            raise self._error
        self._checkpoint.note()
        if self._close_time and not self._draining:
            self._engine.bind(self._frame.sparkSession)
            self._coordinator.close_time(self._no_batch, _empty(self._frame, self._frame.sparkSession))

    def _no_batch(self) -> StreamInput:
        """Return the next batch, as one that reads nothing: Spark then goes on from there, as after its own."""
        state = self._coordinator.log.state
        assert isinstance(state.last_input, StreamInput)
        return replace(state.last_input, batch_id=state.committed, notes=SourceNotes())

    def _ended(self, query: StreamingQuery) -> RenewInputError | None:
        """Wait for the end of Spark's query; return why it has to be started again, if it has."""
        failure: StreamingQueryException | None = None
        try:
            while not query.awaitTermination(_CONTEXT_POLL_SECS):
                self._check_context(query)
                self._note(query)
        except StreamingQueryException as error:
            failure = error
        again = None
        if isinstance(self._error, RenewInputError):
            again, self._error = self._error, None
        if self._error is not None or self._draining:
            return None
        if failure is not None and again is None:
            raise self._input_error(failure) from failure
        self._check_newest()  # another driver in this session ends Spark's query without an error
        return again

    def _check_context(self, query: StreamingQuery) -> None:
        """End a query that waits for input on a SparkContext that was stopped: Spark itself would look for ever."""
        if not self._busy and is_stopped(self._context):
            _stop(query)
            raise StoppedError("the SparkContext was stopped")

    def _note(self, query: StreamingQuery) -> None:
        """Log where sources begin, while none has brought a row."""
        try:
            if not self._busy:
                self._checkpoint.note()
        except Exception:
            _stop(query)
            raise

    def _input_error(self, failure: StreamingQueryException) -> InputError:
        """Tell what Spark's words mean for the topology: they speak of its own query and files alone."""
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
        """Begin no further transaction, and wait for the one under way (see `Feed.drain`)."""
        with self._idle:
            self._draining = True
            self._idle.wait_for(lambda: not self._busy)

    def cancel(self) -> None:
        """Cancel what runs (see `Feed.cancel`)."""
        self._draining = True
        self._engine.stop()
        with self._idle:  # stopping Spark's query interrupts whatever runs, a rollback too
            self._idle.wait_for(lambda: not self._busy, _ROLLBACK_SECS)
        if self._query is not None:
            self._query.stop()

    def process_all_available(self, ended: threading.Event) -> None:
        """Wait for all input that is there now (see `Feed.process_all_available`)."""
        while not ended.is_set():
            query = self._query
            assert query is not None
            with contextlib.suppress(StreamingQueryException):  # `run` knows what it means
                query.processAllAvailable()
                if query.isActive:
                    return
            ended.wait(_POLL_SECS)  # it is started again, or has ended

    def _start(self) -> StreamingQuery:
        """Start Spark's query; one of a former driver in this session, which has the same name, is stopped.

        Spark ends it too, as it has the same id, but looks at the names first.
        """
        writer = self._frame.writeStream.foreachBatch(self._on_batch).outputMode("update").queryName(self._name)
        writer = writer.option("checkpointLocation", f"file:{self._checkpoint.folder}").trigger(**self._trigger)
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
        """Take one micro-batch through the protocol; returns only once its transaction can't be rolled back."""
        with self._idle:
            # Rule 6.10: by an error, since Spark would count as done a batch whose callback returns.
            if self._draining or self._error is not None:
                raise _QuietError
            self._busy = True
        query: StreamingQuery | None = None
        try:
            with self._starting:  # held until `_start` has returned: Spark may call before that
                query = self._query
            assert query is not None
            self._engine.bind(frame.sparkSession, query)
            self._take(frame, batch_id, query)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a callback would hang Spark's query
            self._error = error
            self._end_quietly(query)
            raise _QuietError from None
        finally:
            with self._idle:
                self._busy = False
                self._idle.notify_all()

    def _end_quietly(self, query: StreamingQuery | None) -> None:
        """Stop Spark's query from within its own callback.

        One that ends by an error prints sixty lines of Spark's own stack, above which the user's are lost; one that was
        stopped prints none. ``stop`` returns when the callback has, so it is called in a thread of its own.
        """
        if query is None:
            return
        stopping = threading.Thread(target=_stop, args=(query,), name="statefx-end", daemon=True)
        stopping.start()
        # However long that takes: where the callback returns first, the stack is printed, and its end may come last.
        with contextlib.suppress(Py4JError):
            while query.isActive and stopping.is_alive():
                time.sleep(_STOP_POLL_SECS)

    def _take(self, frame: DataFrame, batch_id: int, query: StreamingQuery) -> None:
        state = self._coordinator.log.state
        batch = self._checkpoint.batch(query.id, batch_id)
        txid = batch_id + 1
        if txid == state.committed + 1:
            self._coordinator.transact(self._checkpoint.with_notes(batch), frame)
        elif txid == state.committed and batch.is_batch_of(state.last_input):
            # Rule 3.7: query and offsets are equal too. By its number alone the batch of another query, or of a folder
            # that somebody has put back, would be taken for one that is committed.
            logger.info("transaction %d is committed: Spark's batch %d is passed over", txid, batch_id)
        else:
            raise CheckpointMismatchError(
                f"Spark's batch {batch_id} of query {query.id} would be transaction {txid}, but transaction "
                f"{state.committed} is the last one committed (by {state.last_input}). Spark's folder, "
                f"{self._checkpoint.folder}, was changed while the query was at work: submit again",
                txid=txid,
                committed=state.committed,
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


def _empty(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return a frame of the same fields without rows."""
    return session.createDataFrame([], frame.schema)


def _stop(query: StreamingQuery) -> None:
    with contextlib.suppress(Py4JError, PySparkException):  # its error is the one that is raised
        query.stop()


class BatchFeed:
    """One batch DataFrame: one transaction. The same `batch_id`, or a lower one, is never applied twice."""

    def __init__(
        self,
        frame: DataFrame,
        batch_id: int | None,
        spark: SparkSession,
        coordinator: Coordinator,
        engine: SparkEngine,
        *,
        close_time: bool = False,
    ) -> None:
        self._frame = frame
        self._batch_id = batch_id
        self._spark = spark
        self._coordinator = coordinator
        self._engine = engine
        self._close_time = close_time
        self._done = threading.Event()

    def run(self, started: Callable[[], None]) -> None:
        """Run the one transaction (see `Feed.run`)."""
        session = clone(self._spark)  # jobs need settings of their own, and the user's session keeps its own
        started()
        try:
            state = self._coordinator.log.state
            # The log says which ids were applied, and says it together with their effect: no crash parts the two.
            if self._batch_id is not None and state.applied(self._batch_id):
                logger.info("batch %d was applied before: nothing to do", self._batch_id)
            else:
                self._engine.bind(session)
                self._coordinator.transact(BatchInput(self._batch_id), rebase(self._frame, session))
            if self._close_time:
                self._engine.bind(session)
                self._coordinator.close_time(BatchInput, _empty(self._frame, session))
        except RenewInputError as error:
            raise TransactionError(
                f"the transaction was rolled back ({error.message}), and can't be tried again over this DataFrame: it "
                "stands on an RDD or a cache with shuffles of its own, of which Spark may keep a part and compute "
                "the rest again, with other rows. Make the DataFrame again and submit it, or write it to files first.",
                **error.data,
            ) from error
        finally:
            self._done.set()

    def drain(self) -> None:
        """Wait for the transaction (see `Feed.drain`)."""
        self._done.wait()

    def cancel(self) -> None:
        """Cancel it (see `Feed.cancel`)."""
        if not self._done.is_set():
            self._engine.stop()

    def process_all_available(self, ended: threading.Event) -> None:
        """Wait for the transaction (see `Feed.process_all_available`)."""
        while not ended.wait(_POLL_SECS):  # in pieces: see `Query._wait`
            pass

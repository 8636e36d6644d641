"""The executors of a session, on which pieces of a tool's work are done."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statefx.admin.reading import Progress
from statefx.admin.rescaling import Rescaling, rescale
from statefx.admin.routing import GroupingKey
from statefx.admin.work import P, R, Report
from statefx.errors import StatefxError
from statefx.log.location import Folders
from statefx.spark import internals
from statefx.spark.failures import job_error, without_internal_frames
from statefx.spark.job import DESCRIPTION
from statefx.spark.session import check_session, is_local

_CLOSED_MAX = 10
"""So many workers without a connection are passed over for one job."""

_REPORT_SECS = 0.5
"""So often progress is reported: Spark adds up what tasks report when they end."""


class Executors:
    """The executors of a session; a piece whose worker or machine is lost is done again, as Spark tries a task.

    `session` is a classic one; `what` is the job's name in Spark's UI.
    """

    def __init__(self, session: SparkSession, what: str) -> None:
        self._context = session.sparkContext
        self._what = what

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        return int(self._context.defaultParallelism)

    def run(self, work: Callable[[P, Report], R], pieces: Sequence[P], report: Report) -> Iterable[R]:
        """Return what `work` returns for each piece; it raises the StatefxError of `work`.

        JobFailedError, TransactionError: Spark could not do a piece.
        """
        try:
            outcomes = with_open_workers(lambda: self._outcomes(work, pieces, report))
        except (PySparkException, Py4JError) as error:
            found = job_error(error, local=is_local(self._context))
            says = f"{self._what}: Spark could not do it, and nothing was changed; do it again. {found.message}"
            raise type(found)(says, **found.data) from error
        return map(_checked, outcomes)

    def _outcomes(self, work: Callable[[P, Report], R], pieces: Sequence[P], report: Report) -> list[R | StatefxError]:
        context, tag = self._context, f"statefx-{uuid.uuid4().hex}"
        done = context.accumulator(0)
        job = internals.wrapped(context.parallelize(pieces, len(pieces)).map(partial(_outcome, work, done)))
        try:
            with internals.own_properties(context) as own, _Reporting(done, report):
                context.addJobTag(tag)
                own.setProperty(DESCRIPTION, self._what)
                found: list[R | StatefxError] = job.collect()
                return found
        finally:  # after an interrupt it would go on
            if not internals.stopped_here(context):
                context.cancelJobsWithTag(tag)


def with_open_workers(job: Callable[[], R]) -> R:
    """Return what `job` returns, which changes nothing; repeat it if Spark gives it a worker without a connection.

    Each failure takes such a worker away.
    """
    for _ in range(_CLOSED_MAX):
        try:
            return job()
        except (PySparkException, Py4JError) as error:
            if not internals.got_closed_worker(error):
                raise
    return job()


def _outcome(work: Callable[[P, Report], R], done: Accumulator[int], piece: P) -> R | StatefxError:
    """Do a piece; an error of ours is an outcome: the next try would end with the same."""
    try:
        return work(piece, done.add)
    except StatefxError as error:
        return error


def _checked(outcome: R | StatefxError) -> R:
    if isinstance(outcome, StatefxError):
        raise outcome
    return outcome


class _Reporting:
    """Reports what the tasks that have ended have reported, until the block ends."""

    def __init__(self, done: Accumulator[int], report: Report) -> None:
        self._done, self._report = done, report
        self._known = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statefx-reporting", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._flush()

    def _run(self) -> None:
        while not self._ended.wait(_REPORT_SECS):
            self._flush()

    def _flush(self) -> None:
        now = self._done.value
        if now > self._known:
            self._report(now - self._known)
            self._known = now


def rescale_on(
    spark: SparkSession,
    folders: Folders,
    config: Mapping[str, Any] | None,
    tasks: Mapping[str, int],
    grouping_key: Mapping[str, GroupingKey] | None,
    progress: Progress | None,
) -> Rescaling:
    """Give bolts other numbers of tasks, by the executors of a session."""
    workers = Executors(check_session(spark, "rescale"), "statefx: rescale")
    try:
        return rescale(folders, config, tasks, grouping_key=grouping_key, progress=progress, workers=workers)
    except StatefxError as error:
        raise without_internal_frames(error, "rescale ended") from error.__cause__
